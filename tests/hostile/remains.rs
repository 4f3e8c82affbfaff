//! Checks what memory reveals of pads: recovers keystream from the wire (`capture.rs`) and searches
//! for it in the daemons' memory (proc(5)) and in core dumps (core(5)). Does not know keys:
//! keypadd-provider/tests/traces.rs searches all of a process's memory for those.

use std::collections::HashSet;
use std::fs::{self, File};
use std::io::{self, Write};
use std::os::unix::fs::FileExt;
use std::os::unix::process::ExitStatusExt;
use std::path::PathBuf;

use rustix::process::{Pid, Resource, Rlimit, Signal, prlimit};
use testbed::{Direction, LineSettings};
use tokio::task::block_in_place;
use tokio::time::{Instant, sleep};

use crate::SUITES;
use crate::capture::Capture;
use crate::daemons::{Daemon, Desk, PUBLIC_KEY, watched_desk};
use crate::exchange::HANG;
use crate::plain::{KnownTextTunnel, ethernet, start_service};
use crate::tunnel::LOOK;

/// Length of the pieces to search for; too long to match by chance.
const PIECE_BYTES: usize = 12;
/// Their offsets in the recovered keystream of a packet: one in its head, two in its body.
const PLACES: [usize; 3] = [40, 300, 900];

/// Pieces tolerated on stacks: compiler spills from the last blocks computed inline, one or two of
/// the thousands searched for.
const ON_STACKS_MAX: usize = 64;

/// Pieces of keystream to search for.
struct Pieces {
    wanted: HashSet<[u8; PIECE_BYTES]>,
    /// Index of the first two bytes of the pieces.
    begins: Vec<bool>,
}

impl Pieces {
    fn of(capture: &Capture) -> Self {
        let (mut wanted, mut begins) = (HashSet::new(), vec![false; 1 << 16]);
        for packet in capture.packets() {
            for place in PLACES {
                let piece = *packet[place..].first_chunk::<PIECE_BYTES>().unwrap();
                begins[usize::from(u16::from_be_bytes([piece[0], piece[1]]))] = true;
                wanted.insert(piece);
            }
        }
        assert!(!wanted.is_empty(), "no packet whose pad is known");
        Self { wanted, begins }
    }

    /// Counts the pieces found in `memory`.
    fn in_memory(&self, memory: &[u8]) -> usize {
        let windows = memory.windows(PIECE_BYTES);
        let found = windows.filter(|window| {
            self.begins[usize::from(u16::from_be_bytes([window[0], window[1]]))]
                && self.wanted.contains(*window)
        });
        found.collect::<HashSet<_>>().len()
    }
}

/// An inaccessible mapping no longer than this is the guard below a thread's stack.
const GUARD_BYTES_MAX: u64 = 64 << 10;

/// A snapshot of a daemon's memory: what a core dump would contain, and what it would not.
struct Memory {
    dumped: Vec<Vec<u8>>,
    /// Dumped too, but thread stacks: a compiler may spill anything there.
    stacks: Vec<Vec<u8>>,
    not_dumped: Vec<Vec<u8>>,
}

impl Memory {
    fn of(daemon: &Daemon) -> Self {
        let process = PathBuf::from(format!("/proc/{}", daemon.pid()));
        let memory = File::open(process.join("mem")).unwrap();
        let (mut dumped, mut stacks, mut not_dumped) = (Vec::new(), Vec::new(), Vec::new());
        let (mut range, mut guard_end, mut is_stack) = (None, 0, false);
        for line in fs::read_to_string(process.join("smaps")).unwrap().lines() {
            let mut words = line.split_whitespace();
            match (words.next().unwrap_or_default(), words.next().unwrap_or_default()) {
                ("VmFlags:", _) => {
                    let Some((from, to)) = range.take() else { continue };
                    let mut bytes = vec![0; (to - from) as usize];
                    if memory.read_exact_at(&mut bytes, from).is_ok() {
                        let is_not_dumped = line.split_whitespace().any(|flag| flag == "dd");
                        let areas = match (is_not_dumped, is_stack) {
                            (true, _) => &mut not_dumped,
                            (false, true) => &mut stacks,
                            (false, false) => &mut dumped,
                        };
                        areas.push(bytes);
                    }
                }
                (area, rights) if rights.len() == 4 && area.contains('-') => {
                    let (from, to) = area.split_once('-').unwrap();
                    let [from, to] = [from, to].map(|end| u64::from_str_radix(end, 16).unwrap());
                    if rights.starts_with("---") && to - from <= GUARD_BYTES_MAX {
                        guard_end = to;
                    }
                    is_stack = from == guard_end || line.ends_with("[stack]");
                    range = rights.starts_with("rw").then_some((from, to));
                }
                _ => {}
            }
        }
        assert!(!dumped.is_empty() && !stacks.is_empty(), "no memory could be read");
        Self { dumped, stacks, not_dumped }
    }

