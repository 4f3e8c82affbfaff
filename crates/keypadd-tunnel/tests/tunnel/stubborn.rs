//! Tests a peer that opens packets of every key phase but always seals in the first. quinn waits
//! for it and keeps sealing with a key beyond its limit; the key ends the connection.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use interposer::{Interposer, Origin, Stubborn};
use keypadd_keystream::Suite;
use keypadd_provider::{client_config, server_config};
use keypadd_tunnel::ServerSettings;
use keypadd_tunnel::wire::CloseCode;
use quinn::ConnectionError;
use quinn::crypto::PacketKey;
use tokio::io::AsyncWriteExt;

use crate::hostile::{connect, control, hello, open_valid_stream, welcome};
use crate::support::*;

/// Hard stop of a key of a suite with 64-bit blocks (docs/protocol.md, "Key phases and limits").
const HARD_STOP: u64 = 1 << 17;
/// The limit reported to quinn, and how many packets before the stop the connection is to close
/// (same source).
const TOLD_TO_QUINN: u64 = (1 << 16) + 10_000;
const CLOSING_PACKETS: u64 = 64;

/// Counts packets that the server seals in its second key phase, which the peer does not follow:
/// valid ones, and zeroed ones.
#[derive(Default)]
struct Counting {
    sealed: AtomicU64,
    zeros: AtomicU64,
    /// Packets of later phases: must stay 0.
    later: AtomicU64,
}

impl Interposer for Counting {
    fn seal(
        &self,
        origin: Origin,
        key: &dyn PacketKey,
        packet_number: u64,
        buf: &mut [u8],
        header_len: usize,
    ) {
        key.encrypt(packet_number, buf, header_len);
        let is_zeros = buf[header_len..].iter().all(|byte| *byte == 0);
        let count = match origin {
            Origin::Next(0) if is_zeros => &self.zeros,
            Origin::Next(0) => &self.sealed,
            Origin::Next(_) => &self.later,
            Origin::Initial | Origin::Handshake(_) => return,
        };
        count.fetch_add(1, Relaxed);
    }
}

#[tokio::test]
async fn a_peer_that_never_follows_an_update_is_left_before_the_hard_stop() {
    let (key, server_key) = (new_key(), new_key());
    let counting = Arc::new(Counting::default());
    let settings = |key| crypto(key, Suite::TRIPLE_DES_CTR_HMAC_SHA1);
    let adjust = |server: &mut ServerSettings| {
        let inner = server_config(&settings(&server_key), server.peers.clone()).unwrap();
        server.crypto = interposer::server_config(inner, counting.clone());
    };
    let server =
        RunningServer::start_as(server_key.clone(), key.public(), &["localhost:*"], adjust);
    let client = client_config(&settings(&key), server.key).unwrap();
    let stubborn = interposer::client_config(client, Arc::new(Stubborn::default()));
    let (_endpoint, connection) = connect(&server, stubborn).await;
    let (_control, mut answer) = control(&connection, &hello()).await;
    welcome(&mut answer).await;

    let target = listener().await;
    let (_send, mut recv) = open_valid_stream(&connection, &target).await;
    let flood = tokio::spawn(async move {
        let mut stream = accept(&target).await;
        while stream.write_all(&[0x5a; 64 << 10]).await.is_ok() {}
    });
    let mut chunk = vec![0; 64 << 10];
    while within(recv.read(&mut chunk)).await.is_ok_and(|read| read.is_some()) {}

    match within(connection.closed()).await {
        ConnectionError::ApplicationClosed(close) => {
            let code = close.error_code.into_inner();
            assert_eq!(code, u64::from(CloseCode::KeyFault.value()), "{close:?}");
        }
        // The packets with the code can be lost in the flood. A later packet is answered by a
        // reset; without one the client times out.
        ConnectionError::Reset | ConnectionError::TimedOut => {}
        other => panic!("{other:?}"),
    }
    // The key was the reason: it sealed far beyond the limit reported to quinn, up to where it
    // requests the close, and nothing from its hard stop on.
    let [sealed, zeros, later] =
        [&counting.sealed, &counting.zeros, &counting.later].map(|count| count.load(Relaxed));
    assert!(
        (HARD_STOP - CLOSING_PACKETS + 1..=HARD_STOP).contains(&sealed),
        "{sealed}, then {zeros}"
    );
    assert_eq!(later, 0, "the server changed keys without an answer");
    // The same on the wire: the first phase has fewer than 1,000 packets.
    let packets = connection.stats().udp_rx.datagrams;
    assert!((TOLD_TO_QUINN + 1..HARD_STOP + 1000).contains(&packets), "{packets}");
    until("the session has ended", || server.sessions.live().is_empty()).await;
    within(flood).await.unwrap();
}
