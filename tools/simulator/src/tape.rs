//! Records what quinn passes to our key for sealing.
//!
//! Gives the auditor the plaintext, and is where a [`Bug`](crate::bugs::Bug) is inserted between
//! our key and the wire.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, PoisonError};

use interposer::{Interposer, Origin};
use quinn_proto::crypto::PacketKey;

use crate::bugs::Spoiler;
use crate::wire::{Sealed, Space};

/// Packets sealed by one end of one connection and not audited yet, and the end's phase. Excludes
/// Initial packets, whose keys are not secret.
pub(crate) struct Tape {
    sealed: Mutex<VecDeque<Sealed>>,
    phase: AtomicU64,
    spoiler: Option<Spoiler>,
}

impl Tape {
    pub(crate) fn new(spoiler: Option<Spoiler>) -> Self {
        Self { sealed: Mutex::default(), phase: AtomicU64::new(0), spoiler }
    }

    fn note(&self, sealed: Sealed) {
        self.sealed.lock().unwrap_or_else(PoisonError::into_inner).push_back(sealed);
    }

    /// The phase in which quinn would seal a packet now.
    pub(crate) fn phase(&self) -> u64 {
        self.phase.load(Relaxed)
    }

    pub(crate) fn has_sealed(&self) -> bool {
        !self.sealed.lock().unwrap_or_else(PoisonError::into_inner).is_empty()
    }

    /// The next packet sealed.
    pub(crate) fn next(&self) -> Option<Sealed> {
        self.sealed.lock().unwrap_or_else(PoisonError::into_inner).pop_front()
    }
}

impl Interposer for Tape {
    fn seal(
        &self,
        origin: Origin,
        key: &dyn PacketKey,
        number: u64,
        buf: &mut [u8],
        header_len: usize,
    ) {
        let (space, phase) = match origin {
            Origin::Initial => return key.encrypt(number, buf, header_len),
            Origin::Handshake(0) => (Space::Handshake, 0),
            Origin::Handshake(_) => (Space::Data, 0),
            Origin::Next(nth) => (Space::Data, nth as u64 + 1),
        };
        let (header, rest) = buf.split_at(header_len);
        let plaintext = rest[..rest.len() - key.tag_len()].to_vec();
        let sealed = Sealed { space, number, header: header.to_vec(), plaintext };
        key.encrypt(number, buf, header_len);
        if let Some(spoiler) = self.spoiler.as_ref().filter(|_| space == Space::Data) {
            spoiler.spoil(phase, &sealed, buf);
        }
        self.note(sealed);
    }

    fn made(&self, origin: Origin, _: &Arc<dyn PacketKey>) {
        if let Origin::Next(entered) = origin {
            self.phase.store(entered as u64, Relaxed);
        }
    }
}
