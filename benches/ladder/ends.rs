//! Provides a tunnel's packet keys, from two real sessions that complete a handshake in memory.

use std::io::Cursor;
use std::sync::Arc;

use bytes::BytesMut;
use keypadd_keystream::{CipherEngine, Protection, SEGMENT_PACKETS, SuiteKey, TAG_BYTES};
use keypadd_pool::{Coverage, Direction, HEAD_BYTES, Pool};
use keypadd_provider::{
    ConnectionKeys, CryptoSettings, HandshakeData, Meters, PrivateKey, client_config, server_config,
};
use quinn_proto::Side;
use quinn_proto::crypto::{PacketKey, Session};
use quinn_proto::transport_parameters::TransportParameters;

/// Packets before the bench changes keys: below every suite's limit.
pub(crate) const PACKETS_PER_KEY: u64 = 30_000;
/// A short header: flags, connection id, packet number.
pub(crate) const HEADER_BYTES: usize = 12;
/// Long packets sent before the measured ones.
const FIRST_PACKETS: usize = 128;
/// Their payload.
const FIRST_BYTES: usize = 1400;
/// More packets than a filler ever skips.
const SKIPPED_MAX: usize = 4096;
/// Available packets that are not used: those of the previous chunk and of the last one.
const NOT_USED: u64 = 2 * SEGMENT_PACKETS as u64;

/// The end that has the pool and is measured.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Measured {
    Sealing,
    Opening,
}

impl Measured {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Sealing => "sealing",
            Self::Opening => "opening",
        }
    }
}

/// A client that seals and a server that opens.
pub(crate) struct Ends {
    sessions: [Box<dyn Session>; 2],
    sealing: Box<dyn PacketKey>,
    opening: Box<dyn PacketKey>,
    keys: [ConnectionKeys; 2],
    meters: [Arc<Meters>; 2],
    measured: Measured,
    /// Bytes of a pad before the payload's.
    mask_bytes: usize,
    next: u64,
}

impl Ends {
    pub(crate) fn new(
        suite: Protection,
        measured: Measured,
        pool: Option<Pool>,
        engine: CipherEngine,
    ) -> Self {
        let meters = [(); 2].map(|()| Arc::new(Meters::default()));
        let settings = |end: Measured| CryptoSettings {
            pool: pool.clone().filter(|_| end == measured).into(),
            meters: Arc::clone(&meters[end as usize]),
            cipher_engine: if end == measured { engine } else { CipherEngine::default() },
            ..CryptoSettings::plain(Arc::new(PrivateKey::generate().expect("randomness")), suite)
        };
        let (client, server) = (settings(Measured::Sealing), settings(Measured::Opening));
        let connecting = client_config(&client, server.key.public()).expect("client");
        let accepting = server_config(&server, Arc::new(client.key.public())).expect("server");
        let params = parameters();
        let mut client = connecting.start_session(1, "keypadd", &params).expect("client session");
        let mut server = accepting.start_session(1, &params);
        shake_hands(&mut *client, &mut *server);
        let mut sessions = [client, server];
        let keys = [0, 1].map(|end| {
            let data = sessions[end].handshake_data().expect("complete");
            data.downcast::<HandshakeData>().expect("ours").keys
        });
        let [sealing, opening] = next_keys(&mut sessions);
        let mask_bytes = key(suite).mac.mask_bytes();
        Self { sessions, sealing, opening, keys, meters, measured, mask_bytes, next: 0 }
    }

    /// Packets of the measured end with this coverage.
    pub(crate) fn found(&self, coverage: Coverage) -> u64 {
        let way = match self.measured {
            Measured::Sealing => Direction::Send,
            Measured::Opening => Direction::Receive,
        };
        self.meters[self.measured as usize].packets(way, coverage)
    }

    /// Changes to a fresh key, whose first packets open its lane.
    pub(crate) fn rekey(&mut self) {
        [self.sealing, self.opening] = next_keys(&mut self.sessions);
        self.prime();
    }