    /// Counts the pieces found in each of the three.
    fn pieces(&self, pieces: &Pieces) -> [usize; 3] {
        [&self.dumped, &self.stacks, &self.not_dumped]
            .map(|areas| areas.iter().map(|area| pieces.in_memory(area)).sum())
    }
}

/// Waits until none of these pads remain outside the pool, but for a few on stacks, and at most
/// `in_pool_max` within. A packet in flight may still use one.
async fn none_stay(suite: &str, daemon: &Daemon, pieces: &Pieces, in_pool_max: usize) {
    let deadline = Instant::now() + HANG;
    loop {
        let found @ [dumped, on_stacks, in_pool] = Memory::of(daemon).pieces(pieces);
        if dumped == 0 && on_stacks <= ON_STACKS_MAX && in_pool <= in_pool_max {
            return;
        }
        assert!(Instant::now() < deadline, "{suite}: {found:?} stay");
        sleep(LOOK).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_daemon_whose_session_is_over_holds_none_of_its_pads() {
    for suite in SUITES {
        let (desk, service) = (watched_desk(), start_service().await);
        let (mut tunnel, relay) = KnownTextTunnel::relayed(&desk, suite, &service).await;
        for direction in [Direction::ToServer, Direction::ToClient] {
            relay.record(direction, usize::MAX);
        }
        tunnel.filled(&desk, 64).await;
        // More than the pools hold: uses pooled pads and pads computed inline.
        tunnel.carry(5 << 20, 5 << 20).await;
        let mut capture = Capture::default();
        capture.take_from(&relay);
        let pieces = Pieces::of(&capture);
        // Pads of the last packet numbers that came too late for their packets may still be in the
        // pools.
        for end in [&tunnel.client, &tunnel.server] {
            none_stay(suite, end, &pieces, usize::MAX).await;
        }
        let server = tunnel.end_client();
        none_stay(suite, &server, &pieces, 0).await;
    }
}

/// Where the kernel writes the core dump of a process of this desk, if it does.
fn core_dump(desk: &Desk) -> Option<PathBuf> {
    let pattern = fs::read_to_string("/proc/sys/kernel/core_pattern").unwrap();
    if pattern.starts_with(['|', '/']) {
        let to = if pattern.starts_with('|') { "a program" } else { "another directory" };
        // Not `eprintln!`, whose output a passing test does not show.
        let _ = writeln!(
            io::stderr(),
            "a_core_dump_holds_no_pad_to_come: SKIPPED the dump itself, the memory that it is made of was \
             looked at: core_pattern sends it to {to}: {}; `sysctl kernel.core_pattern=core` changes that",
            pattern.trim()
        );
        return None;
    }
    let mut files = fs::read_dir(desk.path("")).unwrap().map(|file| file.unwrap().path());
    let found = files.find(|path| path.file_name().unwrap().to_string_lossy().starts_with("core"));
    assert!(found.is_some(), "no core dump, and the pattern is {pattern:?}");
    found
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_core_dump_holds_no_pad_to_come() {
    for suite in SUITES {
        let (desk, service) = (watched_desk(), start_service().await);
        let (mut tunnel, relay) = KnownTextTunnel::relayed(&desk, suite, &service).await;
        // Small writes stay off the bulk connection.
        for _ in 0..8 {
            tunnel.carry(128 << 10, 128 << 10).await;
        }
        tunnel.filled(&desk, 64).await;
        // The client uses pads that the server still has, because no packet reaches the server.
        relay.record(Direction::ToServer, usize::MAX);
        relay.set_both(LineSettings { cut: true, ..ethernet() });
        tunnel.give(64 << 10).await;
        let mut capture = Capture::default();
        let deadline = Instant::now() + HANG;
        while capture.packets().count() < 8 {
            assert!(Instant::now() < deadline, "{suite}: the client sends nothing");
            sleep(LOOK).await;
            capture.take_from(&relay);
        }
        let pieces = Pieces::of(&capture);
        assert_eq!(Memory::of(&tunnel.client).pieces(&pieces)[0], 0, "{suite}: used pads");
        let [dumped, on_stacks, not_dumped] = Memory::of(&tunnel.server).pieces(&pieces);
        assert!(not_dumped > 0, "{suite}: the server has no pads of these packets");
        assert_eq!([dumped, on_stacks], [0; 2], "{suite}: pads in memory that is dumped");
        let server = tunnel.server;
        let pid = Pid::from_raw(server.pid() as i32);
        let limit = Rlimit { current: None, maximum: None };
        prlimit(pid, Resource::Core, limit).unwrap();
        server.signal(Signal::ABORT);
        let ended = block_in_place(|| server.ended());
        assert_eq!(ended.status.signal(), Some(Signal::ABORT.as_raw()), "{suite}");
        let Some(path) = core_dump(&desk) else { continue };
        let core = fs::read(path).unwrap();
        let known = PUBLIC_KEY.as_bytes();
        assert!(core.windows(known.len()).any(|window| window == known), "not a core dump");
        assert_eq!(pieces.in_memory(&core), 0, "{suite}: pads in a core dump");
    }
}
