//! Pins the keys of a peer to connect to.

use keypadd_provider::{PinnedServer, PublicKey};

use crate::error::{Error, Exit};

/// The server's keys, each of which is accepted.
///
/// # Errors
/// There is none.
pub(crate) fn pinned(keys: &[PublicKey]) -> Result<PinnedServer, Error> {
    let (first, others) =
        keys.split_first().ok_or_else(|| Error::new(Exit::Config, "the peer has no public-key"))?;
    Ok(PinnedServer::one_of(*first, others.iter().copied()))
}
