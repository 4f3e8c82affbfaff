//! Takes the bytes of a stream: as quinn-proto puts them in order, or as they arrive while there
//! are gaps.

use std::{collections::VecDeque, sync::Arc};

use bytes::Bytes;
use quinn_proto::{ReadError, RecvStream};

use super::SLICES;
use crate::{
    reassembly::{OutOfOrder, Reassembly},
    splice::Cut,
};

/// Deliveries in a row that find nothing in order before the stream is read in order of arrival. A
/// reordered packet causes fewer; reading in order is cheaper.
const FRUITLESS_MAX: u32 = 2;

/// Who puts the bytes of a stream in order.
pub(super) enum Order {
    /// quinn-proto. Has the deliveries in a row that found nothing in order.
    InQuinn { fruitless: u32 },
    /// This end, which reads them as they arrive.
    Here(Box<Reassembly>),
}

impl Default for Order {
    fn default() -> Self {
        Self::InQuinn { fruitless: 0 }
    }
}

/// What was taken from a stream.
pub(super) struct TakenBytes {
    pub(super) bytes: usize,
    /// No bytes follow.
    pub(super) is_end: bool,
}

impl Order {
    /// Records a delivery up to `offset`, and whether it found nothing in order. Returns whether
    /// the stream is read in order of arrival from now on.
    pub(super) fn delivered(
        &mut self,
        is_fruitless: bool,
        offset: u64,
        out_of_order: &Arc<OutOfOrder>,
    ) -> bool {
        let Self::InQuinn { fruitless } = self else { return false };
        *fruitless = if is_fruitless { *fruitless + 1 } else { 0 };
        let must_change = *fruitless == FRUITLESS_MAX;
        if must_change {
            *self = Self::Here(Box::new(Reassembly::new(offset, Arc::clone(out_of_order))));
        }
        must_change
    }

    /// Takes up to `bytes` from the stream.
    pub(super) fn take(
        &mut self,
        stream: &mut RecvStream<'_>,
        bytes: usize,
        into: &mut VecDeque<Bytes>,
    ) -> Result<TakenBytes, Cut> {
        match self {
            Self::InQuinn { .. } => take(stream, bytes, into),
            Self::Here(reassembly) => take_in_order(stream, bytes, reassembly, into),
        }
    }

    /// Reads what has arrived behind a gap, so that no piece waits in quinn-proto.
    pub(super) fn collect_behind_gap(&mut self, stream: &mut RecvStream<'_>) -> Result<(), Cut> {
        match self {
            Self::InQuinn { .. } => Ok(()),
            Self::Here(reassembly) => collect(stream, 0, reassembly),
        }
    }
}

/// Takes up to `bytes` from the stream.
fn take(
    stream: &mut RecvStream<'_>,
    bytes: usize,
    into: &mut VecDeque<Bytes>,
) -> Result<TakenBytes, Cut> {
    // A stream that was read to its end is not read again, so this one was reset here.
    let Ok(mut chunks) = stream.read(true) else { return Err(Cut::Lost) };
    let mut taken = TakenBytes { bytes: 0, is_end: false };
    while taken.bytes < bytes && into.len() < SLICES {
        match chunks.next(bytes - taken.bytes) {
            Ok(Some(chunk)) => {
                taken.bytes += chunk.bytes.len();
                into.push_back(chunk.bytes);
            }
            // quinn-proto reports this only once.
            Ok(None) => {
                taken.is_end = true;
                break;
            }
            Err(ReadError::Reset(code)) => return Err(Cut::Remote(code)),
            Err(ReadError::Blocked) => break,
        }
    }
    Ok(taken)
}

/// Takes up to `bytes` from a stream that is read in order of arrival.
fn take_in_order(
    stream: &mut RecvStream<'_>,
    bytes: usize,
    reassembly: &mut Reassembly,
    into: &mut VecDeque<Bytes>,
) -> Result<TakenBytes, Cut> {
    collect(stream, bytes, reassembly)?;
    let mut taken = 0;
    while taken < bytes
        && into.len() < SLICES
        && let Some(next) = reassembly.take(bytes - taken)
    {
        taken += next.len();
        into.push_back(next);
    }
    Ok(TakenBytes { bytes: taken, is_end: reassembly.is_over() })
}

/// Reads what has arrived of a stream until this many bytes are in order; behind a gap all of it,
/// so that no piece waits in quinn-proto.
fn collect(
    stream: &mut RecvStream<'_>,
    bytes: usize,
    reassembly: &mut Reassembly,
) -> Result<(), Cut> {
    if reassembly.is_whole() {
        return Ok(());
    }
    let Ok(mut chunks) = stream.read(false) else { return Err(Cut::Lost) };
    while reassembly.has_gap() || reassembly.bytes() < bytes as u64 {
        match chunks.next(usize::MAX) {
            Ok(Some(chunk)) => reassembly.insert(chunk.offset, chunk.bytes),
            Ok(None) => {
                reassembly.set_whole();
                break;
            }
            Err(ReadError::Reset(code)) => return Err(Cut::Remote(code)),
            Err(ReadError::Blocked) => break,
        }
    }
    Ok(())
}
