//! Which code computes ciphers: chosen at run time, or forced to measure and to test it.
//!
//! All backends give the same bytes. Knows names and what the CPU has, no keys.

use crate::bitslice::Path;
use crate::pace::{Pace, Pacing};
use crate::suite::Cipher;
use std::fmt;
use std::str::FromStr;

/// How DES and triple DES are computed, and chunks of AES where the CPU has no instructions for it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum CipherBackend {
    /// The fastest that this CPU has: the widest bitslice, for chunks and for single packets. AES by
    /// its instructions; without them single packets are made by the crate `aes`.
    #[default]
    Auto,
    /// The crate `des`, a block at a time, with tables at addresses that depend on secrets, and the
    /// crate `aes`: the conventional way, kept to be measured.
    DesCrate,
    /// 64 blocks at a time in general registers: what every CPU has.
    Bitslice64,
    /// 128 blocks at a time: SSE2 on x86-64, NEON on 64-bit ARM; part of both.
    Bitslice128,
    /// 256 blocks at a time: AVX2.
    Bitslice256,
    /// 512 blocks at a time, by functions of three inputs: AVX-512.
    Bitslice512,
}

/// A backend that this CPU can run; [`CipherBackend::engine`] makes it.
#[derive(Clone, Copy)]
pub struct CipherEngine {
    asked: CipherBackend,
    pub(crate) blocks: Blocks,
    pacing: Pacing,
}

/// Whether AES has instructions; the crate `aes` is fastest then.
fn has_aes() -> bool {
    #[cfg(target_arch = "x86_64")]
    return is_x86_feature_detected!("aes");
    #[cfg(target_arch = "aarch64")]
    return std::arch::is_aarch64_feature_detected!("aes");
    #[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
    false
}

/// Where bitsliced AES begins to be faster than the crate `aes` without AES instructions.
const AES_LANES_MIN: usize = 128;

/// What computes blocks.
#[derive(Clone, Copy)]
pub(crate) enum Blocks {
    DesCrate,
    Bitslice(Path),
}

impl CipherBackend {
    /// All that can be asked for.
    pub const ALL: [Self; 6] = [
        Self::Auto,
        Self::DesCrate,
        Self::Bitslice64,
        Self::Bitslice128,
        Self::Bitslice256,
        Self::Bitslice512,
    ];

    /// The name on command lines and in figures.
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

    /// What [`Self::Auto`] stands for on this CPU; any other backend stands for itself.
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

    /// What runs it.
    ///
    /// # Errors
    ///
    /// If this CPU lacks the instructions; the message names them, and the backends that it has.
    pub fn engine(self) -> Result<CipherEngine, BackendMissing> {
        let path = match self.chosen() {
            Self::Auto | Self::DesCrate => None,
            Self::Bitslice64 => Some(Path::Lanes64),
            Self::Bitslice128 => Some(Path::lanes_128().ok_or(BackendMissing(self))?),
            Self::Bitslice256 => Some(Path::lanes_256().ok_or(BackendMissing(self))?),
            Self::Bitslice512 => Some(Path::lanes_512().ok_or(BackendMissing(self))?),
        };
        let blocks = path.map_or(Blocks::DesCrate, Blocks::Bitslice);
        Ok(CipherEngine { asked: self, blocks, pacing: Pacing::default() })
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
    /// What was asked for, [`CipherBackend::Auto`] among it.
    pub fn asked(self) -> CipherBackend {
        self.asked
    }

    /// The same, slowed: whatever makes keystream with it does so at this pace. For measurements; the
    /// pace is kept for the life of the process.
    pub fn at_pace(self, pace: impl Pace + 'static) -> Self {
        Self { pacing: Pacing::by(pace), ..self }
    }

    /// Through which keystream is to be made.
    pub fn pacing(self) -> Pacing {
        self.pacing
    }

    /// What makes this cipher: the engine of [`CipherBackend::Auto`], at this one's pace, where which one it is
    /// makes no difference to it.
    pub fn of_cipher(self, cipher: Cipher) -> Self {
        let auto = Self { pacing: self.pacing, ..Self::default() };
        let lanes = |engine: Self| engine.aes_path().map(Path::lanes);
        let is_alike = match cipher {
            Cipher::Des | Cipher::TripleDes => false,
            Cipher::Aes128 | Cipher::Aes256 => lanes(self) == lanes(auto),
            Cipher::Rc2_40 | Cipher::Null => true,
        };
        if is_alike { auto } else { self }
    }

    /// What makes chunks of AES, if it is not the crate `aes`.
    pub(crate) fn aes_path(self) -> Option<Path> {
        let Blocks::Bitslice(path) = self.blocks else {
            return None;
        };
        let here = match self.asked {
            CipherBackend::Auto => !has_aes() && path.lanes() >= AES_LANES_MIN,
            _ => true,
        };
        here.then_some(path)
    }

    /// What runs, never [`CipherBackend::Auto`].
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
        self.asked == other.asked && self.pacing == other.pacing
    }
}

impl Eq for CipherEngine {}

impl fmt::Debug for CipherEngine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("CipherEngine")
            .field(&self.asked)
            .field(&self.backend())
            .field(&self.pacing)
            .finish()
    }
}

/// What was asked for, and what that is here: `auto: bitslice-256`.
impl fmt::Display for CipherEngine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.asked {
            CipherBackend::Auto => write!(f, "auto: {}", self.backend()),
            forced => forced.fmt(f),
        }
    }
}

/// Those instructions of this CPU that ciphers and MACs are made faster by, for the head of figures.
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

/// A backend was forced that this CPU cannot run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "cipher backend `{0}` needs {needs}, which this CPU lacks; it has {here}",
    needs = .0.needs(),
    here = names(|backend| backend.is_available())
)]
pub struct BackendMissing(CipherBackend);

/// A name that is no backend's. The message repeats it and lists those that exist.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("unknown cipher backend `{0}`; backends are {all}", all = names(|_| true))]
pub struct UnknownBackend(String);

fn names(of: impl Fn(CipherBackend) -> bool) -> String {
    let names = CipherBackend::ALL.into_iter().filter(|backend| of(*backend));
    names.map(CipherBackend::name).collect::<Vec<_>>().join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_name_parses_to_its_backend_and_others_do_not() {
        for backend in CipherBackend::ALL {
            assert_eq!(backend.to_string().parse(), Ok(backend));
        }
        let message = "bitslice".parse::<CipherBackend>().unwrap_err().to_string();
        assert!(message.contains("`bitslice`") && message.contains("bitslice-512"), "{message}");
    }

    #[test]
    fn auto_stands_for_a_bitslice_that_is_here() {
        let chosen = CipherBackend::Auto.chosen();
        assert!(chosen.is_available() && chosen.name().starts_with("bitslice"), "{chosen}");
    }

    #[test]
    fn what_the_cpu_lacks_is_said_with_what_it_has() {
        let message = BackendMissing(CipherBackend::Bitslice512).to_string();
        for part in ["`bitslice-512` needs AVX-512F", "has auto, des-crate, bitslice-64"] {
            assert!(message.contains(part), "{message}");
        }
        for backend in CipherBackend::ALL {
            let missing = backend.engine().err();
            assert_eq!(missing, (!backend.is_available()).then_some(BackendMissing(backend)));
        }
    }
}
