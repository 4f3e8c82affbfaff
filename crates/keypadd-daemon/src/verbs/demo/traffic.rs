//! Generates the demo's traffic: keystrokes answered by a screen update, bursts, and sustained bulk
//! data.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use keypadd_cli::error::Error;
use keypadd_traffic::{Answered, Broken, Due, Exchange, Latencies, Path, Requester, Requests};
use serde::Serialize;

use super::failed;

/// Bytes sent per keystroke, about what ssh sends.
const KEY_BYTES: u64 = 64;

/// Bytes that come back for each, like a changed part of a screen.
pub(super) const SCREEN_BYTES: u64 = 1024;

/// Bulk data between two answers, which report how much has arrived.
const STEP_BYTES: u64 = 64 << 10;

/// When keys are pressed, the same for every arm: independently, at irregular moments (a Poisson
/// process).
pub(super) fn schedule(time: Duration, per_second: u32) -> Vec<Due> {
    let mut random = fastrand::Rng::with_seed(0);
    let mut at = Duration::ZERO;
    let keys = std::iter::from_fn(|| {
        let gap = -(1.0 - random.f64()).ln() / f64::from(per_second);
        at += Duration::from_secs_f64(gap);
        (at < time).then_some(Due { at, exchange: Exchange::new(KEY_BYTES, SCREEN_BYTES) })
    });
    keys.collect()
}

/// Latencies as they come in. Clones are the same.
#[derive(Clone, Debug, Default)]
pub(super) struct LatencyRecorder(Arc<Mutex<Latencies>>);

impl LatencyRecorder {
    /// The latencies so far.
    pub(super) fn so_far(&self) -> Latencies {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn record(&mut self, answered: Answered) {
        let mut latencies = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        latencies.record(answered.latency());
    }
}

/// Latency of keystrokes.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub(super) struct Typed {
    pub(super) count: u64,
    pub(super) p50_us: f64,
    pub(super) p99_us: f64,
}

impl Typed {
    /// `None` before the first one.
    pub(super) fn of(latencies: &Latencies) -> Option<Self> {
        let us = |quantile| latencies.quantile_us(quantile);
        Some(Self { count: latencies.count(), p50_us: us(0.5)?, p99_us: us(0.99)? })
    }
}

/// Types by `schedule` and records, for each key, the time from the moment it was due to the
/// arrival of its whole screen. Dropping the future stops it.
///
/// # Errors
/// A screen has the wrong bytes, or does not come.
pub(super) async fn type_keys(
    path: &Path,
    keys: Vec<Due>,
    latencies: LatencyRecorder,
) -> Result<(), Error> {
    let broken = |error| broken("typing", &error);
    let requester = Requester::open(path.address()).await.map_err(broken)?;
    let typed =
        requester.run(Requests::At(keys), Instant::now(), latencies, LatencyRecorder::record).await;
    typed.map(drop).map_err(broken)
}

/// Sends `bytes` as fast as they go, until all have arrived. Mbit/s.
///
/// # Errors
/// What arrives has been altered, or the connection breaks.
pub(super) async fn burst(path: &Path, bytes: u64) -> Result<f64, Error> {
    let broken = |error| broken("the bulk transfer", &error);
    let requester = Requester::open(path.address()).await.map_err(broken)?;
    let all = vec![Due { at: Duration::ZERO, exchange: Exchange::new(bytes, 1) }];
    let tell = |end: &mut Duration, answered: Answered| *end = answered.at;
    let sent = requester.run(Requests::At(all), Instant::now(), Duration::ZERO, tell);
    let (_, took) = sent.await.map_err(broken)?;
    Ok(mbit(bytes, took))
}

/// Sends without a pause; first for `lead`, then for `time`, which is what counts. Mbit/s.
///
/// # Errors
/// As for [`burst`].
pub(super) async fn flood(path: &Path, lead: Duration, time: Duration) -> Result<f64, Error> {
    let broken = |error| broken("the bulk transfer", &error);
    let requester = Requester::open(path.address()).await.map_err(broken)?;
    let requests = Requests::WithoutPause(Exchange::new(STEP_BYTES, 1), lead + time);
    let tell = move |counted: &mut (u64, Duration), answered: Answered| {
        if answered.at > lead {
            counted.0 += STEP_BYTES;
            counted.1 = answered.at - lead;
        }
    };
    let sent = requester.run(requests, Instant::now(), (0, Duration::ZERO), tell);
    let (_, (bytes, took)) = sent.await.map_err(broken)?;
    Ok(mbit(bytes, took))
}

pub(super) fn mbit(bytes: u64, time: Duration) -> f64 {
    bytes as f64 * 8.0 / 1e6 / time.as_secs_f64().max(f64::MIN_POSITIVE)
}

pub(super) fn broken(what: &str, error: &Broken) -> Error {
    failed(format!("{what}: {error}"))
}
