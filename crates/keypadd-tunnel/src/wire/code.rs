//! Defines the codes of closed connections, reset streams and refused remote forwards.

use std::fmt;

/// Why a stream failed: the code of RESET_STREAM and STOP_SENDING (RFC 9000 19.4, 19.5).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum StreamCode {
    /// The target refused the connection.
    Refused,
    /// No permit of the client admits the target.
    NotPermitted,
    /// The target's name does not resolve.
    NameNotFound,
    /// The target is unreachable.
    Unreachable,
    /// The target did not answer in time.
    TimedOut,
    /// The connection at the other end was reset.
    Reset,
    /// The other end is shutting down.
    Shutdown,
    /// The stream's header is not valid.
    BadHeader,
    /// The client's share of the other end's open files is used up.
    OpenFiles,
    /// The other end does not hold the stream that was to be resumed.
    NotHeld,
    /// The flow was idle, or made room for another one.
    Idle,
    /// The other end does not carry datagrams on this connection.
    NoDatagrams,
    /// No local port of the other end's host is left for another connection of this peer to the
    /// target.
    LocalPorts,
    /// A code unknown to this version.
    Unknown(u64),
}

/// Why a connection was closed: the application error code of CONNECTION_CLOSE.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CloseCode {
    /// This end is shutting down, or is done.
    Shutdown,
    /// The peer violated the protocol.
    Protocol,
    /// The connection's keys must no longer be used.
    KeyFault,
    /// The client's key has too many sessions.
    KeyFull,
    /// Replaced by a newer session of the same run of the client.
    Replaced,
    /// The client's key was removed from the list, or its time is over.
    Unlisted,
    /// The session moved to another connection: streams are held.
    Hold,
    /// This end does not pair with the other; the reason says why.
    NotPaired,
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
            Self::Hold => 6,
            Self::NotPaired => 7,
        }
    }

    /// Decodes a value from the wire; `None` if this version does not know it.
    pub fn from_value(value: u64) -> Option<Self> {
        Some(match value {
            0 => Self::Shutdown,
            1 => Self::Protocol,
            2 => Self::KeyFault,
            3 => Self::KeyFull,
            4 => Self::Replaced,
            5 => Self::Unlisted,
            6 => Self::Hold,
            7 => Self::NotPaired,
            _ => return None,
        })
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
            Self::Shutdown => 7,
            Self::BadHeader => 8,
            Self::OpenFiles => 9,
            Self::NotHeld => 10,
            Self::Idle => 11,
            Self::NoDatagrams => 12,
            Self::LocalPorts => 13,
            Self::Unknown(value) => value,
        }
    }

    /// Decodes a value from the wire.
    pub fn from_value(value: u64) -> Self {
        match value {
            1 => Self::Refused,
            2 => Self::NotPermitted,
            3 => Self::NameNotFound,
            4 => Self::Unreachable,
            5 => Self::TimedOut,
            6 => Self::Reset,
            7 => Self::Shutdown,
            8 => Self::BadHeader,
            9 => Self::OpenFiles,
            10 => Self::NotHeld,
            11 => Self::Idle,
            12 => Self::NoDatagrams,
            13 => Self::LocalPorts,
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
            Self::Shutdown => "the other end is shutting down",
            Self::BadHeader => "bad stream header",
            Self::OpenFiles => "too many open files at the other end",
            Self::NotHeld => "not held at the other end",
            Self::Idle => "idle",
            Self::NoDatagrams => "the other end does not carry UDP",
            Self::LocalPorts => "no free local port at the other end",
            Self::Unknown(value) => return write!(f, "unknown code {value}"),
        })
    }
}

/// Why a remote forward failed on the server.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ListenCode {
    /// No listen permit of the client admits the address.
    NotPermitted,
    /// Another session or program is listening there.
    InUse,
    /// The system denies it.
    Denied,
    /// The server's host does not have the address.
    NoAddress,
    /// The session has too many remote forwards, or one with this id.
    TooMany,
    /// Anything else.
    Failed,
    /// The client's share of the server's open files is used up.
    OpenFiles,
    /// The server does not carry UDP: it takes no DATAGRAM frames (RFC 9221).
    NoDatagrams,
    /// A code unknown to this version.
    Unknown(u8),
}

impl ListenCode {
    /// The code on the wire; never 0, which means success.
    pub fn value(self) -> u8 {
        match self {
            Self::NotPermitted => 1,
            Self::InUse => 2,
            Self::Denied => 3,
            Self::NoAddress => 4,
            Self::TooMany => 5,
            Self::Failed => 6,
            Self::OpenFiles => 7,
            Self::NoDatagrams => 8,
            Self::Unknown(value) => value,
        }
    }

    /// Decodes a value from the wire; `None` for 0.
    pub fn from_value(value: u8) -> Option<Self> {
        Some(match value {
            0 => return None,
            1 => Self::NotPermitted,
            2 => Self::InUse,
            3 => Self::Denied,
            4 => Self::NoAddress,
            5 => Self::TooMany,
            6 => Self::Failed,
            7 => Self::OpenFiles,
            8 => Self::NoDatagrams,
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
            Self::NoAddress => "no such address",
            Self::TooMany => "too many remote forwards",
            Self::Failed => "cannot be bound",
            Self::OpenFiles => "too many open files on the server",
            Self::NoDatagrams => "this server does not forward UDP",
            Self::Unknown(value) => return write!(f, "unknown code {value}"),
        })
    }
}
