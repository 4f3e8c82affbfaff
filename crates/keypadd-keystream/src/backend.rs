//! Chooses the cipher implementation at run time, or by name for tests and measurements.
//!
//! All backends generate the same bytes. Knows names and CPU features, no keys.

use crate::bitslice::Path;
use crate::ghash::GhashPath;
use crate::pace::{Pace, Pacing};
use std::fmt;
use std::str::FromStr;

/// The implementation of DES and triple DES, and of AES chunks on CPUs without AES instructions.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum CipherBackend {
    /// The fastest on this CPU: the widest bitslice for DES, and AES instructions. Without those,
    /// the `aes` crate generates single AES packets.
    #[default]
    Auto,
    /// The `des` crate, one block at a time, with table lookups that depend on secrets, and the
    /// `aes` crate: the conventional way, kept as a baseline for measurements.
    DesCrate,
    /// 64 blocks at a time in general registers; runs on every CPU.
    Bitslice64,
    /// 128 blocks at a time: SSE2 on x86-64, NEON on 64-bit ARM, where every CPU has it.
    Bitslice128,
    /// 256 blocks at a time: AVX2.
    Bitslice256,
    /// 512 blocks at a time: AVX-512, with its three-input logic instruction.
    Bitslice512,
}

/// A backend that this CPU can run, from [`CipherBackend::engine`].
#[derive(Clone, Copy)]
pub struct CipherEngine {
    asked: CipherBackend,
    pub(crate) blocks: Blocks,
    ghash: GhashPath,
    pacing: Pacing,
}

/// Whether the `aes` crate may use AES instructions: `--cfg aes_backend="soft"` forbids it to,
/// which shows on any CPU what one without them does.
const MAY_USE_AES: bool = !cfg!(aes_backend = "soft");

/// Whether the CPU has AES instructions; the `aes` crate is fastest then.
pub(crate) fn has_aes() -> bool {
    MAY_USE_AES && has_aes_instructions()
}

#[cfg(target_arch = "x86_64")]
fn has_aes_instructions() -> bool {
    is_x86_feature_detected!("aes")
}

#[cfg(target_arch = "aarch64")]
fn has_aes_instructions() -> bool {
    std::arch::is_aarch64_feature_detected!("aes")
}

#[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
fn has_aes_instructions() -> bool {
    false
}

/// Whether the CPU has AES and carry-less multiplication instructions: with both AES-GCM is the
/// fastest suite of TLS, without ChaCha20-Poly1305 is.
pub fn has_aes_gcm() -> bool {
    #[cfg(target_arch = "x86_64")]
    let multiplies = is_x86_feature_detected!("pclmulqdq");
    #[cfg(target_arch = "aarch64")]
    let multiplies = std::arch::is_aarch64_feature_detected!("pmull");
    #[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
    let multiplies = false;
    has_aes() && multiplies
}

/// The lanes from which bitsliced AES beats the `aes` crate without AES instructions.
const AES_LANES_MIN: usize = 128;

/// Encrypts blocks.
#[derive(Clone, Copy)]
pub(crate) enum Blocks {
    DesCrate,
    Bitslice(Path),
}

impl CipherBackend {
    /// Every backend.
    pub const ALL: [Self; 6] = [
        Self::Auto,
        Self::DesCrate,
        Self::Bitslice64,
        Self::Bitslice128,
        Self::Bitslice256,
        Self::Bitslice512,
    ];

