//! Sends equal packets at fixed times and says what became of them: lost, delay, jitter.
//!
//! Packets leave at their times whatever has become of earlier ones. A packet that was answered
//! holds the time of its arrival there; any other has arrived when it is read. Knows neither arms
//! nor networks.

use std::net::UdpSocket;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::thread;
use std::time::{Duration, Instant};

use keypadd_traffic::{Latencies, Stamp, clock_ns};

/// How long packets may take that were sent last.
pub(crate) const GRACE: Duration = Duration::from_millis(500);

/// How often a receiver looks whether it is over.
pub(crate) const LOOK: Duration = Duration::from_millis(50);

/// A flow of equal packets.
#[derive(Debug)]
pub(crate) struct Pace {
    pub(crate) name: &'static str,
    /// UDP payload, at least [`Stamp::BYTES`].
    pub(crate) bytes: usize,
    /// Time between two packets; zero for as many as one sender can send.
    pub(crate) interval: Duration,
}

/// Speech: 160 bytes of G.711 and 12 of RTP (RFC 3551), 50 times a second.
pub(crate) const VOICE: Pace =
    Pace { name: "voice", bytes: 172, interval: Duration::from_millis(20) };

/// What became of a flow.
#[derive(Clone, Debug, Default)]
pub(crate) struct Flow {
    /// Packets that were sent.
    pub(crate) sent: u64,
    /// Of them those that never came.
    pub(crate) lost: u64,
    /// Packets received while others were sent, a second.
    pub(crate) per_second: f64,
    /// Mean of the interarrival jitter of RFC 3550, 6.4.1, as it was after each packet; `None` if
    /// fewer than two arrived.
    pub(crate) jitter_us: Option<f64>,
    /// From sending to arrival; half of the round trip if the two have different clocks.
    pub(crate) delays: Latencies,
}

impl Flow {
    /// `None` if nothing was sent.
    pub(crate) fn lost_percent(&self) -> Option<f64> {
        (self.sent > 0).then(|| 100.0 * self.lost as f64 / self.sent as f64)
    }
}

/// Sends a flow for this long, or until `stop`, and reads it, or its answers, from `receiver`.
/// `has_one_clock` says whether whoever answers has the clock of this process.
///
/// # Errors
/// One line: what a socket said.
pub(crate) fn flow(
    pace: &Pace,
    [sender, receiver]: [&UdpSocket; 2],
    has_one_clock: bool,
    time: Duration,
    stop: &AtomicBool,
) -> Result<Flow, String> {
    receiver.set_read_timeout(Some(LOOK)).map_err(|error| error.to_string())?;
    let (until, is_over) = (Instant::now() + time, AtomicBool::new(false));
    // Packets of an earlier flow may still come.
    let flow = fastrand::u64(..);
    thread::scope(|scope| {
        let received = scope.spawn(|| {
            let received = Received { has_one_clock, ..Received::default() };
            receive(receiver, flow, until, &is_over, received)
        });
        let mut packet = vec![0; pace.bytes];
        let sent = paced(pace.interval, time, stop, |_| {
            Stamp::now(flow).write(&mut packet);
            // A packet that finds no place is lost like those that find none later.
            let _ = sender.send(&packet);
        });
        thread::sleep(GRACE);
        is_over.store(true, Relaxed);
        let received = received.join().map_err(|_| "a receiver panicked")?;
        Ok(Flow {
            sent,
            lost: sent.saturating_sub(received.packets),
            per_second: received.in_time as f64 / time.as_secs_f64(),
            jitter_us: (received.packets > 1).then(|| received.mean_jitter_us()),
            delays: received.delays,
        })
    })
}

fn receive(
    socket: &UdpSocket,
    flow: u64,
    until: Instant,
    is_over: &AtomicBool,
    mut received: Received,
) -> Received {
    let mut buffer = [0; 2048];
    loop {
        match socket.recv(&mut buffer).map(|bytes| Stamp::read(&buffer[..bytes])) {
            Ok(Some(stamp)) if stamp.flow == flow => {
                received.count(stamp, clock_ns(), Instant::now() < until);
            }
            Err(_) if is_over.load(Relaxed) => return received,
            Ok(_) | Err(_) => {}
        }
    }
}

