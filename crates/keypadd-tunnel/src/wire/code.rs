//! Numbers that say why a stream, a connection or a listener is not to be had.

use std::fmt;

/// Why a stream ended early: the code of RESET_STREAM and STOP_SENDING (RFC 9000 19.4, 19.5).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum StreamCode {
    /// The target refused the connection.
    Refused,
    /// No permit of this client names the target.
    NotPermitted,
    /// The target's name does not resolve.
    NameNotFound,
    /// There is no way to the target.
    Unreachable,
    /// The target did not answer in time.
    TimedOut,
    /// The TCP connection at the other end was reset.
    Reset,
    /// The other end is shutting down.
    ShuttingDown,
    /// The stream's header made no sense.
    BadHeader,
    /// A code that this version does not know.
    Unknown(u64),
}

/// Why a connection was closed on purpose: the code of an application's CONNECTION_CLOSE.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CloseCode {
    /// This end is shutting down, or has nothing more to do.
    Shutdown,
    /// The peer broke the protocol.
    Protocol,
    /// The keys of the connection must not be used any more.
    KeyFault,
    /// The client's key has too many connections already.
    KeyFull,
    /// A newer session of the same run of the client takes this one's place.
    Replaced,
    /// The client's key is not listed any more.
    Unlisted,
}

impl CloseCode {
    /// The code on the wire.
    pub fn value(self) -> u32 {
        match self {
            Self::Shutdown => 0,
            Self::Protocol => 1,
            Self::KeyFault => 2,
            Self::KeyFull => 3,
            Self::Replaced => 4,
            Self::Unlisted => 5,
        }
    }
}

impl StreamCode {
    /// The code on the wire.
    pub fn value(self) -> u64 {
        match self {
            Self::Refused => 1,
            Self::NotPermitted => 2,
            Self::NameNotFound => 3,
            Self::Unreachable => 4,
            Self::TimedOut => 5,
            Self::Reset => 6,
            Self::ShuttingDown => 7,
            Self::BadHeader => 8,
            Self::Unknown(value) => value,
        }
    }

    /// The code of a value from the wire.
    pub fn from_value(value: u64) -> Self {
        match value {
            1 => Self::Refused,
            2 => Self::NotPermitted,
            3 => Self::NameNotFound,
            4 => Self::Unreachable,
            5 => Self::TimedOut,
            6 => Self::Reset,
            7 => Self::ShuttingDown,
            8 => Self::BadHeader,
            value => Self::Unknown(value),
        }
    }
}

impl fmt::Display for StreamCode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Refused => "connection refused",
            Self::NotPermitted => "not permitted",
            Self::NameNotFound => "name not found",
            Self::Unreachable => "unreachable",
            Self::TimedOut => "timed out",
            Self::Reset => "connection reset",
            Self::ShuttingDown => "the other end is shutting down",
            Self::BadHeader => "bad stream header",
            Self::Unknown(value) => return write!(f, "unknown code {value}"),
        })
    }
}

/// Why the server does not listen for a remote forward.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ListenCode {
    /// No permit of this client names the address.
    NotPermitted,
    /// Another session, or another program, listens there.
    InUse,
    /// The system does not let the server listen there.
    Denied,
    /// The server's host does not have that address.
    NoAddress,
    /// This session listens at as many addresses as it may, or under this id already.
    TooMany,
    /// Anything else.
    Failed,
    /// A code that this version does not know.
    Unknown(u8),
}

impl ListenCode {
    /// The code on the wire; never 0, which stands for success.
    pub fn value(self) -> u8 {
        match self {
            Self::NotPermitted => 1,
            Self::InUse => 2,
            Self::Denied => 3,
            Self::NoAddress => 4,
            Self::TooMany => 5,
            Self::Failed => 6,
            Self::Unknown(value) => value,
        }
    }

    /// The code of a value from the wire; `None` for 0.
    pub fn from_value(value: u8) -> Option<Self> {
        Some(match value {
            0 => return None,
            1 => Self::NotPermitted,
            2 => Self::InUse,
            3 => Self::Denied,
            4 => Self::NoAddress,
            5 => Self::TooMany,
            6 => Self::Failed,
            value => Self::Unknown(value),
        })
    }
}

impl fmt::Display for ListenCode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::NotPermitted => "not permitted",
            Self::InUse => "address in use",
            Self::Denied => "permission denied by the system",
            Self::NoAddress => "no such address there",
            Self::TooMany => "too many remote forwards",
            Self::Failed => "it cannot be bound",
            Self::Unknown(value) => return write!(f, "unknown code {value}"),
        })
    }
}
