//! Models one direction of a line, without threads or sockets: given when a packet enters and its
//! length, computes when it arrives, or why it is lost.
//!
//! In order: a cut, the longest packet, random loss before the bottleneck, a policer, the queue,
//! the bottleneck's rate, random loss after it, then delay, jitter, reordering, duplication and
//! damage. Decisions depend only on the seed, the packet's number and the settings in force, and
//! one impairment's decisions do not depend on how the others are set. Knows lengths, never a
//! packet's content.

#[cfg(test)]
mod tests;

use std::collections::VecDeque;
use std::num::NonZeroU64;
use std::time::{Duration, Instant};

use fastrand::Rng;

/// Default limit of the bottleneck's queue, in packets: Linux's `txqueuelen`.
pub const QUEUE_PACKETS: usize = 1_000;

/// Properties of a line. Shares are of packets, 0 to 1, decided for each packet independently. The
/// default passes everything immediately.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct LineSettings {
    /// Nothing passes. What entered before still arrives.
    pub cut: bool,
    /// Longer packets are lost silently: a black hole.
    pub bytes_max: Option<usize>,
    /// Share that is lost.
    pub loss: f64,
    /// Where random loss happens.
    pub loss_place: LossPlace,
    /// Drops what exceeds a rate, without a queue.
    pub policer: Option<Policer>,
    /// The bottleneck's rate. What is queued when it changes leaves at the old rate.
    pub bits_per_second: Option<NonZeroU64>,
    /// The limits of the bottleneck's queue.
    pub queue: QueueBound,
    /// Packets that wait longer than this leave with congestion experienced (CE, RFC 3168).
    pub mark_above: Option<Duration>,
    /// Time from the bottleneck to the other end.
    pub delay: Duration,
    /// Up to this much more delay, evenly distributed: more than the gap between two packets
    /// reorders them.
    pub jitter: Duration,
    /// Share that is delayed by `hold`, so that later packets overtake it.
    pub reorder: f64,
    /// How long they are delayed.
    pub hold: Duration,
    /// Share that arrives twice. The copy has its own jitter and is not held back.
    pub duplicate: f64,
    /// Share that arrives with one bit flipped.
    pub corrupt: f64,
}

/// Where random loss happens.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum LossPlace {
    /// Lost packets use none of the bottleneck's rate.
    #[default]
    BeforeBottleneck,
    /// Lost packets have already used the bottleneck.
    AfterBottleneck,
}

/// A token bucket without a queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Policer {
    /// The rate at which tokens arrive.
    pub bits_per_second: NonZeroU64,
    /// Most tokens in the bucket; it begins full.
    pub burst_bytes: u64,
}

/// Most that the queue before the bottleneck holds, including the packet being sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QueueBound {
    /// Packets.
    pub packets: usize,
    /// Bytes.
    pub bytes: u64,
    /// Longest wait before a packet's first bit leaves.
    pub wait: Duration,
}

impl QueueBound {
    /// No bound.
    pub const UNBOUNDED: Self = Self { packets: usize::MAX, bytes: u64::MAX, wait: Duration::MAX };
}

impl Default for QueueBound {
    fn default() -> Self {
        Self { packets: QUEUE_PACKETS, ..Self::UNBOUNDED }
    }
}

/// A packet at the other end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Arrival {
    /// When its last bit arrives.
    pub at: Instant,
    /// Whether the bottleneck marked it. A packet that is not ECN-capable arrives unchanged.
    pub marked: bool,
    /// Which of its bits is flipped, counted from the highest bit of the first byte.
    pub flipped: Option<usize>,
}

/// What arrives of one packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Arrivals {
    /// The packet.
    pub packet: Arrival,
    /// The same again, if it was duplicated.
    pub copy: Option<Arrival>,
}

impl IntoIterator for Arrivals {
    type Item = Arrival;
    type IntoIter = std::iter::Chain<std::iter::Once<Arrival>, std::option::IntoIter<Arrival>>;

    /// The packet, then its copy, even if the copy arrives first.
    fn into_iter(self) -> Self::IntoIter {
        std::iter::once(self.packet).chain(self.copy)
    }
}

/// Why a packet does not arrive.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Loss {
    /// The line was cut.
    Cut,
    /// It was longer than the longest packet.
    TooLong,
    /// By chance.
    Random,
    /// The policer had no tokens for it.
    Policed,
    /// The queue had no room for it.
    QueueFull,
}

