//! Keeps the bytes of one direction that the receiver has not yet written to its socket, to send
//! them again over another connection.
//!
//! Both ends count the socket's bytes from the start of the splice. By a [`Receipt`] the receiver
//! says how many it has written, and the sender frees those. On a new connection the receiver
//! repeats its last receipt, and the sender continues from there: nothing is lost, duplicated or
//! reordered, because a receipt is never ahead of the socket and the buffer never starts after a
//! receipt.
//!
//! On a short path, a stream's limit grows only as its receipts show that it is being read fast. A
//! stream that was never read fast leaves memory to the others. Knows no sockets or connections.

use std::{
    collections::VecDeque,
    num::NonZeroU64,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering::Relaxed},
    },
    time::{Duration, Instant},
};

use bytes::{Buf, Bytes, BytesMut};
use keypadd_share::{Budget, threshold};
use serde::{Deserialize, Serialize};
use thiserror::Error;

/// What every stream may keep before it takes part of the shared half of a peer's memory: what a
/// receiver writes before it must send a receipt. Less where a peer has less than 256 MiB.
pub const STREAM_MIN_BYTES: usize = 128 << 10;

/// A stream's own is at most one part in this many of a peer's memory, so that half of it is enough
/// for a thousand.
const STREAM_MIN_ONE_IN: usize = 2048;

/// A peer may keep a third of what it leaves free of the memory of all: several greedy ones leave
/// the next one enough for a receipt of each 128 KiB.
const SHARE: (u64, u64) = (1, 3);

/// Initial limit of a stream on a short path, and the round trips' worth of receipts that are added
/// to it.
const STREAM_START_BYTES: usize = 256 << 10;
const ROUND_TRIPS: f64 = 4.0;

/// Round trips above this are those of a long path. Receipts of what has arrived in order say
/// little there: they wait for packets that are lost several times.
const RECEIPTS_LONG_PATH: Duration = Duration::from_millis(5);

/// Between busy hosts a receipt takes at least this long, however short the round trip is.
const RECEIPT_TIME: Duration = Duration::from_millis(1);

/// Receipts are counted for at least this long: each is for many bytes.
const COUNTED_TIME: Duration = Duration::from_millis(5);

/// What a stream that keeps nothing may send, whatever others keep. Only its own receipts wake it,
/// and without sending it gets none.
const FIRST_BYTES: usize = 1 << 10;

/// Shorter pieces are copied together: a buffer for each would cost more memory than it holds.
const SHORT_BYTES: usize = 1 << 10;

/// Size of the buffers for short pieces.
const JOINED_BYTES: usize = 4 << 10;

/// How much of one direction a receiver has written to its socket.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Receipt {
    /// Bytes since the start of the splice.
    pub bytes: u64,
    /// Whether it has written the end as well.
    pub end: bool,
}

impl Receipt {
    /// The receiver's socket has failed: it will write no more, and wants no more.
    pub(crate) const GIVEN_UP: Self = Self { bytes: u64::MAX >> 1, end: true };

    /// Encodes the receipt as one number, which grows with the bytes written.
    pub fn encode(self) -> u64 {
        (self.bytes << 1) | u64::from(self.end)
    }

    /// Every number is a valid receipt.
    pub fn decode(number: u64) -> Self {
        Self { bytes: number >> 1, end: number & 1 == 1 }
    }
}

/// A receipt for bytes that were not sent, or less than an earlier receipt.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[error("the peer claims bytes that it cannot have")]
pub struct BadReceipt;

/// Memory that the replay buffers of one peer share.
#[derive(Debug)]
pub struct ReplayBudget {
    stream_min: usize,
    stream_max: usize,
    peer_max: usize,
    used: AtomicUsize,
    /// Bytes of `used` that are beyond the first `stream_min` of a stream.
    shared: AtomicUsize,
    /// What the buffers of all peers share.
    all: Arc<Budget>,
}

