//! Extracts key material from rustls.
//!
//! rustls derives QUIC packet keys and passes each to its suite's algorithm, without connection,
//! direction or phase, and returns the resulting boxed trait object to the session. Our algorithm
//! returns an [`ExtractableKey`], which protects no packet: it only keeps the material until the
//! session, which knows all three, extracts it. Every box holds its own key, so nothing depends on
//! the order in which rustls creates them.

use std::sync::Mutex;

use rustls::Error;
use rustls::crypto::cipher::{AeadKey, Iv};
use rustls::quic::{PacketKey, Tag};
use zeroize::Zeroizing;

use crate::secret_memory::Secret;

const IV_BYTES: usize = 12;
const KEY_BYTES: usize = 32;

/// The header that requests the material; no packet's header looks like this.
const REQUEST: &[u8] = b"keypadd claims this key";

/// One packet key and IV as rustls derived them.
pub(crate) struct KeyMaterial {
    key: Zeroizing<[u8; KEY_BYTES]>,
    key_bytes: usize,
    iv: Zeroizing<[u8; IV_BYTES]>,
}

impl KeyMaterial {
    pub(crate) fn key(&self) -> &[u8] {
        &self.key[..self.key_bytes]
    }

    pub(crate) fn iv(&self) -> &[u8; IV_BYTES] {
        &self.iv
    }

    /// Material from outside a handshake, for timings and test vectors.
    pub(crate) fn synthetic(key_bytes: &[u8], iv: [u8; IV_BYTES]) -> Self {
        let mut key = Zeroizing::new([0; KEY_BYTES]);
        key[..key_bytes.len()].copy_from_slice(key_bytes);
        Self { key, key_bytes: key_bytes.len(), iv: Zeroizing::new(iv) }
    }
}

/// Holds one key until it is extracted, once.
pub(crate) struct ExtractableKey(Mutex<Option<StoredKey>>);

/// Key, padding, IV.
struct StoredKey {
    bytes: Secret<{ KEY_BYTES + IV_BYTES }>,
    key_bytes: usize,
}

impl ExtractableKey {
    pub(crate) fn new(key: AeadKey, iv: Iv) -> Self {
        let mut kept = StoredKey { bytes: Secret::zeroed(), key_bytes: key.as_ref().len() };
        kept.bytes[..key.as_ref().len()].copy_from_slice(key.as_ref());
        kept.bytes[KEY_BYTES..].copy_from_slice(iv.as_ref());
        Self(Mutex::new(Some(kept)))
    }
}

/// Lends the material of a key that rustls derived for one of our suites, then wipes it; `None` for
/// any other key, or the second time.
pub(crate) fn extract<T>(key: &dyn PacketKey, derive: impl FnOnce(&KeyMaterial) -> T) -> Option<T> {
    let mut bytes = Zeroizing::new([0; KEY_BYTES + IV_BYTES]);
    let key_bytes = key.decrypt_in_place(0, REQUEST, &mut bytes[..]).ok()?.len();
    let mut material = KeyMaterial {
        key: Zeroizing::new([0; KEY_BYTES]),
        key_bytes: key_bytes.checked_sub(IV_BYTES)?,
        iv: Zeroizing::new([0; IV_BYTES]),
    };
    material.key.copy_from_slice(&bytes[..KEY_BYTES]);
    material.iv.copy_from_slice(&bytes[KEY_BYTES..]);
    Some(derive(&material))
}

impl PacketKey for ExtractableKey {
    /// Always fails: used as a packet key by mistake, it must not put key bytes on the wire.
    fn encrypt_in_place(&self, _: u64, _: &[u8], _: &mut [u8]) -> Result<Tag, Error> {
        Err(Error::EncryptError)
    }

    /// Answers the one request of [`extract`] with key, padding and IV; refuses everything else.
    /// The returned length is that of key and IV, without padding.
    fn decrypt_in_place<'a>(
        &self,
        _: u64,
        header: &[u8],
        payload: &'a mut [u8],
    ) -> Result<&'a [u8], Error> {
        if header != REQUEST || payload.len() != KEY_BYTES + IV_BYTES {
            return Err(Error::DecryptError);
        }
        let mut material = self.0.lock().map_err(|_| Error::DecryptError)?;
        let kept = material.take().ok_or(Error::DecryptError)?;
        payload.copy_from_slice(&kept.bytes);
        Ok(&payload[..kept.key_bytes + IV_BYTES])
    }

    fn tag_len(&self) -> usize {
        keypadd_keystream::TAG_BYTES
    }

    fn confidentiality_limit(&self) -> u64 {
        0
    }

    fn integrity_limit(&self) -> u64 {
        0
    }
}
