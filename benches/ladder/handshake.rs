//! A sealing key as a tunnel has it: from two real sessions that shook hands in memory.

use std::io::Cursor;
use std::sync::Arc;
use std::time::Duration;

use keypadd_keystream::{CipherEngine, SEGMENT_PACKETS, Suite};
use keypadd_pool::{Coverage, Direction, HEAD_BYTES, Pool};
use keypadd_provider::{
    AllowList, ConnectionKeys, CryptoSettings, HandshakeData, KeyExchange, Meters, PrivateKey,
    PublicKey, client_config, server_config,
};
use quinn_proto::Side;
use quinn_proto::crypto::{PacketKey, Session};
use quinn_proto::transport_parameters::TransportParameters;

/// Packets before the bench changes keys: below every suite's limit.
const PACKETS_PER_KEY: u64 = 30_000;
/// The smallest packet that can be sealed.
const HEADER_AND_TAG: usize = 32;

#[derive(Debug)]
struct Anybody;

impl AllowList for Anybody {
    fn allows(&self, _: &PublicKey) -> bool {
        true
    }
}

/// The client's sealing key, and the session that makes the next.
pub(crate) struct Sealing {
    key: Box<dyn PacketKey>,
    keys: ConnectionKeys,
    meters: Arc<Meters>,
    next: u64,
    pooled: bool,
    session: Box<dyn Session>,
}

impl Sealing {
    pub(crate) fn new(suite: Suite, pool: Option<Pool>) -> Self {
        let pooled = pool.is_some();
        let meters = Arc::new(Meters::default());
        let settings = |pool| CryptoSettings {
            key: Arc::new(PrivateKey::generate().expect("randomness")),
            suites: vec![suite.into()],
            kex: vec![KeyExchange::X25519.into()],
            pool,
            cipher_engine: CipherEngine::default(),
            meters: Arc::clone(&meters),
        };
        let (client, server) = (settings(pool), settings(None));
        let connecting = client_config(&client, server.key.public()).expect("client");
        let accepting = server_config(&server, Arc::new(Anybody)).expect("server");
        let params = parameters();
        let mut client = connecting.start_session(1, "keypadd", &params).expect("client session");
        let mut server = accepting.start_session(1, &params);
        let key = shake_hands(&mut *client, &mut *server);
        let data = client.handshake_data().expect("complete");
        let keys = data.downcast::<HandshakeData>().expect("ours").keys;
        Self { key, keys, meters, next: 0, pooled, session: client }
    }

    pub(crate) fn seal(&mut self, buffer: &mut [u8], header_bytes: usize) {
        self.key.encrypt(self.next, buffer, header_bytes);
        self.next += 1;
    }

    /// Packets that found their pad; `None` without a pool.
    pub(crate) fn hits(&self) -> Option<u64> {
        self.pooled.then(|| self.meters.packets(Direction::Send, Coverage::Hit))
    }

    /// Changes to a fresh key and returns the packets that may be sealed at once: with a pool,
    /// those whose pads are at hand when the filler has nothing more to do.
    pub(crate) fn prepare(&mut self, sealed_bytes: usize) -> u64 {
        self.key = self.session.next_1rtt_keys().expect("1-RTT keys exist").local;
        if !self.pooled {
            return PACKETS_PER_KEY;
        }
        // The first packet opens the lane, from the next segment on.
        let mut first = vec![0; HEADER_AND_TAG];
        self.seal(&mut first, 1);
        self.next += SEGMENT_PACKETS as u64;
        let mut before = 0;
        loop {
            std::thread::sleep(Duration::from_millis(20));
            let status = self.keys.status(Direction::Send);
            let bodies = if sealed_bytes > HEAD_BYTES { status.body.packets } else { u64::MAX };
            let now = status.head.packets.min(bodies);
            if now == before && now > 2 * SEGMENT_PACKETS as u64 {
                return PACKETS_PER_KEY.min(now - 2 * SEGMENT_PACKETS as u64);
            }
            before = now;
        }
    }
}

/// Parameters in their encoded form are all that TLS carries; an empty list is valid.
fn parameters() -> TransportParameters {
    TransportParameters::read(Side::Server, &mut Cursor::new(&[][..]))
        .expect("no parameter is required")
}

/// Passes messages until both ends have 1-RTT keys; returns the client's next sealing key.
fn shake_hands(client: &mut dyn Session, server: &mut dyn Session) -> Box<dyn PacketKey> {
    let mut next = None;
    for _ in 0..8 {
        let (mut flight, mut key_changes) = (Vec::new(), 0);
        loop {
            let mut piece = Vec::new();
            let keys = client.write_handshake(&mut piece);
            if keys.is_some() {
                key_changes += 1;
            }
            if keys.is_none() && piece.is_empty() {
                break;
            }
            flight.push(piece);
        }
        if key_changes > 0 && !client.is_handshaking() && next.is_none() {
            next = client.next_1rtt_keys().map(|keys| keys.local);
        }
        for piece in flight.iter().filter(|piece| !piece.is_empty()) {
            server.read_handshake(piece).expect("server reads");
        }
        let mut answer = Vec::new();
        loop {
            let mut piece = Vec::new();
            let keys = server.write_handshake(&mut piece);
            if keys.is_none() && piece.is_empty() {
                break;
            }
            answer.push(piece);
        }
        for piece in answer.iter().filter(|piece| !piece.is_empty()) {
            client.read_handshake(piece).expect("client reads");
        }
        if let (Some(_), true) = (&next, client.peer_identity().is_some()) {
            break;
        }
    }
    next.expect("the handshake completed")
}
