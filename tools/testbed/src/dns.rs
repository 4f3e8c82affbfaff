//! Answers SRV queries as a test specifies, over UDP and TCP on one loopback port (RFC 1035, RFC
//! 2782).

use std::{io, net::SocketAddr, sync::Arc};

use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpListener, TcpStream, UdpSocket},
    task::JoinSet,
};

const HEAD_BYTES: usize = 12;
const SRV: u16 = 33;
const CNAME: u16 = 5;
const CLASS_IN: u16 = 1;

/// No such name, as a response code.
pub const NXDOMAIN: u8 = 3;

/// Transport of a question.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DnsTransport {
    /// A datagram.
    Udp,
    /// A TCP connection.
    Tcp,
}

/// A record of an answer.
#[derive(Clone, Copy, Debug)]
pub enum Answer<'a> {
    /// Priority, weight, port and target, at the name in question.
    Srv(u16, u16, u16, &'a str),
    /// The same, at another name.
    SrvAt(&'a str, u16, u16, u16, &'a str),
    /// The first name is an alias of the second.
    Cname(&'a str, &'a str),
}

/// A running DNS server; ends when dropped.
#[derive(Debug)]
pub struct DnsServer {
    address: SocketAddr,
    _tasks: JoinSet<()>,
}

impl DnsServer {
    /// Starts one on a free port. `reply` returns the messages to send for a question; over TCP
    /// only the first is sent. Needs a tokio runtime.
    ///
    /// # Errors
    /// The system's error.
    pub async fn start(
        reply: impl Fn(&[u8], DnsTransport) -> Vec<Vec<u8>> + Send + Sync + 'static,
    ) -> io::Result<Self> {
        let (socket, listener) = loop {
            let socket = UdpSocket::bind("127.0.0.1:0").await?;
            if let Ok(listener) = TcpListener::bind(socket.local_addr()?).await {
                break (socket, listener);
            }
        };
        let (address, reply, mut tasks) = (socket.local_addr()?, Arc::new(reply), JoinSet::new());
        let by_udp = Arc::clone(&reply);
        tasks.spawn(async move {
            let mut asked = vec![0; 512];
            while let Ok((length, client)) = socket.recv_from(&mut asked).await {
                for message in by_udp(&asked[..length], DnsTransport::Udp) {
                    // The client may be gone.
                    let _ = socket.send_to(&message, client).await;
                }
            }
        });
        tasks.spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                let _ = serve(stream, &*reply).await;
            }
        });
        Ok(Self { address, _tasks: tasks })
    }

    /// Its address.
    pub fn address(&self) -> SocketAddr {
        self.address
    }
}

async fn serve(
    mut stream: TcpStream,
    reply: &(impl Fn(&[u8], DnsTransport) -> Vec<Vec<u8>> + Sync),
) -> io::Result<()> {
    let mut asked = vec![0; stream.read_u16().await?.into()];
    stream.read_exact(&mut asked).await?;
    let Some(message) = reply(&asked, DnsTransport::Tcp).into_iter().next() else { return Ok(()) };
    stream.write_u16(message.len() as u16).await?;
    stream.write_all(&message).await
}

/// A name on the wire, uncompressed; `.` is the root.
pub fn name(text: &str) -> Vec<u8> {
    let mut wire = Vec::new();
    for label in text.split('.').filter(|label| !label.is_empty()) {
        wire.push(label.len() as u8);
        wire.extend(label.bytes());
    }
    wire.push(0);
    wire
}

/// The answer to a question, with these records. `code` is the response code.
pub fn answer(asked: &[u8], code: u8, records: &[Answer<'_>]) -> Vec<u8> {
    let mut message = asked.to_vec();
    // Flags: a response, recursion desired, recursion available.
    message[2..4].copy_from_slice(&[0x81, 0x80 | code]);
    message[6..8].copy_from_slice(&(records.len() as u16).to_be_bytes());
    // The question's name, as a pointer to its offset in the message.
    let same = vec![0xc0, HEAD_BYTES as u8];
    for record in records {
        let (owner, kind, data) = match record {
            Answer::Srv(priority, weight, port, target) => {
                (same.clone(), SRV, srv([*priority, *weight, *port], target))
            }
            Answer::SrvAt(owner, priority, weight, port, target) => {
                (name(owner), SRV, srv([*priority, *weight, *port], target))
            }
            Answer::Cname(owner, alias) => (name(owner), CNAME, name(alias)),
        };
        message.extend(owner);
        message.extend([kind, CLASS_IN].map(u16::to_be_bytes).concat());
        message.extend(60_u32.to_be_bytes());
        message.extend((data.len() as u16).to_be_bytes());
        message.extend(data);
    }
    message
}

/// The same answer without its records, as if they did not fit into a datagram.
pub fn truncated(asked: &[u8]) -> Vec<u8> {
    let mut message = answer(asked, 0, &[]);
    message[2] |= 0x02;
    message
}

fn srv(numbers: [u16; 3], target: &str) -> Vec<u8> {
    [numbers.map(u16::to_be_bytes).concat(), name(target)].concat()
}
