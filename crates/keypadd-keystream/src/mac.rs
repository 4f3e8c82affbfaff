//! Computes and verifies packet tags: masked GHASH, Poly1305, truncated HMAC, or what measurements
//! hand in.
//!
//! Compares tags in constant time. Sets up a key's state once and copies it for every packet; the
//! copies are wiped.

use crate::aes_ctr::AesCtr;
use crate::ghash::{self, GhashPath};
use crate::number::PacketNumber;
use crate::poly1305;
use crate::prk::Prk;
use crate::told_apart::told_apart_by_name;
use hmac::digest::OutputSizeUser;
use hmac::{Hmac, KeyInit, Mac};
use sha1::Sha1;
use sha2::Sha256;
use std::fmt;
use std::sync::Arc;
use subtle::ConstantTimeEq;
use zeroize::zeroize_stack;

/// Bytes of every tag, as QUIC requires (RFC 9001 5.3); HMACs are truncated to it (RFC 2104 5).
pub const TAG_BYTES: usize = 16;

/// Upper bounds on the stack used by [`hmac`] and its callees, copies of a state of up to 200 bytes
/// and the words of a hash, and by [`poly1305::Path::tag`]. Wiping 1 KiB takes longer than a short
/// packet's hash, so they are no larger than must be. `scripts/instructions.py` fails when one of
/// their frames grows.
const HMAC_STACK_BYTES: usize = if cfg!(debug_assertions) { 16 << 10 } else { 1024 };
const POLY1305_STACK_BYTES: usize = if cfg!(debug_assertions) { 16 << 10 } else { 512 };

/// The authentication key of one direction and key phase. Immutable; wiped when dropped.
pub struct MacKey(Inner);

/// States are in memory of their own: a key moves from frame to frame, and would leave a copy of
/// its state in each.
enum Inner {
    Ghash(GhashKey),
    /// Every packet's key is its mask.
    Poly1305(poly1305::Path),
    HmacSha256(Box<Hmac<Sha256>>),
    HmacSha1(Box<Hmac<Sha1>>),
    Measured(Box<dyn PacketMac>),
}

/// A MAC for measurements only. Only this value refers to its code, so a program that never names
/// the value does not contain the code.
pub struct MeasuredMac {
    pub(crate) name: &'static str,
    pub(crate) digit: u16,
    pub(crate) key: fn(&Prk) -> Box<dyn PacketMac>,
}

impl MeasuredMac {
    /// The MAC's digit in the code points of private suites.
    pub const fn digit(&self) -> u16 {
        self.digit
    }
}

told_apart_by_name!(MeasuredMac);

/// The key of a measured MAC.
pub(crate) trait PacketMac: Send + Sync {
    /// See [`MacKey::tag`]; has no mask.
    fn tag(&self, packet: PacketNumber, header: &[u8], ciphertext: &[u8]) -> [u8; TAG_BYTES];
}

/// GHASH's key, and the cipher of the mask where the pad does not contain it.
struct GhashKey {
    hash: ghash::Key,
    mask: Option<Arc<AesCtr>>,
}

impl MacKey {
    /// GHASH with its key H; encrypts the mask of every packet itself if it has the cipher for
    /// that. The caller wipes `h` and the stack.
    pub(crate) fn ghash(path: GhashPath, h: &[u8; 16], mask: Option<Arc<AesCtr>>) -> Self {
        Self(Inner::Ghash(GhashKey { hash: ghash::Key::new(path, h), mask }))
    }

    /// Has no key of its own: the mask is a packet's key (RFC 8439 2.6).
    pub(crate) fn poly1305() -> Self {
        Self(Inner::Poly1305(poly1305::Path::fastest()))
    }

    pub(crate) fn hmac_sha256(key: &[u8; 32]) -> Self {
        Self(Inner::HmacSha256(keyed(key)))
    }

    pub(crate) fn hmac_sha1(key: &[u8; 20]) -> Self {
        Self(Inner::HmacSha1(keyed(key)))
    }

    pub(crate) fn measured(key: Box<dyn PacketMac>) -> Self {
        Self(Inner::Measured(key))
    }

    /// Leading bytes of a packet's pad that are the MAC's mask and are never XORed into the
    /// payload: GHASH's result is XORed with them, Poly1305 has them as its key. At most
    /// [`MASK_BYTES_MAX`](crate::MASK_BYTES_MAX), and none for GHASH on a CPU with AES
    /// instructions: there one block is quickly encrypted, and a pad that leaks does not give H
    /// away.
    pub fn mask_bytes(&self) -> usize {
        match &self.0 {
            Inner::Ghash(GhashKey { mask: None, .. }) => TAG_BYTES,
            Inner::Poly1305(_) => poly1305::KEY_BYTES,
            _ => 0,
        }
    }

