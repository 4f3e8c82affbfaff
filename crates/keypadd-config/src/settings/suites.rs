//! Lists suite names for help texts, and picks the suites that a client offers.

use keypadd_keystream::{Suite, has_aes_gcm};

/// The names of the suites, for help texts.
pub(super) const SUITES: &str = "Standard: aes-256-gcm, aes-128-gcm, chacha20-poly1305. Only \
    where a server lists them: keypadd's own aes-{256,128}-ctr-hmac-{sha256,sha1}, and with \
    allow-legacy, insecure, {3des,des}-ctr-hmac-{sha256,sha1}.";

/// The suites that a client offers: the configured one, else those of [`Suite::offered`] on this
/// CPU.
pub fn offered(set: Option<Suite>) -> Vec<Suite> {
    set.map_or_else(|| Suite::offered(has_aes_gcm()).to_vec(), |suite| vec![suite])
}
