//! Defines the arms of a comparison: ways to carry the same traffic, each a suite with or without a
//! pool, or no tunnel.

use std::fmt;

use keypadd_keystream::{CipherBackend, CipherEngine, Protection};
use keypadd_traffic::TunnelArm;

/// One way to carry traffic.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Arm {
    /// A plain TCP connection to the service: the machine's cost without a tunnel.
    Tcp,
    /// A tunnel.
    Tunnel(TunnelArm),
}

impl Arm {
    /// Every combination, in the order of the lists, without duplicates. A suite without keystream
    /// is one arm: it has nothing to pool and nothing to compute. Engines that compute a suite's
    /// cipher the same way are one.
    pub fn all(suites: &[Protection], pools: &[bool], engines: &[CipherEngine]) -> Vec<Self> {
        let mut arms = Vec::new();
        for &suite in suites {
            for &engine in engines {
                for &pool in pools {
                    let pool = pool && !suite.cipher().is_null();
                    let engine = suite.cipher().engine(engine);
                    let arm = Self::Tunnel(TunnelArm { suite, pool, engine });
                    if !arms.contains(&arm) {
                        arms.push(arm);
                    }
                }
            }
        }
        arms
    }

    /// Whether both ends have a pool.
    pub fn has_pool(self) -> bool {
        matches!(self, Self::Tunnel(TunnelArm { pool: true, .. }))
    }
}

/// Its name in tables and plots: `3des-ctr-hmac-sha1, pool on`, plus a forced backend.
impl fmt::Display for Arm {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Tcp => f.pad("plain TCP"),
            Self::Tunnel(TunnelArm { suite, .. }) if suite.cipher().is_null() => {
                f.pad(suite.name())
            }
            Self::Tunnel(TunnelArm { suite, pool, engine }) => {
                write!(f, "{suite}, pool {}", if *pool { "on" } else { "off" })?;
                match engine.asked() {
                    CipherBackend::Auto => Ok(()),
                    forced => write!(f, ", {forced}"),
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use keypadd_keystream::{Cipher, MeasureSuite, Suite};

    use super::*;

    #[test]
    fn every_combination_is_an_arm_once() {
        let engines = [CipherBackend::Auto, CipherBackend::DesCrate].map(|it| it.engine().unwrap());
        let suites = [Suite::TRIPLE_DES_CTR_HMAC_SHA1, Suite::AES_256_GCM].map(Suite::protection);
        let arms = Arm::all(&suites, &[true, false, true], &engines);
        let names: Vec<_> = arms.iter().map(ToString::to_string).collect();
        assert_eq!(names[0], "3des-ctr-hmac-sha1, pool on");
        assert_eq!(names[3], "3des-ctr-hmac-sha1, pool off, des-crate");
        // A DES backend, without a choice for AES: instructions or the `aes` crate in either case.
        let alike = Cipher::Aes256.engine(engines[1]) == engines[0];
        assert_eq!(names.len(), if alike { 6 } else { 8 });
        assert!(names[4..].iter().all(|name| name.starts_with("aes-256-gcm")), "{names:?}");
        let null = Arm::all(&[MeasureSuite::NULL.protection()], &[true, false], &engines);
        assert_eq!(null.iter().map(ToString::to_string).collect::<Vec<_>>(), ["null"]);
    }
}
