//! Seals the packets that we send in one phase (quinn's `PacketKey`, local half).
//!
//! quinn unwraps what packet keys return, under the connection's lock. So this key neither fails
//! nor panics: at an unsound request it writes zeros over payload and tag, latches a fault, and
//! seals nothing more. It refuses every packet number that is not above the last one of its
//! direction, in any phase, so no number is used twice.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex};
use std::time::Instant;

use bytes::BytesMut;
use keypadd_keystream::{PAYLOAD_BYTES_MAX, PacketNumber, TAG_BYTES};
use keypadd_pool::{Coverage, Direction};
use quinn_proto::crypto::{CryptoError, PacketKey};

use crate::fault::{FaultLatch, KeyFault};
use crate::limits::{CLOSING_PACKETS, KeyLimits};
use crate::meters::{Meters, PacketStage, StageClock, sample};
use crate::phases::{NewestPhase, Phases, least_of};
use crate::protection::{KeyProtection, MacMask};
use crate::usage::UsageLimit;

/// State shared by all sealing keys of one connection.
pub(crate) struct Outbound {
    pub(crate) sending: Mutex<SendState>,
    pub(crate) fault: Arc<FaultLatch>,
    pub(crate) usage_limit: UsageLimit,
    meters: Arc<Meters>,
    /// A request was unsound: only zeros go out from now on.
    poisoned: AtomicBool,
}

/// The pads and the packet numbers of the send direction, over all phases.
pub(crate) struct SendState {
    pub(crate) phases: Phases,
    /// The lowest packet number that may still be sealed.
    next: u64,
}

impl Outbound {
    pub(crate) fn new(
        limits: KeyLimits,
        ahead: NewestPhase,
        fault: Arc<FaultLatch>,
        meters: Arc<Meters>,
    ) -> Self {
        let phases = Phases::new(Direction::Send, limits.phase_packets(), ahead, &meters);
        Self {
            sending: Mutex::new(SendState { phases, next: 0 }),
            fault,
            usage_limit: UsageLimit::default(),
            meters,
            poisoned: AtomicBool::new(false),
        }
    }
}

/// One phase's sealing key.
pub(crate) struct SealKey {
    outbound: Arc<Outbound>,
    phase: u64,
    protection: KeyProtection,
    limits: KeyLimits,
    /// Packets and bytes so far; written only under the lock of [`Outbound::sending`].
    sealed: AtomicU64,
    sealed_bytes: AtomicU64,
}

impl SealKey {
    pub(crate) fn new(
        outbound: Arc<Outbound>,
        phase: u64,
        protection: KeyProtection,
        limits: KeyLimits,
    ) -> Self {
        Self {
            outbound,
            phase,
            protection,
            limits,
            sealed: AtomicU64::new(0),
            sealed_bytes: AtomicU64::new(0),
        }
    }

    /// Seals `payload` in place and writes its tag.
    fn seal(
        &self,
        packet_number: PacketNumber,
        header: &[u8],
        payload: &mut [u8],
        tag: &mut [u8; TAG_BYTES],
        started: Option<Instant>,
    ) -> Result<Coverage, KeyFault> {
        let mut stages = StageClock::new(&self.outbound.meters, started);
        let mask_bytes = self.protection.mask_bytes();
        let mut sending = self.outbound.sending.lock().map_err(|_| KeyFault::Internal)?;
        let SendState { phases, next } = &mut *sending;
        self.claim_number(packet_number, payload.len(), next)?;
        self.count_usage(payload.len() as u64)?;
        let whole = self.protection.whole();
        let least = whole.map_or(0, |_| least_of(mask_bytes + payload.len()));
        let mut mask = MacMask::default();
        let pad = (&mut mask.0[..mask_bytes], &mut *payload);
        let coverage = phases
            .apply(self.phase, packet_number, pad, least, || stages.end_of(PacketStage::Pad))
            .ok_or(KeyFault::KeyRetired)?;
        drop(sending);
        if let Some(whole) = whole
            && coverage == Coverage::Miss
        {
            *tag = whole.seal(packet_number, header, payload);
            return Ok(coverage);
        }
        let is_hit = coverage == Coverage::Hit;
        stages.end_of(if is_hit { PacketStage::Xor } else { PacketStage::Pad });
        *tag = self.protection.mac().tag(packet_number, header, payload, &mask.0);
        stages.end_of(PacketStage::Mac);
        Ok(coverage)
    }

