//! Runs virtual clients: each requests one file after another, as fast as they arrive, for a given
//! time.
//!
//! By HTTP each file has its own connection, as was usual then; by FTP a connection carries a few
//! commands before the file, and a second one the file. Counts everything that has arrived when
//! time is up, whole files or not. Compares every byte.

use std::io::{self, Read, Write};
use std::net::{IpAddr, SocketAddr, TcpStream};
use std::thread;
use std::time::{Duration, Instant};

use keypadd_traffic::{Exchange, HEADER_BYTES, PATIENCE, PatternBytes, STEP_BYTES};
use socket2::{Domain, Socket, Type};

use crate::lab::{Missed, Part};

/// Typical length of an HTTP request, and of an FTP command and its answer.
const REQUEST_BYTES: u64 = 200;
const COMMAND: Exchange = Exchange::new(20, 60);

/// Commands before a file: user, password, type, port, file name.
const COMMANDS: u32 = 5;

/// HTTP requests in ten.
const HTTP_OF_TEN: u32 = 8;

/// Number of clients, file sizes and duration.
#[derive(Clone, Copy, Debug)]
pub(super) struct VirtualClients {
    pub(super) address: SocketAddr,
    /// The address of each client, from 0.
    pub(super) own: fn(u32) -> IpAddr,
    pub(super) clients: u32,
    /// Bytes of a file by HTTP and by FTP.
    pub(super) files: [u64; 2],
    pub(super) time: Duration,
    pub(super) seed: u64,
}

impl VirtualClients {
    /// Measures throughput of files, Mbit/s. Blocks.
    pub(super) fn run(self) -> Part<f64> {
        let end = Instant::now() + self.time;
        let bytes = thread::scope(|scope| {
            let clients =
                (0..self.clients).map(|client| scope.spawn(move || self.client(client, end)));
            let clients: Vec<_> = clients.collect();
            let came = clients.into_iter().map(|client| {
                client
                    .join()
                    .unwrap_or_else(|_| Err(io::Error::other("a measurement thread panicked")))
            });
            came.sum::<io::Result<u64>>()
        });
        let bytes = bytes.map_err(|error| Missed::Failed(format!("a client: {error}")))?;
        Ok(bytes as f64 * 8.0 / 1e6 / self.time.as_secs_f64())
    }

    /// Returns the file bytes that one client received.
    fn client(self, client: u32, end: Instant) -> io::Result<u64> {
        let mut random = fastrand::Rng::with_seed(self.seed ^ u64::from(client) << 32);
        let (mut bytes, mut buffer) = (0, vec![0; STEP_BYTES]);
        let connect = || Connection::open((self.own)(client), self.address);
        while Instant::now() < end {
            let [by_http, by_ftp] = self.files;
            if random.u32(0..10) < HTTP_OF_TEN {
                let mut connection = connect()?;
                bytes +=
                    connection.exchange(Exchange::new(REQUEST_BYTES, by_http), &mut buffer, end)?;
            } else {
                let mut commands = connect()?;
                for _ in 0..COMMANDS {
                    commands.exchange(COMMAND, &mut buffer, end)?;
                }
                let mut data = connect()?;
                bytes += data.exchange(Exchange::new(0, by_ftp), &mut buffer, end)?;
            }
        }
        Ok(bytes)
    }
}

/// A connection to a service. Reset when dropped, so that no port stays in TIME_WAIT for a minute.
struct Connection {
    stream: TcpStream,
    sent: PatternBytes,
    came: PatternBytes,
}

impl Connection {
    fn open(own: IpAddr, address: SocketAddr) -> io::Result<Self> {
        let socket = Socket::new(Domain::for_address(address), Type::STREAM, None)?;
        socket.bind(&SocketAddr::from((own, 0)).into())?;
        socket.connect_timeout(&address.into(), PATIENCE)?;
        socket.set_linger(Some(Duration::ZERO))?;
        let stream = TcpStream::from(socket);
        stream.set_nodelay(true)?;
        stream.set_read_timeout(Some(PATIENCE))?;
        Ok(Self { stream, sent: PatternBytes::default(), came: PatternBytes::default() })
    }

    /// Sends a request and reads the answer, until `end` at the latest; returns the bytes received.
    fn exchange(&mut self, exchange: Exchange, buffer: &mut [u8], end: Instant) -> io::Result<u64> {
        let mut request = exchange.header().to_vec();
        request.extend(self.sent.next(exchange.request_bytes() - HEADER_BYTES as u64));
        self.stream.write_all(&request)?;
        let (mut left, all) = (exchange.response_bytes(), exchange.response_bytes());
        while left > 0 {
            let most = left.min(buffer.len() as u64) as usize;
            let len = self.stream.read(&mut buffer[..most])?;
            if Instant::now() >= end {
                break;
            }
            if len == 0 {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
            if !self.came.matches_next(&buffer[..len]) {
                return Err(io::Error::other("response data was corrupted"));
            }
            left -= len as u64;
        }
        Ok(all - left)
    }
}

#[cfg(test)]
mod tests {
    use keypadd_traffic::Service;

    use super::*;

    #[tokio::test(flavor = "multi_thread")]
    async fn clients_bring_files_until_their_time_is_over() {
        let service = Service::bind().await.unwrap();
        let address = service.address();
        let serving = tokio::spawn(service.run());
        let time = Duration::from_millis(200);
        let own = |nth| IpAddr::from([127, 0, 0, 1 + nth as u8]);
        let files = [1_023, 10_230];
        let clients = VirtualClients { address, own, clients: 3, files, time, seed: 1 };
        let start = Instant::now();
        let mbit = tokio::task::spawn_blocking(move || clients.run()).await.unwrap().unwrap();
        assert!(mbit > 0.0 && start.elapsed() >= time, "{mbit}");
        serving.abort();
        let _ = serving.await;
        let nobody = tokio::task::spawn_blocking(move || clients.run()).await.unwrap();
        assert!(matches!(nobody, Err(Missed::Failed(_))), "{nobody:?}");
    }
}