impl ReplayBudget {
    /// One stream may keep `stream_max` bytes and all together `peer_max`, plus 1 KiB each. What a
    /// stream keeps beyond 128 KiB comes out of one half of `peer_max`, of which it may have no
    /// more than it leaves free. So streams that nobody reads never stop the others: with the
    /// default 256 MiB, 1,000 of them leave every other one its 128 KiB, and some of the half.
    /// Where less is left of `all`, a peer has no more than a third of what it leaves of that, and
    /// its streams as many times less.
    pub fn new(stream_max: usize, peer_max: usize, all: Arc<Budget>) -> Self {
        let most = threshold(SHARE, 0, all.total()).try_into().unwrap_or(usize::MAX);
        let peer_max = peer_max.min(most);
        let stream_min = STREAM_MIN_BYTES.min((peer_max / STREAM_MIN_ONE_IN).max(FIRST_BYTES));
        let (used, shared) = (AtomicUsize::new(0), AtomicUsize::new(0));
        Self { stream_min, stream_max, peer_max, used, shared, all }
    }

    /// Bytes kept now.
    pub fn used(&self) -> usize {
        self.used.load(Relaxed)
    }

    /// What a stream may keep whatever others keep, if that is less than a receiver writes before
    /// it must send a receipt.
    pub(crate) fn keeps(&self) -> Option<NonZeroU64> {
        let is_little = self.stream_min < STREAM_MIN_BYTES;
        NonZeroU64::new(FIRST_BYTES as u64).filter(|_| is_little)
    }

    /// What a stream that keeps this much may still send.
    fn room(&self, kept: usize) -> usize {
        let used = self.used();
        let peer_max = threshold(SHARE, used as u64, self.all.free());
        let peer_max = self.peer_max.min(peer_max.try_into().unwrap_or(usize::MAX));
        let free = peer_max.saturating_sub(used);
        let shared = (peer_max / 2).saturating_sub(self.shared.load(Relaxed));
        let most = (self.stream_min + shared).min(kept + free).min(self.stream_max);
        let room = most.saturating_sub(kept);
        if kept == 0 { room.max(FIRST_BYTES) } else { room }
    }

    /// Counts what a stream keeps from now on.
    fn change(&self, from: usize, to: usize) {
        let beyond = |kept: usize| kept.saturating_sub(self.stream_min);
        // Wraps around, as the counters do.
        self.used.fetch_add(to.wrapping_sub(from), Relaxed);
        self.shared.fetch_add(beyond(to).wrapping_sub(beyond(from)), Relaxed);
        self.all.change(from as u64, to as u64);
    }
}

/// A replay buffer's state besides its bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct ReplayRecord {
    /// Offset of its first byte, or of the next one, in the direction.
    start: u64,
    /// Whether the end was sent.
    ended: bool,
}

/// The bytes of one direction that may have to be sent again.
#[derive(Debug)]
pub struct Replay {
    /// Offset of the first byte kept, or of the next byte.
    start: u64,
    pieces: VecDeque<Bytes>,
    /// Short pieces that follow.
    joined: BytesMut,
    kept: usize,
    /// The most to keep, by its receipts so far.
    most: usize,
    /// Where the receipts of this measurement began, and when.
    measured: Option<(u64, Instant)>,
    ended: bool,
    budget: Arc<ReplayBudget>,
}

impl Replay {
    /// For a direction that has sent nothing.
    pub fn new(budget: Arc<ReplayBudget>) -> Self {
        Self {
            start: 0,
            pieces: VecDeque::new(),
            joined: BytesMut::new(),
            kept: 0,
            most: STREAM_START_BYTES,
            measured: None,
            ended: false,
            budget,
        }
    }

    /// Continues what another process has kept.
    pub(crate) fn restore(
        record: &ReplayRecord,
        pieces: Vec<Bytes>,
        budget: Arc<ReplayBudget>,
    ) -> Self {
        let kept = pieces.iter().map(Bytes::len).sum();
        budget.change(0, kept);
        let mut replay = Self::new(budget);
        (replay.start, replay.ended) = (record.start, record.ended);
        (replay.pieces, replay.kept) = (pieces.into(), kept);
        replay
    }

    /// What [`Replay::restore`] needs.
    pub(crate) fn record(&self) -> (ReplayRecord, Vec<Bytes>) {
        let joined = (!self.joined.is_empty()).then(|| Bytes::copy_from_slice(&self.joined));
        let pieces = self.pieces.iter().cloned().chain(joined).collect();
        (ReplayRecord { start: self.start, ended: self.ended }, pieces)
    }

