//! Records what quinn hands over for sealing, around the call of our key.
//!
//! This is where the auditor learns plaintext, and where a [`Bug`](crate::bugs::Bug) is put between our key
//! and the wire.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, PoisonError};

use interposer::{Interposer, Origin};
use quinn_proto::crypto::PacketKey;

use crate::bugs::Spoiler;
use crate::wire::{Sealed, Space};

/// The packets that one end of one connection has sealed and the auditor has not yet seen, and the
/// phase that it is in. Initial packets, whose keys are no secret, are not among them.
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

    /// The phase that quinn would seal a packet in now.
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
