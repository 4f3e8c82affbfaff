//! Keystream and MACs of every suite of keypadd: ciphers, counters, tags.
//!
//! # Hazardous material
//!
//! What is here encrypts nothing by itself. A keystream is safe to use once per packet number and
//! key, and this crate neither remembers numbers nor refuses one twice; a tag protects only if it
//! is verified before anything is done with the payload. Both rules are kept by
//! `keypadd-provider`, which is what to use. DES and triple DES ([`Class::Legacy`]) are insecure
//! even when used by the rules, and what is [`Class::Measure`] protects little or nothing and is there
//! to be measured; [`CipherBackend::DesCrate`] also reaches table indices that depend on
//! secrets, all other backends of DES are free of that.
//!
//! A packet's *pad* is [`Protection::mask_bytes`] bytes that mask the tag, then the bytes that are
//! XORed on the payload. [`KeystreamKey::write_rows`] makes pads for whole segments of 64 packets,
//! [`InlineKeystream`] for one packet, [`MacKey`] makes tags. The layouts are those of
//! `docs/DESIGN.md`, after SP 800-38A, SP 800-38D, RFC 3686 and RFC 9001. The crate knows no
//! packets, sockets or clocks.
//!
//! Keys, subkeys and copies of MAC states are wiped when dropped, pads in scratch memory when used,
//! and the stack below a key derivation afterwards. What else a compiler spills is not.

#![cfg_attr(test, allow(clippy::unwrap_used))]

mod aes_ctr;
mod backend;
mod bitslice;
mod counter;
mod derive;
mod keystream;
mod legacy;
mod mac;
mod number;
mod pace;
mod suite;
#[cfg(test)]
#[path = "../tests/vectors/mod.rs"]
mod vectors;

pub use backend::{BackendMissing, CipherBackend, CipherEngine, UnknownBackend, cpu_features};
pub use derive::SuiteKey;
pub use keystream::{InlineKeystream, KeystreamKey, PAYLOAD_BYTES_MAX};
pub use mac::{MacKey, TAG_BYTES};
pub use number::{PacketNumber, SEGMENT_PACKETS, Segment};
pub use pace::{Pace, Pacing};
pub use suite::{
    Cipher, Class, Mac, MeasureSuite, Protection, Suite, UnknownMeasureSuite, UnknownSuite,
};
