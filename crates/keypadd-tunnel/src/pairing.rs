//! Pairs two hosts: one invites, the other joins, and each learns the other's key.
//!
//! An [`Invitation`] is a line of text that a person carries from one to the other. The messages
//! are in docs/protocol.md, "Pairing". Knows no files: the caller decides what to write when,
//! between [`Joiner::accept`] and [`Joiner::done`] at one end,
//! [`Client::join`](crate::Client::join) and [`Joined::confirm`](crate::Joined::confirm) at the
//! other.

pub(crate) mod invitation;
pub(crate) mod inviter;

use std::time::Duration;

use keypadd_provider::PAIRING_PROOF_BYTES;

use crate::addresses::forward::Forward;
use crate::transport::TransportSettings;

pub use invitation::{Invitation, InvitationError};
pub use inviter::{InviteError, Inviter, InviterSettings, Joiner};

/// Version of the messages, the first byte of the first one.
pub(crate) const VERSION: u8 = 1;

/// The joining end's first message: version and proof.
pub(crate) const JOIN_BYTES: usize = 1 + PAIRING_PROOF_BYTES;

/// The joining end has written its files.
pub(crate) const JOINED: u8 = 1;

/// The inviting end has written its own.
pub(crate) const DONE: u8 = 2;

/// Timeout for one message, which may wait for files to be written.
pub(crate) const MESSAGE_TIMEOUT: Duration = Duration::from_secs(10);

/// UDP buffers: a pairing has few packets.
const UDP_BUFFER_BYTES: usize = 128 << 10;

/// The transport of either end.
pub(crate) fn transport() -> TransportSettings {
    TransportSettings {
        loops: 1,
        udp_buffer_bytes: UDP_BUFFER_BYTES,
        ..TransportSettings::default()
    }
}

/// Reads the forward that the inviting end suggests. `None` if it is not a forward, or if its text
/// has characters that a shell would expand, since a person pastes it. So it never listens on a
/// wildcard address.
pub fn suggested(text: &str) -> Option<Forward> {
    let (flag, forward) = text.split_once(' ')?;
    let forward = match flag {
        "-L" => Forward::Local(forward.parse().ok()?),
        "-R" => Forward::Remote(forward.parse().ok()?),
        "-D" => Forward::Dynamic(forward.parse().ok()?),
        _ => return None,
    };
    let is_harmless = |c: char| c.is_ascii_alphanumeric() || "-_.:/[]%@".contains(c);
    let shown = forward.to_string();
    shown.strip_prefix(flag)?.strip_prefix(' ')?.chars().all(is_harmless).then_some(forward)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_suggestion_is_a_forward_that_no_shell_changes() {
        for text in ["-L 2222:localhost:22", "-R 8080:localhost:80", "-D 1080", "-L 1:/run/a.sock"]
        {
            assert_eq!(suggested(text).unwrap().to_string(), text);
        }
        for text in
            ["", "-L", "-L x", "-W a:1", "-L 1:a:1; reboot", "-L 1:/a`b", "-D 1 -D 2", "-D *:1"]
        {
            assert_eq!(suggested(text), None, "{text}");
        }
    }
}
