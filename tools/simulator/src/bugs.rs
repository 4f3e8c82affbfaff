//! Plants bugs to test the auditor (T-1m): each puts on the wire what a pool with that bug would.
//!
//! A bug re-encrypts a packet with another pad and recomputes the tag over that ciphertext, as a
//! faulty pool would: the keys and the MAC cannot tell.

use std::sync::Arc;

use keypadd_keystream::Suite;
use quinn_proto::Side;

use crate::ciphers::PacketCipher;
use crate::secrets::SecretLog;
use crate::wire::{Sealed, Space};

/// Bugs of a pool.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Bug {
    /// The cursor was not advanced: a packet takes the pad of the one before it.
    CursorStuck,
    /// A chunk went back to the filler while in use: its end belongs to a later segment.
    RecycledEarly,
    /// A key update left the old phase's pads in place.
    StalePhase,
    /// Two packets swapped their pads.
    NumbersSwapped,
    /// The pads of the other direction's key.
    KeysSwapped,
    /// The subkey of the next segment; for AES, a counter that starts one block later.
    SubkeyOffByOne,
    /// A chunk was taken while being filled: the end of the pad is not written yet.
    RefillRace,
    /// A wiped pad was taken again.
    WipedPad,
}

impl Bug {
    /// All of them.
    pub const ALL: [Self; 8] = [
        Self::CursorStuck,
        Self::RecycledEarly,
        Self::StalePhase,
        Self::NumbersSwapped,
        Self::KeysSwapped,
        Self::SubkeyOffByOne,
        Self::RefillRace,
        Self::WipedPad,
    ];
}

/// Applies a bug to one packet in [`ONE_IN`] that one end of a connection sends.
pub(crate) struct Spoiler {
    pub(crate) bug: Bug,
    pub(crate) suite: Suite,
    pub(crate) side: Side,
    pub(crate) log: Arc<SecretLog>,
}

/// A rare bug is harder to detect.
const ONE_IN: u64 = 50;

impl Spoiler {
    /// Rewrites `packet`, sealed with our key, as the bug would.
    pub(crate) fn spoil(&self, phase: u64, sealed: &Sealed, packet: &mut [u8]) {
        let number = sealed.number;
        if number % ONE_IN != ONE_IN / 2 || sealed.plaintext.len() < 16 {
            return;
        }
        let bytes = sealed.plaintext.len();
        let Some(mut own) = self.cipher(self.side, phase) else { return };
        let right = pad(&mut own, number, bytes);
        let wrong = match self.bug {
            Bug::CursorStuck => pad(&mut own, number - 1, bytes),
            Bug::NumbersSwapped => pad(&mut own, number ^ 1, bytes),
            Bug::RecycledEarly => {
                let later = pad(&mut own, number + 64, bytes);
                [&right[..bytes / 2], &later[bytes / 2..]].concat()
            }
            Bug::StalePhase => {
                let Some(stale) = phase.checked_sub(1) else { return };
                let Some(mut stale) = self.cipher(self.side, stale) else { return };
                pad(&mut stale, number, bytes)
            }
            Bug::KeysSwapped => {
                let Some(mut other) = self.cipher(!self.side, phase) else { return };
                pad(&mut other, number, bytes)
            }
            Bug::SubkeyOffByOne if self.is_legacy() => pad(&mut own, number + 64, bytes),
            Bug::SubkeyOffByOne => pad(&mut own, number, bytes + 16).split_off(16),
            Bug::RefillRace => {
                let mut half = right;
                half[bytes / 2..].fill(0);
                half
            }
            Bug::WipedPad => vec![0; bytes],
        };
        let (header_bytes, ciphertext_end) = (sealed.header.len(), sealed.header.len() + bytes);
        let ciphertext = &mut packet[header_bytes..ciphertext_end];
        for (byte, (plain, pad)) in ciphertext.iter_mut().zip(sealed.plaintext.iter().zip(wrong)) {
            *byte = plain ^ pad;
        }
        let tag = own.tag(number, &sealed.header, ciphertext);
        packet[ciphertext_end..].copy_from_slice(&tag);
    }

    fn cipher(&self, side: Side, phase: u64) -> Option<PacketCipher> {
        Some(self.log.keys(self.suite, Space::Data, side, phase)?.packet)
    }

    fn is_legacy(&self) -> bool {
        self.suite.class() == keypadd_keystream::Class::Legacy
    }
}

fn pad(cipher: &mut PacketCipher, number: u64, bytes: usize) -> Vec<u8> {
    let mut pad = vec![0; bytes];
    cipher.xor_keystream(number, &mut pad);
    pad
}
