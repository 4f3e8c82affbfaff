//! Crypto configurations that pass everything on and write down what quinn does with keys.

use std::any::Any;
use std::sync::{Arc, Mutex, PoisonError};

use bytes::BytesMut;
use quinn_proto::crypto::{
    ClientConfig, CryptoError, ExportKeyingMaterialError, HeaderKey, KeyPair, Keys, PacketKey,
    ServerConfig, Session, UnsupportedVersion,
};
use quinn_proto::transport_parameters::TransportParameters;
use quinn_proto::{ConnectError, ConnectionId, Side, TransportError};

/// Which call made a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Origin {
    Initial,
    /// The nth call of `write_handshake` that returned keys, from 0.
    Handshake(usize),
    /// The nth call of `next_1rtt_keys`, from 0.
    Next(usize),
}

/// Something that quinn did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Act {
    Made(Origin),
    Sealed { by: Origin, number: u64, room_for_tag: bool },
    Dropped(Origin),
}

/// All of it, in order.
#[derive(Clone, Default)]
pub(crate) struct Record(Arc<Mutex<Vec<Act>>>);

impl Record {
    fn note(&self, act: Act) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).push(act);
    }

    pub(crate) fn acts(&self) -> Vec<Act> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Numbers sealed by the key that this call made.
    pub(crate) fn sealed_by(&self, origin: Origin) -> Vec<u64> {
        let acts = self.acts().into_iter();
        let sealed = acts.filter_map(|act| match act {
            Act::Sealed { by, number, .. } if by == origin => Some(number),
            _ => None,
        });
        sealed.collect()
    }
}

/// A client's or a server's configuration, recorded. quinn is told this limit, if one is given.
pub(crate) struct Recorded<C: ?Sized> {
    pub(crate) record: Record,
    pub(crate) limit: Option<u64>,
    pub(crate) inner: Arc<C>,
}

impl<C: ?Sized> Recorded<C> {
    fn wrap(&self, inner: Box<dyn Session>) -> Box<dyn Session> {
        let Self { record, limit, .. } = self;
        Box::new(Watched { record: record.clone(), limit: *limit, inner, made: [0; 2] })
    }
}

impl ClientConfig for Recorded<dyn ClientConfig> {
    fn start_session(
        self: Arc<Self>,
        version: u32,
        name: &str,
        params: &TransportParameters,
    ) -> Result<Box<dyn Session>, ConnectError> {
        Ok(self.wrap(Arc::clone(&self.inner).start_session(version, name, params)?))
    }
}

impl ServerConfig for Recorded<dyn ServerConfig> {
    fn initial_keys(&self, version: u32, cid: &ConnectionId) -> Result<Keys, UnsupportedVersion> {
        self.inner.initial_keys(version, cid)
    }

    fn retry_tag(&self, version: u32, cid: &ConnectionId, packet: &[u8]) -> [u8; 16] {
        self.inner.retry_tag(version, cid, packet)
    }

    fn start_session(
        self: Arc<Self>,
        version: u32,
        params: &TransportParameters,
    ) -> Box<dyn Session> {
        self.wrap(Arc::clone(&self.inner).start_session(version, params))
    }
}

struct Watched {
    record: Record,
    limit: Option<u64>,
    inner: Box<dyn Session>,
    /// Calls that returned keys: of `write_handshake`, of `next_1rtt_keys`.
    made: [usize; 2],
}

impl Watched {
    fn watch(
        &self,
        origin: Origin,
        pair: KeyPair<Box<dyn PacketKey>>,
    ) -> KeyPair<Box<dyn PacketKey>> {
        self.record.note(Act::Made(origin));
        let Self { record, limit, .. } = self;
        let key = WatchedKey { record: record.clone(), limit: *limit, origin, inner: pair.local };
        KeyPair { local: Box::new(key), remote: pair.remote }
    }
}

impl Session for Watched {
    fn initial_keys(&self, cid: &ConnectionId, side: Side) -> Keys {
        let keys = self.inner.initial_keys(cid, side);
        Keys { packet: self.watch(Origin::Initial, keys.packet), ..keys }
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
        let origin = Origin::Handshake(self.made[0]);
        self.made[0] += 1;
        Some(Keys { packet: self.watch(origin, keys.packet), ..keys })
    }

    fn next_1rtt_keys(&mut self) -> Option<KeyPair<Box<dyn PacketKey>>> {
        let keys = self.inner.next_1rtt_keys()?;
        let origin = Origin::Next(self.made[1]);
        self.made[1] += 1;
        Some(self.watch(origin, keys))
    }

    fn is_valid_retry(&self, cid: &ConnectionId, header: &[u8], payload: &[u8]) -> bool {
        self.inner.is_valid_retry(cid, header, payload)
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
    record: Record,
    limit: Option<u64>,
    origin: Origin,
    inner: Box<dyn PacketKey>,
}

impl Drop for WatchedKey {
    fn drop(&mut self) {
        self.record.note(Act::Dropped(self.origin));
    }
}

impl PacketKey for WatchedKey {
    fn encrypt(&self, packet: u64, buf: &mut [u8], header_len: usize) {
        let room_for_tag = buf.len() >= header_len + self.inner.tag_len();
        self.record.note(Act::Sealed { by: self.origin, number: packet, room_for_tag });
        self.inner.encrypt(packet, buf, header_len);
    }

    fn decrypt(
        &self,
        packet: u64,
        header: &[u8],
        payload: &mut BytesMut,
    ) -> Result<(), CryptoError> {
        self.inner.decrypt(packet, header, payload)
    }

    fn tag_len(&self) -> usize {
        self.inner.tag_len()
    }

    fn confidentiality_limit(&self) -> u64 {
        self.limit.unwrap_or_else(|| self.inner.confidentiality_limit())
    }

    fn integrity_limit(&self) -> u64 {
        self.inner.integrity_limit()
    }
}
