//! Reads the SOCKS5 request of a connection to a dynamic forward, and sends the reply. The protocol
//! itself is in `socks`.

use std::{io, time::Duration};

use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
    time::timeout,
};

use crate::{
    addresses::target::Target,
    forwards::{
        incomplete::Unread,
        socks::{Handshake, Reply, Step},
    },
    net::forwarded_socket::ForwardedSocket,
};

/// Timeout for the SOCKS handshake.
const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(10);

/// Most bytes that a handshake reads at once.
const WANTED_MAX: usize = 257;

/// Timeout for sending the reply: a few bytes on a new connection.
const REPLY_TIMEOUT: Duration = Duration::from_secs(5);

/// Why there is no target.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum NoTarget {
    /// The client speaks this instead.
    OtherProtocol(&'static str),
    /// An invalid request, which has its reply, or none in time or before a newer connection needed
    /// its room.
    Invalid,
}

/// Reads the requested target. On an invalid request, sends the reply.
pub(crate) async fn read_request(
    socket: &mut ForwardedSocket,
    unread: Unread,
) -> Result<Target, NoTarget> {
    // A dynamic forward listens on TCP only.
    let ForwardedSocket::Tcp(stream) = socket else { return Err(NoTarget::Invalid) };
    match unread.read(timeout(HANDSHAKE_TIMEOUT, shake_hands(stream))).await {
        Some(Ok(Ok(Step::Connect(target)))) => Ok(target),
        Some(Ok(Ok(Step::OtherProtocol(protocol)))) => Err(NoTarget::OtherProtocol(protocol)),
        _ => Err(NoTarget::Invalid),
    }
}

/// Sends the reply to the request.
pub(crate) async fn reply(socket: &mut ForwardedSocket, reply: Reply) {
    if let ForwardedSocket::Tcp(stream) = socket {
        let _ = timeout(REPLY_TIMEOUT, stream.write_all(&reply.encode())).await;
    }
}

/// Returns the last step.
async fn shake_hands(stream: &mut TcpStream) -> io::Result<Step> {
    let mut handshake = Handshake::default();
    let mut buffer = [0; WANTED_MAX];
    loop {
        let wanted = &mut buffer[..handshake.wanted()];
        stream.read_exact(wanted).await?;
        match handshake.feed(wanted) {
            Step::More(answer) => stream.write_all(answer).await?,
            Step::Failed(last) => {
                stream.write_all(&last).await?;
                return Ok(Step::Failed(last));
            }
            last @ (Step::Connect(_) | Step::OtherProtocol(_)) => return Ok(last),
        }
    }
}
