//! Tests what a session assumes of rustls: two rustls connections exchange messages directly,
//! without quinn.

use std::time::Duration;

use bytes::BytesMut;
use keypadd_keystream::{Protection, Suite};
use keypadd_pool::{Filler, Pool, PoolSettings, Step};
use keypadd_provider::{Assertion, HandshakeData, ProvedPeer};
use quinn_proto::Side;
use quinn_proto::crypto::{Keys, Session};
use quinn_proto::transport_parameters::TransportParameters;

use super::pair::Crypto;

const VERSION: u32 = 1;
/// Calls after the end of a handshake, each of which could return another message.
const CALLS: usize = 10;

/// An end of a handshake, with a pool whose filler is stepped.
struct TlsEnd {
    session: Box<dyn Session>,
    pool: Pool,
    filler: Filler,
}

impl TlsEnd {
    fn new(session: Box<dyn Session>, (pool, filler): (Pool, Filler)) -> Self {
        Self { session, pool, filler }
    }

    fn write(&mut self) -> (Vec<u8>, Option<Keys>) {
        let mut bytes = Vec::new();
        let keys = self.session.write_handshake(&mut bytes);
        (bytes, keys)
    }

    fn read(&mut self, bytes: &[u8]) {
        self.session.read_handshake(bytes).expect("what the other end has written");
    }

    /// Reads everything but the last byte, in pieces that must have no effect, and then the last
    /// byte.
    fn read_to_the_last(&mut self, bytes: &[u8]) {
        let (last, rest) = bytes.split_last().expect("some bytes");
        for piece in rest.chunks(7) {
            self.read(piece);
            let (bytes, keys) = self.write();
            assert!(bytes.is_empty() && keys.is_none(), "an answer to a part of a flight");
            self.assert_unproved();
        }
        self.read(&[*last]);
    }

    /// Checks that the peer is not identified, and no pad generated, before it has proved its key.
    fn assert_unproved(&mut self) {
        assert!(self.session.is_handshaking());
        assert!(self.session.peer_identity().is_none());
        assert_eq!(self.pads_made(), 0);
    }

    fn pads_made(&mut self) -> u64 {
        while self.filler.step(Duration::ZERO) == Step::Worked {}
        self.pool.snapshot().fill_bytes_total
    }

    /// Checks that nothing more is written and that there are no further keys; returns the peer.
    fn settle(&mut self) -> ProvedPeer {
        assert!(!self.session.is_handshaking());
        for _ in 0..CALLS {
            let (bytes, keys) = self.write();
            assert!(
                bytes.is_empty() && keys.is_none(),
                "{} bytes after the handshake",
                bytes.len()
            );
        }
        *self.session.peer_identity().expect("a peer").downcast().expect("a proved peer")
    }
}

