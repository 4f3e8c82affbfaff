//! What a daemon offers or accepts in handshakes.

use keypadd_cli::error::{Error, Exit};
use keypadd_config::Settings;
use keypadd_keystream::{Class, MeasureSuite, Protection, Suite};
use keypadd_provider::{Group, KeyExchange, MeasureKeyExchange};

/// The suites and key exchanges of a daemon, in order of preference, without those of measurements.
#[derive(Debug)]
pub(crate) struct Preferences {
    pub(crate) suites: Vec<Suite>,
    pub(crate) kex: Vec<KeyExchange>,
    /// Suites that some session may use, for the pool.
    pub(crate) pooled: Vec<Suite>,
}

impl Preferences {
    /// What `serve` accepts or `connect` offers.
    ///
    /// # Errors
    /// Exit 2: a legacy suite that is not allowed.
    pub(crate) fn of_flags(
        settings: &Settings,
        suites: Vec<Suite>,
        kex: Vec<KeyExchange>,
    ) -> Result<Self, Error> {
        let legacy = suites.iter().find(|suite| suite.class() == Class::Legacy);
        if let Some(suite) = legacy.filter(|_| !settings.allow_legacy.value) {
            return Err(Error::new(
                Exit::Usage,
                format!("--suite: `{suite}` is insecure (legacy)"),
            )
            .hint("choose aes-256-gcm, or add --allow-legacy if you must use it"));
        }
        Ok(Self { pooled: suites.clone(), suites, kex })
    }
}

/// The suites that packet protection accepts: those chosen first, then those of measurements.
pub(crate) fn accepted(suites: &[Suite], permit_bench: bool) -> Vec<Protection> {
    let measured = MeasureSuite::ALL.into_iter().filter(|_| permit_bench).map(Into::into);
    suites.iter().copied().map(Into::into).chain(measured).collect()
}

/// The key exchanges that packet protection accepts: those chosen first, then those of
/// measurements.
pub(crate) fn accepted_groups(kex: &[KeyExchange], permit_bench: bool) -> Vec<Group> {
    let measured = MeasureKeyExchange::ALL.into_iter().filter(|_| permit_bench).map(Into::into);
    kex.iter().copied().map(Into::into).chain(measured).collect()
}
