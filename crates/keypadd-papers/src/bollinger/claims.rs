//! Lists this paper's claims, each with the paper's figures and a rule to judge it.

use keypadd_measure::sequence::{center, ratio};
use keypadd_measure::verdict::Rule;

use super::{Claim, LIFETIME_SECONDS, PAIRS, SETTINGS, Streamed, Streams, TABLE_2, TABLE_3, Task};
use crate::lab::{Missed, Today};

/// Differences up to this are slight: twice the paper's largest between two ciphers.
const SLIGHT: Rule = Rule::Within(1.0 - 0.02, 1.0 + 0.02);

/// Forward secrecy costs 1 to 2 %: between half of the lower and twice the upper figure.
const COSTS: Rule = Rule::Within(0.96, 0.995);

/// A cost is amplified if at least this much more is lost.
const AMPLIFIED: Rule = Rule::AtMost(0.995);

pub(super) fn claims() -> Vec<Claim> {
    let mut claims = vec![
        Claim::new(
            "B1",
            "A stream with 3DES is as fast as one with DES, but for a slight difference.",
            "rate, 3DES over DES, short streams",
            SLIGHT,
            [Task::Short],
            |it| it.short.ratio(|it| it[1].mbit, |it| it[0].mbit),
        )
        .printed(TABLE_2[1] / TABLE_2[0], "Table 2"),
        Claim::new(
            "B1",
            "The same holds for long streams.",
            "rate, 3DES over DES, long streams",
            SLIGHT,
            [Task::Long],
            |it| compared(&it.long, [0, 1]),
        )
        .printed(TABLE_3[1] / TABLE_3[0], "Table 3"),
    ];
    let suite = |pair: [usize; 2]| SETTINGS[pair[0]].suite;
    claims.extend(PAIRS.map(|pair| {
        Claim::new(
            "B2",
            format!(
                "A fresh key exchange every two minutes costs a stream with {} 1 to 2 %.",
                suite(pair)
            ),
            format!("rate, {}, fresh key exchanges over none", suite(pair)),
            COSTS,
            [Task::Long],
            move |it| {
                let (left, missed) = left(&it.long, pair);
                (center(&left), missed.cloned())
            },
        )
        .printed(TABLE_3[pair[1]] / TABLE_3[pair[0]], "Table 3")
    }));
    claims.extend(PAIRS.map(|[without, with]| {
        Claim::new(
            "B3",
            format!(
                "A short stream, {}, ends before a fresh key exchange is due.",
                SETTINGS[with].name()
            ),
            "key exchanges of a stream, with forward secrecy over without",
            Rule::AtMost(1.0),
            [Task::Short],
            move |it| {
                let of = |nth: usize| move |it: &[Streamed; 4]| f64::from(it[nth].key_exchanges);
                it.short.ratio(of(with), of(without))
            },
        )
        .shown("Table 2")
    }));
    claims.extend(PAIRS.map(|[without, with]| {
        let suite = suite([without, with]);
        Claim::new(
            "B3",
            format!("So Table 2 shows nothing of forward secrecy: {suite} is as fast with it as without."),
            format!("rate, {suite}, with over without, short streams"),
            SLIGHT,
            [Task::Short],
            move |it| it.short.ratio(|it| it[with].mbit, |it| it[without].mbit),
        )
        .printed(TABLE_2[with] / TABLE_2[without], "Table 2")
    }));
    claims.extend(PAIRS.map(|pair| {
        let suite = suite(pair);
        Claim::new(
            "B4",
            format!(
                "A round trip of 600 ms makes fresh key exchanges dearer for a stream with {suite}."
            ),
            format!("rate with fresh key exchanges over without, {suite}, 600 ms over near"),
            AMPLIFIED,
            [Task::Long, Task::Far],
            move |it| {
                let [(far, missed), (near, also_missed)] =
                    [&it.far, &it.long].map(|streams| left(streams, pair));
                (ratio(&far, &near), missed.or(also_missed).cloned())
            },
        )
    }));
    claims
}

/// The ratio of the second setting's rate to the first's, in rounds that have both, and why rounds
/// are missing.
pub(super) fn compared(streams: &Streams, [one, other]: [usize; 2]) -> Today {
    let [one, other] = [&streams[one], &streams[other]];
    let [base, rates] = [one, other].map(|it| it.figures(|it| it.mbit));
    let missed = one.missed.as_ref().or(other.missed.as_ref());
    (ratio(&rates, &base), missed.cloned())
}

/// What a fresh key exchange every two minutes leaves of a stream's rate, round by round, scaled
/// from the measured time of one exchange. Also why rounds are missing.
pub(super) fn left(streams: &Streams, [without, with]: [usize; 2]) -> (Vec<f64>, Option<&Missed>) {
    let [without, with] = [&streams[without], &streams[with]];
    let pairs = without.all.iter().zip(&with.all);
    let lost = |(without, with): (&Streamed, &Streamed)| {
        with.lifetime_seconds * (1.0 - with.mbit / without.mbit)
    };
    let left = pairs.map(|pair| 1.0 - lost(pair) / LIFETIME_SECONDS).collect();
    (left, without.missed.as_ref().or(with.missed.as_ref()))
}