    /// The name on command lines and in reports.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Auto => "auto",
            Self::DesCrate => "des-crate",
            Self::Bitslice64 => "bitslice-64",
            Self::Bitslice128 => "bitslice-128",
            Self::Bitslice256 => "bitslice-256",
            Self::Bitslice512 => "bitslice-512",
        }
    }

    /// The backend that [`Self::Auto`] selects on this CPU; any other backend is itself.
    pub fn chosen(self) -> Self {
        match self {
            Self::Auto => [Self::Bitslice512, Self::Bitslice256, Self::Bitslice128]
                .into_iter()
                .find(|backend| backend.is_available())
                .unwrap_or(Self::Bitslice64),
            forced => forced,
        }
    }

    /// Whether this CPU can run it.
    pub fn is_available(self) -> bool {
        self.engine().is_ok()
    }

    /// The engine that runs this backend.
    ///
    /// # Errors
    ///
    /// If this CPU lacks the instructions; the message names them and the available backends.
    pub fn engine(self) -> Result<CipherEngine, BackendMissing> {
        let path = match self.chosen() {
            Self::Auto | Self::DesCrate => None,
            Self::Bitslice64 => Some(Path::Lanes64),
            Self::Bitslice128 => Some(Path::lanes_128().ok_or(BackendMissing(self))?),
            Self::Bitslice256 => Some(Path::lanes_256().ok_or(BackendMissing(self))?),
            Self::Bitslice512 => Some(Path::lanes_512().ok_or(BackendMissing(self))?),
        };
        let blocks = path.map_or(Blocks::DesCrate, Blocks::Bitslice);
        Ok(CipherEngine {
            asked: self,
            blocks,
            ghash: GhashPath::fastest(),
            pacing: Pacing::default(),
        })
    }

    const fn needs(self) -> &'static str {
        match self {
            Self::Bitslice128 => "SSE2 or NEON",
            Self::Bitslice256 => "AVX2",
            Self::Bitslice512 => "AVX-512F",
            Self::Auto | Self::DesCrate | Self::Bitslice64 => "nothing",
        }
    }
}

impl CipherEngine {
    /// The backend as requested, possibly [`CipherBackend::Auto`].
    pub fn asked(self) -> CipherBackend {
        self.asked
    }

    /// An engine that generates keystream no faster than this pace. For measurements; leaks the
    /// pace, which lives as long as the process.
    pub fn at_pace(self, pace: impl Pace + 'static) -> Self {
        Self { pacing: Pacing::by(pace), ..self }
    }

    /// This engine without a pace.
    pub fn unpaced(self) -> Self {
        Self { pacing: Pacing::default(), ..self }
    }

    /// This engine with another implementation of GHASH. For measurements and tests.
    pub fn with_ghash(self, ghash: GhashPath) -> Self {
        Self { ghash, ..self }
    }

    /// The implementation of GHASH.
    pub fn ghash(self) -> GhashPath {
        self.ghash
    }

    /// The pace at which to generate keystream.
    pub fn pacing(self) -> Pacing {
        self.pacing
    }

    /// The engine of [`CipherBackend::Auto`], with this one's pace and GHASH.
    pub(crate) fn as_auto(self) -> Self {
        Self { pacing: self.pacing, ghash: self.ghash, ..Self::default() }
    }

    /// The bitslice that generates AES chunks, unless the `aes` crate does.
    pub(crate) fn aes_path(self) -> Option<Path> {
        let Blocks::Bitslice(path) = self.blocks else { return None };
        let here = match self.asked {
            CipherBackend::Auto => !has_aes() && path.lanes() >= AES_LANES_MIN,
            _ => true,
        };
        here.then_some(path)
    }

    /// The backend in use, never [`CipherBackend::Auto`].
    pub fn backend(self) -> CipherBackend {
        self.asked.chosen()
    }
}

/// The engine of [`CipherBackend::Auto`].
impl Default for CipherEngine {
    fn default() -> Self {
        CipherBackend::Auto.engine().expect("what this CPU has was chosen")
    }
}

impl PartialEq for CipherEngine {
    fn eq(&self, other: &Self) -> bool {
        let chosen = |engine: &Self| (engine.asked, engine.ghash, engine.pacing);
        chosen(self) == chosen(other)
    }
}

impl Eq for CipherEngine {}

impl fmt::Debug for CipherEngine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("CipherEngine")
            .field(&self.asked)
            .field(&self.backend())
            .field(&self.ghash)
            .field(&self.pacing)
            .finish()
    }
}

