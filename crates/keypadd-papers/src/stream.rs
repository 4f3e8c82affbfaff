//! Sends a continuous stream with few requests in flight: enough to keep the path busy, too few to
//! build a queue that would distort the measured rate.

use std::time::{Duration, Instant};

use keypadd_measure::LEAD;
use keypadd_traffic::{Answered, Exchange, Path, Requester, Requests};

use super::lab::Part;

/// Data per answer that reports how much has arrived.
const STEP_BYTES: u64 = 16 << 10;

/// Runs [`send`] on a new connection through a path, once its threads are ready.
pub(super) async fn through(path: &Path, underway: usize, time: Duration) -> Part<Vec<f64>> {
    let requester = Requester::open(path.address()).await?;
    send(requester, underway, Instant::now() + LEAD, time).await
}

/// Sends for this long, and until all is answered, with at most `underway` unanswered steps;
/// returns when each step had arrived, in seconds from `start`.
pub(super) async fn send(
    requester: Requester,
    underway: usize,
    start: Instant,
    time: Duration,
) -> Part<Vec<f64>> {
    let requests = Requests::WithoutPause(Exchange::new(STEP_BYTES, 1), time);
    let tell =
        |arrivals: &mut Vec<f64>, answered: Answered| arrivals.push(answered.at.as_secs_f64());
    let requester = requester.at_most(underway);
    let (_, arrivals) = requester.run(requests, start, Vec::new(), tell).await?;
    Ok(arrivals)
}

/// Throughput between two times, in seconds from the start, Mbit/s.
pub(super) fn rate(arrivals: &[f64], from: f64, to: f64) -> f64 {
    let within = arrivals.iter().filter(|at| (from..to).contains(*at)).count();
    within as f64 * STEP_BYTES as f64 * 8.0 / 1e6 / (to - from)
}