    /// Sends long packets that are not measured, from which the pool learns what to expect. The
    /// measured ones begin with a new chunk.
    pub(crate) fn prime(&mut self) {
        for _ in 0..FIRST_PACKETS {
            self.carry(FIRST_BYTES);
        }
        self.next = self.next.next_multiple_of(SEGMENT_PACKETS as u64);
    }

    /// Sends packets until one finds its pad: a filler that lagged behind has skipped ahead.
    pub(crate) fn reach(&mut self, payload_bytes: usize) {
        for _ in 0..SKIPPED_MAX {
            let before = self.found(Coverage::Hit);
            self.carry(payload_bytes);
            if self.found(Coverage::Hit) > before {
                return;
            }
        }
    }

    /// Sends one packet from end to end.
    fn carry(&mut self, payload_bytes: usize) {
        let mut packet = vec![0; HEADER_BYTES + payload_bytes + TAG_BYTES];
        self.seal(&mut packet, HEADER_BYTES);
        if self.measured == Measured::Opening {
            let (header, payload) = packet.split_at(HEADER_BYTES);
            self.open(self.next - 1, header, &mut BytesMut::from(payload));
        }
    }

    /// Packets with this payload whose pads are available at the measured end.
    pub(crate) fn available(&self, payload_bytes: usize) -> u64 {
        let status = match self.measured {
            Measured::Sealing => self.keys[0].status(Direction::Send),
            Measured::Opening => self.keys[1].status(Direction::Receive),
        };
        let is_long = self.mask_bytes + payload_bytes > HEAD_BYTES;
        let bodies = if is_long { status.body.packets } else { u64::MAX };
        status.head.packets.min(bodies).saturating_sub(NOT_USED).min(PACKETS_PER_KEY)
    }

    /// The next number to seal.
    pub(crate) fn next(&self) -> u64 {
        self.next
    }

    pub(crate) fn seal(&mut self, packet: &mut [u8], header_bytes: usize) {
        self.sealing.encrypt(self.next, packet, header_bytes);
        self.next += 1;
    }

    pub(crate) fn open(&self, number: u64, header: &[u8], payload: &mut BytesMut) {
        self.opening.decrypt(number, header, payload).expect("it was sealed for us");
    }

    /// Whether a packet is refused.
    pub(crate) fn refuses(&self, number: u64, header: &[u8], payload: &mut BytesMut) -> bool {
        self.opening.decrypt(number, header, payload).is_err()
    }
}

/// A key of this suite that no session uses.
pub(crate) fn key(suite: Protection) -> SuiteKey {
    SuiteKey::derive(suite, &[7; 32][..suite.key_bytes()], &[9; 12])
}

/// The client's sealing key and the server's opening key of the next phase.
fn next_keys(sessions: &mut [Box<dyn Session>; 2]) -> [Box<dyn PacketKey>; 2] {
    let [client, server] = sessions;
    let sealing = client.next_1rtt_keys().expect("1-RTT keys exist").local;
    [sealing, server.next_1rtt_keys().expect("1-RTT keys exist").remote]
}

/// Parameters in their encoded form are all that TLS carries; an empty list is valid.
fn parameters() -> TransportParameters {
    TransportParameters::read(Side::Server, &mut Cursor::new(&[][..]))
        .expect("no parameter is required")
}

/// Passes messages until the handshake is complete.
fn shake_hands(client: &mut dyn Session, server: &mut dyn Session) {
    for _ in 0..8 {
        pass(client, server);
        pass(server, client);
        if client.peer_identity().is_some() && server.peer_identity().is_some() {
            return;
        }
    }
    panic!("the handshake does not end");
}

fn pass(from: &mut dyn Session, to: &mut dyn Session) {
    loop {
        let mut piece = Vec::new();
        let keys = from.write_handshake(&mut piece);
        if !piece.is_empty() {
            to.read_handshake(&piece).expect("it reads what the other end wrote");
        } else if keys.is_none() {
            return;
        }
    }
}
