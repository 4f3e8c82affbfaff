//! Generates a sample's packets: paced UDP one way, and echo requests of several sizes.
//!
//! Both go on at fixed times whatever has become of earlier packets, and all hosts have one clock.
//! Bulk data is [`crate::load`]'s.

use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::thread;
use std::time::{Duration, Instant};

use keypadd_traffic::Latencies;
use socket2::{Domain, Protocol, SockRef, Socket, Type};
use testbed::{FourHosts, Namespace};

use crate::flow::{Flow, GRACE, LOOK, Pace, paced};
use crate::load::words;

/// Port of the flows.
const PORT: u16 = 7002;

/// Receive buffer of a socket, in bytes: large enough that the receiver itself drops no packets.
const SOCKET_BYTES: usize = 4 << 20;

/// Flows that have the tunnel to themselves.
pub(super) const PACES: [Pace; 3] = [
    Pace { name: "100 Mbit/s", bytes: 1200, interval: Duration::from_micros(96) },
    Pace { name: "500 Mbit/s", bytes: 1200, interval: Duration::from_nanos(19_200) },
    Pace { name: "64 bytes", bytes: 64, interval: Duration::ZERO },
];

/// Sends a flow from the client to the server for this long, or until `stop`.
///
/// # Errors
/// One line: what a socket said.
pub(super) fn flow(
    hosts: &FourHosts,
    pace: &Pace,
    time: Duration,
    stop: &AtomicBool,
) -> Result<Flow, String> {
    let client = bind(&hosts.client, FourHosts::CLIENT)?;
    let server = bind(&hosts.server, FourHosts::SERVER)?;
    client.connect((FourHosts::SERVER, PORT)).map_err(words)?;
    crate::flow::flow(pace, [&client, &server], true, time, stop)
}

/// Payloads of echo requests, as of `ping -s`.
pub(super) const PING_BYTES: [usize; 3] = [10, 100, 1000];

/// Time between two requests; their sizes take turns.
pub(super) const PING_INTERVAL: Duration = Duration::from_millis(2);

/// Echo request and reply, and where their number begins (RFC 792).
const REQUEST: u8 = 8;
const HEADER_BYTES: usize = 8;

/// Round trips of echo requests.
#[derive(Clone, Debug, Default)]
pub(super) struct Pings {
    /// Of those that were answered, by the sizes of [`PING_BYTES`].
    pub(super) times: [Latencies; PING_BYTES.len()],
    pub(super) lost_percent: f64,
}

/// Sends echo requests from the client to the server for this long, or until `stop`.
///
/// # Errors
/// One line: what a socket said.
pub(super) fn pings(hosts: &FourHosts, time: Duration, stop: &AtomicBool) -> Result<Pings, String> {
    let socket = hosts.client.inside(|| echo_socket(FourHosts::SERVER).map_err(words))?;
    let (start, is_over) = (Instant::now(), AtomicBool::new(false));
    thread::scope(|scope| {
        let receiver = scope.spawn(|| answers(&socket, start, &is_over));
        // Numbers have 16 bits.
        let time = time.min(PING_INTERVAL * u32::from(u16::MAX));
        let sent = paced(PING_INTERVAL, time, stop, |nth| {
            let mut packet = vec![0; HEADER_BYTES + PING_BYTES[nth as usize % PING_BYTES.len()]];
            packet[0] = REQUEST;
            packet[6..HEADER_BYTES].copy_from_slice(&(nth as u16).to_be_bytes());
            packet[HEADER_BYTES..][..8].copy_from_slice(&nanos(start).to_be_bytes());
            let _ = socket.send(&packet);
        });
        thread::sleep(GRACE);
        is_over.store(true, Relaxed);
        let answers = receiver.join().map_err(|_| "a receiver panicked")?;
        Ok(Pings::of(&answers, sent))
    })
}

/// The time of each answer, by its number.
fn answers(socket: &UdpSocket, start: Instant, is_over: &AtomicBool) -> Vec<Option<Duration>> {
    let (mut answers, mut buffer) = (Vec::new(), [0; 2048]);
    loop {
        match socket.recv(&mut buffer) {
            Ok(len) if len >= HEADER_BYTES + 8 => {
                let nth = usize::from(u16::from_be_bytes([buffer[6], buffer[7]]));
                let at =
                    buffer[HEADER_BYTES..].first_chunk().map_or(0, |at| u64::from_be_bytes(*at));
                answers.resize(answers.len().max(nth + 1), None);
                let took = Duration::from_nanos(nanos(start).saturating_sub(at));
                answers[nth].get_or_insert(took);
            }
            Err(_) if is_over.load(Relaxed) => return answers,
            Ok(_) | Err(_) => {}
        }
    }
}

impl Pings {
    fn of(answers: &[Option<Duration>], sent: u64) -> Self {
        let mut pings = Self::default();
        for (nth, answer) in answers.iter().enumerate() {
            if let Some(took) = answer {
                pings.times[nth % PING_BYTES.len()].record(*took);
            }
        }
        let answered: u64 = pings.times.iter().map(Latencies::count).sum();
        pings.lost_percent = 100.0 * (1.0 - answered as f64 / sent as f64);
        pings
    }
}

/// A socket of echo requests (icmp(7)), whose identifier and checksum the kernel fills in.
fn echo_socket(to: IpAddr) -> std::io::Result<UdpSocket> {
    std::fs::write("/proc/sys/net/ipv4/ping_group_range", "0 0")?;
    let socket = Socket::new(Domain::IPV4, Type::DGRAM, Some(Protocol::ICMPV4))?;
    let socket = UdpSocket::from(socket);
    socket.connect((to, 0))?;
    socket.set_read_timeout(Some(LOOK))?;
    Ok(socket)
}

fn bind(host: &Namespace, address: IpAddr) -> Result<UdpSocket, String> {
    let open = || -> std::io::Result<UdpSocket> {
        let socket = UdpSocket::bind(SocketAddr::from((address, PORT)))?;
        SockRef::from(&socket).set_recv_buffer_size(SOCKET_BYTES)?;
        Ok(socket)
    };
    host.inside(|| open().map_err(words))
}

fn nanos(since: Instant) -> u64 {
    since.elapsed().as_nanos() as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_without_an_answer_are_lost_and_have_no_time() {
        let ms = Duration::from_millis;
        let pings = Pings::of(&[Some(ms(1)), None, Some(ms(3)), Some(ms(2))], 5);
        assert!((pings.lost_percent - 40.0).abs() < 1e-9);
        assert_eq!(pings.times.each_ref().map(Latencies::count), [2, 0, 1]);
        let longest = pings.times[0].max_us().unwrap();
        assert!((longest - 2e3).abs() < 20.0, "{longest}");
    }
}
