//! Tests switching pools at every moment of a handshake and after it: connections use the last
//! choice. Fillers are stepped, so that nothing is filled in between.

use std::time::Duration;

use keypadd_keystream::Suite;
use keypadd_pool::{Direction, Filler, Pool, PoolSettings, Step};
use keypadd_provider::{HandshakeData, PoolAllowance, PoolSwitch};

use crate::pair::Pair;

const SUITE: Suite = Suite::AES_256_CTR_HMAC_SHA256;

/// A handshake takes 2 ms, and confirmation at both ends a few more.
const MILLIS: usize = 6;

fn stepped() -> (Pool, Filler) {
    Pool::with_filler(PoolSettings { budget_bytes: 4 << 20 }).expect("memory")
}

/// Steps a filler until it is done; returns the bytes its pool holds then.
fn filled((pool, filler): &mut (Pool, Filler)) -> u64 {
    while filler.step(Duration::ZERO) == Step::Worked {}
    pool.snapshot().filled_bytes
}

/// Precomputed bytes of the connection at each end, each way, once its handshake is complete.
fn available(pair: &Pair) -> Vec<u64> {
    let keys = pair.ends.iter().map(|end| {
        let (_, connection) = end.connection.as_ref().expect("a connection");
        assert!(!connection.is_handshaking());
        let data = connection.crypto_session().handshake_data().expect("keys");
        data.downcast::<HandshakeData>().expect("ours").keys
    });
    let both = |keys: keypadd_provider::ConnectionKeys| {
        [Direction::Send, Direction::Receive].map(|way| keys.status(way).head.bytes)
    };
    keys.flat_map(both).collect()
}

#[test]
fn a_pool_removed_during_a_handshake_is_not_held() {
    for millis in 0..=MILLIS {
        let mut former = stepped();
        let switch = PoolSwitch::new(Some(former.0.clone()));
        let mut pair = Pair::switched(SUITE, &switch);
        pair.run(millis, [false; 2]);
        switch.set(None);
        pair.run(100, [false; 2]);
        assert_eq!(available(&pair), [0; 4], "after {millis} ms");
        assert_eq!(filled(&mut former), 0, "after {millis} ms");
        let (pool, mut filler) = former;
        drop(pool);
        assert_eq!(filler.step(Duration::ZERO), Step::Stopped, "after {millis} ms");
    }
}

#[test]
fn a_pool_added_during_a_handshake_fills_for_both_ends_within_their_allowance() {
    for millis in 0..=MILLIS {
        let allowance = PoolAllowance::new(256 << 10);
        let switch = PoolSwitch::default();
        let mut pair = Pair::switched(SUITE, &switch.for_peer(allowance));
        pair.run(millis, [false; 2]);
        let (mut first, mut second) = (stepped(), stepped());
        for pools in [&first, &second] {
            switch.set(Some(pools.0.clone()));
            // Setting it again changes nothing.
            switch.set(Some(pools.0.clone()));
            pair.run(50, [false; 2]);
        }
        assert_eq!(filled(&mut first), 0, "after {millis} ms");
        let bytes = filled(&mut second);
        assert!(bytes > 0 && bytes <= 256 << 10, "after {millis} ms: {bytes}");
        assert!(available(&pair).iter().all(|&bytes| bytes > 0), "after {millis} ms");
    }
}

#[test]
fn pads_are_kept_if_the_pool_stays() {
    let mut pools = stepped();
    let switch = PoolSwitch::new(Some(pools.0.clone()));
    let mut pair = Pair::switched(SUITE, &switch);
    pair.run(100, [false; 2]);
    let bytes = filled(&mut pools);
    switch.set_excluding(Some(pools.0.clone()), &[Suite::AES_128_GCM.into()]);
    let snapshot = pools.0.snapshot();
    assert_eq!((snapshot.filled_bytes, snapshot.pads_wasted_total), (bytes, 0));
    switch.set_excluding(Some(pools.0.clone()), &[SUITE.into()]);
    assert_eq!(available(&pair), [0; 4]);
    assert_eq!(filled(&mut pools), 0);
    drop(pair);
    switch.set(Some(pools.0.clone()));
    assert_eq!(filled(&mut pools), 0);
}