/// The bottleneck's queue.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Queued {
    /// Packets, including the one being sent.
    pub packets: usize,
    /// Their bytes.
    pub bytes: u64,
    /// Until the last of them has left: the wait of the next one.
    pub wait: Duration,
}

/// What happened to a line's packets.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LineCounts {
    /// Packets that entered.
    pub packets: u64,
    /// Their bytes.
    pub bytes: u64,
    /// Packets that arrive, excluding copies.
    pub arriving: u64,
    /// Their bytes.
    pub arriving_bytes: u64,
    /// Lost while the line was cut.
    pub cut: u64,
    /// Lost because they were too long.
    pub too_long: u64,
    /// Lost by chance.
    pub random: u64,
    /// Lost to the policer.
    pub policed: u64,
    /// Lost to a full queue.
    pub queue_full: u64,
    /// Arriving marked.
    pub marked: u64,
    /// Arriving late, out of order.
    pub held: u64,
    /// Arriving twice.
    pub duplicated: u64,
    /// Arriving with a bit flipped.
    pub corrupted: u64,
}

/// One direction of a line. The caller passes the time, which never runs backwards: a `now` before
/// the last one counts as the last one.
#[derive(Clone, Debug)]
pub struct Line {
    settings: LineSettings,
    chances: Rng,
    counts: LineCounts,
    /// When each packet in the queue has left it, and its bytes; both in order.
    queue: VecDeque<(Instant, u64)>,
    queue_bytes: u64,
    /// When the bottleneck has sent everything queued.
    free_at: Option<Instant>,
    now: Option<Instant>,
    tokens: Tokens,
}

/// The policer's bucket.
#[derive(Clone, Copy, Debug)]
struct Tokens {
    bytes: f64,
    filled_at: Option<Instant>,
}

/// One packet's random draws. All are drawn whatever the settings, so that settings do not shift
/// later draws.
struct Chances {
    loss: f64,
    corrupt: f64,
    duplicate: f64,
    reorder: f64,
    jitter: [f64; 2],
    bit: u64,
}

impl Line {
    /// An empty line.
    pub fn new(settings: LineSettings, seed: u64) -> Self {
        Self {
            settings,
            chances: Rng::with_seed(seed),
            counts: LineCounts::default(),
            queue: VecDeque::new(),
            queue_bytes: 0,
            free_at: None,
            now: None,
            tokens: Tokens::of(settings.policer),
        }
    }

    /// Its settings.
    pub fn settings(&self) -> LineSettings {
        self.settings
    }

    /// Changes the settings. Packets that have entered leave and arrive as already decided.
    pub fn set(&mut self, settings: LineSettings) {
        if settings.policer != self.settings.policer {
            self.tokens = Tokens::of(settings.policer);
        }
        self.settings = settings;
    }

    /// A packet of this many bytes enters: what arrives of it and when, or why it is lost.
    pub fn offer(&mut self, now: Instant, bytes: usize) -> Result<Arrivals, Loss> {
        let now = self.advance(now);
        self.counts.packets += 1;
        self.counts.bytes += bytes as u64;
        let arrivals = self.pass(now, bytes);
        let counter = match &arrivals {
            Ok(_) => &mut self.counts.arriving,
            Err(Loss::Cut) => &mut self.counts.cut,
            Err(Loss::TooLong) => &mut self.counts.too_long,
            Err(Loss::Random) => &mut self.counts.random,
            Err(Loss::Policed) => &mut self.counts.policed,
            Err(Loss::QueueFull) => &mut self.counts.queue_full,
        };
        *counter += 1;
        if let Ok(Arrivals { packet, copy }) = arrivals {
            self.counts.arriving_bytes += bytes as u64;
            self.counts.marked += u64::from(packet.marked);
            self.counts.corrupted += u64::from(packet.flipped.is_some());
            self.counts.duplicated += u64::from(copy.is_some());
        }
        arrivals
    }

