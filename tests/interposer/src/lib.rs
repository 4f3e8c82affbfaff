//! Wraps quinn's crypto traits: an [`Interposer`] stands between quinn and the keys of a
//! configuration, and seals and opens in their place.
//!
//! Modeled on quinn's own `perf/src/noprotection.rs`.

mod labels;
mod stubborn;

use std::any::Any;
use std::sync::Arc;

use bytes::BytesMut;
use quinn_proto::crypto::{
    ClientConfig, CryptoError, ExportKeyingMaterialError, HeaderKey, KeyPair, Keys, PacketKey,
    ServerConfig, Session, UnsupportedVersion,
};
use quinn_proto::transport_parameters::TransportParameters;
use quinn_proto::{ConnectError, ConnectionId, Side, TransportError};

pub use labels::{expand_label, export};
pub use stubborn::Stubborn;

/// Which call of a session made a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Origin {
    /// `initial_keys`.
    Initial,
    /// The nth call of `write_handshake` that returned keys, from 0: first the Handshake space,
    /// then the first key phase.
    Handshake(usize),
    /// The nth call of `next_1rtt_keys` that returned keys, from 0: those of key phase n + 1. quinn
    /// calls it on entering phase n.
    Next(usize),
}

/// The keys of one key phase or packet number space.
pub type PacketKeys = KeyPair<Box<dyn PacketKey>>;

/// Hooks around the keys of one end of a connection.
pub trait Interposer: Send + Sync {
    /// Replaces `key.encrypt(packet_number, buf, header_len)`.
    fn seal(
        &self,
        origin: Origin,
        key: &dyn PacketKey,
        packet_number: u64,
        buf: &mut [u8],
        header_len: usize,
    );

    /// Replaces `key.decrypt(packet_number, header, payload)`.
    ///
    /// # Errors
    /// Those of `key`: the packet is dropped.
    fn open(
        &self,
        origin: Origin,
        key: &dyn PacketKey,
        packet_number: u64,
        header: &[u8],
        payload: &mut BytesMut,
    ) -> Result<(), CryptoError> {
        let _ = origin;
        key.decrypt(packet_number, header, payload)
    }

    /// Replaces the nth call of `next_1rtt_keys`.
    fn next(&self, nth: usize, session: &mut dyn Session) -> Option<PacketKeys> {
        let _ = nth;
        session.next_1rtt_keys()
    }

    /// Called when a session has made this sealing key.
    fn made(&self, origin: Origin, key: &Arc<dyn PacketKey>) {
        let _ = (origin, key);
    }

    /// Called when quinn has dropped the sealing key of this origin.
    fn dropped(&self, origin: Origin) {
        let _ = origin;
    }

    /// The confidentiality limit of `key` to report to quinn, in packets.
    fn confidentiality_limit(&self, key: &dyn PacketKey) -> u64 {
        key.confidentiality_limit()
    }
}

/// Wraps a client's configuration with `by`.
pub fn client_config(
    inner: Arc<dyn ClientConfig>,
    by: Arc<dyn Interposer>,
) -> Arc<dyn ClientConfig> {
    Arc::new(Interposed { inner, by: Box::new(move || Arc::clone(&by)) })
}

/// Wraps a server's configuration with `by`.
pub fn server_config(
    inner: Arc<dyn ServerConfig>,
    by: Arc<dyn Interposer>,
) -> Arc<dyn ServerConfig> {
    each_of_server(inner, move || Arc::clone(&by))
}

/// Wraps a server's configuration with one interposer per session, in the order the sessions start.
pub fn each_of_server(
    inner: Arc<dyn ServerConfig>,
    by: impl Fn() -> Arc<dyn Interposer> + Send + Sync + 'static,
) -> Arc<dyn ServerConfig> {
    Arc::new(Interposed { inner, by: Box::new(by) })
}

struct Interposed<C: ?Sized> {
    inner: Arc<C>,
    by: Box<dyn Fn() -> Arc<dyn Interposer> + Send + Sync>,
}

impl<C: ?Sized> Interposed<C> {
    fn session(&self, inner: Box<dyn Session>) -> Box<dyn Session> {
        Box::new(InterposedSession { inner, by: (self.by)(), handshake: 0, next: 0 })
    }
}

impl ClientConfig for Interposed<dyn ClientConfig> {
    fn start_session(
        self: Arc<Self>,
        version: u32,
        server_name: &str,
        params: &TransportParameters,
    ) -> Result<Box<dyn Session>, ConnectError> {
        Ok(self.session(Arc::clone(&self.inner).start_session(version, server_name, params)?))
    }
}

impl ServerConfig for Interposed<dyn ServerConfig> {
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

struct InterposedSession {
    inner: Box<dyn Session>,
    by: Arc<dyn Interposer>,
    /// Calls of `write_handshake` and of `next_1rtt_keys` that returned keys.
    handshake: usize,
    next: usize,
}

impl InterposedSession {
    fn interpose(&self, origin: Origin, keys: PacketKeys) -> PacketKeys {
        let inner = Arc::from(keys.local);
        self.by.made(origin, &inner);
        let (by, is_sealing) = (&self.by, true);
        let local = InterposedKey { inner, origin, is_sealing, by: Arc::clone(by) };
        let (inner, is_sealing) = (Arc::from(keys.remote), false);
        let remote = InterposedKey { inner, origin, is_sealing, by: Arc::clone(by) };
        KeyPair { local: Box::new(local), remote: Box::new(remote) }
    }
}

impl Session for InterposedSession {
    fn initial_keys(&self, dst_cid: &ConnectionId, side: Side) -> Keys {
        let keys = self.inner.initial_keys(dst_cid, side);
        Keys { packet: self.interpose(Origin::Initial, keys.packet), ..keys }
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

    fn write_handshake(&mut self, buf: &mut Vec<u8>) -> Option<Keys> {
        let keys = self.inner.write_handshake(buf)?;
        let origin = Origin::Handshake(self.handshake);
        self.handshake += 1;
        Some(Keys { packet: self.interpose(origin, keys.packet), ..keys })
    }

    fn next_1rtt_keys(&mut self) -> Option<PacketKeys> {
        let keys = self.by.next(self.next, &mut *self.inner)?;
        let origin = Origin::Next(self.next);
        self.next += 1;
        Some(self.interpose(origin, keys))
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

struct InterposedKey {
    inner: Arc<dyn PacketKey>,
    origin: Origin,
    is_sealing: bool,
    by: Arc<dyn Interposer>,
}

impl Drop for InterposedKey {
    fn drop(&mut self) {
        if self.is_sealing {
            self.by.dropped(self.origin);
        }
    }
}

impl PacketKey for InterposedKey {
    fn encrypt(&self, packet: u64, buf: &mut [u8], header_len: usize) {
        self.by.seal(self.origin, &*self.inner, packet, buf, header_len);
    }

    fn decrypt(
        &self,
        packet: u64,
        header: &[u8],
        payload: &mut BytesMut,
    ) -> Result<(), CryptoError> {
        self.by.open(self.origin, &*self.inner, packet, header, payload)
    }

    fn tag_len(&self) -> usize {
        self.inner.tag_len()
    }

    fn confidentiality_limit(&self) -> u64 {
        self.by.confidentiality_limit(&*self.inner)
    }

    fn integrity_limit(&self) -> u64 {
        self.inner.integrity_limit()
    }
}
