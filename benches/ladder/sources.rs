//! Provides connections whose pads come from a given source: no pool, a dry one, or pads hot or
//! cold in the cache.

use std::path::Path;
use std::time::Duration;

use keypadd_keystream::{Cipher, CipherEngine, Protection};
use keypadd_pool::{Coverage, Filler, HEAD_BYTES, PAD_BYTES, Pool, PoolSettings, Step};

use crate::ends::{Ends, Measured, PACKETS_PER_KEY};
use crate::key;

/// A pool that fits in a core's own cache.
const HOT_BYTES: usize = 1 << 20;
/// A pool with room for heads but not for a body.
const HEADS_BYTES: usize = 96 << 10;
/// The pool size of the goals in docs/benchmarks/README.md.
const NEAR_BYTES: usize = 64 << 20;
/// The size of either in a trial, which measures nothing.
const TRIAL_BYTES: usize = 8 << 20;
/// Cache size assumed if the system reports none.
const CACHE_BYTES: usize = 32 << 20;
/// Rough maximum of one connection's pads; larger pools take more connections.
const CONNECTION_BYTES: usize = 36 << 20;
/// Time between two plans of a filler, from which it computes rates.
const LOOKS_APART: Duration = Duration::from_millis(60);
/// How long a sleeping filler must generate nothing to count as done.
const REST: Duration = Duration::from_millis(2);
/// Plans before packets are measured: by the second the filler knows that packets are long, by the
/// third it has recalled what it gave to keystrokes.
const LOOKS: u32 = 3;

/// A source of pads.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Source {
    /// No pool.
    Off,
    /// A dry pool.
    Miss,
    /// Heads without bodies.
    Partial,
    /// Pads that the measuring core has just generated.
    Hot,
    /// 64 MiB of pads generated on another core.
    Near,
    /// More pads than the last-level cache holds, generated on another core and taken in order.
    Cold,
}

impl Source {
    pub(crate) const ALL: [Self; 6] =
        [Self::Off, Self::Miss, Self::Partial, Self::Hot, Self::Near, Self::Cold];

    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Off => "off",
            Self::Miss => "miss",
            Self::Partial => "partial",
            Self::Hot => "hit, hot",
            Self::Near => "hit, 64 MiB",
            Self::Cold => "hit, beyond the cache",
        }
    }

    /// The coverage of every packet; `None` if there are no such packets. Pads end at 1,472 bytes,
    /// a short packet needs no body, and TLS's suites seal packets without their body in one pass.
    pub(crate) fn coverage(self, suite: Protection, payload_bytes: usize) -> Option<Coverage> {
        let pad_bytes = key(suite).mac.mask_bytes() + payload_bytes;
        match self {
            Self::Off => Some(Coverage::Miss),
            _ if suite.cipher().is_null() => None,
            Self::Miss => Some(Coverage::Miss),
            Self::Partial => {
                let exists = pad_bytes > HEAD_BYTES && !suite.is_of_tls();
                exists.then_some(Coverage::Partial)
            }
            // RC2 has no bitslice: filling these takes minutes.
            Self::Near | Self::Cold if suite.cipher() == Cipher::RC2_40 => None,
            Self::Hot | Self::Near | Self::Cold => {
                (pad_bytes <= PAD_BYTES).then_some(Coverage::Hit)
            }
        }
    }
}

/// Connections whose pads come from one source, used one after another.
pub(crate) struct Connections {
    source: Source,
    pool: Option<Pool>,
    filler: Option<Filler>,
    now: Duration,
    ends: Vec<Ends>,
    /// Connections not used yet, with the number of packets that each has pads for.
    left: Vec<(usize, u64)>,
}

impl Connections {
    pub(crate) fn new(source: Source, suite: Protection, measured: Measured) -> Self {
        Self::with_engine(source, suite, measured, CipherEngine::default())
    }

    /// Connections whose measured end has this engine.
    pub(crate) fn with_engine(
        source: Source,
        suite: Protection,
        measured: Measured,
        engine: CipherEngine,
    ) -> Self {
        let settings = |budget_bytes| PoolSettings { budget_bytes };
        let stepped = |bytes| Pool::with_filler(settings(bytes)).expect("memory for the pool");
        let threaded = |bytes| Pool::new(settings(bytes)).expect("memory for the pool");
        let (pool, filler, connections) = match source {
            Source::Off => (None, None, 1),
            Source::Miss | Source::Partial => {
                let (pool, filler) = stepped(HEADS_BYTES);
                (Some(pool), Some(filler), 1)
            }
            Source::Hot => {
                let (pool, filler) = stepped(HOT_BYTES);
                (Some(pool), Some(filler), 1)
            }
            Source::Near | Source::Cold if is_trial() => (Some(threaded(TRIAL_BYTES)), None, 1),
            Source::Near => (Some(threaded(NEAR_BYTES)), None, 1),
            Source::Cold => {
                let bytes = last_level_cache_bytes() * 5 / 4;
                let connections = bytes.div_ceil(CONNECTION_BYTES) + 1;
                // A quarter is reserved for heads and new lanes.
                (Some(threaded(connections * CONNECTION_BYTES * 4 / 3)), None, connections)
            }
        };
        let ends: Vec<Ends> =
            (0..connections).map(|_| Ends::new(suite, measured, pool.clone(), engine)).collect();
        Self { source, pool, filler, now: Duration::ZERO, ends, left: Vec::new() }
    }

