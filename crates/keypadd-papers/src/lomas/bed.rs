//! Provides the tunnels of these experiments: DES without a MAC, as his were, with ciphers that can
//! be throttled while they run, each end's separately.

use std::num::NonZeroU64;
use std::sync::OnceLock;
use std::time::{Duration, Instant};

use keypadd_keystream::{Cipher, CipherBackend, CipherEngine, Mac, MeasureSuite, Protection};
use keypadd_measure::path::{self, PathSettings};
use keypadd_measure::{Arm, LEAD, Throttle, flood};
use keypadd_provider::KeyExchange;
use keypadd_traffic::{Exchange, Link, Path, Requester, TunnelArm};

use super::Network;
use crate::Effort;
use crate::lab::{Missed, Part};

/// Longest wait for full pools.
const FILL_TIME: Duration = Duration::from_secs(20);
/// A pool larger than any of these experiments needs.
pub(super) const AMPLE_BYTES: usize = 16 << 20;

/// Both ends' ciphers and their throttles: one per process, because a pace lives as long.
struct Ciphers {
    near: Throttle,
    far: Throttle,
    engines: [CipherEngine; 2],
}

fn ciphers() -> &'static Ciphers {
    static CIPHERS: OnceLock<Ciphers> = OnceLock::new();
    CIPHERS.get_or_init(|| {
        let (near, far) = (Throttle::default(), Throttle::default());
        let engines = [&near, &far].map(|it| CipherEngine::default().at_pace(it.clone()));
        Ciphers { near, far, engines }
    })
}

/// Throttles both ends' ciphers until dropped.
pub(super) struct Throttled(());

impl Throttled {
    /// Sets the near and the far end's rates, in bytes per CPU second.
    pub(super) fn to_rates(near: Option<NonZeroU64>, far: Option<NonZeroU64>) -> Self {
        ciphers().near.set(near);
        ciphers().far.set(far);
        Self(())
    }

    /// Makes a round trip, half encrypted and half decrypted by the near end, cost one encryption
    /// at this rate: his graphs include one.
    pub(super) fn one_encryption(rate: NonZeroU64) -> Self {
        Self::to_rates(rate.checked_mul(NonZeroU64::MIN.saturating_add(1)), None)
    }

    /// Sets both to the same rate.
    pub(super) fn both(rate: NonZeroU64) -> Self {
        Self::to_rates(Some(rate), Some(rate))
    }
}

impl Drop for Throttled {
    fn drop(&mut self) {
        ciphers().near.set(None);
        ciphers().far.set(None);
    }
}

/// Unauthenticated DES.
pub(super) fn des() -> Protection {
    let is_it = |it: &Protection| it.cipher() == Cipher::Des && it.mac() == Mac::NULL;
    Protection::all().find(is_it).expect("every cipher goes with every MAC")
}

/// A tunnel that neither encrypts nor authenticates.
pub(super) async fn plain() -> Part<Path> {
    let engine = CipherEngine::default();
    open(TunnelArm { suite: MeasureSuite::NULL.protection(), pool: false, engine }, 0, None).await
}

/// A tunnel whose ciphers will be throttled to this rate; with a pool at both ends, or without.
pub(super) async fn tunnel(pool_bytes: Option<usize>, rate: NonZeroU64) -> Part<Path> {
    let Ciphers { near: near_throttle, far: far_throttle, engines: [engine, far] } = ciphers();
    near_throttle.declare(rate);
    far_throttle.declare(rate);
    let arm = TunnelArm { suite: des(), pool: pool_bytes.is_some(), engine: *engine };
    open(arm, pool_bytes.unwrap_or(0), Some(*far)).await
}

/// A tunnel over a line, not warmed up, without a pool.
pub(super) async fn open_over(link: &Link) -> Part<Path> {
    let engine = CipherEngine::default();
    let arm = Arm::Tunnel(TunnelArm { suite: des(), pool: false, engine });
    let settings = PathSettings { link: link.clone(), ..PathSettings::default() };
    Ok(path::open_cold(arm, &settings).await?)
}

/// A tunnel with an unthrottled backend; with a pool at both ends, or without.
pub(super) async fn open_with(backend: CipherBackend, pool_bytes: Option<usize>) -> Part<Path> {
    let engine = backend.engine().map_err(|error| Missed::Failed(error.to_string()))?;
    let arm = TunnelArm { suite: des(), pool: pool_bytes.is_some(), engine };
    open(arm, pool_bytes.unwrap_or(0), None).await
}

async fn open(
    arm: TunnelArm,
    pool_budget_bytes: usize,
    far_engine: Option<CipherEngine>,
) -> Part<Path> {
    let settings = PathSettings {
        pool_budget_bytes,
        kex: KeyExchange::X25519.into(),
        far_engine,
        ..PathSettings::default()
    };
    Ok(path::open(Arm::Tunnel(arm), &settings).await?)
}

/// Waits until pools are full, at full speed.
pub(super) async fn fill(path: &Path) {
    // A pool that never fills shows up in the share of packets whose pads were ready.
    let _ = path.rest(FILL_TIME).await;
}

/// Measures round trips and a stream without encryption.
pub(super) async fn network(effort: Effort) -> Part<Network> {
    let (trips, time) =
        effort.pick((300, Duration::from_millis(500)), (3000, Duration::from_secs(3)));
    let path = plain().await?;
    let requester = Requester::open(path.address()).await?;
    let (requester, times) =
        requester.one_by_one(Exchange::new(128, 128), trips, Duration::ZERO).await?;
    drop(requester);
    let trip_us = times.iter().map(|it| it.as_secs_f64() * 1e6).sum::<f64>() / f64::from(trips);
    let step = Exchange::new(256 << 10, 1);
    let start = Instant::now() + LEAD;
    let arrivals = flood(&path, 1, step, time, start).await?;
    path.close().await?;
    Ok(Network { trip_us, mbit: keypadd_measure::rate_mbit(&arrivals) })
}
