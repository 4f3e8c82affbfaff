//! Opens the packets that arrive in one phase (quinn's `PacketKey`, remote half).
//!
//! Forged and replayed packets cost no pool keystream: the tag is verified first, then the number
//! is checked against the direction's replay window, and only then is a pad taken. To verify,
//! ChaCha20-Poly1305, and AES-GCM on a CPU without AES instructions, need the MAC's mask, the first
//! block of the pad: it is read in place or generated inline. All others read no byte of a pad
//! before the tag is verified.

use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Arc, Mutex};
use std::time::Instant;

use bytes::BytesMut;
use keypadd_keystream::{PAYLOAD_BYTES_MAX, PacketNumber, TAG_BYTES};
use keypadd_pool::{Coverage, Direction, Peek};
use quinn_proto::crypto::{CryptoError, PacketKey};

use crate::limits::KeyLimits;
use crate::meters::{Meters, PacketStage, StageClock, sample};
use crate::phases::{NewestPhase, Phases, is_too_long, least_of};
use crate::protection::{KeyProtection, MacMask};
use crate::window::ReplayWindow;

/// State shared by all opening keys of one connection.
pub(crate) struct Inbound {
    pub(crate) receiving: Mutex<ReceiveState>,
    /// Whether a packet of the connection did not open.
    has_failed: AtomicBool,
    meters: Arc<Meters>,
}

/// The pads and the replay window of the receive direction, over all phases.
pub(crate) struct ReceiveState {
    pub(crate) phases: Phases,
    window: ReplayWindow,
}

impl Inbound {
    pub(crate) fn new(limits: KeyLimits, ahead: NewestPhase, meters: Arc<Meters>) -> Self {
        let phases = Phases::new(Direction::Receive, limits.phase_packets(), ahead, &meters);
        let receiving = ReceiveState { phases, window: ReplayWindow::default() };
        Self { receiving: Mutex::new(receiving), has_failed: AtomicBool::new(false), meters }
    }

    /// Counts a stateless reset, and one packet less that did not open. If it was too short to be
    /// taken for a packet, there may be none.
    pub(crate) fn count_reset(&self) {
        self.meters.count_reset(self.has_failed.load(Relaxed));
    }
}

/// One phase's opening key.
pub(crate) struct OpenKey {
    inbound: Arc<Inbound>,
    phase: u64,
    protection: KeyProtection,
    limits: KeyLimits,
}

impl OpenKey {
    pub(crate) fn new(
        inbound: Arc<Inbound>,
        phase: u64,
        protection: KeyProtection,
        limits: KeyLimits,
    ) -> Self {
        Self { inbound, phase, protection, limits }
    }

    /// Opens `sealed` (ciphertext and tag) in place; the plaintext is all but its last 16 bytes.
    fn open(
        &self,
        packet_number: PacketNumber,
        header: &[u8],
        sealed: &mut [u8],
        started: Option<Instant>,
    ) -> Result<Coverage, CryptoError> {
        let mut stages = StageClock::new(&self.inbound.meters, started);
        let payload_bytes = sealed.len().checked_sub(TAG_BYTES).ok_or(CryptoError)?;
        if payload_bytes > PAYLOAD_BYTES_MAX {
            return Err(CryptoError);
        }
        let mask_bytes = self.protection.mask_bytes();
        let pad_bytes = mask_bytes + payload_bytes;
        let mut receiving = self.inbound.receiving.lock().map_err(|_| CryptoError)?;
        let ReceiveState { phases, window } = &mut *receiving;

        let replayed = window.refuses(packet_number.value());
        let mut made = MacMask::default();
        let mut mask = &made.0[..mask_bytes];
        let whole = self.protection.whole();
        // What follows asks the pool for the mask, or whether the pad is worthwhile. An HMAC needs
        // neither, and after a hit the answer is most likely yes: should it be no, the pad is
        // generated inline below.
        let is_asked =
            mask_bytes > 0 || whole.is_some() && !phases.expects_hit(self.phase, pad_bytes);
        if is_asked {
            let has_pad = whole.is_none() || !is_too_long(pad_bytes);
            let lane = if has_pad { phases.lane(self.phase) } else { None };
            let peek = lane.map(|lane| lane.peek(packet_number, pad_bytes));
            let pool_bytes = peek.as_ref().map_or(0, Peek::bytes);
            if let Some(whole) = whole.filter(|_| pool_bytes < least_of(pad_bytes) && !replayed) {
                whole.open(packet_number, header, sealed).map_err(|_| self.refuse_forged())?;
                // The number is genuine, so the lane may move to it.
                let coverage =
                    phases.skip(self.phase, packet_number, pad_bytes).ok_or(CryptoError)?;
                window.mark(packet_number.value());
                return Ok(coverage);
            }
            if mask_bytes > 0 {
                mask = match peek.and_then(|peek| peek.mask(mask_bytes)) {
                    Some(mask) => mask,
                    None => {
                        let made = &mut made.0[..mask_bytes];
                        let written = phases.write_mask(self.phase, packet_number, made);
                        written.ok_or(CryptoError)?;
                        made
                    }
                };
            }
        }
        let (ciphertext, tag) = sealed.split_at_mut(payload_bytes);
        if !self.protection.mac().verify(packet_number, header, ciphertext, mask, tag) {
            return Err(self.refuse_forged());
        }
        if replayed {
            self.inbound.meters.count_replay();
            return Err(CryptoError);
        }
        stages.end_of(PacketStage::Mac);
        // The mask is no longer needed.
        let pad = (&mut MacMask::default().0[..mask_bytes], ciphertext);
        let coverage = phases
            .apply(self.phase, packet_number, pad, 0, || stages.end_of(PacketStage::Pad))
            .ok_or(CryptoError)?;
        let is_hit = coverage == Coverage::Hit;
        stages.end_of(if is_hit { PacketStage::Xor } else { PacketStage::Pad });
        window.mark(packet_number.value());
        Ok(coverage)
    }

    fn refuse_forged(&self) -> CryptoError {
        self.inbound.has_failed.store(true, Relaxed);
        self.inbound.meters.count_open_failure();
        CryptoError
    }
}

impl Drop for OpenKey {
    /// Wipes the phase's keystream. quinn keeps a phase three PTO longer, for late packets.
    fn drop(&mut self) {
        if let Ok(mut receiving) = self.inbound.receiving.lock() {
            receiving.phases.retire(self.phase);
        }
    }
}

impl PacketKey for OpenKey {
    /// Writes zeros: quinn never asks an opening key to seal, and no plaintext may go out.
    fn encrypt(&self, _: u64, buf: &mut [u8], header_len: usize) {
        buf[header_len..].fill(0);
    }

    fn decrypt(
        &self,
        packet: u64,
        header: &[u8],
        payload: &mut BytesMut,
    ) -> Result<(), CryptoError> {
        let started = sample(packet);
        let coverage = self.open(PacketNumber::new(packet), header, payload, started)?;
        payload.truncate(payload.len() - TAG_BYTES);
        self.inbound.meters.observe(Direction::Receive, coverage, started);
        Ok(())
    }

    fn tag_len(&self) -> usize {
        TAG_BYTES
    }

    fn confidentiality_limit(&self) -> u64 {
        self.limits.reported
    }

    fn integrity_limit(&self) -> u64 {
        self.limits.integrity
    }
}
