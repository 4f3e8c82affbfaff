//! Runs a tunnel for the finder: sends traffic at a rate while it reads pool level, packet counts
//! and arrivals.
//!
//! Blocks, so it needs its own thread. Data goes from the near end to the far one.

use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::thread;
use std::time::{Duration, Instant};

use keypadd_pool::{Coverage, Direction};
use keypadd_provider::DirectionStatus;
use keypadd_traffic::{Broken, Path, Void};
use tokio::runtime::Handle;

use super::finder::Subject;
use super::readings::Reading;
use super::stream::Stream;
use crate::arm::Arm;
use crate::interleave::INTERRUPTED;
use crate::path::{self, PathError, PathSettings};

/// Longest wait for a full pool. Without idle CPU it never fills.
const FILL_PATIENCE: Duration = Duration::from_secs(20);
/// Fillers that have slept, and made nothing, for this long are done.
const FILLER_AT_REST: Duration = Duration::from_millis(50);
/// Interval between level checks while a pool fills.
const LOOK_EVERY: Duration = Duration::from_millis(2);
/// Uncounted packets that a new tunnel sends at once: they teach its pool that packets are long, so that it keeps
/// bodies for them, and on the bulk connection: the other one carries the first 400 or so of every stream.
pub(super) const PRIMING_PACKETS: u64 = 20_480;
/// Time limit for them.
const PRIMING_TIME: Duration = Duration::from_secs(5);

/// Interval between messages that keep the stream on the bulk connection while a pool fills: idle for a second,
/// it would go back to the other one, and below 100 MB/s stay there, with pads that are not those measured.
const STAY_EVERY: Duration = Duration::from_millis(600);
/// Their rate, which is low enough for one.
const STAY_BYTES_PER_SECOND: f64 = 1e6;

