//! Makes connection IDs whose first byte is the number of the loop that owns the connection.
//!
//! When a client changes its address, the kernel may give its datagrams to another loop's socket;
//! that loop forwards them by this byte. The rest of the ID is random (RFC 9000 5.1).

use quinn_proto::{ConnectionId, ConnectionIdGenerator, InvalidCid};

use crate::randomness::fill_random;

/// The longest connection ID (RFC 9000 17.2).
const MAX_CID_SIZE: usize = 20;

/// Length of our connection IDs.
const CID_BYTES: usize = 8;

/// First bit of a long header (RFC 9000 17.2); a client chooses the connection IDs there, which
/// name no loop.
pub(crate) const LONG_HEADER: u8 = 0x80;

/// Makes the connection IDs of one loop.
#[derive(Clone, Copy, Debug)]
pub(crate) struct LoopIds {
    pub(crate) number: u8,
    /// How many loops the endpoint has.
    pub(crate) loops: usize,
}

impl ConnectionIdGenerator for LoopIds {
    fn generate_cid(&mut self) -> ConnectionId {
        let mut bytes = [0; CID_BYTES];
        fill_random(&mut bytes);
        bytes[0] = self.number;
        ConnectionId::new(&bytes)
    }

    /// An invalid ID gets no stateless reset. An ID of another loop may be in use there, and a
    /// reset would reveal its token (RFC 9000 21.11). An ID of a loop that does not exist is from
    /// an earlier process with more loops.
    fn validate(&self, cid: &ConnectionId) -> Result<(), InvalidCid> {
        match cid.first() {
            Some(&number) if number == self.number || usize::from(number) >= self.loops => Ok(()),
            _ => Err(InvalidCid),
        }
    }

    fn cid_len(&self) -> usize {
        CID_BYTES
    }

    fn cid_lifetime(&self) -> Option<std::time::Duration> {
        None
    }
}

/// What a connection is for. The client tells the server by its choice of the first connection ID.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Purpose {
    /// Control streams, and streams with little to send at a time.
    Sparse,
    /// Streams that always have more to send.
    Bulk,
    /// Bulk over a path with a long round trip, which needs larger windows.
    LongPathBulk,
}

impl Purpose {
    /// The first of `loops` loops for this purpose: of several loops, those with even numbers carry
    /// sparse connections.
    pub(crate) fn first_loop(self, loops: usize) -> usize {
        usize::from(self.is_bulk()) % loops
    }

    /// Whether the connection carries bulk streams.
    pub(crate) fn is_bulk(self) -> bool {
        self != Self::Sparse
    }

    /// What a client asks for by its first connection ID; other QUIC clients choose it at random,
    /// so it may be any.
    pub(crate) fn of(first_cid: &ConnectionId) -> Self {
        match first_cid[..] {
            [purpose, distance, ..] if purpose & distance & 1 == 1 => Self::LongPathBulk,
            [purpose, ..] if purpose & 1 == 1 => Self::Bulk,
            _ => Self::Sparse,
        }
    }

    /// A first connection ID of the server (RFC 9000 7.2) that leads to a loop for this purpose.
    pub(crate) fn first_cid(self) -> ConnectionId {
        let mut bytes = [0; MAX_CID_SIZE];
        fill_random(&mut bytes);
        bytes[0] = bytes[0] & !1 | u8::from(self.is_bulk());
        bytes[1] = bytes[1] & !1 | u8::from(self == Self::LongPathBulk);
        ConnectionId::new(&bytes)
    }
}

/// The loop that owns a datagram's connection, if its header says so: a short header is one byte of
/// flags, then the connection ID.
pub(crate) fn loop_of(datagram: &[u8]) -> Option<u8> {
    match datagram {
        [first, number, ..] if first & LONG_HEADER == 0 && datagram.len() > CID_BYTES => {
            Some(*number)
        }
        // Long header: flags, version, length of the destination's connection ID, the ID. In a
        // client's first flight the client has chosen the ID, and it has another length.
        [first, _, _, _, _, length, number, ..]
            if first & LONG_HEADER != 0
                && usize::from(*length) == CID_BYTES
                && is_handshake(*first) =>
        {
            Some(*number)
        }
        _ => None,
    }
}

/// Whether a long header's type is Handshake (RFC 9000 17.2.4): its connection ID is one of ours.
fn is_handshake(first: u8) -> bool {
    first & 0x30 == 0x20
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_id_tells_its_loop_and_no_two_are_alike() {
        let mut ids = LoopIds { number: 5, loops: 8 };
        let (one, two) = (ids.generate_cid(), ids.generate_cid());
        assert_ne!(one, two);
        let mut short = vec![0x40];
        short.extend_from_slice(&one);
        short.push(0);
        assert_eq!(loop_of(&short), Some(5));
    }

    #[test]
    fn one_loop_alone_answers_for_an_id_and_any_for_those_of_loops_that_are_gone() {
        let of = |number| LoopIds { number, loops: 8 };
        for number in 0..=u8::MAX {
            let cid = LoopIds { number, loops: 256 }.generate_cid();
            for answering in 0..8 {
                let answers = of(answering).validate(&cid).is_ok();
                assert_eq!(answers, answering == number || number >= 8, "{answering}, {number}");
            }
        }
    }

    #[test]
    fn a_first_id_says_its_lane() {
        for purpose in [Purpose::Sparse, Purpose::Bulk, Purpose::LongPathBulk] {
            assert_eq!(Purpose::of(&purpose.first_cid()), purpose);
            assert_eq!(purpose.first_loop(1), 0);
            assert_eq!(purpose.first_loop(4), usize::from(purpose.is_bulk()));
        }
    }

    #[test]
    fn first_flights_and_scraps_belong_to_no_loop() {
        let initial = [0xc0, 0, 0, 0, 1, 8, 5, 1, 2, 3, 4, 5, 6, 7];
        assert_eq!(loop_of(&initial), None);
        let handshake = [0xe0, 0, 0, 0, 1, 8, 5, 1, 2, 3, 4, 5, 6, 7];
        assert_eq!(loop_of(&handshake), Some(5));
        for scrap in [&[][..], &[0x40], &[0x40, 5, 1], &[0xe0, 0, 0, 0]] {
            assert_eq!(loop_of(scrap), None);
        }
    }
}
