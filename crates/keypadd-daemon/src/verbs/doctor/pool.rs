//! Answers "should I turn the pool on?" for the suites in use, with the measurement that `pool =
//! "auto"` makes.

use keypadd_cli::error::Error;
use keypadd_config::{Config, values::PoolMode};
use keypadd_provider::POOL_WINS;

use crate::daemon::pooling::pool_suites;
use crate::daemon::pooling::{Choice, timed};
use crate::status::snapshot::SuiteReport;

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
    if choice.best().is_none() {
        return Finding::ok(CHECK, format!("{suite} has no keystream to precompute"));
    }
    let judged = judged(&choice.report);
    match (choice.report.pays, mode) {
        (true, PoolMode::Off) => Finding::warn(
            CHECK,
            format!("{suite}: {judged}: worth it, but the pool is off"),
            "set pool = \"auto\"",
        ),
        (false, PoolMode::On) => Finding::warn(
            CHECK,
            format!("{suite}: {judged}: not worth it, but the pool is on"),
            "set pool = \"auto\", unless `keypadd bench suites` says otherwise",
        ),
        (true, _) => Finding::ok(CHECK, format!("{suite}: {judged}: worth it")),
        (false, _) => Finding::ok(CHECK, format!("{suite}: {judged}: not worth it, and off")),
    }
}

/// The measurements, and the rule of `auto` beside them.
fn judged(report: &SuiteReport) -> String {
    let ratios = report.seals.iter().map(|seal| {
        let ratio = seal.pooled_seconds / seal.inline_seconds;
        format!("{ratio:.2}x at {} bytes", seal.payload_bytes)
    });
    let ratios = ratios.collect::<Vec<_>>().join(", ");
    let least = 1.0 / POOL_WINS;
    format!(
        "sealing with a pad takes {ratios} of the time without one; a pool pays off at {least:.2}x \
         or less for some length and below {POOL_WINS:.2}x for all"
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::status::snapshot::SealReport;

    #[test]
    fn the_verdict_on_a_pool_stands_beside_its_rule_and_every_length() {
        let seal = |payload_bytes, pooled_seconds| SealReport {
            payload_bytes,
            pooled_seconds,
            inline_seconds: 1.0,
        };
        let report = SuiteReport {
            suite: String::new(),
            pays: false,
            in_use: false,
            seals: vec![seal(64, 0.85), seal(1400, 1.2)],
        };
        assert_eq!(
            judged(&report),
            "sealing with a pad takes 0.85x at 64 bytes, 1.20x at 1400 bytes of the time without \
             one; a pool pays off at 0.91x or less for some length and below 1.10x for all"
        );
    }
}
