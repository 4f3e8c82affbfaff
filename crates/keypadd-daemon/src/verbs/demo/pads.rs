//! Shows what a pad saves when a packet is sealed on this CPU, and how long a burst a full pool
//! covers.

use std::time::Duration;

use keypadd_cli::error::Error;
use keypadd_cli::memory::memory;
use keypadd_keystream::{CipherEngine, Suite};
use keypadd_provider::{SealTimes, TIMED_BYTES, seal_times, worth_pooling};
use keypadd_traffic::{Path, TunnelArm};
use serde::Serialize;

use super::page::{Page, Verdict};
use super::{failed, traffic, tunnel};
use crate::daemon::pooling::budget_max;

/// The suites that are timed, as daemons compute them, the default one first.
const SUITES: [Suite; 3] =
    [Suite::AES_256_GCM, Suite::CHACHA20_POLY1305, Suite::TRIPLE_DES_CTR_HMAC_SHA1];

/// Memory for keystream at each end: the daemons' default, and like theirs at most half of what a
/// pool may take.
const POOL_BUDGET_BYTES: usize = 64 << 20;

/// Bulk data before the wait: far more than what else the path has carried.
const BULK_BYTES: u64 = 3 << 20;

/// Longest wait for a full pool.
const FILL_TIME: Duration = Duration::from_millis(2_500);

/// Least payload of a full-size packet.
const PACKET_PAYLOAD_BYTES: u64 = 1_350;

/// A fast line, in bits a second, that a burst is set beside.
const FAST_LINE: f64 = 1e9;

/// What was measured.
#[derive(Debug, Serialize)]
pub(super) struct Pads {
    suites: Vec<SuiteTimes>,
    pool_bytes: usize,
    /// Whether the pool was full in time.
    was_full: bool,
    /// What one direction can send with pads of the pool.
    burst_bytes: u64,
}

/// What sealing takes.
#[derive(Clone, Debug, Serialize)]
struct SuiteTimes {
    suite: &'static str,
    seals: Vec<Seal>,
    /// Whether daemons would use a pool, by the rule of `auto`.
    pays: bool,
}

/// The time to seal a packet.
#[derive(Clone, Copy, Debug, Serialize)]
struct Seal {
    bytes: usize,
    inline_ns: u64,
    pooled_ns: u64,
}

/// Times the suites, then fills a pool.
///
/// # Errors
/// There is no memory for a pool, a tunnel does not come up, or what arrives has been altered.
pub(super) async fn run(page: &mut Page) -> Result<Pads, Error> {
    page.heading("3  Sealing a packet on this CPU, in ns: without / with a precomputed pad.");
    page.draw(["   timing ..."]);
    let suites: Vec<_> = SUITES.into_iter().filter_map(SuiteTimes::of).collect();
    page.draw(table(&suites).chain(["   filling a pool ...".to_owned()]));
    let pool_bytes = POOL_BUDGET_BYTES.min(budget_max(memory().bytes) / 2);
    let path = Path::here(TunnelArm { pool: true, ..tunnel() }, pool_bytes).await;
    let path = path.map_err(|error| failed(format!("a pool: {error}")))?;
    // The pool is divided by the traffic so far.
    traffic::burst(&path, BULK_BYTES).await?;
    let was_full = path.rest(FILL_TIME).await;
    let burst_bytes = path.packets_at_hand(true).unwrap_or_default() * PACKET_PAYLOAD_BYTES;
    let _ = path.close().await;
    Ok(Pads { suites, pool_bytes, was_full, burst_bytes })
}

impl SuiteTimes {
    fn of(suite: Suite) -> Option<Self> {
        let times = seal_times(suite.into(), CipherEngine::default())?;
        let seal = |SealTimes { bytes, pooled, inline }| {
            let [pooled_ns, inline_ns] = [pooled, inline].map(|time| time.as_nanos() as u64);
            Seal { bytes, inline_ns, pooled_ns }
        };
        let seals = times.map(seal).into();
        Some(Self { suite: suite.name(), seals, pays: worth_pooling(&times) })
    }

    fn line(&self) -> String {
        let seal = |Seal { inline_ns, pooled_ns, .. }: &Seal| {
            format!("{:>15}", format!("{inline_ns} / {pooled_ns}"))
        };
        let seals: String = self.seals.iter().map(seal).collect();
        let pays = if self.pays { "worth it" } else { "not worth it" };
        format!("   {:<18}{seals}  {pays}", self.suite)
    }
}

