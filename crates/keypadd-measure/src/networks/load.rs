//! Generates a sample's packets: paced UDP one way, and echo requests of several sizes.
//!
//! Both go on at fixed times whatever has become of earlier packets. A packet holds the time at
//! which it was sent, as both hosts have one clock. Bulk data is [`crate::load`]'s.

use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::thread;
use std::time::{Duration, Instant};

use keypadd_traffic::Latencies;
use socket2::{Domain, Protocol, SockRef, Socket, Type};
use testbed::{FourHosts, Namespace};

use crate::load::words;

/// Port of the flows.
const PORT: u16 = 7002;

/// Receive buffer of a socket, in bytes: large enough that the receiver itself drops no packets.
const SOCKET_BYTES: usize = 4 << 20;

/// How long packets may take that were sent last.
const GRACE: Duration = Duration::from_millis(500);

/// How often a receiver looks whether it is over.
const LOOK: Duration = Duration::from_millis(50);

/// A flow of equal packets.
#[derive(Debug)]
pub(super) struct Pace {
    pub(super) name: &'static str,
    /// UDP payload.
    pub(super) bytes: usize,
    /// Time between two packets; zero for as many as one sender can send.
    pub(super) interval: Duration,
}

/// Speech: 160 bytes of G.711 and 12 of RTP (RFC 3551), 50 times a second.
pub(super) const VOICE: Pace =
    Pace { name: "voice", bytes: 172, interval: Duration::from_millis(20) };

/// Flows that have the tunnel to themselves.
pub(super) const PACES: [Pace; 3] = [
    Pace { name: "100 Mbit/s", bytes: 1200, interval: Duration::from_micros(96) },
    Pace { name: "500 Mbit/s", bytes: 1200, interval: Duration::from_nanos(19_200) },
    Pace { name: "64 bytes", bytes: 64, interval: Duration::ZERO },
];

/// Bytes of a flow's tag and of a time, with which a packet begins: packets of an earlier flow may
/// still come.
const STAMP_BYTES: usize = 16;

/// What became of a flow.
#[derive(Clone, Debug, Default)]
pub(super) struct Flow {
    /// Packets received while others were sent, a second.
    pub(super) per_second: f64,
    pub(super) lost_percent: f64,
    /// Mean of the interarrival jitter of RFC 3550, 6.4.1, as it was after each packet.
    pub(super) jitter_us: f64,
    /// From the client's sending to the server's receiving.
    pub(super) delays: Latencies,
}

/// What a receiver has counted.
#[derive(Clone, Debug, Default)]
struct Received {
    packets: u64,
    /// Of them those that came before the sender's end.
    in_time: u64,
    delays: Latencies,
    last_ns: Option<u64>,
    jitter_ns: f64,
    jitters_ns: f64,
}

impl Received {
    fn count(&mut self, took_ns: u64, is_in_time: bool) {
        self.packets += 1;
        self.in_time += u64::from(is_in_time);
        self.delays.record(Duration::from_nanos(took_ns));
        if let Some(last) = self.last_ns.replace(took_ns) {
            self.jitter_ns += (took_ns.abs_diff(last) as f64 - self.jitter_ns) / 16.0;
            self.jitters_ns += self.jitter_ns;
        }
    }

    fn mean_jitter_us(&self) -> f64 {
        self.jitters_ns / 1e3 / self.packets.saturating_sub(1).max(1) as f64
    }
}

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
    let (start, is_over) = (Instant::now(), AtomicBool::new(false));
    let tag = fastrand::u64(..).to_be_bytes();
    thread::scope(|scope| {
        let receiver = scope.spawn(|| receive(&server, tag, start, time, &is_over));
        let mut packet = vec![0; pace.bytes];
        let sent = paced(pace.interval, time, stop, |_| {
            let stamp = [tag, nanos(start).to_be_bytes()].concat();
            packet[..STAMP_BYTES].copy_from_slice(&stamp);
            // A packet that finds no place is lost like those that find none later.
            let _ = client.send(&packet);
        });
        thread::sleep(GRACE);
        is_over.store(true, Relaxed);
        let received = receiver.join().map_err(|_| "a receiver panicked")?;
        Ok(Flow {
            per_second: received.in_time as f64 / time.as_secs_f64(),
            lost_percent: 100.0 * (1.0 - received.packets as f64 / sent as f64),
            jitter_us: received.mean_jitter_us(),
            delays: received.delays,
        })
    })
}