    /// Bytes that may be sent now. A receipt may make room for more.
    pub fn room(&self) -> usize {
        self.budget.room(self.kept).min(self.most.saturating_sub(self.kept))
    }

    /// To be called before a read: on a long path, lifts the limit by receipts. Else counts
    /// receipts from now on, if there was nothing to cover until now; but a stream that is read as
    /// fast as it may be sent often keeps nothing, too.
    pub fn begin(&mut self, now: Instant, rtt: Duration) {
        if rtt > RECEIPTS_LONG_PATH {
            self.most = usize::MAX;
        }
        let is_idle = self.kept == 0 && self.measured.is_none_or(|(from, _)| from == self.start);
        if is_idle {
            self.measured = Some((self.start, now));
        }
    }

    /// Lets it keep more if its receipts cover more in a round trip than in any before.
    pub fn follow(&mut self, now: Instant, rtt: Duration) {
        let rtt = rtt.max(RECEIPT_TIME);
        let (from, since) = *self.measured.get_or_insert((self.start, now));
        let elapsed = now.saturating_duration_since(since);
        if elapsed >= rtt.max(COUNTED_TIME) {
            let round_trips = elapsed.as_secs_f64() / rtt.as_secs_f64();
            let covered = (self.start - from) as f64 / round_trips;
            let most = STREAM_START_BYTES + (ROUND_TRIPS * covered) as usize;
            self.most = self.most.max(most);
            self.measured = Some((self.start, now));
        }
    }

    /// Whether the receiver has written every byte that was sent.
    pub fn is_empty(&self) -> bool {
        self.kept == 0
    }

    /// Whether the end was sent.
    pub fn has_ended(&self) -> bool {
        self.ended
    }

    /// Keeps a sent piece, without copying it unless it is short.
    pub fn push(&mut self, piece: &Bytes) {
        if piece.len() >= SHORT_BYTES {
            self.close_joined();
            self.pieces.push_back(piece.clone());
        } else {
            if self.joined.len() + piece.len() > JOINED_BYTES {
                self.close_joined();
            }
            self.joined.extend_from_slice(piece);
        }
        self.budget.change(self.kept, self.kept + piece.len());
        self.kept += piece.len();
    }

    /// Records that the end was sent.
    pub fn finish(&mut self) {
        self.ended = true;
    }

    /// Frees what the receiver has written; returns whether it has written everything and the end.
    /// A receipt older than the last one changes nothing.
    ///
    /// # Errors
    /// [`BadReceipt`] for more than was sent.
    pub fn release(&mut self, receipt: Receipt) -> Result<bool, BadReceipt> {
        let sent = self.start + self.kept as u64;
        if receipt.bytes > sent || (receipt.end && !(self.ended && receipt.bytes == sent)) {
            return Err(BadReceipt);
        }
        let mut bytes = usize::try_from(receipt.bytes.saturating_sub(self.start)).unwrap_or(0);
        if bytes == 0 {
            return Ok(receipt.end);
        }
        self.start += bytes as u64;
        self.budget.change(self.kept, self.kept - bytes);
        self.kept -= bytes;
        while bytes > 0 {
            let Some(first) = self.pieces.front_mut() else {
                self.joined.advance(bytes);
                break;
            };
            if first.len() > bytes {
                first.advance(bytes);
                break;
            }
            bytes -= first.len();
            self.pieces.pop_front();
        }
        if self.kept == 0 {
            // An idle stream keeps no memory.
            (self.pieces, self.joined) = (VecDeque::new(), BytesMut::new());
        }
        Ok(receipt.end)
    }

    /// The bytes to send again on a new connection, in order, to a receiver whose last receipt is
    /// this one. They stay kept.
    ///
    /// # Errors
    /// [`BadReceipt`] for more than was sent, or less than an earlier receipt.
    pub fn resume(&mut self, receipt: Receipt) -> Result<VecDeque<Bytes>, BadReceipt> {
        if receipt.bytes < self.start {
            return Err(BadReceipt);
        }
        self.release(receipt)?;
        self.close_joined();
        Ok(self.pieces.clone())
    }

    fn close_joined(&mut self) {
        if !self.joined.is_empty() {
            self.pieces.push_back(self.joined.split().freeze());
        }
    }
}

