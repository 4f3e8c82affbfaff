//! Runs QUIC connections, the sockets spliced to their streams, and UDP flows in event loops.
//!
//! A loop is a thread that owns a UDP socket, its `quinn-proto` endpoint and connections, the TCP
//! and unix sockets of their streams, and the UDP sockets of their flows. It reads and opens a
//! datagram, writes the content to its socket, and seals and sends the answer, without waking
//! another thread. Control code (hellos, names, permits) holds [`Connection`] and [`Stream`]
//! handles, which talk to the loop by messages.
//!
//! Knows no permits, names, configuration or keys: packet protection comes in as `quinn-proto`'s
//! crypto configurations, and what a handshake has proved goes out through [`Inspect`].

#![cfg_attr(test, allow(clippy::unwrap_used))]

mod admission;
mod announcement;
mod channel;
mod cid;
mod connection;
mod counters;
mod datagrams;
mod dial;
mod driver;
mod endpoint;
mod event_loop;
mod flight;
mod flows;
mod freed_memory;
mod gate;
mod handed;
mod handed_controller;
mod handshake;
mod held;
mod intake;
#[cfg(test)]
mod limits;
mod mailbox;
mod not_sent;
mod owed;
mod pacer;
mod queue_state;
mod randomness;
mod rate_cap;
mod reassembly;
mod receipts;
mod receive_buffers;
mod replay;
mod route;
mod settings;
mod socket;
mod spin;
mod splice;
mod steering;
mod stepped;
mod stream;
mod stream_credit;
mod sync;
mod time_share;
mod to_socket;
mod to_stream;
mod token_key;
mod transfer_stats;
mod udp;
mod unanswered;
mod windows;

pub use admission::Refusals;
pub use cid::{LOOPS_MAX, Purpose, ServerId};
pub use connection::Connection;
pub use counters::LoopMeter;
pub use dial::{ConnectingError, Dial};
pub use driver::ack_eliciting;
pub use endpoint::Endpoint;
pub use flight::KEPT_PER_FLIGHT;
pub use flows::{
    fragments::{Fragments, PARTIAL_BYTES_MAX},
    frame::{DATAGRAM_BYTES_MAX, FlowFrame, Fragment},
    handles::{Flow, FlowEnd, FlowListener, SocketLease, Source},
    network::{Outbound, PacketDevice, PacketFilter, PacketPath, Ruling},
    readers::{PacketRole, Paused},
};
pub use freed_memory::keep_freed_memory;
pub use handed::{HandedStream, StreamRecord};
pub use handshake::{Accepted, Connecting, HandshakeFailed, Refusal};
pub use held::{HeldStream, HeldStreams};
pub use keypadd_congestion as congestion;
pub use not_sent::NotSent;
pub use quinn_proto::{
    ApplicationClose, ClientConfig, ConnectError, ConnectionClose, ConnectionError,
    ConnectionStats, EcnCodepoint, EndpointConfig, IdleTimeout, ServerConfig, TransportConfig,
    TransportErrorCode, VarInt, crypto,
};
pub use rate_cap::RateCap;
pub use replay::{BadReceipt, Receipt, Replay, ReplayBudget, STREAM_MIN_BYTES};
pub use route::mtu_discovery;
pub use settings::{
    EndpointSettings, FLOW_IDLE, Inspect, LoopLimits, MakeTransport, MemoryBudgets, OnReset,
    OpeningCost, Plan, Streams, holds,
};
pub use socket::Socket;
pub use spin::{SpinShare, SpinShareError};
pub use splice::{Cut, Delivery, Label, StreamName};
pub use stepped::{ArrivedDatagram, Outbox, SentDatagrams, SteppedLoop};
pub use stream::{ReadError, RecvHalf, SendHalf, Splice, Stopped, Stream, WriteError};
pub use transfer_stats::TransferStats;
pub use udp::{Egress, Offloads};
pub use windows::Windows;
