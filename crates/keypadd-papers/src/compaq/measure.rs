//! Runs rounds of web traffic between four hosts, arms in turn, in an order drawn from the seed.

use std::num::NonZeroU64;
use std::sync::{Arc, LazyLock};
use std::time::Duration;

use keypadd_keystream::{Cipher, CipherEngine, Mac};
use keypadd_measure::path::{self, PathSettings, Place};
use keypadd_measure::{Arm, CipherRate};
use keypadd_traffic::{Path, TunnelArm};
use testbed::FourHosts;

use super::clients::VirtualClients;
use super::{
    ARMS, BASE, BASE_OVER_DES, EMULATED, FILES, LARGE, MEDIUM, PROCESSORS, Rates, Round, Speeds,
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

/// Connections that a gateway may carry: clients close thousands a second, each of which has a place
/// until both gateways know.
const FORWARDS_MAX: u32 = 4096;

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
    let place = Place::Hosts { hosts: (**hosts).clone()?, processor: None };
    let (path, most) = (open(arm(BASE, CipherEngine::default()), &place).await?, most(lab.effort));
    let mbit = serve(&path, &place, most, FILES[LARGE], 3 * time(lab.effort), lab.seed).await?;
    path.valid()?;
    Ok(mbit)
}

/// Measures these arms, by their places among the tunnels and then the emulated ones.
pub(super) async fn round(
    lab: &Lab<'_>,
    hosts: &Hosts,
    round: u32,
    base_mbit: f64,
    arms: &[usize],
) -> Part<Round> {
    let place = Place::Hosts { hosts: (**hosts).clone()?, processor: None };
    let mut measured = Round {
        tunnels: vec![Rates::default(); TUNNELS.len()],
        emulated: vec![Rates::default(); EMULATED.len()],
    };
    for nth in order(lab.seed, round, arms.len()) {
        let nth = arms[nth];
        let (arm, rates) = match nth.checked_sub(TUNNELS.len()) {
            None => {
                let arm = TUNNELS[nth].map_or(Arm::Tcp, |pair| arm(pair, CipherEngine::default()));
                (arm, &mut measured.tunnels[nth])
            }
            Some(nth) => {
                let rate = CipherRate::new(emulated_rate(EMULATED[nth].0, base_mbit));
                let engine = CipherEngine::default().at_pace(rate);
                (arm(EMULATED[nth], engine), &mut measured.emulated[nth])
            }
        };
        let path = open(arm, &place).await?;
        let seed = lab.seed.wrapping_add(round.into());
        for (size, rates) in rates.iter_mut().enumerate() {
            for &clients in clients(lab.effort) {
                rates.push(
                    serve(&path, &place, clients, FILES[size], time(lab.effort), seed).await?,
                );
            }
        }
        path.close().await?;
    }
    Ok(measured)
}

/// Measures these settings, by their places after the arms, with both processors.
pub(super) async fn speeds(
    lab: &Lab<'_>,
    hosts: &Hosts,
    round: u32,
    settings: &[usize],
) -> Part<Speeds> {
    let hosts = (**hosts).clone()?;
    let mut measured = Speeds::default();
    for nth in order(lab.seed, round, 2 * settings.len()) {
        let (nth, is_fast) = (settings[nth / 2] - ARMS, nth % 2 == 1);
        let share = if is_fast { FAST } else { SLOW };
        testbed::Quota::of_a_core(share).map_err(Missed::Lacking)?;
        let place = Place::Hosts { hosts: Arc::clone(&hosts), processor: Some(share) };
        let arm = arm(PROCESSORS[nth], CipherEngine::default());
        let path = open(arm, &place).await?;
        let seed = lab.seed.wrapping_add(round.into());
        let mut rates = Vec::new();
        for size in [MEDIUM, LARGE] {
            let time = time_slowed(lab.effort);
            rates.push(serve(&path, &place, most(lab.effort), FILES[size], time, seed).await?);
        }
        path.close().await?;
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

async fn open(arm: Arm, place: &Place) -> Part<Path> {
    let mut settings = PathSettings { place: place.clone(), ..PathSettings::default() };
    settings.transport.forwards_max = FORWARDS_MAX;
    let path = path::open_cold(arm, &settings).await?;
    // Let congestion control, path MTU and the service's threads settle.
    serve(&path, place, WARM_UP_CLIENTS, WARM_UP_FILES, WARM_UP, 0).await?;
    Ok(path)
}

/// Runs all clients on the client's host.
async fn serve(
    path: &Path,
    place: &Place,
    clients: u32,
    files: [u64; 2],
    time: Duration,
    seed: u64,
) -> Part<f64> {
    let Place::Hosts { hosts, .. } = place else { return Err(Missed::Failed("no hosts".into())) };
    let virtual_clients = VirtualClients { address: path.address(), clients, files, time, seed };
    let failed = |error: std::io::Error| Missed::Failed(error.to_string());
    let client = path::host_in(&hosts.client).map_err(failed)?;
    let ran =
        client.run(async move { tokio::task::spawn_blocking(move || virtual_clients.run()).await });
    ran.await.and_then(|joined| joined.map_err(std::io::Error::other)).map_err(failed)?
}
