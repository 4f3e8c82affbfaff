//! Runs the applications: streams of known bytes, written by one end and compared at the other.
//!
//! Every byte is a function of its stream and offset, so nothing has to be remembered.

use std::collections::BTreeMap;
use std::time::Duration;

use fastrand::Rng;
use quinn_proto::{Connection, Dir, ReadError, Side, StreamId, VarInt, WriteError};

use crate::schedule::Style;

/// Streams that an end writes at once.
const STREAMS: usize = 3;
/// Bytes of one write of bulk.
const BULK_BYTES: usize = 24 * 1024;

/// One end's application of one connection.
pub(crate) struct Traffic {
    /// Distinguishes the bytes of this end's streams from all others'.
    seed: u64,
    peer_seed: u64,
    style: Style,
    rng: Rng,
    writers: Vec<Writer>,
    /// Bytes compared so far by stream, and whether it has ended.
    readers: BTreeMap<StreamId, (u64, bool)>,
    pub(crate) wake_at: Option<Duration>,
    pub(crate) received_bytes: u64,
    pub(crate) wrong: Option<String>,
}

struct Writer {
    id: StreamId,
    written: u64,
    finished: bool,
}

impl Traffic {
    pub(crate) fn new(seed: u64, side: Side, style: Style, rng: Rng) -> Self {
        let (own, peer) = match side {
            Side::Client => (seed, seed ^ 1),
            Side::Server => (seed ^ 1, seed),
        };
        Self {
            seed: own,
            peer_seed: peer,
            style,
            rng,
            writers: Vec::new(),
            readers: BTreeMap::new(),
            wake_at: None,
            received_bytes: 0,
            wrong: None,
        }
    }

    /// Opens streams and starts writing, once the connection is established.
    pub(crate) fn begin(&mut self, connection: &mut Connection, now: Duration) {
        while self.writers.len() < STREAMS {
            let Some(id) = connection.streams().open(Dir::Uni) else { break };
            self.writers.push(Writer { id, written: 0, finished: false });
        }
        self.wake_at = Some(now);
    }

    /// Writes a little; returns when to be called next.
    pub(crate) fn write(&mut self, connection: &mut Connection, now: Duration) {
        let bulk = match self.style {
            Style::Terminal => false,
            Style::Bulk => true,
            Style::Mixed => self.rng.bool(),
        };
        let (bytes, pause_micros) = match bulk {
            true => (self.rng.usize(1000..BULK_BYTES), self.rng.u64(1_000..20_000)),
            false => (self.rng.usize(1..120), self.rng.u64(50..4_000)),
        };
        self.wake_at = Some(now + Duration::from_micros(pause_micros));
        let open: Vec<usize> =
            (0..self.writers.len()).filter(|&index| !self.writers[index].finished).collect();
        let Some(&index) = open.get(self.rng.usize(0..open.len().max(1))) else { return };
        let seed = stream_seed(self.seed, self.writers[index].id);
        let writer = &mut self.writers[index];
        let mut data = vec![0; bytes];
        fill(seed, writer.written, &mut data);
        match connection.send_stream(writer.id).write(&data) {
            Ok(written) => writer.written += written as u64,
            Err(WriteError::Blocked) => {}
            Err(error) => self.wrong = Some(format!("a write failed: {error}")),
        }
    }

    /// Ends all streams.
    pub(crate) fn finish(&mut self, connection: &mut Connection) {
        self.wake_at = None;
        for writer in self.writers.iter_mut().filter(|writer| !writer.finished) {
            if connection.send_stream(writer.id).finish().is_ok() {
                writer.finished = true;
            }
        }
    }

    /// Reads and compares what has arrived.
    pub(crate) fn read(&mut self, connection: &mut Connection) {
        while let Some(id) = connection.streams().accept(Dir::Uni) {
            self.readers.insert(id, (0, false));
        }
        for (&id, (offset, ended)) in &mut self.readers {
            if *ended {
                continue;
            }
            let mut stream = connection.recv_stream(id);
            let Ok(mut chunks) = stream.read(true) else { continue };
            loop {
                match chunks.next(usize::MAX) {
                    Ok(Some(chunk)) => {
                        let mut expected = vec![0; chunk.bytes.len()];
                        fill(stream_seed(self.peer_seed, id), *offset, &mut expected);
                        if chunk.offset != *offset || chunk.bytes != expected {
                            self.wrong
                                .get_or_insert_with(|| format!("stream {id} differs at {offset}"));
                        }
                        *offset += chunk.bytes.len() as u64;
                        self.received_bytes += chunk.bytes.len() as u64;
                    }
                    Ok(None) => {
                        *ended = true;
                        break;
                    }
                    Err(ReadError::Blocked) => break,
                    Err(error) => {
                        self.wrong.get_or_insert_with(|| format!("a read failed: {error}"));
                        break;
                    }
                }
            }
            let _ = chunks.finalize();
        }
    }

    /// What the other end must have received in the end, by stream.
    pub(crate) fn written(&self) -> BTreeMap<StreamId, (u64, bool)> {
        self.writers.iter().map(|writer| (writer.id, (writer.written, writer.finished))).collect()
    }

    /// What was received by stream, and whether its end was seen.
    pub(crate) fn received(&self) -> &BTreeMap<StreamId, (u64, bool)> {
        &self.readers
    }
}

fn stream_seed(seed: u64, id: StreamId) -> u64 {
    mix(seed ^ mix(VarInt::from(id).into_inner()))
}

/// The bytes of a stream from `offset` on.
pub(crate) fn fill(seed: u64, offset: u64, out: &mut [u8]) {
    let (mut word, mut bytes) = (u64::MAX, [0; 8]);
    for (place, byte) in (offset..).zip(out) {
        if place / 8 != word {
            word = place / 8;
            bytes = mix(seed.wrapping_add(word)).to_le_bytes();
        }
        *byte = bytes[(place % 8) as usize];
    }
}

/// SplitMix64's finaliser (Steele, Lea, Flood 2014).
pub(crate) fn mix(value: u64) -> u64 {
    let mut z = value.wrapping_add(0x9e37_79b9_7f4a_7c15);
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}
