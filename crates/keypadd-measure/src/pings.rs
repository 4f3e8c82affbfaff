//! Measures round trips of real pings: echo requests of several sizes (RFC 792), from a host to
//! another one.
//!
//! They leave at fixed times whatever has become of earlier ones.

use std::net::{IpAddr, UdpSocket};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::thread;
use std::time::{Duration, Instant};

use keypadd_traffic::Latencies;
use socket2::{Domain, Protocol, Socket, Type};
use testbed::FourHosts;

use crate::flow::{GRACE, LOOK, paced};
use crate::load::words;

/// Payloads of echo requests, as of `ping -s`.
pub const PING_BYTES: [usize; 3] = [10, 100, 1000];

/// Echo request and reply, and where their number begins (RFC 792).
const REQUEST: u8 = 8;
const HEADER_BYTES: usize = 8;

/// Round trips of echo requests.
#[derive(Clone, Debug, Default)]
pub struct Pings {
    /// Of those that were answered, by the sizes of [`PING_BYTES`].
    pub times: [Latencies; PING_BYTES.len()],
    /// The share that nobody answered.
    pub lost_percent: f64,
}

/// Sends an echo request from the client to the server at each interval for this long, or until
/// `stop`; their sizes take turns. Blocks.
///
/// # Errors
/// One line: what a socket said.
pub fn pings(
    hosts: &FourHosts,
    interval: Duration,
    time: Duration,
    stop: &AtomicBool,
) -> Result<Pings, String> {
    let socket = hosts.client.inside(|| echo_socket(FourHosts::SERVER).map_err(words))?;
    let (start, is_over) = (Instant::now(), AtomicBool::new(false));
    // Not known before all are sent.
    let expected = AtomicU64::new(u64::MAX);
    thread::scope(|scope| {
        let receiver = scope.spawn(|| answers(&socket, start, &expected, &is_over));
        // Numbers have 16 bits.
        let time = time.min(interval * u32::from(u16::MAX));
        let sent = paced(interval, time, stop, |nth| {
            let mut packet = vec![0; HEADER_BYTES + PING_BYTES[nth as usize % PING_BYTES.len()]];
            packet[0] = REQUEST;
            packet[6..HEADER_BYTES].copy_from_slice(&(nth as u16).to_be_bytes());
            packet[HEADER_BYTES..][..8].copy_from_slice(&nanos(start).to_be_bytes());
            let _ = socket.send(&packet);
        });
        expected.store(sent, Relaxed);
        let end = Instant::now() + GRACE;
        while !receiver.is_finished() && Instant::now() < end {
            thread::sleep(LOOK);
        }
        is_over.store(true, Relaxed);
        let answers = receiver.join().map_err(|_| "a receiver panicked")?;
        Ok(Pings::of(&answers, sent))
    })
}

/// The time of each answer, by its number, until there are as many as expected or it is over.
fn answers(
    socket: &UdpSocket,
    start: Instant,
    expected: &AtomicU64,
    is_over: &AtomicBool,
) -> Vec<Option<Duration>> {
    let (mut answers, mut buffer) = (Vec::new(), [0; 2048]);
    let mut answered = 0;
    while answered < expected.load(Relaxed) {
        match socket.recv(&mut buffer) {
            Ok(len) if len >= HEADER_BYTES + 8 => {
                let nth = usize::from(u16::from_be_bytes([buffer[6], buffer[7]]));
                let at =
                    buffer[HEADER_BYTES..].first_chunk().map_or(0, |at| u64::from_be_bytes(*at));
                answers.resize(answers.len().max(nth + 1), None);
                let took = Duration::from_nanos(nanos(start).saturating_sub(at));
                // An answer that comes twice counts once.
                answered += u64::from(answers[nth].is_none());
                answers[nth].get_or_insert(took);
            }
            Err(_) if is_over.load(Relaxed) => break,
            Ok(_) | Err(_) => {}
        }
    }
    answers
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
