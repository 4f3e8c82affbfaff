//! Holds one key's packet protection: the MAC, and for the suites of TLS ring's AEAD, which handles
//! packets that find no pad in the pool in one pass.
//!
//! Does not know where pads come from.

use std::sync::Arc;

use keypadd_keystream::{
    Cipher, CipherEngine, KeystreamKey, MASK_BYTES_MAX, Mac, MacKey, Pacing, PacketNumber,
    Protection, SuiteKey, TAG_BYTES,
};
use ring::aead::{
    AES_128_GCM, AES_256_GCM, Aad, CHACHA20_POLY1305, LessSafeKey, Nonce, UnboundKey,
};
use ring::error::Unspecified;
use zeroize::Zeroizing;

use crate::key_extraction::KeyMaterial;

/// The MAC half of a suite's key, and ring's AEAD where that computes the same function.
pub(crate) struct KeyProtection {
    mac: MacKey,
    whole: Option<WholePacket>,
}

impl KeyProtection {
    /// Splits a suite's key into packet protection and keystream; a null cipher has no keystream.
    pub(crate) fn derive(
        suite: Protection,
        material: &KeyMaterial,
        engine: CipherEngine,
    ) -> (Self, Option<Arc<KeystreamKey>>) {
        let SuiteKey { keystream, mac } =
            SuiteKey::derive_with(suite, material.key(), material.iv(), engine);
        let whole = WholePacket::new(suite, mac.mask_bytes(), material, engine);
        (Self { mac, whole }, keystream)
    }

    /// Pad bytes before the payload's: the MAC's mask, unless its key encrypts that.
    pub(crate) fn mask_bytes(&self) -> usize {
        self.mac.mask_bytes()
    }

    pub(crate) fn mac(&self) -> &MacKey {
        &self.mac
    }

    /// Seals and opens packets that find too little of their pad in the pool.
    pub(crate) fn whole(&self) -> Option<&WholePacket> {
        self.whole.as_ref()
    }
}

/// A MAC's mask while a packet needs it; wiped when dropped, in one store rather than byte by byte.
#[derive(Default)]
pub(crate) struct MacMask(pub(crate) [u8; MASK_BYTES_MAX]);

impl Drop for MacMask {
    #[inline]
    fn drop(&mut self) {
        self.0 = [0; MASK_BYTES_MAX];
        zeroize::optimization_barrier(&self.0);
    }
}

/// A suite of TLS in one pass, by ring: for packets without a pad, and all packets with `--pool
/// off`. A pace slows the whole pass, including the MAC: the two are one loop.
pub(crate) struct WholePacket {
    key: LessSafeKey,
    mask_bytes: usize,
    pacing: Pacing,
    iv: Zeroizing<[u8; 12]>,
}

impl WholePacket {
    /// `None` for a suite that ring does not have, and for AES-GCM in a build that is to measure a
    /// CPU without AES instructions: ring cannot be kept from using them.
    fn new(
        suite: Protection,
        mask_bytes: usize,
        material: &KeyMaterial,
        engine: CipherEngine,
    ) -> Option<Self> {
        let algorithm = match (suite.cipher(), suite.mac()) {
            (_, Mac::Ghash) if cfg!(aes_backend = "soft") => return None,
            (Cipher::Aes128, Mac::Ghash) => &AES_128_GCM,
            (Cipher::Aes256, Mac::Ghash) => &AES_256_GCM,
            (Cipher::ChaCha20, Mac::Poly1305) => &CHACHA20_POLY1305,
            _ => return None,
        };
        // Of the right length, as rustls derived it.
        let key = LessSafeKey::new(UnboundKey::new(algorithm, material.key()).ok()?);
        Some(Self { key, mask_bytes, pacing: engine.pacing(), iv: Zeroizing::new(*material.iv()) })
    }

    pub(crate) fn seal(
        &self,
        packet_number: PacketNumber,
        header: &[u8],
        payload: &mut [u8],
    ) -> [u8; TAG_BYTES] {
        let mut tag = [0; TAG_BYTES];
        self.pacing.make(self.mask_bytes + payload.len(), || {
            let aad = Aad::from(header);
            let sealed = self
                .key
                .seal_in_place_separate_tag(self.nonce(packet_number), aad, payload)
                .expect("a payload below 64 KiB is far below every limit");
            tag = sealed.as_ref().try_into().expect("every tag is 16 bytes");
        });
        tag
    }

    pub(crate) fn open(
        &self,
        packet_number: PacketNumber,
        header: &[u8],
        sealed: &mut [u8],
    ) -> Result<(), Unspecified> {
        let mut opened = Err(Unspecified);
        self.pacing.make(self.mask_bytes + sealed.len() - TAG_BYTES, || {
            let (nonce, aad) = (self.nonce(packet_number), Aad::from(header));
            opened = self.key.open_in_place(nonce, aad, sealed).map(|_| ());
        });
        opened
    }

    /// RFC 9001 section 5.3: the IV with the packet number XORed into its low 64 bits.
    fn nonce(&self, packet_number: PacketNumber) -> Nonce {
        let mut nonce = *self.iv;
        for (byte, number) in nonce[4..].iter_mut().zip(packet_number.value().to_be_bytes()) {
            *byte ^= number;
        }
        Nonce::assume_unique_for_key(nonce)
    }
}