#[test]
fn first_phase_keys_come_with_a_servers_flight_and_authenticate_nobody() {
    // What depends on this: lanes open when the peer has proved its key, which is when
    // `is_handshaking` turns false, and not when there are keys, which a server has much sooner;
    // the second keys are those of phase 0; a server sends nothing after the handshake, so its
    // rustls connection can be dropped; and a client drops its own only after its last message has
    // been sent.
    let pools = [(); 2].map(|()| {
        Pool::with_filler(PoolSettings { budget_bytes: 1 << 20 }).expect("a pool without a thread")
    });
    let crypto = Crypto::new(
        Suite::AES_256_CTR_HMAC_SHA256,
        pools.each_ref().map(|(pool, _)| Some(pool.clone()).into()),
    );
    let parameters = |side| TransportParameters::read(side, &mut &[][..]).expect("defaults");
    let of_client = crypto.client.start_session(VERSION, "x", &parameters(Side::Client));
    let of_server = crypto.server.start_session(VERSION, &parameters(Side::Server));
    let [pool_of_client, pool_of_server] = pools;
    let mut client = TlsEnd::new(of_client.expect("a session"), pool_of_client);
    let mut server = TlsEnd::new(of_server, pool_of_server);

    let (hello, keys) = client.write();
    assert!(!hello.is_empty() && keys.is_none());
    server.read_to_the_last(&hello);
    let (hello, handshake_keys) = server.write();
    assert!(!hello.is_empty() && handshake_keys.is_some());
    let (flight, servers) = server.write();
    let servers = servers.expect("a server's second keys").packet;
    server.assert_unproved();
    let next = server.session.next_1rtt_keys();
    assert!(next.is_some(), "quinn asks at once");
    server.assert_unproved();

    client.read_to_the_last(&hello);
    let (bytes, clients_handshake_keys) = client.write();
    assert!(bytes.is_empty() && clients_handshake_keys.is_some());
    // A client has no 1-RTT keys before the server has proved its own key, to the last byte.
    client.read_to_the_last(&flight);
    let (finished, clients) = client.write();
    let clients = clients.expect("a client's second keys").packet;
    assert!(!finished.is_empty());
    let seen_by_client = client.settle();
    assert_eq!(seen_by_client.key, crypto.keys[1]);
    assert!(client.pads_made() > 0);

    server.read_to_the_last(&finished);
    let seen_by_server = server.settle();
    assert_eq!(seen_by_server.key, crypto.keys[0]);
    assert_one_channel(&seen_by_client, &seen_by_server);
    assert!(server.pads_made() > 0);

    // Both ends' second keys belong to one phase, each to its own direction.
    for (sealing, opening) in [(&servers.local, &clients.remote), (&clients.local, &servers.remote)]
    {
        let mut packet = [7; 48];
        sealing.encrypt(0, &mut packet, 8);
        let mut payload = BytesMut::from(&packet[8..]);
        opening.decrypt(0, &packet[..8], &mut payload).expect("matching keys");
        assert_eq!(payload[..], [7; 24]);
    }
}

/// Checks that both ends derive the same token, and accept each other's proofs on their connection.
fn assert_one_channel(client: &ProvedPeer, server: &ProvedPeer) {
    let [client, server] = [&client.channel, &server.channel];
    assert_eq!(client.token().as_bytes(), server.token().as_bytes());
    let (token, run) = (client.token(), [7; 16]);
    let proof = client.proof(token, Assertion::ClientResumes, &run);
    assert!(server.is_proof(&proof, server.token(), Assertion::ClientResumes, &run));
    let proof = server.proof(token, Assertion::ServerResumes, &run);
    assert!(client.is_proof(&proof, token, Assertion::ServerResumes, &run));
}

/// The suite that two ends with their defaults agree on, by whether each has AES instructions.
fn agreed(client_has_aes: bool, server_has_aes: bool) -> Protection {
    let (offered, accepted) = (Suite::offered(client_has_aes), Suite::accepted(server_has_aes));
    let crypto = Crypto::with_suites([&offered, &accepted], Default::default());
    let parameters = |side| TransportParameters::read(side, &mut &[][..]).expect("defaults");
    let client = crypto.client.start_session(VERSION, "x", &parameters(Side::Client));
    let mut server = crypto.server.start_session(VERSION, &parameters(Side::Server));
    let mut bytes = Vec::new();
    client.expect("a session").write_handshake(&mut bytes);
    server.read_handshake(&bytes).expect("a hello");
    // Its hello, then its flight, with which it has 1-RTT keys.
    for _ in 0..2 {
        server.write_handshake(&mut bytes);
    }
    let data = server.handshake_data().expect("1-RTT keys");
    data.downcast::<HandshakeData>().expect("ours").suite
}

#[test]
fn ends_agree_on_aes_gcm_if_both_have_aes_instructions_and_else_on_chacha20() {
    let [aes_gcm, chacha20] = [Suite::AES_256_GCM, Suite::CHACHA20_POLY1305].map(Into::into);
    assert_eq!(agreed(true, true), aes_gcm);
    assert_eq!(agreed(true, false), chacha20);
    assert_eq!(agreed(false, true), chacha20);
    assert_eq!(agreed(false, false), chacha20);
}
