//! Turns a peer's keys into what a client's handshake accepts; a peer without any is a fault of the
//! file.

use keypadd_cli::error::{Error, Exit};
use keypadd_provider::{PinnedServer, PublicKey};

/// Accepts any of these keys.
///
/// # Errors
/// Exit 3: there are no keys.
pub(crate) fn pinned(keys: &[PublicKey]) -> Result<PinnedServer, Error> {
    let (first, others) =
        keys.split_first().ok_or_else(|| Error::new(Exit::Config, "the peer has no public-key"))?;
    Ok(PinnedServer::one_of(*first, others.iter().copied()))
}
