//! Records what quinn passes to our key for sealing.
//!
//! Gives the auditor the plaintext, and is where a [`Bug`](crate::bugs::Bug) is inserted between
//! our key and the wire.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use interposer::{Interposer, Origin};
use quinn_proto::crypto::PacketKey;

use crate::bugs::Spoiler;
use crate::wire::{Packet, Sealed, Space};

/// Packets sealed by one end of one connection and not audited yet, and the end's phase. Excludes
/// Initial packets, whose keys are not secret.
pub(crate) struct Tape {
    sealed: Mutex<VecDeque<Sealed>>,
    phase: AtomicU64,
    spoiler: Option<Spoiler>,
}

/// Length of a PATH_CHALLENGE and of a PATH_RESPONSE (RFC 9000 sections 19.17 and 19.18).
const PATH_FRAME_BYTES: usize = 9;

/// Whether a packet has one of these frames and nothing else but padding. Only such packets does
/// quinn send to an address off the path.
fn is_off_path(plaintext: &[u8]) -> bool {
    let is_padding = |rest: &[u8]| rest.iter().all(|&byte| byte == 0);
    matches!(plaintext.first(), Some(0x1a | 0x1b))
        && plaintext.get(PATH_FRAME_BYTES..).is_some_and(is_padding)
}

impl Tape {
    pub(crate) fn new(spoiler: Option<Spoiler>) -> Self {
        Self { sealed: Mutex::default(), phase: AtomicU64::new(0), spoiler }
    }

    fn note(&self, sealed: Sealed) {
        self.sealed().push_back(sealed);
    }

    /// The phase in which quinn would seal a packet now.
    pub(crate) fn phase(&self) -> u64 {
        self.phase.load(Relaxed)
    }

    fn sealed(&self) -> MutexGuard<'_, VecDeque<Sealed>> {
        self.sealed.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether this packet can be one of those sealed, as far as its unprotected header tells.
    pub(crate) fn may_have_sealed(&self, packet: &Packet<'_>) -> bool {
        self.sealed().iter().any(|sealed| packet.begins_as(&sealed.header))
    }

    /// Takes the packet with this number, which leaves now, and what was sealed before it and never
    /// leaves: the transport keeps back what would go to an address that has not earned it (RFC
    /// 9000 section 8.1). `None` if there is no such packet, or anything else was kept back.
    pub(crate) fn take(&self, space: Space, number: u64) -> Option<Sealed> {
        let mut sealed = self.sealed();
        let nth = sealed.iter().position(|one| (one.space, one.number) == (space, number))?;
        let mut kept_back = sealed.drain(..nth);
        if !kept_back.all(|packet| is_off_path(&packet.plaintext)) {
            return None;
        }
        drop(kept_back);
        sealed.pop_front()
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

#[cfg(test)]
mod tests {
    use super::*;

    /// Whether the packet after one with this plaintext may be the next to leave.
    fn may_keep_back(plaintext: &[u8]) -> bool {
        let tape = Tape::new(None);
        for (number, plaintext) in [(7, plaintext), (8, &[0x01; 20])] {
            let (header, plaintext) = (vec![0x41; 10], plaintext.to_vec());
            tape.note(Sealed { space: Space::Data, number, header, plaintext });
        }
        let taken = tape.take(Space::Data, 8);
        assert!(tape.take(Space::Data, 7).is_none(), "it has been passed over");
        taken.is_some()
    }

    #[test]
    fn nothing_but_a_frame_for_an_address_off_the_path_may_be_kept_back() {
        for frame in [0x1a, 0x1b] {
            let mut plaintext = vec![0; 40];
            plaintext[..PATH_FRAME_BYTES].fill(5);
            plaintext[0] = frame;
            assert!(may_keep_back(&plaintext) && may_keep_back(&plaintext[..PATH_FRAME_BYTES]));
            // Data behind it.
            plaintext[PATH_FRAME_BYTES] = 0x08;
            assert!(!may_keep_back(&plaintext));
        }
        assert!(!may_keep_back(&[0x08; 40]) && !may_keep_back(&[]));
    }
}