/// Why it did not complete.
#[derive(Debug, thiserror::Error)]
pub(super) enum Ended {
    /// The user stopped it.
    #[error("{INTERRUPTED}")]
    Interrupted,
    /// The traffic stopped.
    #[error(transparent)]
    Broken(#[from] Broken),
    /// The tunnel did not start.
    #[error(transparent)]
    Path(#[from] PathError),
    /// The ends did not take the traffic for what it was.
    #[error(transparent)]
    Void(#[from] Void),
}

/// Counters since the tunnel started.
#[derive(Clone, Copy, Debug, Default)]
struct Counted {
    packets: u64,
    missed: u64,
}

/// A tunnel with a pool at both ends, or at the near one if the other is elsewhere.
pub(crate) struct Tunnel<'a> {
    arm: Arm,
    settings: PathSettings,
    runtime: Handle,
    stop: &'a AtomicBool,
    path: Option<Path>,
    stream: Option<Stream>,
    /// Whether anything has been offered since the start.
    is_used: bool,
    /// Payload bytes per packet.
    pub(crate) packet_bytes: f64,
    /// Maximum packets per second that can be offered.
    pub(crate) fastest: f64,
}

impl<'a> Tunnel<'a> {
    /// Starts it.
    pub(crate) fn open(
        arm: Arm,
        settings: PathSettings,
        stop: &'a AtomicBool,
    ) -> Result<Self, Ended> {
        let mut tunnel = Self {
            arm,
            settings,
            runtime: Handle::current(),
            stop,
            path: None,
            stream: None,
            is_used: false,
            packet_bytes: NOMINAL_PACKET_BYTES,
            fastest: f64::INFINITY,
        };
        tunnel.reopen()?;
        Ok(tunnel)
    }

    /// Opens and primes a new connection: its fresh keys last as long as keys can.
    fn reopen(&mut self) -> Result<(), Ended> {
        self.stream = None;
        if let Some(path) = self.path.take() {
            self.runtime.block_on(path.close())?;
        }
        let path = self.runtime.block_on(path::open(self.arm, &self.settings))?;
        let mut stream = Stream::open(path.address())?;
        self.path = Some(path);
        stream.offer(f64::INFINITY, |now, _| {
            self.packets() < PRIMING_PACKETS && now < PRIMING_TIME && !self.stop.load(Relaxed)
        })?;
        self.stream = Some(stream);
        self.is_used = false;
        Ok(())
    }

    pub(crate) fn path(&self) -> &Path {
        self.path.as_ref().expect("open until it is closed")
    }

    pub(crate) fn close(mut self) -> Result<(), Void> {
        self.stream = None;
        self.path.take().map_or(Ok(()), |path| self.runtime.block_on(path.close()))
    }

    /// Packets whose whole pad is ready, at the end that has fewer.
    pub(crate) fn level(&self) -> f64 {
        self.path().packets_at_hand(true).unwrap_or(0) as f64
    }

    /// Packets of the sending end; and those without a whole pad, at the end that has more of them.
    fn counted(&self) -> Counted {
        let meters = &self.path().gauges().meters;
        let lacking = |way| {
            move |end: usize| -> u64 {
                let without = [Coverage::Partial, Coverage::Miss];
                meters.get(end).map_or(0, |it| without.map(|pad| it.packets(way, pad)).iter().sum())
            }
        };
        let sent_without = lacking(Direction::Send)(0);
        Counted {
            packets: meters.first().map_or(0, |it| it.packets(Direction::Send, Coverage::Hit))
                + sent_without,
            missed: sent_without.max(lacking(Direction::Receive)(1)),
        }
    }

    /// Packets sent by the near end.
    pub(crate) fn packets(&self) -> u64 {
        self.counted().packets
    }

    /// Payload bytes sent and received.
    pub(crate) fn sent_bytes(&self) -> u64 {
        self.stream.as_ref().map_or(0, Stream::sent_bytes)
    }

    fn key_phase(&self) -> u64 {
        let keys = self.path().keys().into_iter().next().unwrap_or_default();
        DirectionStatus::of_all(keys, Direction::Send).key_phase
    }

    fn interrupted(&self) -> Result<(), Ended> {
        if self.stop.load(Relaxed) { Err(Ended::Interrupted) } else { Ok(()) }
    }

    /// Waits until the fillers sleep, up to a limit; returns the level.
    pub(crate) fn rest(&mut self) -> Result<f64, Ended> {
        self.wait_for(f64::INFINITY)
    }

    fn wait_for(&mut self, packets: f64) -> Result<f64, Ended> {
        let gauges = self.path().gauges().clone();
        let mut sent = Instant::now();
        let deadline = Instant::now() + FILL_PATIENCE;
        let (mut filled, mut since) = (gauges.filled_bytes(), Instant::now());
        loop {
            self.interrupted()?;
            let level = self.level();
            let now_filled = gauges.filled_bytes();
            if now_filled != filled || !gauges.fillers_are_done() {
                (filled, since) = (now_filled, Instant::now());
            }
            let at_rest = level > 0.0 && since.elapsed() > FILLER_AT_REST;
            if level >= packets || at_rest || Instant::now() > deadline {
                return Ok(level);
            }
            if sent.elapsed() > STAY_EVERY
                && let Some(stream) = &mut self.stream
            {
                stream.offer(STAY_BYTES_PER_SECOND, |_, arrived| arrived == 0)?;
                sent = Instant::now();
            }
            thread::sleep(LOOK_EVERY);
        }
    }
}

/// A full packet's payload, until it has been measured.
const NOMINAL_PACKET_BYTES: f64 = 1400.0;

impl Subject for Tunnel<'_> {
    type Ended = Ended;

    fn fastest(&self) -> f64 {
        self.fastest
    }

    fn refill(&mut self, packets: f64) -> Result<f64, Ended> {
        // Traffic changes how the pool allots memory, and uses up the key: the level was predicted
        // for the full pool of a fresh connection.
        if packets.is_infinite() && self.is_used {
            self.reopen()?;
        }
        self.wait_for(packets)
    }

    fn offer(
        &mut self,
        rate: f64,
        seconds: f64,
        enough: &mut dyn FnMut(&[Reading]) -> bool,
    ) -> Result<Vec<Reading>, Ended> {
        let bytes_per_second =
            if rate < self.fastest { rate * self.packet_bytes } else { f64::INFINITY };
        let Some(mut stream) = self.stream.take() else { return Err(Broken::fault().into()) };
        self.is_used = true;
        let before = self.counted();
        let mut readings = Vec::new();
        let done = stream.offer(bytes_per_second, |now, delivered_bytes| {
            let counted = self.counted();
            readings.push(Reading {
                seconds: now.as_secs_f64(),
                level: self.level(),
                packets: counted.packets - before.packets,
                missed: counted.missed - before.missed,
                delivered_bytes,
                phase: self.key_phase(),
            });
            now.as_secs_f64() < seconds && !enough(&readings) && !self.stop.load(Relaxed)
        });
        self.stream = Some(stream);
        done?;
        self.interrupted()?;
        Ok(readings)
    }
}
