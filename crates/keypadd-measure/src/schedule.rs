//! Draws from a seed when each request is due, before the first is sent: a slow answer neither
//! delays a later request nor hides its wait (open loop). The same seed gives the same schedule.

use std::time::Duration;

use keypadd_traffic::{Due, Exchange, even};
use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::SeedableRng;
use rand_distr::{Bernoulli, Distribution, Exp, LogNormal, StandardUniform};

/// Time between two keys of a typist: mean and standard deviation of 136 million keystrokes
/// (Dhakal, Feit, Kristensson and Oulasvirta, "Observations on Typing from 136 Million Keystrokes",
/// CHI 2018).
const KEY_GAP_MEAN_SECONDS: f64 = 0.238_7;
const KEY_GAP_DEVIATION_SECONDS: f64 = 0.111_6;

/// Approximate size of a keystroke or its echo in ssh.
const KEY: u64 = 64;
/// Size of the answer to the key that ends a command.
const OUTPUT_BYTES: u64 = 1024;
/// Average keys per command.
const KEYS_PER_COMMAND: f64 = 16.0;

/// Typing model.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Typing {
    /// People typing at once, each at a human pace: 64 bytes out and 64 back, 1,024 at the end of a
    /// command.
    Human {
        /// Number of people.
        typists: u32,
    },
    /// A machine.
    Fixed {
        /// Keys per second.
        per_second: f64,
        /// Bytes out, and bytes back.
        bytes: u64,
    },
}

/// Keystrokes for `time`, in order.
pub(crate) fn typing(how: Typing, time: Duration, seed: u64) -> Vec<Due> {
    match how {
        Typing::Human { typists } => {
            let mut keys: Vec<Due> = (0..typists)
                .flat_map(|typist| typist_keys(time, seed, u64::from(typist)))
                .collect();
            keys.sort_by_key(|due| due.at);
            keys
        }
        Typing::Fixed { per_second, bytes } => even(per_second, Exchange::new(bytes, bytes), time),
    }
}

fn typist_keys(time: Duration, seed: u64, typist: u64) -> Vec<Due> {
    let mut random = generator(seed, typist);
    let gaps = LogNormal::from_mean_cv(
        KEY_GAP_MEAN_SECONDS,
        KEY_GAP_DEVIATION_SECONDS / KEY_GAP_MEAN_SECONDS,
    );
    let gaps = gaps.expect("mean and deviation are positive");
    let ends_command = Bernoulli::new(KEYS_PER_COMMAND.recip()).expect("one in sixteen");
    // In the midst of a gap, as one who has typed for a while; about so, as longer gaps are met more
    // often.
    let begun: f64 = StandardUniform.sample(&mut random);
    let mut at = Duration::ZERO;
    let mut left = 1.0 - begun;
    let keys = std::iter::from_fn(|| {
        at += Duration::from_secs_f64(gaps.sample(&mut random) * left);
        left = 1.0;
        let answer = if ends_command.sample(&mut random) { OUTPUT_BYTES } else { KEY };
        (at < time).then(|| Due { at, exchange: Exchange::new(KEY, answer) })
    });
    keys.collect()
}

/// Independent requests, `per_second` on average (a Poisson process), each drawn from `mix`, a list
/// of exchanges and their weights, for `time`. `client` distinguishes clients with the same seed.
///
/// # Panics
/// If `per_second` or a weight is not positive, or there is no mix.
pub(crate) fn arrivals(
    per_second: f64,
    mix: &[(Exchange, f64)],
    time: Duration,
    seed: u64,
    client: u64,
) -> Vec<Due> {
    let mut random = generator(seed, client);
    let gaps = Exp::new(per_second).expect("a positive rate");
    let weights = mix.iter().map(|(_, weight)| *weight).collect();
    let which = rand_distr::weighted::WeightedAliasIndex::new(weights).expect("positive weights");
    let mut at = Duration::ZERO;
    let requests = std::iter::from_fn(|| {
        at += Duration::from_secs_f64(gaps.sample(&mut random));
        let (exchange, _) = mix[which.sample(&mut random)];
        (at < time).then_some(Due { at, exchange })
    });
    requests.collect()
}

