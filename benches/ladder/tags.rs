//! Tests whether refusing a packet takes the same time wherever its tag is wrong, after "Dude, is
//! my code constant time?" (Reparaz, Balasch, Verbauwhede, 2017): `cargo bench --bench ladder --
//! tags`.
//!
//! An opening key gets the same packet over and over, with a tag whose first or last byte is wrong,
//! chosen at random each time. Prints the largest Welch's t over all times and over those below
//! each of a hundred percentiles. Below 4.5 in magnitude the two cannot be distinguished. As a
//! control, repeats the test with an added comparison that stops at the first wrong byte.

use std::cell::RefCell;
use std::hint::black_box;

use bytes::BytesMut;
use dudect_bencher::ctbench::{BenchMetadata, BenchName, BenchOpts, run_benches_console};
use dudect_bencher::rand::RngExt;
use dudect_bencher::{BenchRng, Class, CtRunner};
use keypadd_keystream::{Protection, Suite, TAG_BYTES};
use keypadd_pool::Coverage;

use crate::ends::{HEADER_BYTES, Measured};
use crate::sources::{Connections, Source, is_trial};

/// The suite that represents those with an HMAC.
const HMAC: &str = "aes-256-ctr-hmac-sha256";
/// Packets to refuse.
const SAMPLES: usize = 1_000_000;
/// Packets to refuse in a trial.
const TRIAL_SAMPLES: usize = 100;
/// Short: the less work besides the comparison, the clearer a difference.
const PAYLOAD_BYTES: usize = 64;

/// Tests tags of each kind and prints the results.
pub(crate) fn tags() {
    let bench = |name, benchfn| BenchMetadata { name: BenchName(name), seed: None, benchfn };
    let benches = vec![
        bench("ghash, from the pool", |runner, rng| refuse(runner, rng, "aes-256-gcm", false)),
        bench("poly1305, from the pool", |runner, rng| {
            refuse(runner, rng, "chacha20-poly1305", false);
        }),
        bench("hmac-sha256", |runner, rng| refuse(runner, rng, HMAC, false)),
        bench("stops at the first wrong byte, for comparison", |runner, rng| {
            refuse(runner, rng, HMAC, true);
        }),
    ];
    run_benches_console(BenchOpts::default(), benches).expect("standard output");
    println!("max t is to be below 4.5 in all but the last, and far above it there");
}

/// Refuses a packet whose pad is available, so that GCM verifies it by GHASH under a pooled mask.
fn refuse(runner: &mut CtRunner, rng: &mut BenchRng, suite: &str, stops: bool) {
    let suite: Protection = suite.parse::<Suite>().expect("a known suite").into();
    let mut connections = Connections::new(Source::Hot, suite, Measured::Opening);
    let (ends, _) = connections.next(PAYLOAD_BYTES);
    let mut packet = [0; HEADER_BYTES + PAYLOAD_BYTES + TAG_BYTES];
    let number = ends.next();
    ends.seal(&mut packet, HEADER_BYTES);
    let (header, sealed) = packet.split_at(HEADER_BYTES);
    let right: [u8; TAG_BYTES] = *sealed.last_chunk().expect("a packet ends with its tag");
    let wrong = [0, TAG_BYTES - 1].map(|place| {
        let mut tag = right;
        tag[place] ^= 1;
        tag
    });
    // One buffer for both: either tag is copied in whole, so that their addresses are the same.
    let sealed = RefCell::new(BytesMut::from(sealed));
    let samples = if is_trial() { TRIAL_SAMPLES } else { SAMPLES };
    for nth in 0..samples {
        // At least two of each, even in the shortest trial.
        let last = if nth < 4 { nth % 2 } else { usize::from(rng.random::<bool>()) };
        sealed.borrow_mut()[PAYLOAD_BYTES..].copy_from_slice(&wrong[last]);
        let class = [Class::Left, Class::Right][last];
        runner.run_one(class, || {
            let mut sealed = sealed.borrow_mut();
            let refused = ends.refuses(number, header, &mut sealed);
            refused && (!stops || is_equal(&sealed[PAYLOAD_BYTES..], &right))
        });
    }
    // Only the tag was wrong, and the pad was available.
    let before = ends.found(Coverage::Hit);
    let mut sealed = sealed.into_inner();
    sealed[PAYLOAD_BYTES..].copy_from_slice(&right);
    ends.open(number, header, &mut sealed);
    assert_eq!(ends.found(Coverage::Hit), before + 1, "{suite}: its pad was not available");
}

/// Compares the way a tag must never be compared.
fn is_equal(left: &[u8], right: &[u8]) -> bool {
    left.iter().zip(right).all(|(left, right)| black_box(*left) == black_box(*right))
}