fn receive(
    server: &UdpSocket,
    tag: [u8; 8],
    start: Instant,
    time: Duration,
    is_over: &AtomicBool,
) -> Received {
    let (mut received, mut buffer) = (Received::default(), [0; 2048]);
    loop {
        match server.recv(&mut buffer) {
            Ok(len) if len >= STAMP_BYTES && buffer.starts_with(&tag) => {
                let at = buffer[tag.len()..].first_chunk().map_or(0, |at| u64::from_be_bytes(*at));
                received.count(nanos(start).saturating_sub(at), start.elapsed() < time);
            }
            Err(_) if is_over.load(Relaxed) => return received,
            Ok(_) | Err(_) => {}
        }
    }
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

/// Calls `send` at each time that is due, with its number; returns how often. Late ones follow at
/// once.
fn paced(interval: Duration, time: Duration, stop: &AtomicBool, mut send: impl FnMut(u64)) -> u64 {
    let start = Instant::now();
    let mut nth = 0;
    while start.elapsed() < time && !stop.load(Relaxed) {
        let due = Duration::from_nanos(nth * interval.as_nanos() as u64);
        let early = due.saturating_sub(start.elapsed());
        match early.is_zero() {
            true => {
                send(nth);
                nth += 1;
            }
            false => thread::sleep(early),
        }
    }
    nth
}

fn bind(host: &Namespace, address: IpAddr) -> Result<UdpSocket, String> {
    let open = || {
        let socket = UdpSocket::bind(SocketAddr::from((address, PORT)))?;
        SockRef::from(&socket).set_recv_buffer_size(SOCKET_BYTES)?;
        socket.set_read_timeout(Some(LOOK)).map(|()| socket)
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
    fn jitter_is_that_of_rfc_3550() {
        let mut received = Received::default();
        for took_us in [100, 116, 100, 100] {
            received.count(took_us * 1_000, true);
        }
        let first = 16.0 / 16.0;
        let second = first + (16.0 - first) / 16.0;
        let third = second - second / 16.0;
        assert!((received.mean_jitter_us() - (first + second + third) / 3.0).abs() < 1e-9);
        let mut steady = Received::default();
        (0..9).for_each(|_| steady.count(5_000, true));
        assert_eq!(steady.mean_jitter_us(), 0.0);
    }

    #[test]
    fn requests_without_an_answer_are_lost_and_have_no_time() {
        let ms = Duration::from_millis;
        let pings = Pings::of(&[Some(ms(1)), None, Some(ms(3)), Some(ms(2))], 5);
        assert!((pings.lost_percent - 40.0).abs() < 1e-9);
        assert_eq!(pings.times.each_ref().map(Latencies::count), [2, 0, 1]);
        let longest = pings.times[0].max_us().unwrap();
        assert!((longest - 2e3).abs() < 20.0, "{longest}");
    }

    #[test]
    fn late_packets_follow_at_once_and_a_stop_ends_them() {
        let (stop, mut late) = (AtomicBool::new(false), Vec::new());
        let sent = paced(Duration::from_millis(1), Duration::from_secs(60), &stop, |nth| {
            if nth == 0 {
                thread::sleep(Duration::from_millis(5));
            }
            late.push(nth);
            stop.store(nth == 5, Relaxed);
        });
        assert_eq!((sent, late), (6, (0..6).collect()));
    }
}