/// The heads of the columns.
fn heads() -> String {
    let heads: String =
        TIMED_BYTES.map(|bytes| format!("{:>15}", format!("{bytes} bytes"))).concat();
    format!("   {:<18}{heads}", "")
}

fn table(suites: &[SuiteTimes]) -> impl Iterator<Item = String> {
    std::iter::once(heads()).chain(suites.iter().map(SuiteTimes::line))
}

impl Pads {
    /// A line for each suite, and one for the burst.
    pub(super) fn lines(&self) -> Vec<String> {
        let Self { suites, pool_bytes, was_full, burst_bytes } = self;
        let pool = bytesize::ByteSize::b(*pool_bytes as u64).display().iec();
        let megabytes = *burst_bytes as f64 / 1e6;
        let seconds = *burst_bytes as f64 * 8.0 / FAST_LINE;
        let covers = match was_full {
            true => format!("A pool of {pool} covers a burst"),
            false => "In 2.5 s the pool got enough for a burst".to_owned(),
        };
        let burst = format!("   {covers} of {megabytes:.0} MB, {seconds:.2} s at 1 Gbit/s.");
        table(suites).chain([burst]).collect()
    }

    /// Whether the pool pays for the default suite.
    pub(super) fn verdict(&self) -> Verdict {
        let default_pays = self.suites.first().is_some_and(|suite| suite.pays);
        let others_pay = self.suites.iter().skip(1).any(|suite| suite.pays);
        let lines = match (default_pays, others_pay) {
            (true, _) => [
                "Here the pool pays for the default suite: sealing takes less CPU time.",
                "Transfers hardly gain: most of a packet's time passes in the kernel.",
            ],
            (false, true) => [
                "Here the pool does not pay for the default suite: daemons leave it off.",
                "They use it where a session has a suite that is worth it.",
            ],
            (false, false) => [
                "Here the pool pays for none of them: daemons leave it off.",
                "The rule: a tenth less at some length, and at none a tenth more.",
            ],
        };
        Verdict { speaks_for_us: default_pays, lines: lines.map(str::to_owned).into() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pads(pays: [bool; 3]) -> Pads {
        let suites = SUITES.into_iter().zip(pays).map(|(suite, pays)| {
            let pooled_ns = if pays { 180 } else { 300 };
            let seals = TIMED_BYTES.map(|bytes| Seal { bytes, inline_ns: 290, pooled_ns });
            SuiteTimes { suite: suite.name(), seals: seals.into(), pays }
        });
        let suites = suites.collect();
        Pads { suites, pool_bytes: 64 << 20, was_full: true, burst_bytes: 20_000_000 }
    }

    #[test]
    fn a_pool_that_does_not_pay_is_said_not_to() {
        let all = pads([true; 3]);
        assert!(all.verdict().speaks_for_us && all.lines()[1].ends_with("290 / 180  worth it"));
        let burst = "   A pool of 64.0 MiB covers a burst of 20 MB, 0.16 s at 1 Gbit/s.";
        assert_eq!(all.lines()[4], burst);
        let none = pads([false; 3]);
        assert!(!none.verdict().speaks_for_us && none.lines()[1].ends_with("300  not worth it"));
        assert!(none.verdict().lines[0].contains("pays for none"), "{:?}", none.verdict());
        let slow_alone = pads([false, false, true]).verdict();
        assert!(!slow_alone.speaks_for_us);
        assert!(slow_alone.lines[0].contains("not pay for the default"), "{slow_alone:?}");
    }

    #[test]
    fn a_pool_that_was_not_filled_is_told_from_a_full_one() {
        let lines = Pads { was_full: false, ..pads([true; 3]) }.lines();
        assert!(lines[4].contains("In 2.5 s"), "{lines:?}");
    }

    #[test]
    fn every_line_fits_eighty_columns() {
        for pays in [[true; 3], [false; 3], [false, true, false]] {
            let mut pads = Pads { was_full: false, burst_bytes: 999_000_000, ..pads(pays) };
            for seal in pads.suites.iter_mut().flat_map(|suite| &mut suite.seals) {
                (seal.inline_ns, seal.pooled_ns) = (120_000, 10_000);
            }
            let verdict = pads.verdict().lines.into_iter().map(|line| format!("      {line}"));
            for line in pads.lines().into_iter().chain(verdict) {
                assert!(line.len() <= 80, "{} {line}", line.len());
            }
        }
    }
}