impl Drop for Replay {
    fn drop(&mut self) {
        self.budget.change(self.kept, 0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn replay(stream_max: usize, peer_max: usize) -> Replay {
        Replay::new(Arc::new(ReplayBudget::new(stream_max, peer_max, Arc::default())))
    }

    fn at(bytes: u64) -> Receipt {
        Receipt { bytes, end: false }
    }

    fn joined(pieces: VecDeque<Bytes>) -> Vec<u8> {
        pieces.into_iter().flatten().collect()
    }

    #[test]
    fn what_is_sent_again_is_what_was_sent_after_the_receipt_in_any_pieces() {
        let mut replay = replay(16 << 20, 16 << 20);
        let mut sent = Vec::new();
        for (nth, bytes) in [1, 5_000, 3, 700, 1_024, 1_023, 64 << 10, 9].into_iter().enumerate() {
            let piece = Bytes::from(vec![nth as u8 + 1; bytes]);
            replay.push(&piece);
            sent.extend_from_slice(&piece);
        }
        for from in [0, 1, 2, 5_001, 5_500, 6_800, sent.len() - 9, sent.len()] {
            assert_eq!(joined(replay.resume(at(from as u64)).unwrap()), sent[from..], "{from}");
        }
        assert_eq!(replay.budget.used(), 0);
        replay.push(&Bytes::from_static(b"more"));
        assert_eq!(joined(replay.resume(at(sent.len() as u64 + 1)).unwrap()), b"ore");
    }

    #[test]
    fn receipts_for_what_was_not_sent_and_claims_that_go_back_are_refused() {
        let mut replay = replay(1 << 20, 1 << 20);
        replay.push(&Bytes::from_static(b"abc"));
        assert_eq!(replay.release(at(4)), Err(BadReceipt));
        assert_eq!(replay.release(Receipt { bytes: 3, end: true }), Err(BadReceipt));
        assert_eq!(replay.release(at(2)), Ok(false));
        assert_eq!(replay.release(at(1)), Ok(false), "receipts of two connections may cross");
        assert_eq!(replay.resume(at(1)), Err(BadReceipt));
        replay.finish();
        assert_eq!(replay.release(Receipt { bytes: 2, end: true }), Err(BadReceipt));
        assert_eq!(replay.release(Receipt { bytes: 3, end: true }), Ok(true));
        assert_eq!(replay.release(Receipt::decode(u64::MAX)), Err(BadReceipt));
    }

    #[test]
    fn who_has_little_memory_for_a_stream_says_how_much() {
        let keeps = |mib: u64| {
            let all = Arc::new(Budget::new(mib << 20));
            ReplayBudget::new(64 << 20, 256 << 20, all).keeps().map(NonZeroU64::get)
        };
        assert_eq!([keeps(1), keeps(64)], [Some(FIRST_BYTES as u64); 2]);
        assert_eq!([keeps(1 << 10), keeps(1 << 20)], [None; 2]);
    }

    #[test]
    fn a_piece_is_kept_without_a_copy_and_short_ones_take_little_more_than_their_bytes() {
        let mut replay = replay(16 << 20, 16 << 20);
        let long = Bytes::from(vec![7; 64 << 10]);
        replay.push(&long);
        assert_eq!(replay.resume(at(0)).unwrap()[0].as_ptr(), long.as_ptr());
        for _ in 0..100_000 {
            replay.push(&Bytes::from_static(b"k"));
        }
        assert!(replay.pieces.len() <= 2 + 100_000 / (JOINED_BYTES - SHORT_BYTES));
    }

    /// Keeps all that it may.
    fn fill(replay: &mut Replay) {
        let block = Bytes::from(vec![0; 64 << 10]);
        while replay.room() > 0 {
            replay.push(&block.slice(..replay.room().min(block.len())));
        }
    }

    /// A stream that takes all that it may, and whose reader stops there.
    fn stalled(budget: &Arc<ReplayBudget>, most: usize) -> Replay {
        let mut replay = Replay::new(Arc::clone(budget));
        replay.most = most;
        fill(&mut replay);
        replay
    }

    #[test]
    fn streams_nobody_reads_leave_every_other_stream_room() {
        let peer_max = 256 << 20;
        let budget = Arc::new(ReplayBudget::new(16 << 20, peer_max, Arc::default()));
        // One after the other: each takes all that it may before the next begins.
        let mut all: Vec<_> = (0..1_000).map(|_| stalled(&budget, usize::MAX)).collect();
        assert!(budget.used() <= peer_max, "{}", budget.used());
        assert!(Replay::new(Arc::clone(&budget)).room() >= STREAM_MIN_BYTES);
        // However many there are, another one can send something, and a receipt for it comes.
        all.extend((0..1_000).map(|_| stalled(&budget, usize::MAX)));
        assert!(budget.used() <= peer_max + all.len() * FIRST_BYTES, "{}", budget.used());
        assert_eq!(Replay::new(Arc::clone(&budget)).room(), FIRST_BYTES);
        drop(all);
        assert_eq!((budget.used(), budget.shared.load(Relaxed)), (0, 0));
    }

    #[test]
    fn greedy_peers_leave_some_of_the_memory_of_all_to_the_next_one() {
        const ALL: usize = 16 << 20;
        let all = Arc::new(Budget::new(ALL as u64));
        let peer = || Arc::new(ReplayBudget::new(64 << 20, 256 << 20, Arc::clone(&all)));
        let peers = [(); 4].map(|()| peer());
        let of = |budget: &Arc<ReplayBudget>| {
            (0..250).map(|_| stalled(budget, usize::MAX)).collect::<Vec<_>>()
        };
        let kept = peers.each_ref().map(of);
        assert!(all.taken() <= (ALL + 1_000 * FIRST_BYTES) as u64, "{}", all.taken());
        let next = peer();
        let room = Replay::new(Arc::clone(&next)).room();
        assert!(room >= STREAM_MIN_BYTES, "{room}");
        drop(kept);
        assert_eq!(all.taken(), 0);
    }

    #[test]
    fn streams_that_were_never_read_fast_leave_a_fast_one_a_megabyte() {
        let budget = Arc::new(ReplayBudget::new(16 << 20, 256 << 20, Arc::default()));
        let all: Vec<_> = (0..1_000).map(|_| stalled(&budget, STREAM_START_BYTES)).collect();
        assert_eq!(all[0].kept, STREAM_START_BYTES);
        assert!(stalled(&budget, usize::MAX).kept >= 1 << 20);
    }

    #[test]
    fn a_stream_may_keep_what_its_receipts_cover_in_a_few_round_trips() {
        for (rtt, rounds) in
            [(RECEIPTS_LONG_PATH, [1, 5, 21, 64, 64]), (2 * RECEIPTS_LONG_PATH, [64; 5])]
        {
            let mut replay = replay(16 << 20, 256 << 20);
            let mut now = Instant::now();
            // Read more slowly in the end, it keeps its share.
            for (round, times) in rounds.into_iter().zip([1, 1, 1, 10, 10]) {
                replay.begin(now, rtt);
                fill(&mut replay);
                assert_eq!(replay.kept, round * STREAM_START_BYTES);
                now += times * rtt;
                replay.release(at(replay.start + replay.kept as u64)).unwrap();
                replay.follow(now, rtt);
            }
        }
    }

    #[test]
    fn a_stream_whose_receipts_always_cover_everything_is_read_fast() {
        let (rtt, start) = (Duration::from_micros(100), Instant::now());
        let mut replay = replay(16 << 20, 256 << 20);
        for nth in 0..50 {
            replay.begin(start + nth * rtt, rtt);
            fill(&mut replay);
            replay.release(at(replay.start + replay.kept as u64)).unwrap();
            replay.follow(start + (nth + 1) * rtt, rtt);
        }
        assert!(replay.most >= 40 * STREAM_START_BYTES, "{}", replay.most);
    }

    #[test]
    fn on_a_short_path_one_receipt_is_no_rate() {
        let (rtt, now) = (Duration::from_micros(100), Instant::now());
        let mut replay = replay(16 << 20, 256 << 20);
        replay.begin(now, rtt);
        replay.push(&Bytes::from(vec![0; STREAM_START_BYTES]));
        replay.release(at(STREAM_MIN_BYTES as u64)).unwrap();
        replay.follow(now + rtt, rtt);
        assert_eq!(replay.most, STREAM_START_BYTES);
        replay.follow(now + COUNTED_TIME, rtt);
        assert_eq!(replay.most, STREAM_START_BYTES + 4 * STREAM_MIN_BYTES / 5);
    }
}
