//! TCP over QUIC: endpoints, peers, permits, forwards.
//!
//! A [`Server`] lets listed peers in and connects their streams to permitted targets; a [`Client`]
//! binds local listeners, reaches one server and carries each TCP connection over a stream of its
//! own. Packet protection comes in from outside as `quinn-proto` crypto configurations: this crate never
//! sees a key or a pad, only the public key that a handshake has proved.

#![cfg_attr(test, allow(clippy::unwrap_used))]

mod accept;
mod answer;
mod carried;
mod client;
mod clock;
mod control;
mod dial;
mod egress;
mod entrances;
mod error;
mod forward;
mod forwarded;
mod link;
mod listen;
mod lookup;
mod notices;
mod pattern;
mod peer;
mod permit;
mod permit_listen;
mod proxy;
mod publish;
mod published;
mod remotes;
mod renew;
mod server;
mod session;
mod socket;
mod socket_path;
pub mod socks;
mod source;
mod splice;
mod status;
mod stream;
mod tally;
mod target;
mod transport;
mod unix_listener;
pub mod wire;

pub use client::{Client, ClientSession, ClientSettings};
pub use clock::{Clocks, Jump, Readings, SystemClocks};
pub use control::{ControlError, read_frame};
pub use error::{AuthError, BindError, ClientError};
pub use forward::{
    BenchForward, Bind, DynamicForward, Forward, ForwardError, ForwardFault, Goal, Listen,
    LocalForward, RemoteForward,
};
pub use keypadd_transport::{LoopMeter, SpinShare};
pub use link::Link;
pub use listen::Bound;
pub use pattern::{PermitError, PermitFault};
pub use peer::{AllowedPeer, DuplicateKey, Peers};
pub use permit::{Permit, Permits};
pub use permit_listen::{ListenPermit, ListenPermits};
pub use server::{Server, ServerHandle, ServerSettings};
pub use session::{LiveSession, Lost, Sessions};
pub use socket_path::{SocketPath, SocketPathError};
pub use status::{ForwardStatus, LinkState, LinkStatus, Role, SessionStatus};
pub use target::{AddressError, DEFAULT_PORT, Host, ServerAddress, Target};
pub use transport::{Congestion, CongestionError, TransportSettings};
