//! Packet protection for quinn, on a pool of keystream; the only crate that sees TLS keys.
//!
//! rustls runs the handshake; the suites, the key-exchange groups, the identities and the packet
//! keys are ours. One file per capability, as in rustls's own providers. Knows no sockets, no
//! streams and no tokio. See `docs/DESIGN.md` for the wire format and the security argument.

#[cfg(test)]
mod battery;
mod carrier;
mod config;
mod connection;
mod fault;
mod histogram;
mod identity;
mod kx;
mod limits;
mod meters;
mod open;
mod parameters;
mod pays;
mod phases;
mod protection;
mod refusal;
mod renewal;
mod retry;
mod seal;
mod seams;
mod session;
mod suites;
mod supply;
mod tickets;
mod verify;
mod window;

pub use config::{
    ALPN, ConfigError, CryptoSettings, client_config, client_config_with, server_config,
    server_config_with,
};
pub use connection::{ConnectionKeys, DirectionStatus, HandshakeData};
pub use fault::KeyFault;
pub use histogram::Histogram;
pub use identity::{KeyTextError, PrivateKey, PublicKey};
pub use keypadd_pool::Allowance;
pub use kx::{
    Group, KeyExchange, MeasureKeyExchange, UnknownKeyExchange, UnknownMeasureKeyExchange,
};
pub use meters::{Meters, PacketStage, SAMPLED_ONE_IN};
pub use pays::{SealTimes, TIMED_BYTES, pool_pays, seal_times};
pub use renewal::{Renew, Renewal};
pub use seams::Seams;
pub use supply::Supply;
pub use verify::{AllowList, ListedClients, PinnedServer, RefusedKey};
