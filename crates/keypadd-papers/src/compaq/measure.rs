//! Runs rounds of web traffic between four hosts, arms in turn, in an order drawn from the seed.

use std::io;
use std::num::NonZeroU64;
use std::sync::{Arc, LazyLock};
use std::time::Duration;

use keypadd_keystream::{Cipher, CipherEngine, Mac};
use keypadd_measure::path::{self, PathSettings, Place};
use keypadd_measure::{Arm, CipherRate};
use keypadd_traffic::{Host, Path, TunnelArm};
use testbed::FourHosts;

use super::clients::VirtualClients;
use super::{
    ArmId, BASE, BASE_OVER_DES, EMULATED, FILES, LARGE, MEDIUM, PROCESSORS, Rates, Round, Speeds,
    TUNNELS, clients, protection,
};
use crate::lab::{Lab, Missed, Part};
use crate::{Effort, order};

/// Each gateway's share of a core: small enough for the gateways to be the bottleneck, in the
/// proportion of the paper's processors, 266 and 400 MHz.
pub(super) const FAST: f64 = 0.4;
pub(super) const SLOW: f64 = FAST * 266.0 / 400.0;

/// Uncounted traffic before each measurement: files long enough to be bulk data, for which a tunnel
/// makes another connection.
const WARM_UP: Duration = Duration::from_millis(80);
const WARM_UP_CLIENTS: u32 = 4;
const WARM_UP_FILES: [u64; 2] = [4 << 20; 2];

/// How long each number of clients requests files of each size.
pub(super) fn time(effort: Effort) -> Duration {
    effort.pick(Duration::from_millis(60), Duration::from_secs(1))
}

/// How long each number of clients requests files of slower processors, whose quotas apply per
/// period.
pub(super) fn time_slowed(effort: Effort) -> Duration {
    3 * time(effort)
}

/// Keystream rate, in bytes per second, at which single DES has the paper's cost relative to a base
/// of this throughput; triple DES has a third of it.
pub(super) fn emulated_rate(cipher: Cipher, base_mbit: f64) -> NonZeroU64 {
    // Time per byte: one part with the base, BASE_OVER_DES parts with DES.
    let des = base_mbit * 1e6 / 8.0 / (BASE_OVER_DES - 1.0);
    let rate = if cipher == Cipher::TripleDes { des / 3.0 } else { des };
    NonZeroU64::new(rate as u64).unwrap_or(NonZeroU64::MIN)
}

/// The hosts of all rounds, built for the first one.
pub(super) type Hosts = LazyLock<Part<Arc<FourHosts>>>;

pub(super) const fn hosts() -> Hosts {
    LazyLock::new(|| FourHosts::build().map(Arc::new).map_err(Missed::Lacking))
}

/// Measures the base's throughput, Mbit/s: large files, the most clients.
pub(super) async fn calibrate(lab: &Lab<'_>, hosts: &Hosts) -> Part<f64> {
    let route = Route::open(hosts, None, arm(BASE, CipherEngine::default())).await?;
    let time = 3 * time(lab.effort);
    let mbit = route.serve(most(lab.effort), FILES[LARGE], time, lab.seed).await?;
    route.path.valid()?;
    Ok(mbit)
}

/// Measures these arms.
pub(super) async fn round(
    lab: &Lab<'_>,
    hosts: &Hosts,
    round: u32,
    base_mbit: f64,
    arms: &[ArmId],
) -> Part<Round> {
    let mut measured = Round {
        tunnels: vec![Rates::default(); TUNNELS.len()],
        emulated: vec![Rates::default(); EMULATED.len()],
    };
    for nth in order(lab.seed, round, arms.len()) {
        let (arm, rates) = match arms[nth] {
            ArmId::Tunnel(nth) => {
                let arm = TUNNELS[nth].map_or(Arm::Tcp, |pair| arm(pair, CipherEngine::default()));
                (arm, &mut measured.tunnels[nth])
            }
            ArmId::Emulated(nth) => {
                let rate = CipherRate::new(emulated_rate(EMULATED[nth].0, base_mbit));
                let engine = CipherEngine::default().at_pace(rate);
                (arm(EMULATED[nth], engine), &mut measured.emulated[nth])
            }
        };
        let route = Route::open(hosts, None, arm).await?;
        let (time, seed) = (time(lab.effort), lab.seed.wrapping_add(round.into()));
        for (files, rates) in FILES.into_iter().zip(rates) {
            for &clients in clients(lab.effort) {
                rates.push(route.serve(clients, files, time, seed).await?);
            }
        }
        route.path.close().await?;
    }
    Ok(measured)
}

/// Measures these of [`PROCESSORS`] with both speeds.
pub(super) async fn speeds(
    lab: &Lab<'_>,
    hosts: &Hosts,
    round: u32,
    settings: &[usize],
) -> Part<Speeds> {
    let mut measured = Speeds::default();
    for nth in order(lab.seed, round, 2 * settings.len()) {
        let (nth, is_fast) = (settings[nth / 2], nth % 2 == 1);
        let share = if is_fast { FAST } else { SLOW };
        testbed::Quota::of_a_core(share).map_err(Missed::Lacking)?;
        let arm = arm(PROCESSORS[nth], CipherEngine::default());
        let route = Route::open(hosts, Some(share), arm).await?;
        let (time, seed) = (time_slowed(lab.effort), lab.seed.wrapping_add(round.into()));
        let mut rates = Vec::new();
        for size in [MEDIUM, LARGE] {
            rates.push(route.serve(most(lab.effort), FILES[size], time, seed).await?);
        }
        route.path.close().await?;
        if is_fast { measured.fast[nth] = rates } else { measured.slow[nth] = rates }
    }
    Ok(measured)
}

fn most(effort: Effort) -> u32 {
    clients(effort).iter().copied().max().unwrap_or(1)
}

fn arm(pair: (Cipher, Mac), engine: CipherEngine) -> Arm {
    Arm::Tunnel(TunnelArm { suite: protection(pair), pool: false, engine })
}

/// An arm between the hosts, and the host of the clients.
struct Route {
    path: Path,
    client: Host,
}

impl Route {
    /// Brings an arm up whose gateways have this share of a core, and warms it.
    async fn open(hosts: &Hosts, processor: Option<f64>, arm: Arm) -> Part<Self> {
        let hosts = LazyLock::force(hosts).clone()?;
        let client = path::host_in(&hosts.client)?;
        let place = Place::Hosts { hosts, processor, ipv6: false };
        let settings = PathSettings { place, ..PathSettings::default() };
        let route = Self { path: path::open_cold(arm, &settings).await?, client };
        // Let congestion control, path MTU and the service's threads settle.
        route.serve(WARM_UP_CLIENTS, WARM_UP_FILES, WARM_UP, 0).await?;
        Ok(route)
    }

    /// Runs all clients on the client's host.
    async fn serve(&self, clients: u32, files: [u64; 2], time: Duration, seed: u64) -> Part<f64> {
        let address = self.path.address();
        let clients =
            VirtualClients { address, own: FourHosts::client, clients, files, time, seed };
        // Begun there, so that the clients' threads are in the network of their host.
        let ran = async move { tokio::task::spawn_blocking(move || clients.run()).await };
        let ran = self.client.run(ran);
        ran.await.and_then(|joined| joined.map_err(io::Error::other))?
    }
}