    /// Returns a connection, and how many packets with this payload can be measured on it in a row.
    pub(crate) fn next(&mut self, payload_bytes: usize) -> (&mut Ends, u64) {
        self.some(payload_bytes, u64::MAX)
    }

    /// Like [`Self::next`], for at most this many packets; the next call gets what is left of a
    /// pool filled by another core.
    pub(crate) fn some(&mut self, payload_bytes: usize, most: u64) -> (&mut Ends, u64) {
        if self.left.is_empty() {
            self.limit_filler(100);
            self.ends.iter_mut().for_each(Ends::rekey);
            for _ in 0..LOOKS {
                self.look();
                self.ends.iter_mut().for_each(Ends::prime);
            }
            self.look();
            self.left = match self.source {
                Source::Off | Source::Miss => vec![(0, PACKETS_PER_KEY)],
                Source::Partial => vec![(0, self.ends[0].available(0))],
                Source::Hot | Source::Near | Source::Cold => {
                    self.rest(LOOKS_APART);
                    // What it does meanwhile is not part of what a packet costs.
                    self.limit_filler(1);
                    let available = self.ends.iter().map(|ends| ends.available(payload_bytes));
                    // The last one filled is used last: it is still in a cache.
                    available.enumerate().filter(|(_, packets)| *packets > 0).rev().collect()
                }
            };
        }
        let (nth, mut packets) = self.left.pop().unwrap_or((0, 0));
        if matches!(self.source, Source::Near | Source::Cold) {
            self.ends[nth].reach(payload_bytes);
            self.rest(REST);
            packets = packets.min(self.ends[nth].available(payload_bytes));
            if packets > most {
                self.left.push((nth, packets - most));
            }
        }
        assert!(packets > 0, "no pads of {payload_bytes} bytes: {}", self.source.name());
        (&mut self.ends[nth], packets.min(most))
    }

    /// Waits until a filler on another core sleeps (proc(5)) and has generated nothing for this
    /// long: it is done then.
    fn rest(&self, apart: Duration) {
        let (Source::Near | Source::Cold, Some(pool)) = (self.source, &self.pool) else { return };
        let thread = pool.snapshot().filler_thread_id;
        let sleeps = || {
            let stat = std::fs::read_to_string(format!("/proc/self/task/{thread}/stat"));
            stat.is_ok_and(|stat| stat.contains(") S "))
        };
        let made = || pool.snapshot().fill_bytes_total;
        loop {
            let before = made();
            std::thread::sleep(apart);
            if sleeps() && made() == before {
                return;
            }
        }
    }

    /// Limits a filler on another core to this percentage of it.
    fn limit_filler(&self, percent: u8) {
        if let (Source::Near | Source::Cold, Some(pool)) = (self.source, &self.pool) {
            pool.set_max_fill_cpu(percent);
        }
    }

    /// Lets the filler plan and fill.
    fn look(&mut self) {
        match (self.source, &mut self.filler) {
            (Source::Partial | Source::Hot, Some(filler)) => {
                self.now += LOOKS_APART;
                while filler.step(self.now) == Step::Worked {}
            }
            (Source::Near | Source::Cold, _) => std::thread::sleep(LOOKS_APART),
            _ => {}
        }
    }
}

/// Whether this is only a trial: `cargo bench -- --test`, or `cargo test --benches`.
pub(crate) fn is_trial() -> bool {
    let asked = |flag| std::env::args().any(|argument| argument == flag);
    asked("--test") || !asked("--bench")
}

/// The largest cache of the first core.
pub(crate) fn last_level_cache_bytes() -> usize {
    let caches = Path::new("/sys/devices/system/cpu/cpu0/cache");
    let size = |index: u32| -> Option<usize> {
        let text = std::fs::read_to_string(caches.join(format!("index{index}/size"))).ok()?;
        let kib = text.trim().strip_suffix('K')?;
        Some(kib.parse::<usize>().ok()? << 10)
    };
    (0..8).filter_map(size).max().unwrap_or(CACHE_BYTES)
}
