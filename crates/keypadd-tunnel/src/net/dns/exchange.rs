//! Sends a question to a DNS server and waits for the answer: over UDP from its own port, or over
//! TCP if the answer does not fit (RFC 1035, section 4.2; RFC 5452, section 9).

use std::{
    io,
    net::{Ipv4Addr, Ipv6Addr, SocketAddr},
    time::Duration,
};

use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpStream, UdpSocket},
    time::timeout,
};

use super::message::{SrvQuestion, SrvReply};

/// Longer datagrams are truncated, and so malformed. Without EDNS, an answer has at most 512 bytes.
const DATAGRAM_BYTES_MAX: usize = 4096;

/// Asks one server.
///
/// # Errors
/// [`io::ErrorKind::TimedOut`] if no answer came in time; those of the sockets.
pub(super) async fn exchange(
    server: SocketAddr,
    question: &SrvQuestion,
    time: Duration,
) -> io::Result<SrvReply> {
    let exchanged = async {
        match by_udp(server, question).await? {
            SrvReply::Truncated => by_tcp(server, question).await,
            reply => Ok(reply),
        }
    };
    timeout(time, exchanged).await?
}

/// Skips datagrams that are not the answer.
async fn by_udp(server: SocketAddr, question: &SrvQuestion) -> io::Result<SrvReply> {
    // The kernel picks the port at random.
    let local: SocketAddr = match server.is_ipv4() {
        true => (Ipv4Addr::UNSPECIFIED, 0).into(),
        false => (Ipv6Addr::UNSPECIFIED, 0).into(),
    };
    let socket = UdpSocket::bind(local).await?;
    socket.connect(server).await?;
    socket.send(&question.encode()).await?;
    let mut datagram = vec![0; DATAGRAM_BYTES_MAX];
    loop {
        let length = socket.recv(&mut datagram).await?;
        if let Some(reply) = question.read(&datagram[..length]) {
            return Ok(reply);
        }
    }
}

async fn by_tcp(server: SocketAddr, question: &SrvQuestion) -> io::Result<SrvReply> {
    let mut stream = TcpStream::connect(server).await?;
    let message = question.encode();
    // A name has 255 bytes at most.
    let length = (message.len() as u16).to_be_bytes();
    stream.write_all(&[&length[..], &message].concat()).await?;
    let mut answer = vec![0; stream.read_u16().await?.into()];
    stream.read_exact(&mut answer).await?;
    Ok(question.read(&answer).unwrap_or(SrvReply::Malformed))
}
