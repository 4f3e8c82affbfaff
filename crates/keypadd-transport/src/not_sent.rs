//! Says why this host does not let a datagram out.

use std::io;

use rustix::io::Errno;

/// Why this host does not let a datagram out, in the system's words.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NotSent {
    /// No route leads there.
    #[error("network is unreachable")]
    NoRoute,
    /// The route leads to nobody.
    #[error("no route to host")]
    NoHost,
    /// The interface is down.
    #[error("network is down")]
    InterfaceDown,
    /// This host has no address of the destination's family.
    #[error("cannot assign requested address")]
    NoAddress,
    /// A firewall of this host rejects it.
    #[error("operation not permitted")]
    Rejected,
    /// The destination is a broadcast address, or its route prohibits it.
    #[error("permission denied")]
    Prohibited,
    /// It is longer than the interface's MTU allows.
    #[error("message too long")]
    TooLong,
}

impl NotSent {
    /// `None` if another datagram may get out: buffers were short, or it is about offloads.
    pub(crate) fn of(error: &io::Error) -> Option<Self> {
        Some(match Errno::from_io_error(error)? {
            Errno::NETUNREACH => Self::NoRoute,
            Errno::HOSTUNREACH => Self::NoHost,
            Errno::NETDOWN => Self::InterfaceDown,
            Errno::ADDRNOTAVAIL | Errno::AFNOSUPPORT => Self::NoAddress,
            Errno::PERM => Self::Rejected,
            Errno::ACCESS => Self::Prohibited,
            Errno::MSGSIZE => Self::TooLong,
            _ => return None,
        })
    }
}
