//! quinn's crypto traits, recorded: what is to be sealed is noted before our key seals it.
//!
//! This is where the auditor learns plaintext, and where a [`Bug`] is put between our key and the
//! wire. After the shape of quinn's own `perf/src/noprotection.rs`.

use std::any::Any;
use std::collections::VecDeque;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, PoisonError};

use bytes::BytesMut;
use quinn_proto::crypto::{
    self, CryptoError, ExportKeyingMaterialError, HeaderKey, KeyPair, Keys, PacketKey, Session,
    UnsupportedVersion,
};
use quinn_proto::transport_parameters::TransportParameters;
use quinn_proto::{ConnectError, ConnectionId, Side, TransportError};

use crate::bugs::Spoiler;
use crate::wire::Space;

/// One packet as quinn handed it over for sealing.
pub(crate) struct Sealed {
    pub(crate) space: Space,
    pub(crate) number: u64,
    pub(crate) header: Vec<u8>,
    pub(crate) plaintext: Vec<u8>,
}

/// The packets that one end of one connection has sealed and the auditor has not yet seen, and the
/// phase that it is in.
#[derive(Default)]
pub(crate) struct Tape {
    sealed: Mutex<VecDeque<Sealed>>,
    phase: AtomicU64,
}

impl Tape {
    fn note(&self, sealed: Sealed) {
        self.sealed.lock().unwrap_or_else(PoisonError::into_inner).push_back(sealed);
    }

    /// The phase that quinn would seal a packet in now.
    pub(crate) fn phase(&self) -> u64 {
        self.phase.load(Relaxed)
    }

    /// The next packet sealed.
    pub(crate) fn next(&self) -> Option<Sealed> {
        self.sealed.lock().unwrap_or_else(PoisonError::into_inner).pop_front()
    }
}

/// A crypto configuration of ours, recorded.
pub(crate) struct Watched<T: ?Sized> {
    pub(crate) inner: Arc<T>,
    pub(crate) tape: Arc<Tape>,
    pub(crate) spoiler: Option<Arc<Spoiler>>,
}

impl<T: ?Sized> Watched<T> {
    fn session(&self, inner: Box<dyn Session>) -> Box<dyn Session> {
        Box::new(WatchedSession {
            inner,
            tape: Arc::clone(&self.tape),
            spoiler: self.spoiler.clone(),
            keys_written: 0,
            next_phase: 1,
        })
    }
}

impl crypto::ClientConfig for Watched<dyn crypto::ClientConfig> {
    fn start_session(
        self: Arc<Self>,
        version: u32,
        server_name: &str,
        params: &TransportParameters,
    ) -> Result<Box<dyn Session>, ConnectError> {
        Ok(self.session(Arc::clone(&self.inner).start_session(version, server_name, params)?))
    }
}

impl crypto::ServerConfig for Watched<dyn crypto::ServerConfig> {
    fn initial_keys(
        &self,
        version: u32,
        dst_cid: &ConnectionId,
    ) -> Result<Keys, UnsupportedVersion> {
        self.inner.initial_keys(version, dst_cid)
    }

    fn retry_tag(&self, version: u32, orig_dst_cid: &ConnectionId, packet: &[u8]) -> [u8; 16] {
        self.inner.retry_tag(version, orig_dst_cid, packet)
    }

    fn start_session(
        self: Arc<Self>,
        version: u32,
        params: &TransportParameters,
    ) -> Box<dyn Session> {
        self.session(Arc::clone(&self.inner).start_session(version, params))
    }
}

struct WatchedSession {
    inner: Box<dyn Session>,
    tape: Arc<Tape>,
    spoiler: Option<Arc<Spoiler>>,
    keys_written: u32,
    next_phase: u64,
}

impl WatchedSession {
    fn watch(&self, inner: Box<dyn PacketKey>, space: Space, phase: u64) -> Box<dyn PacketKey> {
        let (tape, spoiler) = (Arc::clone(&self.tape), self.spoiler.clone());
        Box::new(WatchedKey { inner, space, phase, tape, spoiler })
    }
}

impl Session for WatchedSession {
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

    /// Keys come twice: those of the Handshake space, then those of the first phase.
    fn write_handshake(&mut self, buf: &mut Vec<u8>) -> Option<Keys> {
        let mut keys = self.inner.write_handshake(buf)?;
        self.keys_written += 1;
        let space = if self.keys_written == 1 { Space::Handshake } else { Space::Data };
        keys.packet.local = self.watch(keys.packet.local, space, 0);
        Some(keys)
    }

    fn next_1rtt_keys(&mut self) -> Option<KeyPair<Box<dyn PacketKey>>> {
        let keys = self.inner.next_1rtt_keys()?;
        let local = self.watch(keys.local, Space::Data, self.next_phase);
        // quinn asks for the keys after those that it goes over to.
        self.tape.phase.store(self.next_phase - 1, Relaxed);
        self.next_phase += 1;
        Some(KeyPair { local, remote: keys.remote })
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

struct WatchedKey {
    inner: Box<dyn PacketKey>,
    space: Space,
    phase: u64,
    tape: Arc<Tape>,
    spoiler: Option<Arc<Spoiler>>,
}

impl PacketKey for WatchedKey {
    fn encrypt(&self, number: u64, buf: &mut [u8], header_len: usize) {
        let (header, rest) = buf.split_at(header_len);
        let plaintext = rest[..rest.len() - self.inner.tag_len()].to_vec();
        let sealed = Sealed { space: self.space, number, header: header.to_vec(), plaintext };
        self.inner.encrypt(number, buf, header_len);
        if let Some(spoiler) = self.spoiler.as_ref().filter(|_| self.space == Space::Data) {
            spoiler.spoil(self.phase, &sealed, buf);
        }
        self.tape.note(sealed);
    }

    fn decrypt(
        &self,
        number: u64,
        header: &[u8],
        payload: &mut BytesMut,
    ) -> Result<(), CryptoError> {
        self.inner.decrypt(number, header, payload)
    }

    fn tag_len(&self) -> usize {
        self.inner.tag_len()
    }

    fn confidentiality_limit(&self) -> u64 {
        self.inner.confidentiality_limit()
    }

    fn integrity_limit(&self) -> u64 {
        self.inner.integrity_limit()
    }
}