    /// Computes the tag over a packet's number, its header before header protection, and its
    /// ciphertext. `mask` is the first [`Self::mask_bytes`] of the pad; what follows is ignored.
    /// Does not allocate.
    ///
    /// An HMAC covers `be64(number) || be64(header length) || header || ciphertext`. GHASH and
    /// Poly1305 cover header and ciphertext; the mask binds the number (RFC 9001 5.3).
    ///
    /// # Panics
    ///
    /// If the mask is too short.
    pub fn tag(
        &self,
        packet: PacketNumber,
        header: &[u8],
        ciphertext: &[u8],
        mask: &[u8],
    ) -> [u8; TAG_BYTES] {
        match &self.0 {
            Inner::Ghash(key) => {
                let tag = key.tag(packet, header, ciphertext, mask);
                key.hash.wipe_stack();
                tag
            }
            Inner::Poly1305(path) => {
                let key = mask.first_chunk().expect("a mask of 32 bytes");
                let tag = path.tag(key, header, ciphertext);
                zeroize_stack::<POLY1305_STACK_BYTES>();
                tag
            }
            Inner::HmacSha256(key) => hmac_and_wipe(&**key, packet, header, ciphertext),
            Inner::HmacSha1(key) => hmac_and_wipe(&**key, packet, header, ciphertext),
            Inner::Measured(key) => key.tag(packet, header, ciphertext),
        }
    }

    /// Whether `tag` is the packet's tag, in constant time; false unless it is [`TAG_BYTES`] long.
    pub fn verify(
        &self,
        packet: PacketNumber,
        header: &[u8],
        ciphertext: &[u8],
        mask: &[u8],
        tag: &[u8],
    ) -> bool {
        let Ok(tag) = tag.try_into() else { return false };
        // As numbers: byte by byte, comparing takes longer than hashing a keystroke.
        let [computed, received] =
            [self.tag(packet, header, ciphertext, mask), tag].map(u128::from_ne_bytes);
        computed.ct_eq(&received).into()
    }
}

impl GhashKey {
    /// Has its own stack frame, so that the caller can wipe the mask and what hashing leaves.
    #[inline(never)]
    fn tag(
        &self,
        packet: PacketNumber,
        header: &[u8],
        ciphertext: &[u8],
        mask: &[u8],
    ) -> [u8; TAG_BYTES] {
        match &self.mask {
            Some(aes) => self.hash.tag(header, ciphertext, &aes.block_0(packet)),
            None => {
                let mask = mask.first_chunk().expect("a mask of 16 bytes");
                self.hash.tag(header, ciphertext, mask)
            }
        }
    }
}

impl fmt::Debug for MacKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = match self.0 {
            Inner::Ghash(_) => "GHASH",
            Inner::Poly1305(_) => "Poly1305",
            Inner::HmacSha256(_) => "HMAC-SHA-256",
            Inner::HmacSha1(_) => "HMAC-SHA-1",
            Inner::Measured(_) => "measured",
        };
        write!(f, "MacKey({name})")
    }
}

/// The state of an HMAC under a key.
pub(crate) fn keyed<M: KeyInit>(key: &[u8]) -> Box<M> {
    Box::new(M::new_from_slice(key).expect("HMAC takes any length"))
}

/// The tag of a packet, see [`MacKey::tag`]. The full number, because the header carries only its
/// last bytes; the length separates header and ciphertext.
pub(crate) fn hmac_and_wipe<M: Mac + OutputSizeUser + Clone>(
    key: &M,
    packet: PacketNumber,
    header: &[u8],
    ciphertext: &[u8],
) -> [u8; TAG_BYTES] {
    let number = packet.value().to_be_bytes();
    let header_bytes = (header.len() as u64).to_be_bytes();
    let tag = hmac(key, [&number, &header_bytes, header, ciphertext]);
    zeroize_stack::<HMAC_STACK_BYTES>();
    tag
}

