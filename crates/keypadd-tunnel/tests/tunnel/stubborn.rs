//! A peer that opens what is sent in every key phase and answers in the first one for ever. quinn waits for
//! it and goes on under a key whose limit has passed; what ends the connection is the key.

use std::any::Any;
use std::sync::Arc;

use bytes::BytesMut;
use keypadd_keystream::Suite;
use keypadd_provider::{client_config, server_config};
use keypadd_tunnel::ServerSettings;
use keypadd_tunnel::wire::{CONNECTED, CloseCode};
use quinn::crypto::{
    ClientConfig, CryptoError, ExportKeyingMaterialError, HeaderKey, KeyPair, Keys, PacketKey,
    Session,
};
use quinn::{ConnectError, ConnectionError, ConnectionId, Side};
use quinn_proto::TransportError;
use quinn_proto::transport_parameters::TransportParameters;
use tokio::io::AsyncWriteExt;

use crate::hostile::{connect, control, header, hello, welcome};
use crate::support::*;

/// The key phase bit of a short header (RFC 9000 17.3.1), before header protection.
const KEY_PHASE: u8 = 0x04;
/// Where a key of a suite with 64-bit blocks stops (docs/DESIGN.md, "Key phases and limits").
const HARD_STOP: u64 = 1 << 17;

/// Our client's cryptography, but for the phase that it seals in.
struct Stubborn(Arc<dyn ClientConfig>);

impl ClientConfig for Stubborn {
    fn start_session(
        self: Arc<Self>,
        version: u32,
        server_name: &str,
        params: &TransportParameters,
    ) -> Result<Box<dyn Session>, ConnectError> {
        let inner = Arc::clone(&self.0).start_session(version, server_name, params)?;
        Ok(Box::new(StubbornSession { inner, first: None, next_phase: 1 }))
    }
}

struct StubbornSession {
    inner: Box<dyn Session>,
    /// The key that seals the first phase.
    first: Option<Arc<dyn PacketKey>>,
    next_phase: u64,
}

impl Session for StubbornSession {
    /// Keys come twice: those of the Handshake space, then those of the first phase.
    fn write_handshake(&mut self, buf: &mut Vec<u8>) -> Option<Keys> {
        let mut keys = self.inner.write_handshake(buf)?;
        let local: Arc<dyn PacketKey> = Arc::from(keys.packet.local);
        keys.packet.local = Box::new(Sealing { key: Arc::clone(&local), shown: 0 });
        self.first = Some(local);
        Some(keys)
    }

    /// Beyond the second phase, which the server stays in, nothing is opened any more.
    fn next_1rtt_keys(&mut self) -> Option<KeyPair<Box<dyn PacketKey>>> {
        let first = self.first.as_ref()?;
        let shown = if self.next_phase % 2 == 1 { KEY_PHASE } else { 0 };
        let local: Box<dyn PacketKey> = Box::new(Sealing { key: Arc::clone(first), shown });
        self.next_phase += 1;
        let remote = match self.next_phase {
            2 => self.inner.next_1rtt_keys()?.remote,
            _ => Box::new(Sealing { key: Arc::clone(first), shown: 0 }),
        };
        Some(KeyPair { local, remote })
    }

    fn initial_keys(&self, dst_cid: &ConnectionId, side: Side) -> Keys {
        self.inner.initial_keys(dst_cid, side)
    }

    fn handshake_data(&self) -> Option<Box<dyn Any>> {
        self.inner.handshake_data()
    }

    fn peer_identity(&self) -> Option<Box<dyn Any>> {
        self.inner.peer_identity()
    }

    fn early_crypto(&self) -> Option<(Box<dyn HeaderKey>, Box<dyn PacketKey>)> {
        self.inner.early_crypto()
    }

    fn early_data_accepted(&self) -> Option<bool> {
        self.inner.early_data_accepted()
    }

    fn is_handshaking(&self) -> bool {
        self.inner.is_handshaking()
    }

