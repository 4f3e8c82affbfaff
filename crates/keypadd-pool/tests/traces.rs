//! Checks that a closed connection leaves no keystream of the pool in memory. Runs in a process of
//! its own, because it reads all of its memory (proc(5), `/proc/self/mem`).

use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use keypadd_keystream::{InlineKeystream, PacketNumber, Suite, SuiteKey};
use keypadd_pool::{Coverage, Direction, PAD_BYTES, Part, Pool, PoolSettings, Stage, Traffic};

/// Reads memory in pieces of this size.
const PIECE_BYTES: usize = 1 << 20;
/// Bytes to search for: too many to match by coincidence.
const TRACE_BYTES: usize = 12;

/// The length of a packet that ends soon after its head.
const SHORT_BYTES: usize = 144;

/// Bytes to search for, stored so that the search does not find this copy.
struct Trace {
    what: String,
    inverted: [u8; TRACE_BYTES],
}

impl Trace {
    fn of(what: impl Into<String>, bytes: &[u8]) -> Self {
        let mut inverted = [0; TRACE_BYTES];
        for (kept, byte) in inverted.iter_mut().zip(bytes) {
            *kept = !byte;
        }
        Self { what: what.into(), inverted }
    }

    fn is_in(&self, memory: &[u8]) -> bool {
        let first = !self.inverted[0];
        memory.windows(TRACE_BYTES).any(|window| {
            window[0] == first
                && window.iter().zip(&self.inverted).all(|(byte, kept)| *byte == !kept)
        })
    }
}

/// The traces found in writable memory.
fn found(traces: &[Trace]) -> Vec<&str> {
    let maps = fs::read_to_string("/proc/self/maps").expect("proc is mounted");
    let memory = File::open("/proc/self/mem").expect("own memory is readable");
    // Pieces overlap, so that a trace at a boundary is found.
    let mut piece = vec![0; PIECE_BYTES + TRACE_BYTES];
    let own = piece.as_ptr() as u64..piece.as_ptr() as u64 + piece.len() as u64;
    let mut found = Vec::new();
    for line in
        maps.lines().filter(|line| line.split(' ').nth(1).is_some_and(|f| f.starts_with("rw")))
    {
        let range = line.split(' ').next().expect("a range");
        let (from, to) = range.split_once('-').expect("two ends");
        let end = |text| u64::from_str_radix(text, 16).expect("an address");
        let (mut at, to) = (end(from), end(to));
        while at < to {
            let bytes = ((to - at) as usize).min(piece.len());
            if memory.read_exact_at(&mut piece[..bytes], at).is_ok() {
                // This buffer holds copies of what was read before.
                let is_own = at < own.end && at + bytes as u64 > own.start;
                let hits = traces.iter().filter(|trace| !is_own && trace.is_in(&piece[..bytes]));
                found.extend(hits.map(|trace| trace.what.as_str()));
            }
            at += PIECE_BYTES as u64;
        }
        piece.fill(0);
    }
    found
}

fn poll_until(condition: &str, mut holds: impl FnMut() -> bool) {
    let deadline = Instant::now() + Duration::from_secs(120);
    while !holds() {
        assert!(Instant::now() < deadline, "waited in vain until {condition}");
        thread::sleep(Duration::from_millis(1));
    }
}

/// The first bytes of some pads, generated in a frame of their own.
fn traces_of_pads(key: &Arc<keypadd_keystream::KeystreamKey>, suite: Suite) -> Vec<Trace> {
    let mut inline = InlineKeystream::new(Arc::clone(key));
    let mut traces = Vec::new();
    for number in [0, 7, 63, 64, 700] {
        for from in [16, 128, 1000] {
            let mut pad = [0; TRACE_BYTES];
            inline.write(PacketNumber::new(number), from, &mut pad);
            traces.push(Trace::of(format!("{suite}: pad of {number} from {from}"), &pad));
            pad.fill(0);
            std::hint::black_box(&mut pad);
        }
    }
    traces
}

/// Overwrites what generating the pads left on the stack: registers that the compiler spilled, a
/// known limit (docs/argument.md). From here on only the pool can leave traces.
#[inline(never)]
fn scrub_stack() {
    std::hint::black_box(&mut [0x33_u8; 64 << 10]);
}

#[test]
fn a_closed_connection_leaves_no_pads_in_memory() {
    let pool = Pool::new(PoolSettings { budget_bytes: 4 << 20 }).expect("a pool");
    let mut traces = Vec::new();
    for suite in Suite::ALL {
        let mut material = [0; 32];
        material.iter_mut().enumerate().for_each(|(nth, byte)| *byte = (nth * 37 + 11) as u8);
        let bytes = &material[..suite.protection().key_bytes()];
        let key = SuiteKey::derive(suite, bytes, &[0x5a; 12]).keystream.expect("pads");
        let of_suite = traces_of_pads(&key, suite);
        scrub_stack();
        let traffic = Traffic::new(Direction::Send);
        let mut lane =
            pool.open_lane(Arc::clone(&key), &traffic, PacketNumber::new(0), Stage::Active);
        // A lane that outruns the filler is served further ahead.
        poll_until("all pads are available", || {
            Part::ALL.iter().all(|&part| lane.level(part).packets > 700)
        });
        for number in [0, 7, 63, 64, 700] {
            poll_until("the pad is available", || {
                let number = PacketNumber::new(number);
                lane.seek(number, PAD_BYTES);
                lane.peek(number, PAD_BYTES).coverage() == Coverage::Hit
            });
            // The search works: it finds available pads.
            if number == 0 {
                let seen = found(&of_suite);
                assert!(seen.iter().any(|what| what.contains("pad of 7 ")), "{suite}: {seen:?}");
            }
            // A short packet uses little of its pad.
            let bytes = if number == 7 { SHORT_BYTES } else { PAD_BYTES };
            let mut data = vec![0; bytes];
            lane.take(PacketNumber::new(number), &mut [], &mut data, 0, || ());
            data.fill(0);
            std::hint::black_box(&mut data);
        }
        traces.extend(of_suite);
        drop((lane, key));
    }
    poll_until("all memory is free", || pool.snapshot().filled_bytes == 0);
    assert_eq!(found(&traces), [""; 0], "with the pool");
    drop(pool);
    assert_eq!(found(&traces), [""; 0], "without it");
}
