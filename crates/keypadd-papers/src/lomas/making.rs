//! Measures keystream generation: its cost ahead of packets and inline, by two implementations, and
//! beside other programs. Emulates nothing.

use std::sync::Arc;
use std::time::{Duration, Instant};

use keypadd_keystream::{CipherBackend, KeystreamKey, PacketNumber, SEGMENT_PACKETS, SuiteKey};
use keypadd_measure::{Background, process_cpu, thread_cpu};
use keypadd_traffic::{Exchange, Path, Requester};

use super::bed::{AMPLE_BYTES, des, fill, open_with};
use super::streams::FILE_BYTES;
use super::{BesideLoads, LOADS, Made, Work};
use crate::lab::{Lab, Missed, Part};
use crate::{Effort, order};

/// The implementations: one block at a time, and hundreds.
pub(super) const BACKENDS: [CipherBackend; 2] = [CipherBackend::DesCrate, CipherBackend::Auto];
/// A pool that takes longer to fill than it is observed.
const LARGE_BYTES: usize = 48 << 20;
/// Maximum duration of a load.
const LOAD_MAX: Duration = Duration::from_secs(30);
/// Bytes per pad of keystream generated alone.
const PAD_BYTES: usize = 1400;

pub(super) async fn work(lab: &Lab<'_>, round: u32) -> Part<Work> {
    let mut work = Work::default();
    for nth in order(lab.seed, round, 2) {
        match nth {
            0 => work.inline = transfer(CipherBackend::DesCrate, None).await?,
            _ => work.pooled = transfer(CipherBackend::DesCrate, Some(AMPLE_BYTES)).await?,
        }
    }
    Ok(work)
}

pub(super) async fn made(lab: &Lab<'_>, round: u32) -> Part<Made> {
    let mut made = Made::default();
    let time = lab.effort.pick(Duration::from_millis(50), Duration::from_millis(500));
    for nth in order(lab.seed, round, BACKENDS.len()) {
        let backend = BACKENDS[nth];
        let path = open_with(backend, Some(AMPLE_BYTES)).await?;
        fill(&path).await;
        made.fillers[nth] = filler_rate(&path);
        // After these fillers sleep, and after the kernel has reclaimed earlier pools' memory:
        // either would slow this down.
        let alone = tokio::task::spawn_blocking(move || alone(backend, time)).await;
        made.alone[nth] = alone.map_err(|_| "a measurement thread panicked".to_owned())??;
        path.close().await?;
    }
    Ok(made)
}

pub(super) async fn beside_loads(lab: &Lab<'_>, round: u32) -> Part<BesideLoads> {
    let mut made = BesideLoads::default();
    for nth in order(lab.seed, round, LOADS.len()) {
        made[nth] = beside(LOADS[nth], lab.effort).await?;
    }
    Ok(made)
}

/// Keystream of a path's fillers, in bytes per second of their CPU time.
fn filler_rate(path: &Path) -> f64 {
    path.gauges().filled_bytes() as f64 / path.gauges().filler_cpu().as_secs_f64()
}

/// CPU seconds of a transfer, including those of its keystream, whenever that was generated.
async fn transfer(backend: CipherBackend, pool_bytes: Option<usize>) -> Part<f64> {
    let path = open_with(backend, pool_bytes).await?;
    if pool_bytes.is_some() {
        fill(&path).await;
    }
    let gauges = path.gauges();
    let of_a_byte = if pool_bytes.is_some() { 1.0 / filler_rate(&path) } else { 0.0 };
    let requester = Requester::open(path.address()).await?;
    let (counts, fillers, cpu) = (gauges.counts(), gauges.filler_cpu(), process_cpu());
    let (requester, _) =
        requester.one_by_one(Exchange::new(FILE_BYTES, 1), 1, Duration::ZERO).await?;
    let cpu = process_cpu().saturating_sub(cpu);
    // Exclude what fillers do meanwhile, for later packets; include what they did before, for
    // these.
    let refilling = gauges.filler_cpu().saturating_sub(fillers);
    let used = gauges.counts().since(counts).pool_bytes as f64;
    drop(requester);
    let work = cpu.saturating_sub(refilling).as_secs_f64() + used * of_a_byte;
    path.close().await?;
    Ok(work)
}

/// Keystream in bytes per CPU second of a single thread that does nothing else.
fn alone(backend: CipherBackend, time: Duration) -> Result<f64, Missed> {
    let engine = backend.engine().map_err(|error| Missed::Failed(error.to_string()))?;
    let keys = SuiteKey::derive_with(des(), &[3; 32][..des().key_bytes()], &[4; 12], engine);
    let key: Arc<KeystreamKey> =
        keys.keystream.ok_or_else(|| Missed::Failed("DES has no keystream".into()))?;
    let mut pads = vec![0; SEGMENT_PACKETS * PAD_BYTES];
    let began = thread_cpu();
    let (mut bytes, mut number) = (0, 0);
    loop {
        let segment = PacketNumber::new(number).segment();
        key.write_rows(segment, 0, pads.chunks_mut(PAD_BYTES));
        number += SEGMENT_PACKETS as u64;
        bytes += pads.len();
        let spent = thread_cpu().saturating_sub(began);
        if spent >= time {
            return Ok(bytes as f64 / spent.as_secs_f64());
        }
    }
}

/// Keystream in bytes per second of the fillers of a pool that is not full, beside a load on every
/// core.
async fn beside(share: f64, effort: Effort) -> Part<f64> {
    let time = effort.pick(Duration::from_millis(250), Duration::from_millis(800));
    let path = open_with(CipherBackend::DesCrate, Some(LARGE_BYTES)).await?;
    let load = Background::start(share, LOAD_MAX);
    let (start, before) = (Instant::now(), path.gauges().filled_bytes());
    tokio::time::sleep(time).await;
    let made = path.gauges().filled_bytes() - before;
    let took = start.elapsed();
    drop(load);
    path.close().await?;
    Ok(made as f64 / took.as_secs_f64())
}