/// HMAC over the concatenated parts, truncated to 16 bytes. Has its own stack frame, as
/// [`GhashKey::tag`]: finalizing moves the state.
#[inline(never)]
fn hmac<M: Mac + OutputSizeUser + Clone>(key: &M, parts: [&[u8]; 4]) -> [u8; TAG_BYTES] {
    let mut state = key.clone();
    for part in parts {
        state.update(part);
    }
    let full = state.finalize();
    *full.as_bytes().first_chunk().expect("no hash is shorter than a tag")
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use crate::measured;
    use crate::vectors;

    /// Checks vectors through the code that tags packets, split at every position.
    pub(crate) fn check<M: Mac + OutputSizeUser + KeyInit + Clone>(text: &str) {
        for case in vectors::blocks(text) {
            let (key, message) = (case.bytes("key"), case.bytes("message"));
            for split in 0..=message.len() {
                let state = *keyed::<M>(&key);
                let (left, right) = message.split_at(split);
                let tag = hmac(&state, [b"", left, b"", right]);
                let mac = case.bytes("mac");
                let published = mac.len().min(TAG_BYTES); // some are shorter than our tags
                assert_eq!(tag[..published], mac[..published]);
            }
        }
    }

    #[test]
    fn rfc_2202_macs_are_reproduced() {
        check::<Hmac<Sha1>>(include_str!("../tests/vectors/rfc2202_sha1.txt"));
    }

    #[test]
    fn rfc_4231_macs_are_reproduced() {
        check::<Hmac<Sha256>>(include_str!("../tests/vectors/rfc4231_sha256.txt"));
    }

    #[test]
    fn acvp_macs_are_reproduced() {
        check::<Hmac<Sha1>>(include_str!("../tests/vectors/acvp_hmac_sha1.txt"));
        check::<Hmac<Sha256>>(include_str!("../tests/vectors/acvp_hmac_sha256.txt"));
    }

    fn ghash_key() -> MacKey {
        MacKey::ghash(GhashPath::fastest(), &[1; 16], None)
    }

    fn keys() -> [MacKey; 5] {
        [
            MacKey::poly1305(),
            MacKey::measured((measured::HMAC_MD5.key)(&Prk::new(&[1; 32]))),
            ghash_key(),
            MacKey::hmac_sha256(&[1; 32]),
            MacKey::hmac_sha1(&[1; 20]),
        ]
    }

    #[test]
    fn tags_with_a_flipped_bit_or_a_wrong_length_are_rejected() {
        let number = PacketNumber::new(77);
        for key in keys() {
            let good = |tag: &[u8]| key.verify(number, b"header", b"ciphertext", &[9; 32], tag);
            let tag = key.tag(number, b"header", b"ciphertext", &[9; 32]);
            assert!(good(&tag));
            for bit in 0..128 {
                let mut wrong = tag;
                wrong[bit / 8] ^= 1 << (bit % 8);
                assert!(!good(&wrong), "{key:?}, bit {bit}");
            }
            for length in (0..16).chain([17, 32]) {
                assert!(!good(&tag.repeat(2)[..length]), "{key:?}, {length} bytes");
            }
        }
    }

    #[test]
    fn the_null_mac_accepts_only_sixteen_zeros() {
        let key = MacKey::measured((measured::NULL_MAC.key)(&Prk::new(&[1; 32])));
        let number = PacketNumber::new(77);
        let good = |tag: &[u8]| key.verify(number, b"header", b"ciphertext", &[9; 32], tag);
        assert_eq!(key.tag(number, b"header", b"ciphertext", &[9; 32]), [0; TAG_BYTES]);
        assert!(good(&[0; TAG_BYTES]) && !good(&[0; 15]) && !good(&[0; 17]));
        for bit in 0..128 {
            let mut wrong = [0; TAG_BYTES];
            wrong[bit / 8] ^= 1 << (bit % 8);
            assert!(!good(&wrong), "bit {bit}");
        }
    }

    #[test]
    fn a_tag_covers_number_header_ciphertext_and_their_boundary() {
        let number = PacketNumber::new(1 << 40);
        let mask = [3; 32];
        for key in keys() {
            let tag = key.tag(number, b"abc", b"defg", &mask);
            assert_ne!(tag, key.tag(number, b"abcd", b"efg", &mask));
            assert_ne!(tag, key.tag(number, b"abc", b"deFg", &mask));
            assert_ne!(tag, key.tag(number, b"aBc", b"defg", &mask));
            let other = key.tag(PacketNumber::new(0), b"abc", b"defg", &mask);
            let masked = key.tag(number, b"abc", b"defg", &[1; 32]);
            match key.0 {
                // These bind the number through the mask, which depends on it.
                Inner::Ghash(_) | Inner::Poly1305(_) => assert!(tag == other && tag != masked),
                _ => assert!(tag != other && tag == masked),
            }
        }
    }
}
