//! Runs one round: echoes of each size through every arm at once, each over a line of its own. The
//! lines are so slow that the machine is idle; the arms' echoes follow each other in an order drawn
//! from the seed. Arms with an emulated cipher, which keep a core busy, come after the others.

use std::num::NonZeroU64;
use std::time::{Duration, Instant};

use keypadd_keystream::{Cipher, CipherEngine, Mac, Protection};
use keypadd_measure::path::{self, PathSettings};
use keypadd_measure::{Arm, CipherRate};
use keypadd_provider::MeasureKeyExchange;
use keypadd_traffic::{
    Answered, Due, Exchange, Link, LinkSettings, Requester, Requests, TunnelArm,
};
use tokio::task::JoinSet;

use super::{EMULATED, Echoes, Round, SCENARIOS, SIZES, TABLE_3, scenario};
use crate::lab::{Lab, Part};
use crate::{Effort, order, suite};

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
    let bytes = 4 * SIZES.into_iter().max().unwrap_or(0);
    NonZeroU64::new((bytes as f64 / added_seconds) as u64).unwrap_or(NonZeroU64::MIN)
}

pub(super) async fn round(lab: &Lab<'_>, round: u32) -> Part<Round> {
    let count = echoes(lab.effort);
    let real = CipherEngine::default();
    let mut arms = vec![Arm::Tcp, tunnel(suite(Cipher::NULL, Mac::NULL), real)];
    arms.extend((0..SCENARIOS.len()).map(|nth| tunnel(scenario(nth), real)));
    let emulated = EMULATED.map(|nth| {
        let rate = CipherRate::new(emulated_rate(nth));
        tunnel(scenario(nth), CipherEngine::default().at_pace(rate))
    });
    let real = at_once(&arms, count, order(lab.seed, round, arms.len())).await?;
    let emulated = at_once(&emulated, count, order(lab.seed, round, emulated.len())).await?;
    let mut measured = Round { plain: real[0], null: real[1], ..Round::default() };
    measured.tunnels.copy_from_slice(&real[2..]);
    measured.emulated.copy_from_slice(&emulated);
    Ok(measured)
}

/// Echoes of several arms, each a little after the one before in this order.
async fn at_once(arms: &[Arm], count: u32, order: Vec<usize>) -> Part<Vec<Echoes>> {
    let mut running = JoinSet::new();
    for (nth, place) in order.into_iter().enumerate() {
        let (arm, lead) = (arms[place], LEAD + APART * nth as u32);
        running.spawn(async move { (place, echo(arm, count, lead).await) });
    }
    let mut measured = vec![Echoes::default(); arms.len()];
    while let Some(ended) = running.join_next().await {
        let (place, echoes) = ended.map_err(|_| "a measurement thread panicked".to_owned())?;
        measured[place] = echoes?;
    }
    Ok(measured)
}

fn tunnel(suite: Protection, engine: CipherEngine) -> Arm {
    Arm::Tunnel(TunnelArm { suite, pool: false, engine })
}

/// Echoes through a new path over a new line.
async fn echo(arm: Arm, count: u32, lead: Duration) -> Part<Echoes> {
    let line = LinkSettings { delay: delay(), bits_per_second: Some(LINE), ipv6: false };
    let settings =
        PathSettings { kex: GROUP.into(), link: Link::new(line), ..PathSettings::default() };
    let path = path::open_cold(arm, &settings).await?;
    let requester = Requester::open(path.address()).await?;
    let exchanges = SIZES.map(|bytes| Exchange::new(bytes, bytes));
    let echoes = (0..count).flat_map(|_| exchanges).zip(0_u32..);
    let echoes = echoes.map(|(exchange, nth)| Due { at: EVERY * nth, exchange });
    let requests = Requests::At(echoes.collect());
    let (_, answers) =
        requester.run(requests, Instant::now() + lead, Vec::<Answered>::new(), Vec::push).await?;
    path.valid()?;
    let of_size = |exchange| {
        let times = answers.iter().filter(|it| it.exchange == exchange);
        times.map(|it| it.latency().as_secs_f64() * 1e3).sum::<f64>() / f64::from(count)
    };
    Ok(exchanges.map(of_size))
}
