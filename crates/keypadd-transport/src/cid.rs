//! Makes connection IDs whose first byte is the number of the loop that owns the connection.
//!
//! When a client changes its address, the kernel may give its datagrams to another loop's socket;
//! that loop forwards them by this byte. Behind a balancer the server's ID follows, in QUIC-LB's
//! plaintext format (draft-ietf-quic-load-balancers-19 5.2): the loop's number is then what the
//! format leaves of the first byte, whose first three bits say which configuration it is, 0. The
//! rest of the ID is random (RFC 9000 5.1).

use std::ops::Range;

use quinn_proto::{ConnectionId, ConnectionIdGenerator, InvalidCid};

use crate::randomness::fill_random;

/// The longest connection ID (RFC 9000 17.2).
const MAX_CID_SIZE: usize = 20;

/// Length of our connection IDs, and of those with a server ID.
const CID_BYTES: usize = 8;
const ROUTED_CID_BYTES: usize = SERVER_ID_AT.end + 4;

/// Where the server ID is.
const SERVER_ID_AT: Range<usize> = 1..9;

/// Where a first ID says that the path is long: behind server IDs of any format.
const LONG_PATH_AT: usize = MAX_CID_SIZE - 1;

/// Most loops of an endpoint: as many as the first byte of an ID with a server ID has room for.
pub const LOOPS_MAX: usize = 32;

/// First bit of a long header (RFC 9000 17.2); a client chooses the connection IDs there, which
/// name no loop.
pub(crate) const LONG_HEADER: u8 = 0x80;

/// By which a balancer finds a server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ServerId(pub [u8; SERVER_ID_AT.end - SERVER_ID_AT.start]);

/// Makes the connection IDs of one loop.
#[derive(Clone, Copy, Debug)]
pub(crate) struct LoopIds {
    pub(crate) number: u8,
    /// How many loops the endpoint has.
    pub(crate) loops: usize,
    /// The server's, behind a balancer.
    pub(crate) server: Option<ServerId>,
}

impl ConnectionIdGenerator for LoopIds {
    fn generate_cid(&mut self) -> ConnectionId {
        let mut bytes = [0; ROUTED_CID_BYTES];
        let bytes = &mut bytes[..self.cid_len()];
        fill_random(bytes);
        bytes[0] = self.number;
        if let Some(ServerId(id)) = &self.server {
            bytes[SERVER_ID_AT].copy_from_slice(id);
        }
        ConnectionId::new(bytes)
    }

    /// An invalid ID gets no stateless reset. An ID of another loop may be in use there, and a
    /// reset would reveal its token (RFC 9000 21.11). An ID of a loop that does not exist is from
    /// an earlier process with more loops. One of another server was led astray.
    fn validate(&self, cid: &ConnectionId) -> Result<(), InvalidCid> {
        let is_ours = self.server.is_none_or(|ServerId(id)| cid.get(SERVER_ID_AT) == Some(&id[..]));
        match cid.first() {
            Some(&number)
                if is_ours && (number == self.number || usize::from(number) >= self.loops) =>
            {
                Ok(())
            }
            _ => Err(InvalidCid),
        }
    }

    fn cid_len(&self) -> usize {
        self.server.map_or(CID_BYTES, |_| ROUTED_CID_BYTES)
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
        let is_odd = |at: usize| first_cid.get(at).is_some_and(|byte| byte & 1 == 1);
        match (is_odd(0), is_odd(LONG_PATH_AT)) {
            (true, true) => Self::LongPathBulk,
            (true, false) => Self::Bulk,
            (false, _) => Self::Sparse,
        }
    }

    /// A first connection ID of the server (RFC 9000 7.2) that leads to a loop for this purpose,
    /// behind a balancer to this server.
    pub(crate) fn first_cid(self, home: Option<ServerId>) -> ConnectionId {
        let mut bytes = [0; MAX_CID_SIZE];
        fill_random(&mut bytes);
        if let Some(ServerId(id)) = &home {
            bytes[0] %= LOOPS_MAX as u8;
            bytes[SERVER_ID_AT].copy_from_slice(id);
        }
        bytes[0] = bytes[0] & !1 | u8::from(self.is_bulk());
        bytes[LONG_PATH_AT] = bytes[LONG_PATH_AT] & !1 | u8::from(self == Self::LongPathBulk);
        ConnectionId::new(&bytes)
    }
}