    fn read_handshake(&mut self, buf: &[u8]) -> Result<bool, TransportError> {
        self.inner.read_handshake(buf)
    }

    fn transport_parameters(&self) -> Result<Option<TransportParameters>, TransportError> {
        self.inner.transport_parameters()
    }

    fn is_valid_retry(&self, orig_dst_cid: &ConnectionId, header: &[u8], payload: &[u8]) -> bool {
        self.inner.is_valid_retry(orig_dst_cid, header, payload)
    }

    fn export_keying_material(
        &self,
        output: &mut [u8],
        label: &[u8],
        context: &[u8],
    ) -> Result<(), ExportKeyingMaterialError> {
        self.inner.export_keying_material(output, label, context)
    }
}

/// The first phase's key, whichever phase quinn takes it for, and never at its limit.
struct Sealing {
    key: Arc<dyn PacketKey>,
    /// The key phase bit that quinn has set.
    shown: u8,
}

impl PacketKey for Sealing {
    fn encrypt(&self, packet: u64, buf: &mut [u8], header_len: usize) {
        buf[0] ^= self.shown;
        self.key.encrypt(packet, buf, header_len);
    }

    fn decrypt(
        &self,
        packet: u64,
        header: &[u8],
        payload: &mut BytesMut,
    ) -> Result<(), CryptoError> {
        self.key.decrypt(packet, header, payload)
    }

    fn tag_len(&self) -> usize {
        self.key.tag_len()
    }

    fn confidentiality_limit(&self) -> u64 {
        u64::MAX
    }

    fn integrity_limit(&self) -> u64 {
        self.key.integrity_limit()
    }
}

#[tokio::test]
async fn a_peer_that_never_follows_an_update_is_left_before_the_hard_stop() {
    let (key, server_key) = (new_key(), new_key());
    let settings = |key| crypto(key, Suite::TRIPLE_DES_CTR_HMAC_SHA1);
    let adjust = |server: &mut ServerSettings| {
        server.crypto = server_config(&settings(&server_key), server.peers.clone()).unwrap();
    };
    let server = RunningServer::start_as(server_key.clone(), key.public(), &["*:*"], adjust);
    let stubborn = Stubborn(client_config(&settings(&key), server.key).unwrap());
    let (_endpoint, connection) = connect(&server, Arc::new(stubborn)).await;
    let (_control, mut answer) = control(&connection, &hello()).await;
    welcome(&mut answer).await;

    let target = listener().await;
    let (mut send, mut recv) = connection.open_bi().await.unwrap();
    send.write_all(&header(&target.local_addr().unwrap().to_string())).await.unwrap();
    let flood = tokio::spawn(async move {
        let mut stream = accept(&target).await;
        while stream.write_all(&[0x5a; 64 << 10]).await.is_ok() {}
    });
    let mut connected = [0xff];
    within(recv.read_exact(&mut connected)).await.unwrap();
    assert_eq!(connected, [CONNECTED]);
    let mut chunk = vec![0; 64 << 10];
    while within(recv.read(&mut chunk)).await.is_ok_and(|read| read.is_some()) {}

    match within(connection.closed()).await {
        ConnectionError::ApplicationClosed(close) => {
            let code = close.error_code.into_inner();
            assert_eq!(code, u64::from(CloseCode::KeyFault.value()), "{close:?}");
        }
        // Packets with the code were lost where the flood fills the path; whatever comes after the end of
        // the connection is answered so.
        ConnectionError::Reset => {}
        other => panic!("{other:?}"),
    }
    // It was not left for anything else, and nothing came beyond the stop: phases before this one have
    // fewer than 1,000 packets.
    let packets = connection.stats().udp_rx.datagrams;
    assert!((HARD_STOP / 2..HARD_STOP + 1000).contains(&packets), "{packets}");
    until("the session is forgotten", || server.sessions.live().is_empty()).await;
    within(flood).await.unwrap();
}
