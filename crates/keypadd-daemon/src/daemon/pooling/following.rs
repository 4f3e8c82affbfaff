//! Tests that a daemon with `--pool auto` follows the lengths of its sessions' packets. Two
//! sessions of packet protection exchange messages directly; what a seal costs is synthetic.

use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use keypadd_config::values::PoolMode;
use keypadd_keystream::{CipherEngine, Protection, Suite, TAG_BYTES};
use keypadd_provider::{CryptoSettings, PrivateKey, TIMED_BYTES, client_config, server_config};
use quinn_proto::Side;
use quinn_proto::crypto::{PacketKey, Session};
use quinn_proto::transport_parameters::TransportParameters;
use tokio::time::sleep;

use super::{Choice, PoolOptions, Pooling};
use crate::daemon::confine::Confinement;
use crate::daemon::sample;
use crate::daemon::status_builder::StatusBuilder;
use crate::status::rates::{self, Rates};
use crate::status::sources::Sources;

const SUITE: Suite = Suite::CHACHA20_POLY1305;
const HEADER_BYTES: usize = 19;

/// A connection whose packets are sealed and discarded.
struct Traffic {
    _sessions: [Box<dyn Session>; 2],
    key: Box<dyn PacketKey>,
    number: u64,
}

impl Traffic {
    fn new(crypto: &CryptoSettings) -> Self {
        let public = crypto.key.public();
        let parameters = TransportParameters::read(Side::Server, &mut &[][..]).expect("defaults");
        let client = client_config(crypto, public).expect("a client");
        let server = server_config(crypto, Arc::new(public)).expect("a server");
        let client = client.start_session(1, "keypadd", &parameters).expect("a session");
        let mut sessions = [client, server.start_session(1, &parameters)];
        while sessions.iter().any(|session| session.is_handshaking()) {
            let [client, server] = &mut sessions;
            pass(&mut **client, &mut **server);
            pass(&mut **server, &mut **client);
        }
        let key = sessions[0].next_1rtt_keys().expect("the handshake is complete").local;
        Self { _sessions: sessions, key, number: 0 }
    }

    /// Seals this many packets of each length.
    fn seal(&mut self, packets: [u64; 3]) {
        for (bytes, packets) in TIMED_BYTES.into_iter().zip(packets) {
            let mut packet = vec![0; HEADER_BYTES + bytes + TAG_BYTES];
            for _ in 0..packets {
                self.key.encrypt(self.number, &mut packet, HEADER_BYTES);
                self.number += 1;
            }
        }
    }
}

/// Passes on all that an end of a handshake has to say.
fn pass(from: &mut dyn Session, to: &mut dyn Session) {
    loop {
        let mut message = Vec::new();
        let keys = from.write_handshake(&mut message);
        if !message.is_empty() {
            to.read_handshake(&message).expect("a message of the other end");
        } else if keys.is_none() {
            return;
        }
    }
}

/// Waits for a condition while the daemon's clock goes on.
async fn until(what: &str, is_so: impl Fn() -> bool) {
    let deadline = Instant::now() + Duration::from_secs(60);
    while !is_so() {
        assert!(Instant::now() < deadline, "not in a minute: {what}");
        sleep(rates::EVERY).await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_live_session_gets_and_loses_the_pool_by_the_lengths_of_its_packets() {
    let suite = Protection::from(SUITE);
    let engine = CipherEngine::default();
    let options = |mode| PoolOptions {
        mode,
        budget_bytes: 1 << 20,
        max_fill_cpu_percent: 100,
        require_locked: false,
    };
    let pooling = Pooling::start(options(PoolMode::Off), &[SUITE], engine).expect("no pool");
    pooling.locked().choices = vec![Choice::mixed()];
    let change = pooling.prepare(options(PoolMode::Auto), vec![SUITE], engine);
    pooling.apply(change.await.expect("a change"));
    let key = Arc::new(PrivateKey::generate().expect("randomness"));
    let crypto = CryptoSettings { pool: pooling.switch(), ..CryptoSettings::plain(key, suite) };
    let mut traffic = Traffic::new(&crypto);
    let CryptoSettings { meters, key, .. } = crypto;
    tokio::spawn(sample(StatusBuilder {
        verb: "run",
        place: String::new(),
        started: SystemTime::now(),
        pooling: pooling.clone(),
        confinement: Confinement::default(),
        meters: Arc::clone(&meters),
        send_seconds: Arc::default(),
        limits: Arc::default(),
        held: <_>::default(),
        memory: <_>::default(),
        networks: <_>::default(),
        sources: Sources::new(key.public(), Vec::new()),
        rates: Rates::default(),
    }));
    let is_followed = || pooling.locked().lengths == meters.lengths();

    let is_served = || pooling.switch().serves(suite);
    assert!(!is_served(), "before a packet: slower at some length");
    // The middle row of each half lies between the bounds, so it changes nothing.
    for (packets, expected) in [
        ([1000, 0, 0], true),
        ([1000, 0, 500], true),
        ([0, 0, 1000], false),
        ([1000, 0, 500], false),
        ([1000, 0, 0], true),
    ] {
        traffic.seal(packets);
        until("the packets are counted", is_followed).await;
        until("the choice is applied", || is_served() == expected).await;
        let (.., choices, pool) = pooling.in_force();
        assert_eq!((choices[0].is_worthwhile(), pool.is_some()), (expected, expected));
    }
}
