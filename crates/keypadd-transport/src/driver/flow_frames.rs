//! Passes datagrams between a connection and its flows.

use std::time::Instant;

use quinn_proto::Connection;

use super::one_way::{OneWay, is_one_way};
use crate::{congestion::Waits, flows::Flows};

/// Datagrams from this length on are bulk data. Shorter ones are requests, answers and
/// acknowledgements, which look alike: an answer says nothing about what a flow carries.
const BULK_DATAGRAM_BYTES: usize = 1000;

/// Upper bound on a packet's overhead around the frame's content: a short header (`OVERHEAD_BYTES`
/// in `sender`), and the type and length of a DATAGRAM frame (RFC 9221 4).
const FRAME_OVERHEAD_BYTES: usize = (1 + 20 + 4) + 16 + (1 + 8);

/// What was received from the peer.
pub(super) struct ReceivedFrames {
    pub(super) bulk_bytes: usize,
    /// How long packets wait, if that is known now.
    pub(super) waits: Option<Waits>,
}

/// Passes on what has arrived.
pub(super) fn receive(
    quic: &mut Connection,
    flows: &mut Flows,
    one_way: &mut OneWay,
    now: Instant,
) -> ReceivedFrames {
    let mut received = ReceivedFrames { bulk_bytes: 0, waits: None };
    while let Some(frame) = quic.datagrams().recv() {
        received.bulk_bytes += bulk_bytes_of(&frame);
        if is_one_way(&frame) {
            received.waits = one_way.arrive(&frame, now).or(received.waits);
        } else {
            flows.arrive(frame);
        }
    }
    received
}

/// Answers what the peer has asked about the path since the last answer.
pub(super) fn answer(quic: &mut Connection, one_way: &mut OneWay) {
    if let Some(answer) = one_way.answer() {
        let _ = quic.datagrams().send(answer, false);
    }
}

/// What quinn-proto was given.
pub(super) struct Given {
    /// With the overhead of packets.
    pub(super) bytes: usize,
    pub(super) bulk_bytes: usize,
}

/// Gives quinn-proto datagrams with up to `frame_max` bytes of content each, until they are
/// `allowed` bytes.
pub(super) fn give(
    quic: &mut Connection,
    flows: &mut Flows,
    frame_max: usize,
    allowed: usize,
    now: Instant,
) -> Given {
    let mut given = Given { bytes: 0, bulk_bytes: 0 };
    while given.bytes < allowed
        && let Some(frame) = flows.next_frame(frame_max, now)
    {
        given.bulk_bytes += bulk_bytes_of(&frame);
        let bytes = frame.len() + FRAME_OVERHEAD_BYTES;
        // It has room, so earlier datagrams have been sent.
        if quic.datagrams().send(frame, false).is_err() {
            break;
        }
        given.bytes += bytes;
    }
    given
}

fn bulk_bytes_of(frame: &[u8]) -> usize {
    if frame.len() < BULK_DATAGRAM_BYTES { 0 } else { frame.len() }
}
