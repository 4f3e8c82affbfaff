//! Says why a server could not be reached: what was tried, and the cause of each failure. Knows
//! nothing of what a user should do.

use std::{fmt, net::SocketAddr, time::Duration};

use keypadd_transport::{ConnectError, ConnectionError, NotSent};
use thiserror::Error;

use crate::{
    addresses::servers::ServerEntry,
    clock::jump::Jump,
    net::dns::SrvError,
    sessions::{
        control::ControlError,
        session_end::{SessionEnd, Shown},
    },
};

/// Why an attempt to connect, or all attempts together, led to no session. Exhaustive on purpose: a
/// new variant does not compile until somebody has written its hint.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum Cause {
    /// The name does not resolve; the text is that of the system's resolver.
    #[error("no such host: {0}")]
    NoSuchHost(String),
    /// The name was not resolved in time.
    #[error("timed out resolving the name")]
    SlowLookup,
    /// DNS has no target of the service.
    #[error(transparent)]
    Srv(SrvError),
    /// The name leads to addresses of the other family only.
    #[error("no address of the requested family")]
    OtherFamily,
    /// The address cannot be connected to.
    #[error(transparent)]
    BadAddress(ConnectError),
    /// This host does not let the packets out.
    #[error("cannot send to it: {0}")]
    NotSent(NotSent),
    /// There was no answer in this time.
    #[error("no answer in {0:?}")]
    Silent(Duration),
    /// The server completed its handshake and sent no hello.
    #[error("no answer after its handshake")]
    NoHello,
    /// The server does not know the connection any more: another attempt may work.
    #[error("the server dropped the handshake (it is busy) or has restarted")]
    Forgotten,
    /// The server sent QUIC's CONNECTION_REFUSED, which says no more and comes without a reason, or
    /// closed the connection before its hello as it drains or shuts down.
    #[error(
        "the server accepts no new connections now: it has too many, is draining, or is shutting \
         down"
    )]
    Busy,
    /// The connection failed in another way.
    #[error("{}", Shown(.0))]
    Connection(ConnectionError),
    /// The handshake proved no key of the server.
    #[error("the handshake did not authenticate a key")]
    NoKey,
    /// The server answered the hello with another frame.
    #[error("not a keypadd server")]
    NotKeypadd,
    /// The server uses this version of the control protocol.
    #[error("the server uses version {0} of the control protocol")]
    OtherVersion(u8),
    /// The server violated the control protocol.
    #[error(transparent)]
    Control(ControlError),
    /// The host to be joined does not speak the protocol of pairing.
    #[error("it does not answer as an inviting host")]
    NotInviting,
    /// Another server answered, to which open connections cannot move.
    #[error("another server; connections are open")]
    OtherServer,
    /// A clock of this host jumped during the attempt.
    #[error("{0}")]
    Clock(Jump),
    /// Another process was about to go on in this one's place.
    #[error("suspended")]
    Suspended,
    /// The peer may not be connected to any more.
    #[error("the peer's valid-until has passed")]
    Expired,
    /// The session ended before the server had answered for each remote forward.
    #[error(transparent)]
    Ended(SessionEnd),
}

/// One failure to reach a server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Failure {
    /// Where, unless the entry itself names this address, or it failed before there was one.
    pub at: Option<SocketAddr>,
    /// Why.
    pub cause: Cause,
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(address) = self.at {
            write!(f, "{address}: ")?;
        }
        self.cause.fmt(f)
    }
}

/// An entry of a server's list, or a target of a service there, that could not be reached.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Tried {
    /// Which of several; `None` if there was only one to try, or if all of them failed together.
    pub server: Option<ServerEntry>,
    /// Whether its name resolves to this host, which it should not.
    pub is_here: bool,
    /// What happened, each failure once.
    pub failures: Vec<Failure>,
}

impl fmt::Display for Tried {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(server) = &self.server {
            write!(f, "{server}: ")?;
        }
        if self.is_here {
            f.write_str("the name resolves to this host: ")?;
        }
        f.write_str(&joined(&self.failures))
    }
}

/// The texts of all, separated by semicolons.
pub(super) fn joined(all: &[impl fmt::Display]) -> String {
    all.iter().map(|one| one.to_string()).collect::<Vec<_>>().join("; ")
}
