//! Checks before a run that this machine can generate the offered load over plain TCP. `kex` checks
//! handshakes; the error type is here.

use std::time::{Duration, Instant};

use keypadd_provider::Group;
use keypadd_traffic::{Answered, Due, Requester, Requests};

use crate::arm::Arm;
use crate::path::{self, PathSettings};

/// How much of the schedule is tried.
const TRIED: Duration = Duration::from_millis(500);

/// If behind by more than this, the machine itself would be measured.
const LAG_MAX: Duration = Duration::from_millis(250);

/// Why traffic cannot be offered.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum OfferError {
    /// A plain TCP connection cannot keep up.
    #[error(
        "this machine cannot generate that load: plain TCP fell {} ms behind within {} ms",
        .0.as_millis(),
        TRIED.as_millis()
    )]
    TooMuch(Duration),
    /// This many handshakes per second need more CPU than available.
    #[error(
        "this machine cannot generate that load: a handshake with {group} takes {millis:.2} ms of CPU at \
         both ends together (cores: {cores})"
    )]
    TooManyHandshakes {
        /// The key exchange.
        group: Group,
        /// CPU time of one, at both ends together.
        millis: f64,
        /// The implementation that computes them.
        cores: usize,
    },
    /// The plain TCP connection failed.
    #[error("cannot generate traffic: {0}")]
    Failed(String),
}

/// Sends the start of `schedule` over plain TCP.
///
/// # Errors
/// The rehearsal falls behind.
pub async fn rehearse(schedule: &[Due], settings: &PathSettings) -> Result<(), OfferError> {
    let tried: Vec<Due> = schedule.iter().copied().take_while(|due| due.at < TRIED).collect();
    let Some(last) = tried.last().map(|due| due.at) else { return Ok(()) };
    let failed = |error: &dyn std::fmt::Display| OfferError::Failed(error.to_string());
    let path = path::open(Arm::Tcp, settings).await.map_err(|error| failed(&error))?;
    let requester = Requester::open(path.address()).await.map_err(|error| failed(&error))?;
    let tell = |latest: &mut Duration, answered: Answered| *latest = answered.at;
    let ran = requester.run(Requests::At(tried), Instant::now(), Duration::ZERO, tell);
    // Waits no longer than it may fall behind.
    let lag = match tokio::time::timeout(last + 2 * LAG_MAX, ran).await {
        Ok(ran) => ran.map_err(|error| failed(&error))?.1.saturating_sub(last),
        Err(_) => 2 * LAG_MAX,
    };
    path.close().await.map_err(|void| failed(&void))?;
    if lag > LAG_MAX { Err(OfferError::TooMuch(lag)) } else { Ok(()) }
}

#[cfg(test)]
mod tests {
    use keypadd_traffic::{Exchange, even};

    use super::*;

    #[tokio::test]
    async fn an_impossible_rate_is_refused_and_a_low_one_accepted() {
        let settings = PathSettings { pool_budget_bytes: 1 << 20, ..PathSettings::default() };
        let second = Duration::from_secs(1);
        let little = even(20.0, Exchange::new(64, 64), second);
        assert_eq!(rehearse(&little, &settings).await, Ok(()));
        let much = even(2_000.0, Exchange::new(64, 100 << 20), second);
        let refused = rehearse(&much, &settings).await;
        assert!(matches!(refused, Err(OfferError::TooMuch(_))), "{refused:?}");
    }
}
