//! Tests pad sources in the cost table: full pools, a dry one, none, and no cipher.

use std::time::Duration;

use keypadd_keystream::{CipherBackend, CipherEngine, MeasureSuite, Suite};
use keypadd_measure::results::Cell;
use keypadd_measure::{Arm, Bulk, Terminal, Typing, Workload};
use keypadd_traffic::{Link, TunnelArm};

use crate::{cell, measure};

/// Conventional 3DES, the slowest cipher: packets consume pads faster than the filler makes them.
fn slow() -> Arm {
    let engine = CipherBackend::DesCrate.engine().unwrap();
    let suite = Suite::TRIPLE_DES_CTR_HMAC_SHA1.protection();
    Arm::Tunnel(TunnelArm { suite, pool: true, engine })
}

/// The same suite with the cipher backend that daemons use.
fn quick(pool: bool) -> Arm {
    let suite = Suite::TRIPLE_DES_CTR_HMAC_SHA1.protection();
    Arm::Tunnel(TunnelArm { suite, pool, engine: CipherEngine::default() })
}

/// One slice's row of the cost table: hit, partial and miss in percent, then megabytes from the
/// pool and computed inline.
async fn costs<W: Workload>(workload: &W, arm: Arm) -> [f64; 5] {
    let section = workload.section(&measure(workload, arm, Link::default(), 1).await);
    let pools = if arm.has_pool() { Cell::Text("1 of 1".into()) } else { Cell::Missing };
    let row = arm.to_string();
    assert_eq!(cell(&section, "pads", &row, "turns with a full pool"), pools);
    let names = ["hit", "partial", "miss", "from the pool", "inline"];
    names.map(|column| match cell(&section, "pads", &row, column) {
        Cell::Figure(figure) => figure.value,
        other => panic!("{column}: {other:?}"),
    })
}

/// Four times the packets each way that a late filler may skip to get ahead again.
fn typing() -> Terminal {
    let typing = Typing::Fixed { per_second: 1000.0, bytes: 64 };
    Terminal { typing, time: Duration::from_millis(800), seed: 1 }
}

/// Many times the pool size.
const BURST_BYTES: u64 = 12 << 20;

fn flood() -> Bulk {
    Bulk { streams: 1, time: Duration::from_millis(10), burst_bytes: BURST_BYTES, up: true }
}

#[tokio::test(flavor = "multi_thread")]
async fn keys_find_their_pads_in_a_full_pool() {
    let [hit, partial, miss, from_pool, inline] = costs(&typing(), quick(true)).await;
    assert!((hit + partial + miss - 100.0).abs() < 1e-9);
    // Some are sent together on a busy machine: such a packet is longer than a head.
    assert!(
        hit > 50.0 && from_pool > 0.0 && (inline > 0.0) == (partial + miss > 0.0),
        "{hit} % hits, {inline} MB inline"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn a_flood_finds_the_pool_dry_and_the_rest_is_made_on_the_spot() {
    let [hit, partial, miss, from_pool, inline] = costs(&flood(), slow()).await;
    assert!((hit + partial + miss - 100.0).abs() < 1e-9);
    let lacking = partial + miss;
    assert!(hit > 0.0 && lacking > 20.0 && from_pool > 0.0, "{hit} % hits, {miss} % misses");
    // Each end needs every byte once.
    let least = 2.0 * BURST_BYTES as f64 / 1e6;
    assert!(from_pool + inline > least && inline > least / 5.0, "{from_pool} + {inline} MB");
}

#[tokio::test(flavor = "multi_thread")]
async fn without_a_pool_every_packet_misses() {
    let [hit, partial, miss, from_pool, inline] = costs(&typing(), quick(false)).await;
    assert_eq!([hit, partial, miss, from_pool], [0.0, 0.0, 100.0, 0.0]);
    assert!(inline > 0.0);
}

#[tokio::test(flavor = "multi_thread")]
async fn without_a_cipher_there_are_packets_and_no_pads() {
    let arms = Arm::all(&[MeasureSuite::NULL.protection()], &[true], &[<_>::default()]);
    let section = typing().section(&measure(&typing(), arms[0], Link::default(), 1).await);
    assert!(
        matches!(cell(&section, "pads", "null", "packets"), Cell::Figure(it) if it.value > 0.0)
    );
    for column in ["hit", "partial", "miss", "from the pool", "inline"] {
        assert_eq!(cell(&section, "pads", "null", column), Cell::Missing, "{column}");
    }
}
