//! Holds the result of a handshake: the peer's public key, the connection as proofs of tokens name
//! it, and the negotiated packet protection.

use std::sync::Arc;

use keypadd_provider::{Channel, HandshakeData, PublicKey};
use keypadd_transport::Connection;

/// The result of a handshake.
pub(crate) struct Proof {
    pub(crate) key: PublicKey,
    pub(crate) channel: Channel,
    pub(crate) handshake: HandshakeData,
}

/// The proof of a connection; `None` if its packet protection is not ours.
pub(crate) fn proof_of(connection: &Connection) -> Option<Arc<Proof>> {
    connection.proof()
}