    fn pass(&mut self, now: Instant, bytes: usize) -> Result<Arrivals, Loss> {
        let chances = Chances::draw(&mut self.chances);
        let set = self.settings;
        if set.cut {
            return Err(Loss::Cut);
        }
        if set.bytes_max.is_some_and(|most| bytes > most) {
            return Err(Loss::TooLong);
        }
        let is_lost = chances.loss < set.loss;
        if is_lost && set.loss_place == LossPlace::BeforeBottleneck {
            return Err(Loss::Random);
        }
        if set.policer.is_some_and(|policer| !self.tokens.take(policer, now, bytes)) {
            return Err(Loss::Policed);
        }
        let (left, waited) = self.enqueue(now, bytes)?;
        if is_lost {
            return Err(Loss::Random);
        }
        let marked = set.mark_above.is_some_and(|most| waited > most);
        let bits = (bytes as u64 * 8).max(1);
        let flipped = (chances.corrupt < set.corrupt && bytes > 0)
            .then(|| usize::try_from(chances.bit % bits).unwrap_or(0));
        let arrival =
            |jitter| Arrival { at: left + set.delay + set.jitter.mul_f64(jitter), marked, flipped };
        let mut packet = arrival(chances.jitter[0]);
        if chances.reorder < set.reorder {
            packet.at += set.hold;
            self.counts.held += 1;
        }
        let copy = (chances.duplicate < set.duplicate).then(|| arrival(chances.jitter[1]));
        Ok(Arrivals { packet, copy })
    }

    /// Queues a packet: when its last bit will have left, and how long its first bit waits.
    fn enqueue(&mut self, now: Instant, bytes: usize) -> Result<(Instant, Duration), Loss> {
        let Some(rate) = self.settings.bits_per_second else {
            // Behind whatever is queued at an earlier rate: a line does not reorder.
            let left = self.free_at.map_or(now, |free_at| free_at.max(now));
            return Ok((left, left - now));
        };
        let bytes = bytes as u64;
        let begins = self.free_at.map_or(now, |free_at| free_at.max(now));
        if !self.has_room(now, bytes) {
            return Err(Loss::QueueFull);
        }
        let left = begins + time_to_send(bytes, rate);
        self.free_at = Some(left);
        self.queue.push_back((left, bytes));
        self.queue_bytes += bytes;
        Ok((left, begins - now))
    }

    /// Whether the queue takes a packet of this many bytes. A packet longer than the whole queue may
    /// enter when it is empty.
    fn has_room(&self, now: Instant, bytes: u64) -> bool {
        let Some(free_at) = self.free_at.filter(|_| self.settings.bits_per_second.is_some()) else {
            return true;
        };
        let bound = self.settings.queue;
        let packets = self.queue.len();
        let fits = packets < bound.packets
            && self.queue_bytes.checked_add(bytes).is_some_and(|queued| queued <= bound.bytes);
        free_at.saturating_duration_since(now) <= bound.wait && (packets == 0 || fits)
    }

    /// The queue now.
    pub fn queue(&mut self, now: Instant) -> Queued {
        let now = self.advance(now);
        Queued {
            packets: self.queue.len(),
            bytes: self.queue_bytes,
            wait: self.free_at.map_or(Duration::ZERO, |at| at.saturating_duration_since(now)),
        }
    }

    /// What has happened to the packets so far.
    pub fn counts(&self) -> LineCounts {
        self.counts
    }

    /// Removes packets that have left by now.
    fn advance(&mut self, now: Instant) -> Instant {
        let now = self.now.map_or(now, |last| last.max(now));
        self.now = Some(now);
        while let Some(&(left, bytes)) = self.queue.front()
            && left <= now
        {
            self.queue.pop_front();
            self.queue_bytes -= bytes;
        }
        now
    }
}

impl Tokens {
    fn of(policer: Option<Policer>) -> Self {
        Self { bytes: policer.map_or(0.0, |policer| policer.burst_bytes as f64), filled_at: None }
    }

    /// Takes the tokens for a packet; returns whether there were enough.
    fn take(&mut self, policer: Policer, now: Instant, bytes: usize) -> bool {
        let since = self.filled_at.map_or(Duration::ZERO, |at| now.saturating_duration_since(at));
        let came = since.as_secs_f64() * policer.bits_per_second.get() as f64 / 8.0;
        self.bytes = (self.bytes + came).min(policer.burst_bytes as f64);
        self.filled_at = Some(now);
        let is_enough = self.bytes >= bytes as f64;
        if is_enough {
            self.bytes -= bytes as f64;
        }
        is_enough
    }
}

impl Chances {
    fn draw(from: &mut Rng) -> Self {
        Self {
            loss: from.f64(),
            corrupt: from.f64(),
            duplicate: from.f64(),
            reorder: from.f64(),
            jitter: [from.f64(), from.f64()],
            bit: from.u64(..),
        }
    }
}

/// How long this many bytes take at a rate.
pub fn time_to_send(bytes: u64, bits_per_second: NonZeroU64) -> Duration {
    let nanoseconds = u128::from(bytes) * 8 * 1_000_000_000 / u128::from(bits_per_second.get());
    Duration::from_nanos(u64::try_from(nanoseconds).unwrap_or(u64::MAX))
}
