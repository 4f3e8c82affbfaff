//! What a daemon offers or accepts in handshakes.

use keypadd_cli::error::{Error, Exit};
use keypadd_config::Settings;
use keypadd_keystream::{Class, Protection, Suite};
use keypadd_provider::{Group, KeyExchange};

use crate::kit::Kit;

/// The suites and key exchanges of a daemon, in order of preference.
#[derive(Debug)]
pub(crate) struct Preferences {
    pub(crate) suites: Vec<Suite>,
    pub(crate) kex: Vec<KeyExchange>,
    /// Suites that some session may use, for the pool.
    pub(crate) pooled: Vec<Suite>,
    /// Has those that are accepted besides, for measurements.
    pub(crate) kit: Option<Kit>,
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
        Ok(Self { pooled: suites.clone(), suites, kex, kit: None })
    }
}

/// The suites that packet protection accepts: those chosen first, then those of measurements.
pub(crate) fn accepted(suites: &[Suite], kit: Option<Kit>) -> Vec<Protection> {
    let measured = kit.into_iter().flat_map(|kit| kit.suites);
    let chosen = suites.iter().map(|&suite| suite.into());
    chosen.chain(measured.map(|&suite| suite.into())).collect()
}

/// The key exchanges that packet protection accepts: those chosen first, then those of
/// measurements.
pub(crate) fn accepted_groups(kex: &[KeyExchange], kit: Option<Kit>) -> Vec<Group> {
    let measured = kit.into_iter().flat_map(|kit| kit.kex);
    let chosen = kex.iter().map(|&kex| kex.into());
    chosen.chain(measured.map(|&kex| kex.into())).collect()
}
