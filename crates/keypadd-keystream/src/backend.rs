//! Which code computes DES: chosen at run time, or forced to measure and to test it.
//!
//! All backends give the same bytes. Knows names and what the CPU has, no keys.

use crate::bitslice::Path;
use std::fmt;
use std::str::FromStr;

/// How DES and triple DES are computed. AES has one way, and takes no notice.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum CipherBackend {
    /// The fastest that this CPU has: the widest bitslice, for chunks and for single packets.
    #[default]
    Auto,
    /// The crate `des`, a block at a time, with tables at addresses that depend on secrets: the
    /// conventional way, kept to be measured.
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

/// What computes blocks, once it is known that the CPU can.
#[derive(Clone, Copy)]
pub(crate) enum Engine {
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

    /// What runs it, or what the CPU lacks.
    pub(crate) fn engine(self) -> Result<Engine, BackendMissing> {
        let path = match self {
            Self::Auto => return self.chosen().engine(),
            Self::DesCrate => return Ok(Engine::DesCrate),
            Self::Bitslice64 => Some(Path::Lanes64),
            Self::Bitslice128 => Path::lanes_128(),
            Self::Bitslice256 => Path::lanes_256(),
            Self::Bitslice512 => Path::lanes_512(),
        };
        path.map(Engine::Bitslice).ok_or(BackendMissing(self))
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
