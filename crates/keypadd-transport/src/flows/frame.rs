//! Encodes and decodes the DATAGRAM frames (RFC 9221) of flows.
//!
//! A frame is `varint ID, datagram`, where ID is that of the flow's stream (RFC 9000 2.1). With bit
//! 1 of ID set, which no bidirectional stream has, a fragment follows instead: `u16 number, u16
//! total, u16 offset, bytes`, big-endian. Knows no flows and no sockets.

use bytes::{Buf, BufMut, Bytes, BytesMut};
use quinn_proto::{Dir, StreamId, VarInt, coding::Codec};

/// Largest payload of a UDP datagram: what 65,535 bytes leave after the UDP header. That is over
/// IPv6; over IPv4 the header of IP counts too. A shorter buffer would cut a datagram, because
/// `recv` truncates silently.
pub const DATAGRAM_BYTES_MAX: usize = 65_527;

/// Bit of the ID that marks a fragment: that of unidirectional streams.
const FRAGMENT: u64 = 2;

/// Bytes between the ID and the bytes of a fragment.
const FRAGMENT_HEAD_BYTES: usize = 6;

/// Shortest fragment, except for a datagram's last. Every path carries more (RFC 9000 14), and
/// shorter ones would cost the receiver more than they carry.
pub(crate) const FRAGMENT_BYTES_MIN: usize = 512;

/// Where a fragment belongs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fragment {
    /// Which datagram of the flow.
    pub number: u16,
    /// Length of that datagram.
    pub total: u16,
    /// Offset of the fragment's first byte.
    pub offset: u16,
}

/// The content of a frame.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FlowFrame {
    /// The flow's stream.
    pub stream: StreamId,
    /// `None` for a whole datagram.
    pub fragment: Option<Fragment>,
    /// The datagram, or these bytes of it.
    pub bytes: Bytes,
}

impl FlowFrame {
    /// Decodes a frame; `None` if it is malformed.
    pub fn decode(mut frame: Bytes) -> Option<Self> {
        let id = VarInt::decode(&mut frame).ok()?.into_inner();
        let stream = StreamId::from(VarInt::from_u64(id & !FRAGMENT).ok()?);
        if id & FRAGMENT == 0 {
            let fits = frame.len() <= DATAGRAM_BYTES_MAX;
            return fits.then_some(Self { stream, fragment: None, bytes: frame });
        }
        if frame.len() <= FRAGMENT_HEAD_BYTES {
            return None;
        }
        let (number, total, offset) = (frame.get_u16(), frame.get_u16(), frame.get_u16());
        let end = usize::from(offset) + frame.len();
        let is_last = end == usize::from(total);
        let is_valid = usize::from(total) <= DATAGRAM_BYTES_MAX
            && end <= usize::from(total)
            && (is_last || frame.len() >= FRAGMENT_BYTES_MIN);
        let fragment = Some(Fragment { number, total, offset });
        is_valid.then_some(Self { stream, fragment, bytes: frame })
    }

    /// Encodes the frame.
    pub fn encode(&self) -> Bytes {
        let mut frame = BytesMut::with_capacity(head_bytes(self.stream, true) + self.bytes.len());
        put_id(self.stream, self.fragment.is_some(), &mut frame);
        if let Some(Fragment { number, total, offset }) = self.fragment {
            frame.put_u16(number);
            frame.put_u16(total);
            frame.put_u16(offset);
        }
        frame.extend_from_slice(&self.bytes);
        frame.freeze()
    }
}

/// Begins a frame, which the datagram follows, or the place and the bytes of a fragment.
pub(super) fn put_id(stream: StreamId, fragment: bool, frame: &mut BytesMut) {
    // A stream's ID and this bit are below 2^62, as is the ID.
    let id = VarInt::from(stream).into_inner() | if fragment { FRAGMENT } else { 0 };
    VarInt::from_u64(id).unwrap_or(VarInt::MAX).encode(frame);
}

/// Bytes of a frame before the datagram, or before the bytes of a fragment.
pub(crate) fn head_bytes(stream: StreamId, fragment: bool) -> usize {
    let id = match VarInt::from(stream).into_inner() {
        0..0x40 => 1,
        0x40..0x4000 => 2,
        0x4000..0x4000_0000 => 4,
        _ => 8,
    };
    id + if fragment { FRAGMENT_HEAD_BYTES } else { 0 }
}

/// Whether a stream can belong to a flow.
pub(crate) fn is_flow_stream(stream: StreamId) -> bool {
    stream.dir() == Dir::Bi
}

#[cfg(test)]
mod tests {
    use super::*;

    fn stream(id: u64) -> StreamId {
        StreamId::from(VarInt::from_u64(id).unwrap())
    }

    fn round_trip(frame: &FlowFrame) {
        assert_eq!(FlowFrame::decode(frame.encode()).as_ref(), Some(frame));
    }

    #[test]
    fn frames_decode_to_what_was_encoded() {
        for id in [0, 4, 60, 64, 0x3ffc, 0x4000, 0x3fff_fffc, 0x4000_0000, (1 << 62) - 4] {
            let whole = FlowFrame { stream: stream(id), fragment: None, bytes: "datagram".into() };
            round_trip(&whole);
            assert_eq!(whole.encode().len(), head_bytes(stream(id), false) + 8);
            let fragment = Some(Fragment { number: 7, total: 1_200, offset: 100 });
            let bytes = vec![9; FRAGMENT_BYTES_MIN].into();
            let part = FlowFrame { stream: stream(id + 1), fragment, bytes };
            round_trip(&part);
            assert_eq!(part.encode().len(), head_bytes(stream(id), true) + FRAGMENT_BYTES_MIN);
        }
        round_trip(&FlowFrame { stream: stream(4), fragment: None, bytes: Bytes::new() });
    }

    #[test]
    fn a_frame_is_the_id_and_the_datagram() {
        let frame = FlowFrame { stream: stream(64), fragment: None, bytes: "x".into() };
        assert_eq!(&frame.encode()[..], b"\x40\x40x");
        let fragment = Some(Fragment { number: 1, total: 513, offset: 512 });
        let frame = FlowFrame { stream: stream(4), fragment, bytes: "y".into() };
        assert_eq!(&frame.encode()[..], b"\x06\0\x01\x02\x01\x02\0y");
    }

    #[test]
    fn malformed_frames_are_refused() {
        let fragment = |total: u16, offset: u16, bytes: usize| {
            let head = [&[6, 0, 1][..], &total.to_be_bytes(), &offset.to_be_bytes()].concat();
            FlowFrame::decode([head, vec![0; bytes]].concat().into())
        };
        assert!(fragment(1_000, 0, 600).is_some());
        assert!(fragment(1_000, 600, 400).is_some(), "the last may be short");
        assert!(fragment(1_000, 0, 511).is_none(), "short");
        assert!(fragment(1_000, 600, 401).is_none(), "beyond the end");
        assert!(fragment(1_000, 1_000, 0).is_none(), "empty");
        assert!(fragment(65_528, 0, 600).is_none(), "too long");
        for frame in [&b""[..], b"\x40", b"\x06", b"\x06\0\0\0\0\0\0"] {
            assert_eq!(FlowFrame::decode(Bytes::copy_from_slice(frame)), None, "{frame:?}");
        }
    }
}
