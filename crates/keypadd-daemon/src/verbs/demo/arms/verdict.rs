//! States in one line per arm what the demo measured. Pure: opposite measurements give the opposite
//! verdict.

use super::measured::{ARMS, Measured};

/// Keystrokes that differ by less than this factor are called level: an idle machine's wake-ups
/// cause that much from run to run.
const KEYSTROKE_MARGIN: f64 = 1.1;

/// Bursts that differ by less than this factor are called level: they last some milliseconds and
/// vary more: 1 / 0.85.
const BURST_MARGIN: f64 = 1.18;

/// How many times as fast one arm is as another.
#[derive(Clone, Copy, Debug)]
struct Speedup {
    keystrokes: f64,
    burst: f64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Outcome {
    /// Faster in at least one, slower in neither.
    Faster,
    Level,
    /// Slower in at least one, faster in neither.
    Slower,
    /// Faster in one, slower in the other.
    Mixed,
}

/// A line for each arm, in the order of [`ARMS`]: did the pool pay off, how does 3DES without it
/// compare, and does 3DES with it keep up with AES. `2.00x` is twice as fast. At most 80
/// characters.
pub(super) fn verdicts(rows: &[Measured; ARMS.len()]) -> [String; ARMS.len()] {
    let [pooled, bare, aes] = rows;
    let sentences = [
        say(pooled, bare, |outcome| match outcome {
            Outcome::Faster => "the pool helped",
            Outcome::Level | Outcome::Slower => "the pool: no gain",
            Outcome::Mixed => "the pool: mixed result",
        }),
        say(aes, bare, |outcome| match outcome {
            Outcome::Faster => "AES beat it",
            Outcome::Level => "as fast as AES",
            Outcome::Slower => "AES was slower",
            Outcome::Mixed => "AES: mixed result",
        }),
        say(pooled, aes, |outcome| match outcome {
            Outcome::Faster => "pooled 3DES was faster",
            Outcome::Level => "pooled 3DES kept up",
            Outcome::Slower => "pooled 3DES fell behind",
            Outcome::Mixed => "pooled 3DES: mixed result",
        }),
    ];
    let mut arms = ARMS.into_iter();
    sentences.map(|sentence| {
        let arm = arms.next().expect("a sentence for each arm");
        let sentence = sentence.unwrap_or_else(|| "no verdict, the demo ended too early".into());
        format!("{arm}: {sentence}")
    })
}

/// The outcome in words, and how many times as fast `this` is as `other`.
fn say(
    this: &Measured,
    other: &Measured,
    words: impl Fn(Outcome) -> &'static str,
) -> Option<String> {
    let speedup = Speedup::of(this, other)?;
    let [keystrokes, burst] = [speedup.keystrokes, speedup.burst].map(times);
    Some(format!("{}, keystrokes {keystrokes}, burst {burst}", words(speedup.outcome())))
}

impl Speedup {
    /// `None` if a figure is missing or zero.
    fn of(this: &Measured, other: &Measured) -> Option<Self> {
        let keystrokes = other.keystrokes?.p50_us / this.keystrokes?.p50_us;
        let burst = this.burst_mbit? / other.burst_mbit?;
        (keystrokes.is_finite() && burst.is_finite()).then_some(Self { keystrokes, burst })
    }

    fn outcome(self) -> Outcome {
        let Self { keystrokes, burst } = self;
        let faster = keystrokes >= KEYSTROKE_MARGIN || burst >= BURST_MARGIN;
        let slower = keystrokes <= KEYSTROKE_MARGIN.recip() || burst <= BURST_MARGIN.recip();
        match (faster, slower) {
            (true, false) => Outcome::Faster,
            (false, false) => Outcome::Level,
            (false, true) => Outcome::Slower,
            (true, true) => Outcome::Mixed,
        }
    }
}

fn times(ratio: f64) -> String {
    if ratio < 10.0 { format!("{ratio:.2}x") } else { format!("{ratio:.0}x") }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::verbs::demo::traffic::Typed;

    fn row(p50_us: f64, burst_mbit: f64) -> Measured {
        Measured {
            keystrokes: Some(Typed { count: 300, p50_us, p99_us: 2.0 * p50_us }),
            burst_mbit: Some(burst_mbit),
            ..Measured::default()
        }
    }

    #[test]
    fn a_pool_that_hides_3des_has_helped() {
        let lines = verdicts(&[row(116.0, 2_300.0), row(444.0, 87.0), row(115.0, 2_500.0)]);
        assert_eq!(
            lines,
            [
                "3des-ctr-hmac-sha1, pool on: the pool helped, keystrokes 3.83x, burst 26x",
                "3des-ctr-hmac-sha1, pool off: AES beat it, keystrokes 3.86x, burst 29x",
                "aes-256-gcm, pool on: pooled 3DES kept up, keystrokes 0.99x, burst 0.92x",
            ]
        );
    }

    #[test]
    fn a_pool_that_changes_nothing_has_not_helped() {
        let [pooled, bare, aes] = verdicts(&[row(100.0, 90.0), row(104.0, 87.0), row(104.0, 85.0)]);
        assert!(pooled.contains("the pool: no gain, keystrokes 1.04x, burst 1.03x"), "{pooled}");
        assert!(bare.contains("as fast as AES"), "{bare}");
        assert!(aes.contains("pooled 3DES kept up"), "{aes}");
    }

    #[test]
    fn a_pool_that_costs_has_not_helped() {
        let [pooled, bare, aes] = verdicts(&[row(200.0, 50.0), row(100.0, 87.0), row(110.0, 70.0)]);
        assert!(pooled.contains("the pool: no gain, keystrokes 0.50x"), "{pooled}");
        assert!(bare.contains("AES was slower"), "{bare}");
        assert!(aes.contains("pooled 3DES fell behind"), "{aes}");
    }

    #[test]
    fn a_gain_in_one_and_a_loss_in_the_other_is_a_mixed_result() {
        let [pooled, bare, aes] = verdicts(&[row(50.0, 50.0), row(100.0, 87.0), row(90.0, 20.0)]);
        assert!(pooled.contains("the pool: mixed result"), "{pooled}");
        assert!(bare.contains("AES: mixed result"), "{bare}");
        assert!(aes.contains("pooled 3DES was faster"), "{aes}");
    }

    #[test]
    fn a_line_fits_eighty_columns() {
        for [keystrokes, burst] in [[1.0, 1.0], [1.0, 0.01], [0.01, 1.0], [0.01, 0.01]] {
            let [low, high] = [row(100.0, 100.0), row(100.0 / keystrokes, 100.0 * burst)];
            for rows in [[low.clone(), high.clone(), low.clone()], [high.clone(), low, high]] {
                for line in verdicts(&rows) {
                    assert!(line.len() <= 80, "{} {line}", line.len());
                }
            }
        }
    }

    #[test]
    fn an_arm_that_did_not_run_has_no_verdict() {
        let [pooled, bare, aes] =
            verdicts(&[row(100.0, 90.0), row(300.0, 9.0), Measured::default()]);
        assert!(pooled.contains("the pool helped"), "{pooled}");
        for line in [bare, aes] {
            assert!(line.ends_with("no verdict, the demo ended too early"), "{line}");
        }
    }
}