/// An independent random stream for each client of a seed.
fn generator(seed: u64, stream: u64) -> ChaCha8Rng {
    let mut random = ChaCha8Rng::seed_from_u64(seed);
    random.set_stream(stream);
    random
}

#[cfg(test)]
mod tests {
    use super::*;

    const MINUTE: Duration = Duration::from_secs(60);
    const HUMAN: Typing = Typing::Human { typists: 10 };

    #[test]
    fn the_same_seed_offers_the_same_traffic_and_another_does_not() {
        assert_eq!(typing(HUMAN, MINUTE, 7), typing(HUMAN, MINUTE, 7));
        assert_ne!(typing(HUMAN, MINUTE, 7), typing(HUMAN, MINUTE, 8));
        let mix = [(Exchange::new(64, 1_000), 4.0), (Exchange::new(64, 10_000), 1.0)];
        let files = |seed, client| arrivals(20.0, &mix, MINUTE, seed, client);
        assert_eq!(files(7, 0), files(7, 0));
        assert_ne!(files(7, 0), files(7, 1));
    }

    #[test]
    fn typists_type_as_people_do() {
        let keys = typing(Typing::Human { typists: 1 }, 100 * MINUTE, 1);
        let gaps: Vec<f64> =
            keys.windows(2).map(|pair| (pair[1].at - pair[0].at).as_secs_f64()).collect();
        let mean = gaps.iter().sum::<f64>() / gaps.len() as f64;
        let variance = gaps.iter().map(|gap| (gap - mean).powi(2)).sum::<f64>() / gaps.len() as f64;
        assert!((mean / KEY_GAP_MEAN_SECONDS - 1.0).abs() < 0.02, "{mean}");
        assert!((variance.sqrt() / KEY_GAP_DEVIATION_SECONDS - 1.0).abs() < 0.05, "{variance}");
        let commands = keys.iter().filter(|due| due.exchange.response_bytes() > KEY).count();
        let share = commands as f64 * KEYS_PER_COMMAND / keys.len() as f64;
        assert!((share - 1.0).abs() < 0.1, "{share}");
    }

    #[test]
    fn typists_are_at_it_from_the_beginning() {
        let typists = 1_000;
        let first = typing(Typing::Human { typists }, Duration::from_millis(100), 1).len() as f64;
        let expected = 0.1 / KEY_GAP_MEAN_SECONDS * f64::from(typists);
        assert!((first / expected - 1.0).abs() < 0.3, "{first}, not {expected}");
    }

    #[test]
    fn arrivals_have_the_rate_and_the_mix_that_were_asked_for() {
        let (small, large) = (Exchange::new(64, 1_000), Exchange::new(64, 10_000));
        let requests = arrivals(50.0, &[(small, 4.0), (large, 1.0)], 20 * MINUTE, 3, 0);
        let rate = requests.len() as f64 / (20.0 * 60.0);
        assert!((rate / 50.0 - 1.0).abs() < 0.03, "{rate}");
        let share = requests.iter().filter(|due| due.exchange == large).count() as f64
            / requests.len() as f64;
        assert!((share - 0.2).abs() < 0.02, "{share}");
        assert!(requests.is_sorted_by_key(|due| due.at));
    }

    #[test]
    fn a_machine_types_evenly() {
        let keys = typing(Typing::Fixed { per_second: 100.0, bytes: 128 }, MINUTE, 0);
        assert_eq!(keys.len(), 6_000);
        assert_eq!(keys[1].at - keys[0].at, Duration::from_millis(10));
        assert_eq!(keys[0].exchange, Exchange::new(128, 128));
    }
}
