//! Describes why a session ended, as text and as the code sent to the peer, and quotes what peers
//! say.

use std::fmt;

use keypadd_provider::KeyFault;
use keypadd_transport::ConnectionError;
use thiserror::Error;

use crate::{clock::jump::Jump, sessions::control::ControlError, wire::CloseCode};

/// Why a session ended.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum SessionEnd {
    /// The connection failed, or the peer closed it.
    #[error("{}", Shown(.0))]
    Connection(ConnectionError),
    /// Its keys must no longer be used.
    #[error(transparent)]
    Key(KeyFault),
    /// The peer violated the control protocol.
    #[error(transparent)]
    Control(ControlError),
    /// A clock of this host jumped.
    #[error("{0}")]
    Clock(Jump),
    /// A newer session of this client instance replaced it.
    #[error("replaced by a newer session of the same client")]
    Replaced,
    /// The client's key was removed from the list.
    #[error("its key was removed from the list of allowed keys")]
    Unlisted,
    /// The peer's valid-until has passed.
    #[error("its valid-until has passed")]
    Expired,
    /// The client instance moved to a newer connection.
    #[error("the client moved to another connection")]
    Resumed,
    /// Another process continues its streams.
    #[error("the daemon is being replaced by a new process")]
    HandedOver,
    /// Its keys have exceeded their lifetime, and the client has not renewed them.
    #[error("its keys are too old, and the client has not renewed them")]
    KeysTooOld,
    /// The server is shutting down.
    #[error("the server is shutting down")]
    Shutdown,
    /// The server drains, and the time for its connections to end is over.
    #[error("the server is draining, and the time for its open connections is over")]
    Drained,
}

impl SessionEnd {
    /// The code sent to the peer when this end closes the connection.
    pub(crate) fn code(&self) -> CloseCode {
        match self {
            // After a jump the egress gate drops it.
            Self::Connection(_)
            | Self::Shutdown
            | Self::Drained
            | Self::HandedOver
            | Self::Clock(_) => CloseCode::Shutdown,
            Self::Key(_) => CloseCode::KeyFault,
            Self::Control(_) => CloseCode::Protocol,
            Self::Replaced => CloseCode::Replaced,
            Self::Unlisted | Self::Expired => CloseCode::Unlisted,
            Self::Resumed | Self::KeysTooOld => CloseCode::Hold,
        }
    }

    /// Whether another connection may resume the session's streams.
    pub(crate) fn holds(&self) -> bool {
        match self {
            Self::Connection(error) => holds(error),
            Self::Clock(_) | Self::Resumed | Self::HandedOver | Self::KeysTooOld => true,
            _ => false,
        }
    }

    /// Whether listeners stay open for a next session. They do if the next one is here already, if
    /// the client said that it will be back (a new process may be replacing it), or if this process
    /// is being replaced, as the client comes back here if that fails.
    pub(crate) fn leaves_listeners(&self) -> bool {
        match self {
            Self::Connection(error) => close_code(error) == Some(CloseCode::Hold),
            Self::Resumed | Self::HandedOver => true,
            _ => false,
        }
    }
}

/// Whether streams are held after a connection ends for this reason.
pub(crate) fn holds(error: &ConnectionError) -> bool {
    keypadd_transport::holds(error, Some(CloseCode::Hold.value().into()))
}

/// The code with which the peer closed the connection, if it did and this version knows it.
pub(crate) fn close_code(error: &ConnectionError) -> Option<CloseCode> {
    let ConnectionError::ApplicationClosed(close) = error else { return None };
    CloseCode::from_value(close.error_code.into_inner())
}

/// Shows a connection error on one line. The peer's text is quoted, so that it cannot pass for
/// ours, and [`printable`].
pub(crate) struct Shown<'a>(pub(crate) &'a ConnectionError);

impl fmt::Display for Shown<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            ConnectionError::ApplicationClosed(close) if !close.reason.is_empty() => {
                write!(f, "closed by peer: {}", quoted(&String::from_utf8_lossy(&close.reason)))
            }
            ConnectionError::TimedOut => f.write_str("timeout"),
            ConnectionError::ConnectionClosed(close) if !close.reason.is_empty() => {
                let reason = quoted(&String::from_utf8_lossy(&close.reason));
                write!(f, "closed by peer: {}: {reason}", close.error_code)
            }
            error => f.write_str(&printable(&error.to_string())),
        }
    }
}

/// Longest text of a peer that is shown, in characters.
const SHOWN_CHARS: usize = 200;

/// A peer's text in quotation marks.
fn quoted(text: &str) -> String {
    format!("\"{}\"", printable(text).replace('"', "'"))
}

/// Makes a peer's text safe to print on a terminal and in a log line: control characters, line
/// separators and those that change the direction of text become `?`, and a long text is cut.
pub fn printable(text: &str) -> String {
    let mut shown: String =
        text.chars().take(SHOWN_CHARS).map(|c| if is_printable(c) { c } else { '?' }).collect();
    if text.chars().nth(SHOWN_CHARS).is_some() {
        shown.push_str("...");
    }
    shown
}

/// Whether it is neither a control character nor an invisible one that reorders, joins or separates
/// what is shown (UAX #9, UTS #36).
pub fn is_printable(c: char) -> bool {
    let invisible = matches!(c,
        '\u{ad}' | '\u{61c}' | '\u{180e}' | '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}'
        | '\u{2060}'..='\u{206f}' | '\u{feff}' | '\u{fff9}'..='\u{fffb}'
        | '\u{e0000}'..='\u{e007f}');
    !invisible && !c.is_control()
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;
    use keypadd_transport::{ApplicationClose, VarInt};

    use super::*;

    #[test]
    fn a_peers_reason_is_quoted_and_cannot_move_the_cursor_or_turn_text_around() {
        let reason = "x\" peer=root\n\u{1b}[2J\u{202e}drow\u{2066}\u{200b}\u{2028}";
        let close = ApplicationClose {
            error_code: VarInt::from_u32(1),
            reason: Bytes::from_static(reason.as_bytes()),
        };
        let shown = Shown(&ConnectionError::ApplicationClosed(close)).to_string();
        assert_eq!(shown, "closed by peer: \"x' peer=root??[2J?drow???\"");
    }

    #[test]
    fn a_long_text_of_a_peer_is_cut() {
        assert_eq!(printable(&"x".repeat(5_000)).len(), SHOWN_CHARS + 3);
    }
}
