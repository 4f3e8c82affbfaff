//! Provides the two ends of a direction, sources of pads and vector files to the battery.

use std::collections::BTreeMap;
use std::pin::pin;
use std::sync::{Arc, LazyLock, MutexGuard};
use std::task::{Context, Poll, Waker};
use std::thread;
use std::time::{Duration, Instant};

use bytes::BytesMut;
use keypadd_keystream::{CipherEngine, Mac, PacketNumber, Protection, SuiteKey, TAG_BYTES};
use keypadd_pool::{BODY_BYTES, Coverage, HEAD_BYTES, Part, PartLevel, Pool, PoolSettings};
use quinn_proto::crypto::PacketKey;

use crate::fault::{FaultLatch, KeyFault};
use crate::key_extraction::KeyMaterial;
use crate::limits::KeyLimits;
use crate::meters::Meters;
use crate::open::{Inbound, OpenKey, ReceiveState};
use crate::phases::{NewestPhase, Phases, REST_BYTES_MAX};
use crate::protection::KeyProtection;
use crate::seal::{Outbound, SealKey, SendState};

/// The suites with pads: all but those with a null cipher.
pub(super) fn with_pads() -> impl Iterator<Item = Protection> {
    Protection::all().filter(|suite| !suite.cipher().is_null())
}

/// The suites whose tags reveal forgeries: all but those with a null MAC.
pub(super) fn with_tags() -> impl Iterator<Item = Protection> {
    Protection::all().filter(|suite| suite.mac() != Mac::NULL)
}

/// The sending end of one direction.
pub(super) struct Sender {
    pub(super) meters: Arc<Meters>,
    pub(super) limits: KeyLimits,
    suite: Protection,
    fault: Arc<FaultLatch>,
    outbound: Arc<Outbound>,
}

impl Sender {
    pub(super) fn new(suite: Protection) -> Self {
        Self::limited(suite, KeyLimits::of(suite))
    }

    pub(super) fn limited(suite: Protection, limits: KeyLimits) -> Self {
        let (meters, fault) = (Arc::new(Meters::default()), Arc::new(FaultLatch::default()));
        let outbound =
            Outbound::new(limits, NewestPhase::default(), Arc::clone(&fault), Arc::clone(&meters));
        Self { meters, limits, suite, fault, outbound: Arc::new(outbound) }
    }

    /// Adds a phase, as the session does; phases come in order.
    pub(super) fn key(&self, phase: u64, material: &KeyMaterial) -> SealKey {
        self.key_with(phase, material, CipherEngine::default())
    }

    pub(super) fn key_with(
        &self,
        phase: u64,
        material: &KeyMaterial,
        engine: CipherEngine,
    ) -> SealKey {
        let (protection, keystream) = KeyProtection::derive(self.suite, material, engine);
        self.sending().phases.add(phase, keystream);
        SealKey::new(Arc::clone(&self.outbound), phase, protection, self.limits)
    }

    pub(super) fn sending(&self) -> MutexGuard<'_, SendState> {
        self.outbound.sending.lock().expect("no test has panicked")
    }

    /// Whether a phase has reached its usage limit in bytes.
    pub(super) fn usage_limit_reached(&self, phase: u64) -> bool {
        self.outbound.usage_limit.is_reached(phase)
    }

    /// The latched fault, if any.
    pub(super) fn fault(&self) -> Option<KeyFault> {
        match pin!(self.fault.wait()).poll(&mut Context::from_waker(Waker::noop())) {
            Poll::Ready(fault) => Some(fault),
            Poll::Pending => None,
        }
    }
}

/// The receiving end of one direction.
pub(super) struct Receiver {
    pub(super) meters: Arc<Meters>,
    limits: KeyLimits,
    suite: Protection,
    inbound: Arc<Inbound>,
}

impl Receiver {
    pub(super) fn new(suite: Protection) -> Self {
        Self::limited(suite, KeyLimits::of(suite))
    }

    pub(super) fn limited(suite: Protection, limits: KeyLimits) -> Self {
        let meters = Arc::new(Meters::default());
        let inbound = Arc::new(Inbound::new(limits, NewestPhase::default(), Arc::clone(&meters)));
        Self { meters, limits, suite, inbound }
    }

    /// Adds a phase, as the session does; phases come in order.
    pub(super) fn key(&self, phase: u64, material: &KeyMaterial) -> OpenKey {
        self.key_with(phase, material, CipherEngine::default())
    }

    pub(super) fn key_with(
        &self,
        phase: u64,
        material: &KeyMaterial,
        engine: CipherEngine,
    ) -> OpenKey {
        let (protection, keystream) = KeyProtection::derive(self.suite, material, engine);
        self.receiving().phases.add(phase, keystream);
        OpenKey::new(Arc::clone(&self.inbound), phase, protection, self.limits)
    }

    pub(super) fn receiving(&self) -> MutexGuard<'_, ReceiveState> {
        self.inbound.receiving.lock().expect("no test has panicked")
    }

    /// Precomputed keystream, heads and bodies.
    pub(super) fn levels(&self) -> [PartLevel; 2] {
        Part::ALL.map(|part| self.receiving().phases.level(part))
    }
}

/// The source of phase 0's pads.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Pads {
    /// No pool.
    Off,
    /// A lane with heads and bodies.
    Warm,
    /// A lane whose pool is too small for bodies.
    HeadsOnly,
    /// A lane without pads for any packet of the test.
    Dry,
}

/// Room for the lanes of all tests that run concurrently.
static POOL: LazyLock<Pool> = LazyLock::new(|| new_pool(16 << 20));