    /// Claims the packet's number, unless it is below `next`; fails if the key must not seal the
    /// packet.
    fn claim_number(
        &self,
        packet_number: PacketNumber,
        payload_bytes: usize,
        next: &mut u64,
    ) -> Result<(), KeyFault> {
        if self.outbound.poisoned.load(Relaxed) {
            return Err(KeyFault::Internal);
        }
        if payload_bytes > PAYLOAD_BYTES_MAX {
            return Err(KeyFault::PayloadTooLong);
        }
        let number = packet_number.value();
        if number < *next {
            self.outbound.meters.count_pad_reuse();
            return Err(KeyFault::NumberRepeated);
        }
        // Must not wrap around: that would permit all numbers again.
        *next = number.checked_add(1).ok_or(KeyFault::Internal)?;
        Ok(())
    }

    /// Counts a packet and its bytes against the usage limits; fails if they are exceeded. The
    /// caller holds the lock of the direction, so plain loads and stores are enough.
    fn count_usage(&self, payload_bytes: u64) -> Result<(), KeyFault> {
        let sealed = self.sealed.load(Relaxed);
        if sealed >= self.limits.hard_stop {
            return Err(KeyFault::LimitReached);
        }
        self.sealed.store(sealed + 1, Relaxed);
        if sealed + CLOSING_PACKETS >= self.limits.hard_stop {
            // Keeps sealing: closing the connection needs these last packets.
            self.outbound.fault.latch(KeyFault::LimitReached);
        }
        let before = self.sealed_bytes.load(Relaxed);
        let sealed_bytes = before + payload_bytes;
        self.sealed_bytes.store(sealed_bytes, Relaxed);
        if sealed_bytes < self.limits.phase_bytes {
            return Ok(());
        }
        if before < self.limits.phase_bytes {
            self.outbound.usage_limit.reach(self.phase);
        }
        if sealed_bytes > self.limits.hard_stop_bytes() {
            return Err(KeyFault::LimitReached);
        }
        if sealed_bytes > self.limits.closing_bytes() {
            self.outbound.fault.latch(KeyFault::LimitReached);
        }
        Ok(())
    }
}

impl Drop for SealKey {
    /// Wipes the rest of this phase's keystream.
    fn drop(&mut self) {
        if let Ok(mut sending) = self.outbound.sending.lock() {
            sending.phases.retire(self.phase);
        }
    }
}

impl PacketKey for SealKey {
    fn encrypt(&self, packet: u64, buf: &mut [u8], header_len: usize) {
        let started = sample(packet);
        let (header, sealed) = buf.split_at_mut(header_len);
        let outcome = match sealed.split_last_chunk_mut() {
            Some((payload, tag)) => {
                self.seal(PacketNumber::new(packet), header, payload, tag, started)
            }
            None => Err(KeyFault::Internal),
        };
        match outcome {
            Ok(coverage) => self.outbound.meters.observe(Direction::Send, coverage, started),
            Err(fault) => {
                // No plaintext on the wire, whatever went wrong.
                sealed.fill(0);
                self.outbound.poisoned.store(true, Relaxed);
                self.outbound.fault.latch(fault);
            }
        }
    }

    /// A sealing key opens nothing.
    fn decrypt(&self, _: u64, _: &[u8], _: &mut BytesMut) -> Result<(), CryptoError> {
        Err(CryptoError)
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
