//! Runs one round: echoes of each size through every arm, in an order drawn from the seed.

use std::num::NonZeroU64;
use std::time::{Duration, Instant};

use keypadd_keystream::{Cipher, CipherEngine, Mac, Protection};
use keypadd_measure::path::{self, PathSettings};
use keypadd_measure::{Arm, CipherRate};
use keypadd_provider::MeasureKeyExchange;
use keypadd_traffic::{Answered, Due, Exchange, Requester, Requests, TunnelArm};
use testbed::{Link, LinkSettings};

use super::{EMULATED, Echoes, Round, SCENARIOS, SIZES, TABLE_3, scenario};
use crate::lab::{Lab, Part};
use crate::{Effort, order, suite};

/// The paper's serial line (Table 1), bits per second.
const LINE: NonZeroU64 = NonZeroU64::new(1_580_000).expect("not zero");

/// The paper's key exchange group.
const GROUP: MeasureKeyExchange = MeasureKeyExchange::MODP_1024;

/// Time between two echoes: long compared to an emulated cipher's time for one.
const EVERY: Duration = Duration::from_millis(60);

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
    let mut measured = Round::default();
    let count = echoes(lab.effort);
    let null = suite(Cipher::NULL, Mac::NULL);
    for nth in order(lab.seed, round, 2 + SCENARIOS.len() + EMULATED.len()) {
        let (arm, echoes) = match nth {
            0 => (Arm::Tcp, &mut measured.plain),
            1 => (tunnel(null, CipherEngine::default()), &mut measured.null),
            2..6 => {
                let nth = nth - 2;
                let arm = tunnel(scenario(nth), CipherEngine::default());
                (arm, &mut measured.tunnels[nth])
            }
            _ => {
                let nth = nth - 2 - SCENARIOS.len();
                let rate = CipherRate::new(emulated_rate(EMULATED[nth]));
                let engine = CipherEngine::default().at_pace(rate);
                (tunnel(scenario(EMULATED[nth]), engine), &mut measured.emulated[nth])
            }
        };
        *echoes = echo(arm, count).await?;
    }
    Ok(measured)
}

fn tunnel(suite: Protection, engine: CipherEngine) -> Arm {
    Arm::Tunnel(TunnelArm { suite, pool: false, engine })
}

/// Echoes through a new path over a new line.
async fn echo(arm: Arm, count: u32) -> Part<Echoes> {
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
        requester.run(requests, Instant::now() + LEAD, Vec::<Answered>::new(), Vec::push).await?;
    path.valid()?;
    let of_size = |exchange| {
        let times = answers.iter().filter(|it| it.exchange == exchange);
        times.map(|it| it.latency().as_secs_f64() * 1e3).sum::<f64>() / f64::from(count)
    };
    Ok(exchanges.map(of_size))
}