/// What a receiver has counted.
#[derive(Clone, Debug, Default)]
struct Received {
    has_one_clock: bool,
    packets: u64,
    /// Of them those that came before the sender's end.
    in_time: u64,
    delays: Latencies,
    /// Of the last packet: its arrival less its sending, which lie apart by more than its delay
    /// where clocks differ.
    last_ns: Option<i64>,
    jitter_ns: f64,
    jitters_ns: f64,
}

impl Received {
    fn count(&mut self, stamp: Stamp, now_ns: u64, is_in_time: bool) {
        let Stamp { sent_ns, arrived_ns, .. } = stamp;
        let arrived_ns = if arrived_ns == 0 { now_ns } else { arrived_ns };
        let delay_ns = match self.has_one_clock {
            true => arrived_ns.saturating_sub(sent_ns),
            false => now_ns.saturating_sub(sent_ns) / 2,
        };
        self.packets += 1;
        self.in_time += u64::from(is_in_time);
        self.delays.record(Duration::from_nanos(delay_ns));
        let apart_ns = arrived_ns.wrapping_sub(sent_ns).cast_signed();
        if let Some(last) = self.last_ns.replace(apart_ns) {
            self.jitter_ns += (apart_ns.abs_diff(last) as f64 - self.jitter_ns) / 16.0;
            self.jitters_ns += self.jitter_ns;
        }
    }

    fn mean_jitter_us(&self) -> f64 {
        self.jitters_ns / 1e3 / self.packets.saturating_sub(1).max(1) as f64
    }
}

/// Calls `send` at each time that is due, with its number; returns how often. Late ones follow at
/// once.
pub(crate) fn paced(
    interval: Duration,
    time: Duration,
    stop: &AtomicBool,
    mut send: impl FnMut(u64),
) -> u64 {
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

#[cfg(test)]
mod tests {
    use super::*;

    /// Counts packets that were under way for so long, sent every 20 ms, where the clock of
    /// whoever answers differs by `apart_ns`; answers take 1 ms more.
    fn counted(took_us: &[u64], apart_ns: u64, has_one_clock: bool) -> Received {
        let mut received = Received { has_one_clock, ..Received::default() };
        for (nth, took_us) in (1..).zip(took_us) {
            let sent_ns = nth * 20_000_000;
            let arrived_ns = sent_ns + took_us * 1_000;
            let stamp = Stamp { flow: 1, sent_ns, arrived_ns: arrived_ns.wrapping_add(apart_ns) };
            received.count(stamp, arrived_ns + 1_000_000, true);
        }
        received
    }

    #[test]
    fn jitter_is_that_of_rfc_3550_whatever_the_clocks() {
        let first = 16.0 / 16.0;
        let second = first + (16.0 - first) / 16.0;
        let third = second - second / 16.0;
        let mean = (first + second + third) / 3.0;
        for apart_ns in [0, 1 << 50, u64::MAX - 10_000_000] {
            let received = counted(&[100, 116, 100, 100], apart_ns, apart_ns == 0);
            assert!((received.mean_jitter_us() - mean).abs() < 1e-9, "{apart_ns}");
        }
        assert_eq!(counted(&[5_000; 9], 0, true).mean_jitter_us(), 0.0);
    }

    #[test]
    fn a_delay_is_one_way_by_one_clock_and_else_half_of_the_round_trip() {
        let median = |received: &Received| received.delays.quantile_us(0.5).unwrap();
        let one_way = median(&counted(&[100; 3], 0, true));
        assert!((one_way - 100.0).abs() < 1.0, "{one_way}");
        let half = median(&counted(&[100; 3], 1 << 50, false));
        assert!((half - 550.0).abs() < 1.0, "{half}");
    }

    #[test]
    fn packets_that_never_come_are_lost() {
        let bind = || UdpSocket::bind("127.0.0.1:0").unwrap();
        let (sender, receiver, other) = (bind(), bind(), bind());
        sender.connect(receiver.local_addr().unwrap()).unwrap();
        let measured = |receiver| {
            let (stop, time) = (AtomicBool::new(false), Duration::from_millis(30));
            flow(&VOICE, [&sender, receiver], true, time, &stop).unwrap()
        };
        let lost = measured(&other);
        assert!(lost.sent > 0 && lost.lost == lost.sent && lost.jitter_us.is_none(), "{lost:?}");
        assert_eq!(lost.lost_percent(), Some(100.0));
        let found = measured(&receiver);
        assert_eq!((found.lost, found.delays.count()), (0, found.sent));
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