/// The requested backend and what it resolves to: `auto: bitslice-256`.
impl fmt::Display for CipherEngine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.asked {
            CipherBackend::Auto => write!(f, "auto: {}", self.backend()),
            forced => forced.fmt(f),
        }
    }
}

/// The CPU features of this machine that speed up ciphers and MACs, for report headers.
pub fn cpu_features() -> Vec<&'static str> {
    let known = known_features();
    known.into_iter().filter(|(_, present)| *present).map(|(name, _)| name).collect()
}

#[cfg(target_arch = "x86_64")]
fn known_features() -> Vec<(&'static str, bool)> {
    vec![
        ("sse2", is_x86_feature_detected!("sse2")),
        ("aes", is_x86_feature_detected!("aes")),
        ("pclmulqdq", is_x86_feature_detected!("pclmulqdq")),
        ("sha", is_x86_feature_detected!("sha")),
        ("avx2", is_x86_feature_detected!("avx2")),
        ("vaes", is_x86_feature_detected!("vaes")),
        ("avx512f", is_x86_feature_detected!("avx512f")),
        ("vpclmulqdq", is_x86_feature_detected!("vpclmulqdq")),
        ("avx512bw", is_x86_feature_detected!("avx512bw")),
        ("avx512ifma", is_x86_feature_detected!("avx512ifma")),
    ]
}

#[cfg(target_arch = "aarch64")]
fn known_features() -> Vec<(&'static str, bool)> {
    vec![
        ("neon", std::arch::is_aarch64_feature_detected!("neon")),
        ("aes", std::arch::is_aarch64_feature_detected!("aes")),
        ("pmull", std::arch::is_aarch64_feature_detected!("pmull")),
        ("sha2", std::arch::is_aarch64_feature_detected!("sha2")),
    ]
}

#[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
fn known_features() -> Vec<(&'static str, bool)> {
    Vec::new()
}

impl fmt::Display for CipherBackend {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

impl FromStr for CipherBackend {
    type Err = UnknownBackend;

    fn from_str(name: &str) -> Result<Self, UnknownBackend> {
        Self::ALL
            .into_iter()
            .find(|backend| backend.name() == name)
            .ok_or_else(|| UnknownBackend(name.to_owned()))
    }
}

/// This CPU cannot run the requested backend.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "cipher backend `{0}` needs {needs}, which this CPU lacks; available: {here}",
    needs = .0.needs(),
    here = names(|backend| backend.is_available())
)]
pub struct BackendMissing(CipherBackend);

/// Not the name of a backend. The message quotes it and lists the valid names.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("unknown cipher backend `{0}`; valid backends: {all}", all = names(|_| true))]
pub struct UnknownBackend(String);

fn names(of: impl Fn(CipherBackend) -> bool) -> String {
    let names = CipherBackend::ALL.into_iter().filter(|backend| of(*backend));
    names.map(CipherBackend::name).collect::<Vec<_>>().join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_backend_name_parses_and_unknown_names_do_not() {
        for backend in CipherBackend::ALL {
            assert_eq!(backend.to_string().parse(), Ok(backend));
        }
        let message = "bitslice".parse::<CipherBackend>().unwrap_err().to_string();
        assert!(message.contains("`bitslice`") && message.contains("bitslice-512"), "{message}");
    }

    #[test]
    fn auto_selects_an_available_bitslice() {
        let chosen = CipherBackend::Auto.chosen();
        assert!(chosen.is_available() && chosen.name().starts_with("bitslice"), "{chosen}");
    }

    #[test]
    fn a_missing_backend_error_names_the_instructions_and_the_alternatives() {
        let message = BackendMissing(CipherBackend::Bitslice512).to_string();
        for part in ["`bitslice-512` needs AVX-512F", "available: auto, des-crate, bitslice-64"] {
            assert!(message.contains(part), "{message}");
        }
        for backend in CipherBackend::ALL {
            let missing = backend.engine().err();
            assert_eq!(missing, (!backend.is_available()).then_some(BackendMissing(backend)));
        }
    }
}
