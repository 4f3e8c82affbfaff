//! Generates the keystream and the authentication tags of every keypadd suite.
//!
//! # Hazardous material
//!
//! These are primitives, not encryption. A keystream may be used once per key and packet number,
//! and this crate does not track numbers; a tag protects only if it is verified before the payload
//! is used. `keypadd-provider` enforces both rules: use that instead. DES and triple DES
//! ([`Class::Legacy`]) are insecure even then, and [`Class::Measure`] suites, which exist for
//! benchmarks, protect little or nothing; a program contains them only if it names them.
//! [`CipherBackend::DesCrate`] indexes tables by secrets; the other DES backends are constant-time.
//!
//! A packet's *pad* is [`MacKey::mask_bytes`] bytes for the MAC, then the bytes to XOR into the
//! payload. [`KeystreamKey::write_rows`] generates pads for segments of 64 packets,
//! [`InlineKeystream`] for one packet; [`MacKey`] computes tags. The layouts are defined in
//! `docs/protocol.md`, after SP 800-38A, SP 800-38D, RFC 3686, RFC 8439 and RFC 9001. Knows no
//! sockets, clocks or packet formats.
//!
//! Keys, subkeys and copies of MAC states are wiped when dropped, pads in scratch memory after use,
//! and the stack after a key derivation. Other compiler spills are not.

#![cfg_attr(test, allow(clippy::unwrap_used))]

mod aes_ctr;
mod backend;
mod bitslice;
mod chacha;
mod counter;
mod derive;
mod ghash;
mod keystream;
mod legacy;
mod mac;
mod measured;
mod number;
mod pace;
mod poly1305;
mod prefetch;
mod prk;
mod suite;
mod told_apart;
#[cfg(test)]
#[path = "../tests/vectors/mod.rs"]
mod vectors;
mod xor;

pub use backend::{
    BackendMissing, CipherBackend, CipherEngine, UnknownBackend, cpu_features, has_aes_gcm,
};
pub use counter::wipe;
pub use derive::SuiteKey;
pub use ghash::GhashPath;
pub use keystream::{InlineKeystream, KeystreamKey, PAYLOAD_BYTES_MAX};
pub use legacy::MeasuredCipher;
pub use mac::{MacKey, MeasuredMac, TAG_BYTES};
pub use measured::{MeasureSuite, UnknownMeasureSuite};
pub use number::{PacketNumber, SEGMENT_PACKETS, Segment};
pub use pace::{Pace, Pacing};
pub use prefetch::prefetch;
pub use suite::{Cipher, Class, MASK_BYTES_MAX, Mac, Protection, Suite, UnknownSuite};
pub use xor::spend;
