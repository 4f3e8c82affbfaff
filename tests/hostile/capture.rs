//! Records the datagrams between two daemons and checks that no keystream appears twice. Uses only
//! the known plaintext: no key, no packet number, no code of keypadd. XORing a packet with its
//! plaintext leaves keystream.
//!
//! The plaintext is one repeated byte, so its offset in the packet does not matter. Pieces are
//! taken at every byte offset: a repeated block is found wherever blocks start.

use std::collections::HashSet;
use std::thread;
use std::time::Instant;

use fastrand::Rng;
use serde_json::Value;
use testbed::{Direction, Relay};

use crate::SUITES;
use crate::daemons::watched_desk;
use crate::plain::{KnownTextTunnel, TEXT, start_service};

/// Shorter datagrams are not full of plaintext.
const DATAGRAM_BYTES_MIN: usize = 1000;
/// Bytes before the plaintext of a packet: header and number, then the STREAM frame header (RFC
/// 9000, sections 17.3 and 19.8). Longer frame headers recover bytes that are no keystream, but
/// repeat no more often.
const HEADER_BYTES: usize = 32;
/// Bytes after the plaintext.
const TAG_BYTES: usize = 16;

/// Pieces sorted at once.
const SORTED_MAX: usize = 1 << 25;
/// Repeated pieces that are compared further.
const TWICE_MAX: usize = 1 << 16;

/// Recovered keystream, packet by packet.
#[derive(Default)]
pub(crate) struct Capture {
    keystream: Vec<u8>,
    /// Where each packet's keystream ends.
    ends: Vec<usize>,
}

/// Counts repeats among the pieces at every byte of every packet.
#[derive(Debug, Default)]
struct Twice {
    pieces: u64,
    /// Repeated pieces of one DES block.
    of_8_bytes: u64,
    /// Repeated pieces of one AES block.
    of_16_bytes: u64,
}

impl Capture {
    /// Recovers the keystream of a datagram that is full of plaintext; ignores others.
    fn take(&mut self, datagram: &[u8]) {
        let is_long_header = datagram.first().is_none_or(|first| first & 0x80 != 0);
        if is_long_header || datagram.len() < DATAGRAM_BYTES_MIN {
            return;
        }
        let text = &datagram[HEADER_BYTES..datagram.len() - TAG_BYTES];
        self.keystream.extend(text.iter().map(|byte| byte ^ TEXT));
        self.ends.push(self.keystream.len());
    }

    /// Adds the datagrams that the relay has recorded since the last call.
    pub(crate) fn take_from(&mut self, relay: &Relay) {
        for direction in [Direction::ToServer, Direction::ToClient] {
            let recorded = relay.take_recorded(direction);
            recorded.iter().for_each(|datagram| self.take(&datagram.bytes));
        }
    }

    pub(crate) fn packets(&self) -> impl Iterator<Item = &[u8]> {
        let begins = [0].into_iter().chain(self.ends.iter().copied());
        begins.zip(&self.ends).map(|(begin, &end)| &self.keystream[begin..end])
    }

    /// All pieces of `N` bytes, one per byte offset.
    fn pieces<const N: usize>(&self) -> impl Iterator<Item = &[u8; N]> {
        self.packets().flat_map(|packet| packet.windows(N)).filter_map(<[u8]>::first_chunk)
    }

    /// Counts repeated pieces.
    fn twice(&self) -> Twice {
        let pieces: u64 = self.packets().map(|packet| packet.len() as u64 - 7).sum();
        // Pieces look random, so their leading bits partition them evenly.
        let parts = pieces.div_ceil(SORTED_MAX as u64).next_power_of_two();
        let bits = parts.trailing_zeros();
        let of_part = |part: u64| {
            let first = |piece: u64| piece.checked_shr(64 - bits).unwrap_or_default();
            let mut sorted: Vec<u64> = self
                .pieces()
                .map(|piece| u64::from_be_bytes(*piece))
                .filter(|piece| first(*piece) == part)
                .collect();
            sorted.sort_unstable();
            let again = sorted.windows(2).filter(|pair| pair[0] == pair[1]);
            again.map(|pair| pair[0]).collect::<Vec<u64>>()
        };
        let threads = thread::available_parallelism().map_or(1, usize::from) as u64;
        let mut again: Vec<u64> = thread::scope(|scope| {
            let share = |nth| (nth..parts).step_by(threads as usize).flat_map(of_part);
            let shares: Vec<_> = (0..threads)
                .map(|nth| scope.spawn(move || share(nth).collect::<Vec<u64>>()))
                .collect();
            shares.into_iter().flat_map(|share| share.join().unwrap()).collect()
        });
        let of_8_bytes = again.len() as u64;
        again.truncate(TWICE_MAX);
        // Among those, count the ones whose next 8 bytes match too.
        let again: HashSet<u64> = again.into_iter().collect();
        let mut seen = HashSet::new();
        let longer = self.pieces::<16>().filter(|piece| {
            again.contains(&u64::from_be_bytes(*piece.first_chunk().unwrap()))
                && !seen.insert(**piece)
        });
        let of_16_bytes = longer.count() as u64;
        Twice { pieces, of_8_bytes, of_16_bytes }
    }
}

