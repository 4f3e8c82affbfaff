//! Runs sequential round trips with a pause in between: the surfaces, and the number of encryptions
//! that a round trip includes.

use std::time::Duration;

use keypadd_measure::Background;
use keypadd_traffic::{Exchange, Path, Requester};

use super::bed::{AMPLE_BYTES, Throttled, fill, plain, tunnel};
use super::{Encryptions, Grid, Network, Surface, Surfaces, Trips, delays, sizes};
use crate::lab::{Lab, Part};
use crate::{Effort, order};

/// Round trips per cell of a surface, without encryption and with ready pads.
pub(super) fn trips(effort: Effort) -> u32 {
    effort.pick(60, 1000)
}

/// Round trips per cell where every packet waits for the cipher.
pub(super) fn slow_trips(effort: Effort) -> u32 {
    effort.pick(3, 40)
}

/// Uncounted round trips after the cipher has been throttled.
const SETTLING_TRIPS: u32 = 4;

/// Maximum time to keep cores awake.
const AWAKE_MAX: Duration = Duration::from_secs(600);

/// Size of packets whose encryptions are counted: long, so that overhead hardly counts.
const LONG: u64 = 1024;

/// Measures these surfaces.
pub(super) async fn surfaces(
    lab: &Lab<'_>,
    round: u32,
    network: Network,
    which: &[Surface],
) -> Part<Surfaces> {
    let effort = lab.effort;
    let mut surfaces = Surfaces::default();
    for nth in order(lab.seed, round, which.len()) {
        match which[nth] {
            Surface::Plain => {
                let path = plain().await?;
                surfaces.plain = grid(&path, effort, trips(effort), None).await?;
                path.close().await?;
            }
            Surface::Inline => {
                let path = tunnel(None, network.trip_cipher()).await?;
                let slowed = Throttled::one_encryption(network.trip_cipher());
                settle(&path).await?;
                surfaces.inline = grid(&path, effort, slow_trips(effort), None).await?;
                drop(slowed);
                path.close().await?;
            }
            Surface::Pooled => {
                let path = tunnel(Some(AMPLE_BYTES), network.trip_cipher()).await?;
                surfaces.pooled = grid(&path, effort, trips(effort), Some(network)).await?;
                path.close().await?;
            }
        }
    }
    Ok(surfaces)
}

/// Measures all sizes and delays. With `pooled`, pads are generated at full speed before each cell
/// and at the emulated rate within it.
async fn grid(path: &Path, effort: Effort, count: u32, pooled: Option<Network>) -> Part<Grid> {
    // Otherwise fillers busy with an emulated cipher would keep only their own arm's cores awake.
    let _awake = Background::awake(AWAKE_MAX);
    let mut requester = Requester::open(path.address()).await?;
    let mut grid = Grid::new();
    for &delay in delays(effort) {
        let mut row = Vec::new();
        for &size in sizes(effort) {
            let slowed = match pooled {
                Some(network) => {
                    fill(path).await;
                    Some(Throttled::both(network.trip_cipher()))
                }
                None => None,
            };
            let before = path.gauges().counts();
            let exchange = Exchange::new(size, size);
            let (back, times) = requester.one_by_one(exchange, count, delay).await?;
            requester = back;
            let counts = path.gauges().counts().since(before);
            drop(slowed);
            row.push(Trips {
                mean_us: mean_us(&times),
                first_us: times.first().map_or(f64::NAN, |it| it.as_secs_f64() * 1e6),
                ready_percent: counts.percentages().map_or(0.0, |[hit, ..]| hit),
            });
        }
        grid.push(row);
    }
    Ok(grid)
}

pub(super) async fn encryptions(lab: &Lab<'_>, round: u32, network: Network) -> Part<Encryptions> {
    let count = lab.effort.pick(4, 50);
    let rate = Some(network.trip_cipher());
    let path = tunnel(None, network.trip_cipher()).await?;
    let mut times = [0.0; 3];
    let mut requester = Requester::open(path.address()).await?;
    let arms = [(1, None), (LONG, None), (LONG, rate)];
    for nth in order(lab.seed, round, arms.len()) {
        let (answer, far) = arms[nth];
        let slowed = Throttled::to_rates(rate, far);
        settle(&path).await?;
        let exchange = Exchange::new(LONG, answer);
        let (back, took) = requester.one_by_one(exchange, count, Duration::ZERO).await?;
        drop(slowed);
        requester = back;
        times[nth] = mean_us(&took);
    }
    drop(requester);
    path.close().await?;
    let [one_us, two_us, four_us] = times;
    Ok(Encryptions { one_us, two_us, four_us })
}

/// Lets both ends learn how slow packets are now, so that they do not count them as lost.
async fn settle(path: &Path) -> Part<()> {
    let requester = Requester::open(path.address()).await?;
    requester.one_by_one(Exchange::new(128, 128), SETTLING_TRIPS, Duration::ZERO).await?;
    Ok(())
}

fn mean_us(times: &[Duration]) -> f64 {
    times.iter().map(|it| it.as_secs_f64() * 1e6).sum::<f64>() / times.len().max(1) as f64
}
