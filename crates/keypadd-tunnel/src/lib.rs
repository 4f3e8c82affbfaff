//! TCP over QUIC: endpoints, peers, permits, forwards.
//!
//! A [`Server`] lets listed peers in and connects their streams to permitted targets; a [`Client`]
//! binds local listeners, reaches one server and carries each TCP connection over a stream of its
//! own. Packet protection comes in from outside as `quinn-proto` crypto configurations: this crate never
//! sees a key or a pad, only the public key that a handshake has proved.

#![cfg_attr(test, allow(clippy::unwrap_used))]

mod client;
mod clock;
mod error;
mod forwards;
mod log_rate_limit;
mod net;
mod permits;
mod server;
mod sessions;
mod spec;
mod transport;
pub mod wire;

pub use client::{Client, ClientSession, ClientSettings};
pub use clock::jump::{Clocks, Jump, Readings, SystemClocks};
pub use error::{AuthError, BindError, ClientError};
pub use forwards::{listen::Bound, socks};
pub use keypadd_transport::{LoopMeter, SpinShare};
pub use permits::{
    listen::{ListenPermit, ListenPermits},
    open::{Permit, Permits},
    pattern::{PermitError, PermitFault},
    peers::{AllowedPeer, DuplicateKey, Peers},
};
pub use server::{Server, ServerHandle, ServerSettings};
pub use sessions::{
    control::{ControlError, read_frame},
    server_link::Link,
    session::{LiveSession, Lost, Sessions},
    status::{ForwardStatus, LinkState, LinkStatus, Role, SessionStatus},
};
pub use spec::{
    forward::{
        BenchForward, Bind, DynamicForward, Forward, ForwardError, ForwardFault, Goal, Listen,
        LocalForward, RemoteForward,
    },
    socket_path::{SocketPath, SocketPathError},
    target::{AddressError, DEFAULT_PORT, Host, ServerAddress, Target},
};
pub use transport::{Congestion, CongestionError, TransportSettings};
