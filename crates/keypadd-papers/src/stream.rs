//! Sends a continuous stream with few requests in flight: enough to keep the path busy, too few to
//! build a queue that would distort the measured rate.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use keypadd_measure::path::{self, PathSettings, Place};
use keypadd_measure::{Arm, LEAD};
use keypadd_traffic::{Answered, Exchange, Path, Requester, Requests};
use testbed::{FourHosts, LineSettings};

use super::lab::{Missed, Part};

/// Data per answer that reports how much has arrived.
const STEP_BYTES: u64 = 16 << 10;

/// What a stream crosses: two networks of its own, and a line between their gateways.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Way {
    pub(crate) line: LineSettings,
    pub(crate) ipv6: bool,
    /// Most unanswered steps.
    pub(crate) underway: usize,
}

/// When each step of a stream had arrived, in seconds from the start.
#[derive(Clone, Debug)]
pub(crate) struct Sent(Vec<f64>);

impl Sent {
    /// Throughput between two times, in seconds from the start, Mbit/s.
    pub(crate) fn rate(&self, from: f64, to: f64) -> f64 {
        let within = self.0.iter().filter(|at| (from..to).contains(*at)).count();
        within as f64 * STEP_BYTES as f64 * 8.0 / 1e6 / (to - from)
    }
}

/// Sends through a path for this long, and until all is answered, with at most `underway` unanswered
/// steps.
pub(crate) async fn through(path: &Path, underway: usize, time: Duration) -> Part<Sent> {
    to(path.address(), underway, time).await
}

/// Sends from one network to the other for this long, and until all is answered, over a new tunnel
/// with these settings, or without one. Also returns how many handshakes the tunnel took.
pub(crate) async fn between_networks(
    way: Way,
    arm: Arm,
    settings: PathSettings,
    time: Duration,
) -> Part<(Sent, u32)> {
    let (hosts, line) = FourHosts::by_path(way.line).map_err(Missed::Lacking)?;
    let client = path::host_in(&hosts.client)?;
    let hosts = Arc::new(hosts);
    let place = Place::Hosts { hosts: Arc::clone(&hosts), processor: None, ipv6: way.ipv6 };
    // Cold: warming up would take longer on a slow line than the stream.
    let path = path::open_cold(arm, &PathSettings { place, ..settings }).await?;
    let sent = client.run(to(path.address(), way.underway, time)).await??;
    let handshakes = path.handshakes();
    path.close().await?;
    drop((line, hosts));
    Ok((sent, handshakes))
}

async fn to(address: SocketAddr, underway: usize, time: Duration) -> Part<Sent> {
    let requester = Requester::open(address).await?.at_most(underway);
    let requests = Requests::WithoutPause(Exchange::new(STEP_BYTES, 1), time);
    let tell =
        |arrivals: &mut Vec<f64>, answered: Answered| arrivals.push(answered.at.as_secs_f64());
    // Once its threads are ready.
    let start = Instant::now() + LEAD;
    let (_, arrivals) = requester.run(requests, start, Vec::new(), tell).await?;
    Ok(Sent(arrivals))
}
