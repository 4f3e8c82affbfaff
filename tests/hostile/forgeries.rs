//! Sends forged packets to both ends of an idle tunnel: they consume no pad (I4).

use std::sync::atomic::AtomicBool;
use std::time::Instant;

use fastrand::Rng;
use testbed::Datagram;
use tokio::task::block_in_place;

use crate::SUITES;
use crate::exchange::{HANG, Job};
use crate::flood::{ENDS, flood, forget, listen_in, must_have_opened_each_once, number};
use crate::tunnel::Tunnel;

/// Bytes of a quinn connection ID, after the first byte of a short header (RFC 9000 17.3).
const CONNECTION_ID_BYTES: usize = 8;

/// Keystream that an idle tunnel spends during the attack: keep-alives, and path MTU discovery on
/// both of its connections, about nine probes of up to 9,188 bytes each. Spending pads on one
/// forged packet in ten would exceed it.
const SILENT_BYTES_MAX: u64 = 192 << 10;

/// A forged packet: random bytes after a genuine connection ID, or a genuine packet with one to
/// three bits flipped.
fn forged(rng: &mut Rng, copies: &[Datagram]) -> Datagram {
    let mut forged = copies[rng.usize(..copies.len())].clone();
    let datagram = &mut forged.bytes;
    if rng.bool() {
        datagram.resize(rng.usize(40..1400), 0);
        // Short header: the fixed bit set, the long header bit clear.
        datagram[0] = 0x40 | rng.u8(..0x40);
        rng.fill(&mut datagram[1 + CONNECTION_ID_BYTES..]);
    } else {
        for _ in 0..rng.usize(1..=3) {
            let bit = rng.usize(..datagram.len() * 8);
            datagram[bit / 8] ^= 1 << (bit % 8);
        }
    }
    forged
}

/// A daemon's counters: keystream spent, keystream filled, packets refused.
#[derive(Clone, Copy, Debug)]
struct Spent {
    keystream_bytes: u64,
    fill_bytes: u64,
    refused: u64,
}

impl Spent {
    fn of(tunnel: &Tunnel, verb: &str) -> Self {
        let figures = tunnel.figures(verb);
        Self {
            keystream_bytes: number(&figures, "/keystream_pool_bytes")
                + number(&figures, "/keystream_inline_bytes"),
            fill_bytes: number(&figures, "/pool/fill_bytes"),
            refused: number(&figures, "/open_failures"),
        }
    }

    fn since(self, before: Self) -> Self {
        Self {
            keystream_bytes: self.keystream_bytes - before.keystream_bytes,
            fill_bytes: self.fill_bytes - before.fill_bytes,
            refused: self.refused - before.refused,
        }
    }
}

/// Forges at both ends until each has refused `most` packets, however many the kernel drops.
async fn forgeries(suite: &'static str, most: u64, rate: f64) {
    let tunnel = Tunnel::start(suite, 8).await;
    listen_in(&tunnel);
    tunnel.must_carry(Job::each_way(1, 1 << 20)).await;
    tunnel.quiet().await;
    for (at, verb) in ENDS {
        let mut copies = tunnel.relay.recorded(at);
        copies.retain(|copy| copy.bytes.len() > 40 && copy.bytes[0] & 0x80 == 0);
        let mut rng = Rng::with_seed(most);
        let before = Spent::of(&tunnel, verb);
        let (mut sent, mut spent) = (0, before.since(before));
        let mut refused_at = Instant::now();
        while spent.refused < most {
            sent += block_in_place(|| {
                flood(rate, most / 4, &AtomicBool::new(false), || {
                    let _ = tunnel.relay.inject(at, &forged(&mut rng, &copies));
                })
            });
            let now = Spent::of(&tunnel, verb).since(before);
            if now.refused > spent.refused {
                refused_at = Instant::now();
            }
            assert!(refused_at.elapsed() < HANG, "{suite}: no forgeries reach {verb}");
            spent = now;
        }
        let Spent { keystream_bytes, fill_bytes, refused } = spent;
        println!(
            "{suite}, {sent} forged at {verb}: {refused} refused, {keystream_bytes} bytes of keystream spent, {fill_bytes} filled"
        );
        assert!(keystream_bytes <= SILENT_BYTES_MAX, "{suite}: {keystream_bytes} bytes spent");
        // The pool may fill what was missing before; spent pads would be refilled on top of that.
        assert!(fill_bytes <= tunnel.pool_budget_bytes(verb), "{suite}: {fill_bytes} filled");
    }
    must_have_opened_each_once(&tunnel);
    forget(&tunnel);
    tunnel.must_be_as_before().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn forgeries_spend_no_pad() {
    for suite in SUITES {
        forgeries(suite, 2_000, 10_000.0).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "a long proof: a minute"]
async fn a_hundred_thousand_forgeries_spend_no_pad() {
    for suite in SUITES {
        forgeries(suite, 100_000, 20_000.0).await;
    }
}