impl Twice {
    /// Expected number of repeats among `pieces` random 8-byte pieces.
    fn by_chance(&self) -> f64 {
        let pieces = self.pieces as f64;
        pieces * pieces / 2.0 / 2f64.powi(64)
    }

    /// Highest plausible count: chance exceeds it with a probability below 10^-9 (Poisson
    /// distribution).
    fn by_chance_max(&self) -> u64 {
        let mean = self.by_chance();
        let (mut count, mut probability) = (0, (-mean).exp());
        let mut more = 1.0 - probability;
        while more > 1e-9 {
            count += 1;
            probability *= mean / count as f64;
            more -= probability;
        }
        count
    }
}

/// Prints what the audit of a suite counted.
fn say(suite: &str, capture: &Capture, twice: &Twice, figures: &[Value]) {
    let packets = |pad: &str| -> u64 {
        let sent = figures.iter().map(|one| one["packets"]["send"][pad].as_u64().unwrap());
        sent.sum()
    };
    let phases: Vec<_> = figures
        .iter()
        .map(|one| one["sessions"][0]["keys"]["send"]["key_phase"].as_u64().unwrap())
        .collect();
    println!(
        "{suite}: {} packets, {} bytes of keystream; pads of what was sent: {} hit, {} partial, {} miss; \
         key phases to {phases:?}; {} pieces, of 8 bytes {} came twice ({:.4} by chance, at most {}), \
         of 16 bytes {}",
        capture.ends.len(),
        capture.keystream.len(),
        packets("hit"),
        packets("partial"),
        packets("miss"),
        twice.pieces,
        twice.of_8_bytes,
        twice.by_chance(),
        twice.by_chance_max(),
        twice.of_16_bytes,
    );
}

/// Carries until so many bytes of keystream are recovered, over two sessions, and judges them.
async fn audit(suite: &str, keystream_bytes: usize, at_once_bytes: u64) {
    let (desk, service) = (watched_desk(), start_service().await);
    let (mut tunnel, relay) = KnownTextTunnel::relayed(&desk, suite, &service).await;
    for direction in [Direction::ToServer, Direction::ToClient] {
        relay.record(direction, usize::MAX);
    }
    let mut capture = Capture::default();
    // The first packets find full pools, so pooled keystream is audited too.
    tunnel.filled(&desk, 64).await;
    let mut figures = Vec::new();
    for part in [1, 2] {
        while capture.keystream.len() < keystream_bytes / 2 * part {
            tunnel.carry(at_once_bytes, at_once_bytes).await;
            capture.take_from(&relay);
        }
        // The server keeps its counters; the client is a new process.
        figures.push(tunnel.figures(&desk));
        if part == 1 {
            tunnel = tunnel.reconnected(&desk, &relay).await;
        }
    }
    let [[_, first], [server, second]] = <[_; 2]>::try_from(figures).unwrap();
    let began = Instant::now();
    let twice = capture.twice();
    say(suite, &capture, &twice, &[server.clone(), first, second]);
    println!("{suite}: audited in {:.1?}", began.elapsed());
    let of_pool = server["keystream_pool_bytes"].as_u64().unwrap();
    let inline = server["keystream_inline_bytes"].as_u64().unwrap();
    assert!(of_pool > 0 && inline > 0, "{suite}: {of_pool} of the pool, {inline} inline");
    assert_eq!(twice.of_16_bytes, 0, "{suite}: {twice:?}");
    assert!(twice.of_8_bytes <= twice.by_chance_max(), "{suite}: {twice:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_keystream_comes_twice_on_the_wire() {
    for suite in SUITES {
        audit(suite, 6 << 20, 512 << 10).await;
    }
}

#[test]
fn the_audit_finds_repeated_blocks_of_either_length_anywhere_in_a_packet() {
    const PACKETS: usize = 256;
    let ends = (1..=PACKETS).map(|packet| packet << 10).collect();
    let mut capture = Capture { keystream: vec![0; PACKETS << 10], ends };
    Rng::with_seed(1).fill(&mut capture.keystream);
    let twice = capture.twice();
    assert!(twice.of_8_bytes <= twice.by_chance_max() && twice.of_16_bytes == 0, "{twice:?}");
    // Repeat blocks of 8 bytes, one more than chance may bring, then one of 16 bytes.
    let blocks = twice.by_chance_max() as usize + 1;
    let within = |packet: usize| (packet << 10) + 21;
    for nth in 0..blocks {
        let (from, to) = (within(nth), within(PACKETS - 1 - nth) + 30);
        capture.keystream.copy_within(from..from + 8, to);
    }
    let twice = capture.twice();
    assert!(twice.of_8_bytes > twice.by_chance_max() && twice.of_16_bytes == 0, "{twice:?}");
    let (from, to) = (within(blocks), within(PACKETS - 1 - blocks) + 30);
    capture.keystream.copy_within(from..from + 16, to);
    assert!(capture.twice().of_16_bytes > 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "a long proof: minutes, and 2 GiB of memory"]
async fn no_keystream_of_aes_comes_twice_in_a_gib_on_the_wire() {
    for suite in &SUITES[..2] {
        audit(suite, 1 << 30, 16 << 20).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "a long proof: minutes, and 2 GiB of memory"]
async fn no_keystream_of_3des_comes_twice_in_a_gib_on_the_wire() {
    audit(SUITES[2], 1 << 30, 16 << 20).await;
}
