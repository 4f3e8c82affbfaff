//! Reads the SOCKS5 request of a connection to a dynamic forward, and sends the reply. The protocol
//! itself is in `socks`.

use std::time::Duration;

use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
    time::timeout,
};

use crate::{
    addresses::target::Target,
    forwards::socks::{Handshake, Reply, Step},
    net::forwarded_socket::ForwardedSocket,
};

/// Timeout for the SOCKS handshake.
const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(10);

/// Most bytes that a handshake reads at once.
const WANTED_MAX: usize = 257;

/// Timeout for sending the reply: a few bytes on a new connection.
const REPLY_TIMEOUT: Duration = Duration::from_secs(5);

/// Reads the requested target. On an invalid request, sends the reply and returns `None`.
pub(crate) async fn read_request(socket: &mut ForwardedSocket) -> Option<Target> {
    // A dynamic forward listens on TCP only.
    let ForwardedSocket::Tcp(stream) = socket else { return None };
    timeout(HANDSHAKE_TIMEOUT, shake_hands(stream)).await.ok()?
}

/// Sends the reply to the request.
pub(crate) async fn reply(socket: &mut ForwardedSocket, reply: Reply) {
    if let ForwardedSocket::Tcp(stream) = socket {
        let _ = timeout(REPLY_TIMEOUT, stream.write_all(&reply.encode())).await;
    }
}

async fn shake_hands(stream: &mut TcpStream) -> Option<Target> {
    let mut handshake = Handshake::default();
    let mut buffer = [0; WANTED_MAX];
    loop {
        let wanted = buffer.get_mut(..handshake.wanted())?;
        stream.read_exact(wanted).await.ok()?;
        match handshake.feed(wanted) {
            Step::More([]) => {}
            Step::More(answer) => stream.write_all(answer).await.ok()?,
            Step::Connect(target) => return Some(target),
            Step::Failed(last) => {
                stream.write_all(&last).await.ok()?;
                return None;
            }
        }
    }
}
