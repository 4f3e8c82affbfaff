//! Answers "should I turn the pool on?" for the suites in use, with the measurement that `pool =
//! "auto"` makes.

use keypadd_cli::error::Error;
use keypadd_config::{Config, values::PoolMode};

use crate::daemon::pooling::pool_suites;
use crate::daemon::pooling::{Choice, timed};

use super::finding::{Finding, Findings};

/// # Errors
/// Exit 1: standard output fails.
pub(super) fn check(config: &Config, findings: &mut Findings) -> Result<(), Error> {
    let (mode, engine) = (config.settings.pool.value, config.settings.cipher_backend.value);
    let mut suites = pool_suites(config);
    if suites.is_empty() {
        suites = keypadd_config::offered(None);
    }
    for choice in timed(&suites, engine) {
        findings.add([of(&choice, mode)])?;
    }
    Ok(())
}

fn of(choice: &Choice, mode: PoolMode) -> Finding {
    const CHECK: &str = "pool";
    let suite = &choice.report.suite;
    let Some((pooled, inline)) = choice.best() else {
        return Finding::ok(CHECK, format!("{suite} has no keystream to precompute"));
    };
    let ratio = pooled / inline;
    let gain =
        format!("{suite}: sealing with a pad takes {ratio:.2}x the time without one, at best");
    match (choice.report.pays, mode) {
        (true, PoolMode::Off) => Finding::warn(
            CHECK,
            format!("{gain}: worth it, but the pool is off"),
            "set pool = \"auto\"",
        ),
        (false, PoolMode::On) => Finding::warn(
            CHECK,
            format!("{gain}: not worth it, but the pool is on"),
            "set pool = \"auto\", unless `keypadd bench suites` says otherwise",
        ),
        (true, _) => Finding::ok(CHECK, format!("{gain}: worth it")),
        (false, _) => Finding::ok(CHECK, format!("{gain}: not worth it, and off")),
    }
}
