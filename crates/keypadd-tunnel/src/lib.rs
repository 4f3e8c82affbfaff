//! TCP over QUIC: endpoints, peers, permits, forwards.
//!
//! A [`Server`] lets listed peers in and connects their streams to permitted targets; a [`Client`]
//! binds local listeners, reaches one server and carries each TCP connection over a stream of its
//! own. Packet protection comes in from outside as quinn's crypto configurations: this crate never
//! sees a key or a pad, only the public key that a handshake has proved.

mod forward;
mod permit;
mod socket;
mod splice;
mod target;
mod transport;
pub mod wire;

pub use forward::{Bind, ForwardError, ForwardFault, LocalForward};
pub use permit::{Permit, PermitError, PermitFault, Permits};
pub use target::{AddressError, DEFAULT_PORT, Host, ServerAddress, Target};
pub use transport::{Congestion, CongestionError, TransportSettings};
