//! Seals and opens packets for `scripts/instructions.py`, which counts their instructions under
//! callgrind.
//!
//! Prints the CPU features that it sees, then one line per case: way, suite, source of pads, bytes
//! of payload, packets. The first four of these, as arguments, select a case. The packets of a
//! case, and nothing else, pass inside [`counted_packets`], on the one thread that also steps the
//! pool's filler. Knows no counts and measures no time: run alone, it only checks that packets find
//! the pads they should.

// The rest of it serves other benches.
#[allow(dead_code)]
#[path = "../../../benches/ladder/ends.rs"]
mod ends;

use std::hint::black_box;
use std::time::Duration;

use bytes::BytesMut;
use keypadd_keystream::{
    CipherEngine, Protection, SEGMENT_PACKETS, Suite, TAG_BYTES, cpu_features,
};
use keypadd_pool::{Coverage, Filler, Pool, PoolSettings, Step};

use ends::{Ends, HEADER_BYTES, Measured};

const SUITES: [Suite; 2] = [Suite::AES_256_GCM, Suite::CHACHA20_POLY1305];
/// Bytes of payload: a keystroke with its frames, and nearly a full datagram.
const SIZES: [usize; 2] = [128, 1400];
/// Packets of a case: whole segments, because the first packet of each does more.
const PACKETS: usize = 8 * SEGMENT_PACKETS;
/// Room for the pads of all packets of a case, and for those that precede them.
const POOL_BYTES: usize = 4 << 20;
/// Plans of the filler before packets are counted, and the time between two; `sources.rs` of the
/// ladder says what the filler learns from them.
const LOOKS: u32 = 3;
const LOOKS_APART: Duration = Duration::from_millis(60);

/// Where pads come from.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Source {
    /// No pool.
    Off,
    /// A pool that is never filled.
    Miss,
    /// A full pool.
    Hit,
}

impl Source {
    const ALL: [Self; 3] = [Self::Off, Self::Miss, Self::Hit];

    fn name(self) -> &'static str {
        match self {
            Self::Off => "off",
            Self::Miss => "miss",
            Self::Hit => "hit",
        }
    }

    fn coverage(self) -> Coverage {
        if self == Self::Hit { Coverage::Hit } else { Coverage::Miss }
    }
}

fn main() {
    println!("features {}", cpu_features().join(" "));
    // cargo adds options.
    let asked: Vec<String> = std::env::args().skip(1).filter(|it| !it.starts_with('-')).collect();
    let cases = [("seal", Measured::Sealing), ("open", Measured::Opening)]
        .into_iter()
        .flat_map(|way| SUITES.map(|suite| (way, suite)))
        .flat_map(|case| Source::ALL.map(|source| (case, source)))
        .flat_map(|case| SIZES.map(|size| (case, size)));
    for ((((way, measured), suite), source), payload_bytes) in cases {
        let case = format!("{way} {suite} {} {payload_bytes}", source.name());
        if !asked.is_empty() && asked.join(" ") != case {
            continue;
        }
        let mut connection = Connection::new(suite.into(), measured, source);
        connection.prepare(payload_bytes);
        let ends = &mut connection.ends;
        let before = ends.found(source.coverage());
        match measured {
            Measured::Sealing => seal(ends, payload_bytes),
            Measured::Opening => open(ends, payload_bytes),
        }
        let found = ends.found(source.coverage()) - before;
        assert_eq!(found, PACKETS as u64, "{case}: not all packets have this source of pads");
        println!("case {case} {PACKETS}");
    }
}

/// Callgrind counts from the start of this function to its end.
#[inline(never)]
fn counted_packets(packets: &mut dyn FnMut()) {
    packets();
}

fn seal(ends: &mut Ends, payload_bytes: usize) {
    let mut packet = vec![0; HEADER_BYTES + payload_bytes + TAG_BYTES];
    counted_packets(black_box(&mut || {
        for _ in 0..PACKETS {
            ends.seal(&mut packet, HEADER_BYTES);
        }
    }));
}

fn open(ends: &mut Ends, payload_bytes: usize) {
    let first = ends.next();
    let mut sealed: Vec<BytesMut> = (0..PACKETS)
        .map(|_| {
            let mut packet = vec![0; HEADER_BYTES + payload_bytes + TAG_BYTES];
            ends.seal(&mut packet, HEADER_BYTES);
            BytesMut::from(&packet[HEADER_BYTES..])
        })
        .collect();
    let header = [0; HEADER_BYTES];
    counted_packets(black_box(&mut || {
        for (number, payload) in (first..).zip(&mut sealed) {
            ends.open(number, &header, payload);
        }
    }));
}

/// Two ends, of which the measured one has the pool.
struct Connection {
    ends: Ends,
    source: Source,
    filler: Option<Filler>,
    now: Duration,
}

impl Connection {
    fn new(suite: Protection, measured: Measured, source: Source) -> Self {
        let settings = PoolSettings { budget_bytes: POOL_BYTES };
        let pool = || Pool::with_filler(settings).expect("memory for the pool");
        let (pool, filler) = (source != Source::Off).then(pool).unzip();
        let mut ends = Ends::new(suite, measured, pool, CipherEngine::default());
        ends.rekey();
        Self { ends, source, filler, now: Duration::ZERO }
    }

    /// Sends packets until the pool has what the next ones need, if it is ever filled.
    fn prepare(&mut self, payload_bytes: usize) {
        for _ in 0..LOOKS {
            self.look();
            self.ends.prime();
        }
        self.look();
        if self.source == Source::Hit {
            let available = self.ends.available(payload_bytes);
            assert!(available >= PACKETS as u64, "the pool has pads of {available} packets only");
        }
    }

    /// Lets the filler plan and fill.
    fn look(&mut self) {
        if let (Source::Hit, Some(filler)) = (self.source, &mut self.filler) {
            self.now += LOOKS_APART;
            while filler.step(self.now) == Step::Worked {}
        }
    }
}
