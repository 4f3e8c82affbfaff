//! The listening end of a dynamic forward: asks a connection where it wants to go, in SOCKS5, and
//! says what became of it. What the bytes mean is in `socks`.

use std::time::Duration;

use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
    time::timeout,
};

use crate::{
    forwards::socks::{Handshake, Reply, Step},
    net::forwarded_socket::Forwarded,
    spec::target::Target,
};

/// Time for a connection to say where it wants to go.
const HANDSHAKE_TIME: Duration = Duration::from_secs(10);

/// Most bytes that a handshake wants at once.
const WANTED_MAX: usize = 257;

/// Time for an answer to be taken; it is a few bytes on a fresh connection.
const ANSWER_TIME: Duration = Duration::from_secs(5);

/// The target that is asked for; `None` where there is none, which the connection was told.
pub(crate) async fn ask(socket: &mut Forwarded) -> Option<Target> {
    // A dynamic forward listens on TCP alone.
    let Forwarded::Tcp(stream) = socket else { return None };
    timeout(HANDSHAKE_TIME, shake_hands(stream)).await.ok()?
}

/// Says what became of the request.
pub(crate) async fn answer(socket: &mut Forwarded, reply: Reply) {
    if let Forwarded::Tcp(stream) = socket {
        let _ = timeout(ANSWER_TIME, stream.write_all(&reply.encode())).await;
    }
}

async fn shake_hands(stream: &mut TcpStream) -> Option<Target> {
    let mut handshake = Handshake::default();
    let mut buffer = [0; WANTED_MAX];
    loop {
        let wanted = buffer.get_mut(..handshake.wants())?;
        stream.read_exact(wanted).await.ok()?;
        match handshake.hear(wanted) {
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
