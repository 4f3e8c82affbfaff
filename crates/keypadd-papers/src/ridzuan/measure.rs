//! Runs one round: pings of each size through every arm at once, each between networks of its own
//! and over a line of its own. The lines are so slow that the machine is idle; the arms' echoes
//! follow each other in an order drawn from the seed. Arms with an emulated cipher, which keep a core
//! busy, come after the others.

use std::num::NonZeroU64;
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, LazyLock};
use std::time::Duration;

use keypadd_keystream::{Cipher, CipherEngine, Mac, Protection};
use keypadd_measure::path::{self, PathSettings, Place};
use keypadd_measure::{Arm, CipherRate, pings};
use keypadd_provider::MeasureKeyExchange;
use keypadd_traffic::{Latencies, SetOnDrop, TunnelArm};
use testbed::{FourHosts, LineSettings, Path};
use tokio::task::{JoinSet, spawn_blocking};
use tokio::time::sleep;

use super::{EMULATED, Echoes, LONGEST, Round, SCENARIOS, SIZES, TABLE_3, scenario};
use crate::lab::{Lab, Missed, Part};
use crate::{Effort, order, suite};

/// A thread's end that nothing else explains.
const PANICKED: &str = "a measurement thread panicked";

/// The paper's serial line (Table 1), bits per second.
const LINE: NonZeroU64 = NonZeroU64::new(1_580_000).expect("not zero");

/// The paper's key exchange group.
const GROUP: MeasureKeyExchange = MeasureKeyExchange::MODP_1024;

/// Time between two echoes: long compared to an emulated cipher's time for one.
const EVERY: Duration = Duration::from_millis(60);

/// Time between the echoes of two arms: they do not meet at the cores.
const APART: Duration = Duration::from_millis(10);

/// Time before the first echo, so that path MTU discovery does not keep the line busy.
const LEAD: Duration = Duration::from_millis(500);

/// Echoes of each size in a round.
pub(super) fn echoes(effort: Effort) -> u32 {
    effort.pick(3, 10)
}

/// What the line delays each way: half of the paper's round trip without encryption, most of which
/// its simulated routers took.
pub(super) fn delay() -> Duration {
    Duration::from_secs_f64(TABLE_3[0] / 2.0 / 1e3)
}

/// Bytes a second at which a cipher makes keystream, if it alone adds to the longest echo what the
/// paper has for that scenario: an echo is sealed twice and opened twice.
pub(super) fn emulated_rate(nth: usize) -> NonZeroU64 {
    let added_seconds = (TABLE_3[nth + 1] - TABLE_3[0]) / 1e3;
    let bytes = 4 * SIZES[LONGEST];
    NonZeroU64::new((bytes as f64 / added_seconds) as u64).unwrap_or(NonZeroU64::MIN)
}

/// The networks of an arm, and the line between their gateways.
#[derive(Debug)]
pub(super) struct Site {
    hosts: Arc<FourHosts>,
    _line: Path,
}

/// Networks for as many arms as go at once, built for the first round.
pub(super) type Sites = LazyLock<Part<[Site; 2 + SCENARIOS.len()]>>;

pub(super) const fn sites() -> Sites {
    LazyLock::new(|| {
        let sites: Vec<Site> =
            (0..2 + SCENARIOS.len()).map(|_| Site::build()).collect::<Part<_>>()?;
        Ok(sites.try_into().expect("one for each"))
    })
}

impl Site {
    fn build() -> Part<Self> {
        let line =
            LineSettings { bits_per_second: Some(LINE), delay: delay(), ..LineSettings::default() };
        let (hosts, line) = FourHosts::by_path(line).map_err(Missed::Lacking)?;
        Ok(Self { hosts: Arc::new(hosts), _line: line })
    }
}

pub(super) async fn round(lab: &Lab<'_>, sites: &Sites, round: u32) -> Part<Round> {
    let sites = LazyLock::force(sites).as_ref().map_err(Missed::clone)?;
    let count = echoes(lab.effort);
    let real = CipherEngine::default();
    let mut arms = vec![Arm::Tcp, tunnel(suite(Cipher::NULL, Mac::NULL), real)];
    arms.extend((0..SCENARIOS.len()).map(|nth| tunnel(scenario(nth), real)));
    let emulated = EMULATED.map(|nth| {
        let rate = CipherRate::new(emulated_rate(nth));
        tunnel(scenario(nth), CipherEngine::default().at_pace(rate))
    });
    let real = at_once(sites, &arms, count, order(lab.seed, round, arms.len())).await?;
    let emulated = at_once(sites, &emulated, count, order(lab.seed, round, emulated.len())).await?;
    let mut measured = Round { plain: real[0], null: real[1], ..Round::default() };
    measured.tunnels.copy_from_slice(&real[2..]);
    measured.emulated.copy_from_slice(&emulated);
    Ok(measured)
}

/// Echoes of several arms, each a little after the one before in this order.
async fn at_once(sites: &[Site], arms: &[Arm], count: u32, order: Vec<usize>) -> Part<Vec<Echoes>> {
    let mut running = JoinSet::new();
    for (nth, place) in order.into_iter().enumerate() {
        let (arm, lead) = (arms[place], LEAD + APART * nth as u32);
        let hosts = Arc::clone(&sites[place].hosts);
        running.spawn(async move { (place, echo(hosts, arm, count, lead).await) });
    }
    let mut measured = vec![Echoes::default(); arms.len()];
    while let Some(ended) = running.join_next().await {
        let (place, echoes) = ended.map_err(|_| PANICKED.to_owned())?;
        measured[place] = echoes?;
    }
    Ok(measured)
}

fn tunnel(suite: Protection, engine: CipherEngine) -> Arm {
    Arm::Tunnel(TunnelArm { suite, pool: false, engine })
}

/// Echoes from one network to the other.
async fn echo(hosts: Arc<FourHosts>, arm: Arm, count: u32, lead: Duration) -> Part<Echoes> {
    let place = Place::Hosts { hosts: Arc::clone(&hosts), processor: None, ipv6: false };
    let settings = PathSettings { kex: GROUP.into(), place, ..PathSettings::default() };
    let path = path::open_cold(arm, &settings).await?;
    sleep(lead).await;
    let time = EVERY * SIZES.len() as u32 * count;
    // If nobody waits for them any more, they end.
    let is_over = Arc::new(AtomicBool::new(false));
    let _end = SetOnDrop(Arc::clone(&is_over));
    let pings = move || pings(&hosts, EVERY, time, &is_over);
    let pings = spawn_blocking(pings).await.map_err(|_| PANICKED.to_owned())??;
    path.valid()?;
    let means = pings.times.each_ref().map(Latencies::mean_us);
    match means.iter().all(Option::is_some) && pings.lost_percent == 0.0 {
        true => Ok(means.map(|mean| mean.unwrap_or_default() / 1e3)),
        false => Err(Missed::Failed("an echo was lost".into())),
    }
}
