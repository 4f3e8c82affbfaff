//! Whether refusing a packet takes the same time wherever its tag is wrong, after "Dude, is my code
//! constant time?" (Reparaz, Balasch, Verbauwhede, 2017): `cargo bench --bench ladder -- tags`.
//!
//! Opening keys are asked for one packet again and again, whose tag is wrong in its first byte or in its last;
//! which of them is drawn each time. Welch's t over all times, and over those below each of a hundred
//! percentiles, is printed where it is largest. Below 4.5 either way the two cannot be told apart. So that one sees
//! that a difference would be: the same with a comparison behind it that stops at the first wrong byte.

use std::cell::RefCell;
use std::hint::black_box;

use bytes::BytesMut;
use dudect_bencher::ctbench::{BenchMetadata, BenchName, BenchOpts, run_benches_console};
use dudect_bencher::rand::RngExt;
use dudect_bencher::{BenchRng, Class, CtRunner};
use keypadd_keystream::{Protection, Suite, TAG_BYTES};
use keypadd_pool::Coverage;

use crate::ends::{HEADER_BYTES, Measured};
use crate::sources::{Source, Supply, is_trial};

/// The suite that stands for those with an HMAC.
const HMAC: &str = "aes-256-ctr-hmac-sha256";
/// How often a packet is refused.
const SAMPLES: usize = 1_000_000;
/// The same in a trial.
const TRIAL_SAMPLES: usize = 100;
/// Short: the less there is besides the comparison, the better a difference is seen.
const PAYLOAD_BYTES: usize = 64;

/// Compares the tags of both kinds, and prints how.
pub(crate) fn tags() {
    let bench = |name, benchfn| BenchMetadata { name: BenchName(name), seed: None, benchfn };
    let benches = vec![
        bench("ghash, from the pool", |runner, rng| refuse(runner, rng, "aes-256-gcm", false)),
        bench("hmac-sha256", |runner, rng| refuse(runner, rng, HMAC, false)),
        bench("stops at the first wrong byte, for comparison", |runner, rng| {
            refuse(runner, rng, HMAC, true);
        }),
    ];
    run_benches_console(BenchOpts::default(), benches).expect("standard output");
    println!("max t is to be below 4.5 in all but the last, and far above it there");
}

/// Has a packet refused whose pad is at hand, so that AES-GCM checks it by the pool's GHASH.
fn refuse(runner: &mut CtRunner, rng: &mut BenchRng, suite: &str, stops: bool) {
    let suite: Protection = suite.parse::<Suite>().expect("a suite").into();
    let mut supply = Supply::new(Source::Hot, suite, Measured::Opening);
    let (ends, _) = supply.next(PAYLOAD_BYTES);
    let mut packet = [0; HEADER_BYTES + PAYLOAD_BYTES + TAG_BYTES];
    let number = ends.next();
    ends.seal(&mut packet, HEADER_BYTES);
    let (header, sealed) = packet.split_at(HEADER_BYTES);
    let right: [u8; TAG_BYTES] = *sealed.last_chunk().expect("it ends with the tag");
    let wrong = [0, TAG_BYTES - 1].map(|place| {
        let mut tag = right;
        tag[place] ^= 1;
        tag
    });
    // One buffer for both, into which either tag is copied as a whole: else their addresses differ.
    let sealed = RefCell::new(BytesMut::from(sealed));
    let samples = if is_trial() { TRIAL_SAMPLES } else { SAMPLES };
    for nth in 0..samples {
        // Two of each, so that there is something to compare in the shortest trial.
        let last = if nth < 4 { nth % 2 } else { usize::from(rng.random::<bool>()) };
        sealed.borrow_mut()[PAYLOAD_BYTES..].copy_from_slice(&wrong[last]);
        let class = [Class::Left, Class::Right][last];
        runner.run_one(class, || {
            let mut sealed = sealed.borrow_mut();
            let refused = ends.refuses(number, header, &mut sealed);
            refused && (!stops || is_equal(&sealed[PAYLOAD_BYTES..], &right))
        });
    }
    // It was the tag alone that was wrong, and the pad was there.
    let before = ends.found(Coverage::Hit);
    let mut sealed = sealed.into_inner();
    sealed[PAYLOAD_BYTES..].copy_from_slice(&right);
    ends.open(number, header, &mut sealed);
    assert_eq!(ends.found(Coverage::Hit), before + 1, "{suite}: its pad was not at hand");
}

/// What a tag must never be compared with.
fn is_equal(left: &[u8], right: &[u8]) -> bool {
    left.iter().zip(right).all(|(left, right)| black_box(*left) == black_box(*right))
}
