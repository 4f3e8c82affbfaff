//! Provides packet protection for quinn on a pool of keystream; the only crate that sees TLS keys.
//!
//! rustls runs the handshake; the suites, key-exchange groups, identities and packet keys are ours.
//! One file per capability, as in rustls's own providers. Knows no sockets, streams or tokio. See
//! `docs/protocol.md` for the wire format, and `docs/argument.md` for the security argument.

#[cfg(test)]
mod battery;
mod calibration;
mod config;
mod connection;
mod fault;
mod handshake_errors;
mod histogram;
mod identity;
mod key_extraction;
mod kx;
mod limits;
mod meters;
mod open;
mod pairing;
mod parameters;
mod phases;
mod pool_switch;
mod protection;
mod refusal;
mod renewal;
mod retry;
mod seal;
mod seal_costs;
mod secret_memory;
mod secret_proof;
mod session;
mod session_token;
mod suites;
mod test_hooks;
mod tickets;
mod usage;
mod verify;
mod window;
mod wiped_stack;

pub use calibration::{
    POOL_WINS, SealTimes, TIMED_BYTES, opening_cost, seal_times, worth_pooling, worth_pooling_mix,
};
pub use config::{
    ALPN, ConfigError, CryptoSettings, client_config, client_config_with, inviter_config,
    joiner_config, server_config, server_config_with,
};
pub use connection::{ConnectionKeys, DirectionStatus, HandshakeData, ProvedPeer};
pub use fault::KeyFault;
pub use histogram::Histogram;
pub use identity::{KeyTextError, PrivateKey, PublicKey, ResetKeys, ServerResetKey};
pub use keypadd_pool::PoolAllowance;
pub use kx::measured::{MeasureKeyExchange, UnknownMeasureKeyExchange};
pub use kx::{Group, KeyExchange, UnknownKeyExchange};
pub use meters::{Meters, PacketStage, SAMPLED_ONE_IN};
pub use pairing::{PAIRING_PROOF_BYTES, PAIRING_SECRET_BYTES, PairingSecret, PairingStep};
pub use pool_switch::PoolSwitch;
pub use refusal::Refusal;
pub use renewal::{Renew, Renewal};
pub use seal_costs::{SealCosts, seal_costs};
pub use session_token::{
    Assertion, Channel, SESSION_TOKEN_BYTES, SessionToken, TOKEN_PROOF_BYTES, TokenProof,
};
pub use test_hooks::TestHooks;
pub use verify::{AllowList, ListedClients, PinnedServer};