impl LoopIds {
    /// The loop that owns a datagram's connection, if its header says so: a short header is one
    /// byte of flags, then the connection ID.
    pub(crate) fn loop_of(&self, datagram: &[u8]) -> Option<u8> {
        match datagram {
            [first, number, ..] if first & LONG_HEADER == 0 && datagram.len() > self.cid_len() => {
                Some(*number)
            }
            // Long header: flags, version, length of the destination's connection ID, the ID. In a
            // client's first flight the client has chosen the ID, and it has another length.
            [first, _, _, _, _, length, number, ..]
                if first & LONG_HEADER != 0
                    && usize::from(*length) == self.cid_len()
                    && is_handshake(*first) =>
            {
                Some(*number)
            }
            _ => None,
        }
    }
}

/// Whether a long header's type is Handshake (RFC 9000 17.2.4): its connection ID is one of ours.
fn is_handshake(first: u8) -> bool {
    first & 0x30 == 0x20
}

#[cfg(test)]
mod tests {
    use super::*;

    const SERVER: ServerId = ServerId([0xd0, 1, 2, 3, 4, 5, 6, 7]);

    #[test]
    fn an_id_tells_its_loop_and_no_two_are_alike() {
        for (server, length) in [(None, 8), (Some(SERVER), 13)] {
            let mut ids = LoopIds { number: 5, loops: 8, server };
            let (one, two) = (ids.generate_cid(), ids.generate_cid());
            assert_ne!(one, two);
            assert_eq!(one.len(), length);
            let mut short = vec![0x40];
            short.extend_from_slice(&one);
            assert_eq!(ids.loop_of(&short[..length]), None);
            assert_eq!(ids.loop_of(&short), Some(5));
        }
    }

    #[test]
    fn an_id_behind_a_balancer_is_in_the_plaintext_format_of_quic_lb() {
        let cid = LoopIds { number: 31, loops: 32, server: Some(SERVER) }.generate_cid();
        // Configuration 0; then the server ID.
        assert_eq!(cid[0] >> 5, 0);
        assert_eq!(cid[SERVER_ID_AT], SERVER.0);
    }

    #[test]
    fn one_loop_alone_answers_for_an_id_and_any_for_those_of_loops_that_are_gone() {
        for server in [None, Some(SERVER)] {
            for number in 0..=u8::MAX {
                let cid = LoopIds { number, loops: 256, server }.generate_cid();
                for answering in 0..8 {
                    let ids = LoopIds { number: answering, loops: 8, server };
                    let answers = ids.validate(&cid).is_ok();
                    assert_eq!(answers, answering == number || number >= 8, "{ids:?}, {number}");
                }
            }
        }
    }

    #[test]
    fn no_loop_answers_for_the_id_of_another_server() {
        let cid = LoopIds { number: 9, loops: 8, server: Some(ServerId([9; 8])) }.generate_cid();
        let ids = LoopIds { number: 0, loops: 8, server: Some(SERVER) };
        assert!(ids.validate(&cid).is_err());
    }

    #[test]
    fn a_first_id_says_its_lane() {
        for purpose in [Purpose::Sparse, Purpose::Bulk, Purpose::LongPathBulk] {
            assert_eq!(Purpose::of(&purpose.first_cid(None)), purpose);
            let routed = purpose.first_cid(Some(SERVER));
            assert_eq!((Purpose::of(&routed), routed[0] >> 5), (purpose, 0));
            assert_eq!(routed[SERVER_ID_AT], SERVER.0);
            assert_eq!(purpose.first_loop(1), 0);
            assert_eq!(purpose.first_loop(4), usize::from(purpose.is_bulk()));
        }
    }

    #[test]
    fn first_flights_and_scraps_belong_to_no_loop() {
        let ids = LoopIds { number: 5, loops: 8, server: None };
        let initial = [0xc0, 0, 0, 0, 1, 8, 5, 1, 2, 3, 4, 5, 6, 7];
        assert_eq!(ids.loop_of(&initial), None);
        let handshake = [0xe0, 0, 0, 0, 1, 8, 5, 1, 2, 3, 4, 5, 6, 7];
        assert_eq!(ids.loop_of(&handshake), Some(5));
        for scrap in [&[][..], &[0x40], &[0x40, 5, 1], &[0xe0, 0, 0, 0]] {
            assert_eq!(ids.loop_of(scrap), None);
        }
    }
}