/// Twenty-one units of 8 KiB: one fewer than a lane needs to get a body chunk of eleven.
static SMALL_POOL: LazyLock<Pool> = LazyLock::new(|| new_pool(21 * 8192));

/// Above every packet number: a lane opened here never holds a pad of the tests.
const BEYOND_ALL_NUMBERS: PacketNumber = PacketNumber::new(1 << 63);

impl Pads {
    /// Provides phase 0 with pads from packet number `first` on, and waits until they are
    /// available.
    pub(super) fn provide(self, phases: &mut Phases, first: u64) {
        if let Some(last) = first.checked_sub(1) {
            phases.follow(0, PacketNumber::new(last));
        }
        let parts: &[Part] = match self {
            Self::Off => return,
            Self::Warm => {
                phases.use_pool(Some(POOL.clone()));
                &Part::ALL
            }
            Self::HeadsOnly => {
                phases.use_pool(Some(SMALL_POOL.clone()));
                &[Part::Head]
            }
            Self::Dry => {
                phases.follow(0, BEYOND_ALL_NUMBERS);
                phases.use_pool(Some(POOL.clone()));
                &[]
            }
        };
        if phases.lane(0).is_none() {
            return; // a null cipher, see `coverage`
        }
        poll_until("the lane is filled", || {
            parts.iter().all(|&part| phases.level(part).packets > 0)
        });
    }

    /// The coverage of the first packet then. A packet of a suite of TLS with too little of its pad
    /// is processed in one pass.
    pub(super) fn coverage(self, suite: Protection, pad_bytes: usize) -> Coverage {
        let pooled_bytes = match self {
            _ if suite.cipher().is_null() => 0,
            Self::Off | Self::Dry => 0,
            Self::HeadsOnly => HEAD_BYTES,
            Self::Warm => HEAD_BYTES + BODY_BYTES,
        };
        match pad_bytes {
            0 => Coverage::Miss,
            _ if pooled_bytes == 0 => Coverage::Miss,
            _ if pad_bytes <= pooled_bytes => Coverage::Hit,
            _ if suite.is_of_tls() && pad_bytes > pooled_bytes + REST_BYTES_MAX => Coverage::Miss,
            _ => Coverage::Partial,
        }
    }
}

/// Bytes of the MAC's mask that a suite's pads begin with on this CPU.
pub(super) fn mask_bytes(suite: Protection) -> usize {
    SuiteKey::derive(suite, &[0; 32][..suite.key_bytes()], &[0; 12]).mac.mask_bytes()
}

pub(super) fn new_pool(budget_bytes: usize) -> Pool {
    Pool::new(PoolSettings { budget_bytes }).expect("a pool")
}

/// A key that depends on the seed.
pub(super) fn material(suite: Protection, seed: u8) -> KeyMaterial {
    let key: Vec<u8> = (0..suite.key_bytes() as u8)
        .map(|index| index.wrapping_mul(29).wrapping_add(seed))
        .collect();
    KeyMaterial::synthetic(&key, [seed ^ 0xa5; 12])
}

/// A payload without two equal adjacent 16-byte blocks.
pub(super) fn payload(bytes: usize) -> Vec<u8> {
    (0..bytes).map(|index| (index * 7 + index / 256) as u8).collect()
}

/// Seals a packet; the ciphertext and the tag.
pub(super) fn seal(key: &SealKey, number: u64, header: &[u8], payload: &[u8]) -> Vec<u8> {
    let mut packet = [header, payload, &[0; TAG_BYTES]].concat();
    key.encrypt(number, &mut packet, header.len());
    assert_eq!(&packet[..header.len()], header, "headers stay readable");
    packet.split_off(header.len())
}

/// Opens a packet; the payload, or `None` if it was refused.
pub(super) fn open(key: &OpenKey, number: u64, header: &[u8], sealed: &[u8]) -> Option<Vec<u8>> {
    let mut payload = BytesMut::from(sealed);
    key.decrypt(number, header, &mut payload).ok().map(|()| payload.to_vec())
}

/// Waits for a condition; the deadline only ends tests that would hang.
pub(super) fn poll_until(condition: &str, mut holds: impl FnMut() -> bool) {
    let deadline = Instant::now() + Duration::from_secs(120);
    while !holds() {
        assert!(Instant::now() < deadline, "waited in vain until {condition}");
        thread::sleep(Duration::from_millis(1));
    }
}

/// One block of a vector file: `name = value` lines between empty ones.
pub(super) struct Vector<'a>(BTreeMap<&'a str, &'a str>);

impl<'a> Vector<'a> {
    pub(super) fn all(file: &'a str) -> Vec<Self> {
        let read = |block: &'a str| {
            let lines = block.lines().filter(|line| !line.starts_with('#'));
            Self(
                lines
                    .filter_map(|line| line.split_once('='))
                    .map(|(name, value)| (name.trim(), value.trim()))
                    .collect(),
            )
        };
        let blocks = file.split("\n\n").map(read);
        blocks.filter(|vector| !vector.0.is_empty()).collect()
    }

    pub(super) fn text(&self, name: &str) -> &'a str {
        self.0.get(name).unwrap_or_else(|| panic!("no {name}"))
    }

    pub(super) fn number(&self, name: &str) -> u64 {
        self.text(name).parse().expect("a decimal number")
    }

    pub(super) fn bytes(&self, name: &str) -> Vec<u8> {
        hex::decode(self.text(name)).expect("hex")
    }

    /// The key and the IV.
    pub(super) fn material(&self) -> KeyMaterial {
        let iv = self.bytes("iv").try_into().expect("an IV of 12 bytes");
        KeyMaterial::synthetic(&self.bytes("key"), iv)
    }
}
