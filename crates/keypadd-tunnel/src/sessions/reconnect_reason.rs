//! Names what ended the session before a reconnect, as labels of a metric.

use keypadd_transport::ConnectionError;

use crate::{
    sessions::session_end::{SessionEnd, close_code},
    wire::CloseCode,
};

/// Declares the reasons, all of them as a list, and their labels.
macro_rules! reconnect_reasons {
    ($($(#[doc = $doc:literal])+ $reason:ident: $label:literal,)+) => {
        /// What ended the session before a reconnect.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
        pub enum ReconnectReason {
            $($(#[doc = $doc])+ $reason,)+
        }

        impl ReconnectReason {
            /// All reasons. Metrics have each from the start: a counter that begins at 1 does not
            /// increase.
            pub const ALL: &[Self] = &[$(Self::$reason,)+];

            /// The label of the metric, also shown by `status`.
            pub fn label(self) -> &'static str {
                match self {
                    $(Self::$reason => $label,)+
                }
            }
        }
    };
}

reconnect_reasons! {
    /// A clock jumped at either end; the client reconnects at once.
    Clock: "clock",
    /// The peer closed the connection for another reason.
    Closed: "closed",
    /// The session ran longer than the peer's key is valid.
    Expired: "expired",
    /// The server does not know the connection, after a restart or a clock jump: a stateless reset
    /// (RFC 9000 10.3).
    Forgotten: "forgotten",
    /// Packet protection failed.
    Key: "key",
    /// The keys reached their age without being renewed.
    KeysTooOld: "keys-too-old",
    /// The session moved to another address of the server.
    Moved: "moved",
    /// An end did not follow the tunnel's protocol.
    Protocol: "protocol",
    /// Another client with the same key took its place.
    Replaced: "replaced",
    /// The session continues on another connection.
    Resumed: "resumed",
    /// An end shut down.
    Shutdown: "shutdown",
    /// The peer did not answer.
    Silent: "silent",
    /// QUIC failed.
    Transport: "transport",
    /// The peer's key is no longer listed.
    Unlisted: "unlisted",
}

impl From<&SessionEnd> for ReconnectReason {
    fn from(end: &SessionEnd) -> Self {
        match end {
            SessionEnd::Connection(ConnectionError::TimedOut) => Self::Silent,
            SessionEnd::Connection(ConnectionError::Reset) => Self::Forgotten,
            SessionEnd::Connection(error @ ConnectionError::ApplicationClosed(_)) => {
                match close_code(error) {
                    Some(CloseCode::Shutdown) => Self::Shutdown,
                    Some(CloseCode::KeyFault) => Self::Key,
                    Some(CloseCode::Protocol) => Self::Protocol,
                    Some(CloseCode::Replaced) => Self::Replaced,
                    Some(CloseCode::Unlisted) => Self::Unlisted,
                    Some(CloseCode::Hold) => Self::Resumed,
                    Some(CloseCode::KeyFull | CloseCode::NotPaired) | None => Self::Closed,
                }
            }
            SessionEnd::Connection(_) => Self::Transport,
            SessionEnd::Key(_) => Self::Key,
            SessionEnd::Control(_) => Self::Protocol,
            SessionEnd::Clock(_) => Self::Clock,
            SessionEnd::Replaced => Self::Replaced,
            SessionEnd::Unlisted => Self::Unlisted,
            SessionEnd::Expired => Self::Expired,
            SessionEnd::Resumed | SessionEnd::HandedOver => Self::Resumed,
            SessionEnd::KeysTooOld => Self::KeysTooOld,
            SessionEnd::Shutdown | SessionEnd::Drained => Self::Shutdown,
        }
    }
}
