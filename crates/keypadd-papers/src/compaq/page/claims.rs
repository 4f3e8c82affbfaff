//! The paper's claims, each with its rule.

use keypadd_measure::results::{Estimate, Verdict};
use keypadd_measure::statistics::ratio;
use keypadd_measure::verdict::Rule;

use super::printed::{NOISE, PROCESSOR_GAINS, TRIPLE_OVER_SINGLE, printed_over_base};
use super::{
    BASE, Figures, LARGE, MEDIUM, PLAIN, PROCESSORS, SIZES, SMALL, TUNNELS, name, protection,
};
use crate::claim::{Claim, half_of};
use crate::lab::Missed;

/// Places in the list of tunnels.
const MD5: usize = 2;
const SHA1: usize = 3;
const DES: usize = 4;
const TRIPLE_DES: usize = 5;
const RC2: usize = 6;
const MD5_DES: usize = 7;
/// Pairs of single and triple DES with no hash, MD5 and SHA-1.
const PAIRS: [[usize; 2]; 3] = [[DES, TRIPLE_DES], [MD5_DES, 8], [9, 10]];

pub(super) fn verdicts(figures: &Figures) -> Vec<Verdict> {
    let mut verdicts =
        vec![tunnel(figures, LARGE), tunnel(figures, MEDIUM), tunnel(figures, SMALL)];
    verdicts.extend([DES, TRIPLE_DES, RC2].map(|cipher| cost(figures, "C2", cipher, LARGE)));
    verdicts.extend([DES, TRIPLE_DES, RC2].map(|cipher| less_for_medium(figures, cipher)));
    verdicts.extend(triple_over_single(figures));
    for size in [LARGE, MEDIUM] {
        verdicts.extend([MD5, SHA1].map(|hash| cost(figures, "C4", hash, size)));
        verdicts.push(hashes_alike(figures, size));
    }
    verdicts.extend(
        (0..PROCESSORS.len()).flat_map(|nth| [0, 1].map(|size| processor(figures, nth, size))),
    );
    verdicts.push(lacking(
        "C6",
        "Protection from replays costs nothing.",
        "throughput, with protection over without",
        "QUIC has no mode without: a receiver must drop a packet number that it has seen (RFC 9000, 12.3), and \
         encryption under a number that may repeat would not be safe",
    ));
    verdicts.push(lacking(
        "C7",
        "Negotiated keys are 14 % faster than manual ones with large files, 7 % with medium ones.",
        "throughput, negotiated over manual keys",
        "keys are always negotiated: TLS 1.3 has no manual ones",
    ));
    verdicts.extend(grows_with_size(figures));
    verdicts.push(usual(figures));
    verdicts.push(lacking(
        "C11",
        "A faster processor helps negotiated keys less than manual ones.",
        "gain of a faster processor, negotiated over manual keys",
        "keys are always negotiated: TLS 1.3 has no manual ones",
    ));
    verdicts
}

fn judge(figures: &Figures, claim: &Claim, today: Option<Estimate>) -> Verdict {
    claim.judge(today, figures.rounds.missed.as_ref())
}

fn lacking(id: &'static str, claim: &str, what: &str, why: &str) -> Verdict {
    Claim::new(id, claim, what, Rule::AtLeast(1.0)).judge(None, Some(&Missed::Lacking(why.into())))
}

/// C1: what the tunnel costs without encryption.
fn tunnel(figures: &Figures, size: usize) -> Verdict {
    let what = format!("throughput of {} files, base over no tunnel", SIZES[size]);
    let claim = match size {
        LARGE => {
            let claim =
                "A tunnel without encryption carries 40 % less of large files than no tunnel.";
            Claim::new("C1", claim, &what, half_of(0.6)).printed(0.6, "Figure 2, Conclusion")
        }
        _ => {
            let claim = format!(
                "A tunnel without encryption carries as much of {} files as no tunnel.",
                SIZES[size]
            );
            Claim::new("C1", &claim, &what, equal(size))
        }
    };
    judge(figures, &claim, ratio(&figures.of(BASE, size), &figures.of(PLAIN, size)))
}

/// Two differ by no more than the paper's tool does by itself.
fn equal(size: usize) -> Rule {
    let [least, most] = noise(size);
    Rule::Within(least, most)
}

/// The least and the most that are no difference: limits that people read, so without what computing
/// leaves behind the last digit.
fn noise(size: usize) -> [f64; 2] {
    [1.0 - NOISE[size], 1.0 + NOISE[size]].map(|limit| (limit * 1e4).round() / 1e4)
}

/// C2, C4: what a cipher or a hash costs.
fn cost(figures: &Figures, id: &'static str, nth: usize, size: usize) -> Verdict {
    let (name, paper) = (name(TUNNELS[nth]), printed_over_base(nth, size).unwrap_or(1.0));
    let claim = Claim::new(
        id,
        &format!(
            "{name} carries {:.0} % less of {} files than the base.",
            (1.0 - paper) * 1e2,
            SIZES[size]
        ),
        &format!("throughput of {} files, {name} over the base", SIZES[size]),
        half_of(paper),
    );
    let today = ratio(&figures.of(nth, size), &figures.of(BASE, size));
    judge(figures, &claim.printed(paper, "Conclusion, Figures 3, 9 and 10"), today)
}

/// C2: a cipher costs medium files less.
fn less_for_medium(figures: &Figures, nth: usize) -> Verdict {
    let name = name(TUNNELS[nth]);
    let claim = Claim::new(
        "C2",
        &format!("{name} costs medium files less than large ones."),
        &format!("throughput of {name} over the base, medium over large files"),
        Rule::AtLeast(1.0),
    );
    judge(
        figures,
        &claim,
        compared(&figures.of(nth, MEDIUM), &figures.of(nth, LARGE), figures, MEDIUM, LARGE),
    )
}

/// What is left of one size over what is left of another.
fn compared(
    one: &[f64],
    other: &[f64],
    figures: &Figures,
    of_one: usize,
    of_other: usize,
) -> Option<Estimate> {
    let left = |rates: &[f64], size: usize| -> Vec<f64> {
        rates.iter().zip(figures.of(BASE, size)).map(|(rate, base)| rate / base).collect()
    };
    ratio(&left(one, of_one), &left(other, of_other))
}

/// C3 with a hash, C9 without: triple over single DES.
fn triple_over_single(figures: &Figures) -> Vec<Verdict> {
    let mut verdicts = Vec::new();
    for (pair, [single, triple]) in PAIRS.into_iter().enumerate() {
        let id = if pair == 0 { "C9" } else { "C3" };
        for (printed, size) in TRIPLE_OVER_SINGLE[pair].into_iter().zip([MEDIUM, LARGE]) {
            let [one, three] = [single, triple].map(|nth| name(TUNNELS[nth]));
            let claim = Claim::new(
                id,
                &format!(
                    "{three} carries {:.0} % less of {} files than {one}.",
                    (1.0 - printed) * 1e2,
                    SIZES[size]
                ),
                &format!("throughput of {} files, {three} over {one}", SIZES[size]),
                half_of(printed),
            );
            let today = ratio(&figures.of(triple, size), &figures.of(single, size));
            verdicts.push(judge(figures, &claim.printed(printed, "Table 3"), today));
        }
    }
    for (printed, size) in TRIPLE_OVER_SINGLE[0].into_iter().zip([MEDIUM, LARGE]) {
        let claim = Claim::new(
            "C9",
            &format!(
                "The same with ciphers as slow beside the network as the paper's: {:.0} % less of {} files.",
                (1.0 - printed) * 1e2,
                SIZES[size]
            ),
            &format!("throughput of {} files, triple over single DES, both emulated", SIZES[size]),
            half_of(printed),
        );
        let today = ratio(&figures.of_emulated(1, size), &figures.of_emulated(0, size));
        verdicts.push(judge(figures, &claim.printed(printed, "Table 3"), today));
    }
    verdicts
}

/// C4: hashes cost the same.
fn hashes_alike(figures: &Figures, size: usize) -> Verdict {
    let paper = |nth| printed_over_base(nth, size).unwrap_or(1.0);
    let claim = Claim::new(
        "C4",
        &format!("SHA-1 is as fast as MD5 with {} files.", SIZES[size]),
        &format!("throughput of {} files, SHA-1 over MD5, no cipher", SIZES[size]),
        equal(size),
    );
    let today = ratio(&figures.of(SHA1, size), &figures.of(MD5, size));
    judge(figures, &claim.printed(paper(SHA1) / paper(MD5), "Figures 9 and 10"), today)
}

/// Throughput with a slower or faster processor, medium or large files.
pub(super) fn speed(figures: &Figures, nth: usize, size: usize, is_fast: bool) -> Vec<f64> {
    figures.speeds.figures(|it| if is_fast { it.fast[nth][size] } else { it.slow[nth][size] })
}

/// C5: a faster processor helps.
fn processor(figures: &Figures, nth: usize, size: usize) -> Verdict {
    let (suite, files) = (protection(PROCESSORS[nth]), ["medium", "large"][size]);
    let printed = PROCESSOR_GAINS[nth].negotiated[size];
    let claim = Claim::new(
        "C5",
        &format!(
            "Gateways of 400 rather than 266 MHz carry {:.0} % more of {files} files with {suite}.",
            (printed - 1.0) * 1e2
        ),
        &format!("throughput of {files} files with {suite}, faster over slower gateways"),
        half_of(printed),
    );
    let [slow, fast] = [false, true].map(|is_fast| speed(figures, nth, size, is_fast));
    let claim = claim.printed(printed, "Table 5, negotiated keys");
    claim.judge(ratio(&fast, &slow), figures.speeds.missed.as_ref())
}

/// C8: the larger the files, the more is lost; small ones lose nothing until there are many clients.
fn grows_with_size(figures: &Figures) -> Vec<Verdict> {
    let grows = |label: &str, of: &dyn Fn(usize) -> Vec<f64>| {
        let claim = Claim::new(
            "C8",
            &format!("{label} costs large files more than small ones."),
            &format!("throughput over the base with {label}, small over large files"),
            Rule::AtLeast(1.0),
        );
        judge(figures, &claim, compared(&of(SMALL), &of(LARGE), figures, SMALL, LARGE))
    };
    let triple = name(TUNNELS[TRIPLE_DES]);
    let mut verdicts = vec![
        grows(&triple, &|size| figures.of(TRIPLE_DES, size)),
        grows(&format!("{triple} (emulated)"), &|size| figures.of_emulated(1, size)),
    ];
    for (emulated, label) in [(false, triple.clone()), (true, format!("{triple} (emulated)"))] {
        for (is_most, clients, rule) in
            [(false, 4, equal(SMALL)), (true, 20, Rule::AtMost(noise(SMALL)[0]))]
        {
            let claim = Claim::new(
                "C8",
                &format!(
                    "With {clients} clients, {label} costs small files {}.",
                    if is_most { "something" } else { "nothing" }
                ),
                &format!("throughput of small files with {clients} clients, {label} over the base"),
                rule,
            );
            let of = |rates: &[f64]| {
                let nth = if is_most { rates.last() } else { rates.first() };
                nth.copied().unwrap_or(f64::NAN)
            };
            let base = figures.rounds.figures(|it| of(&it.tunnels[BASE][SMALL]));
            let rates = figures.rounds.figures(|it| match emulated {
                true => of(&it.emulated[1][SMALL]),
                false => of(&it.tunnels[TRIPLE_DES][SMALL]),
            });
            verdicts.push(judge(figures, &claim, ratio(&rates, &base)));
        }
    }
    verdicts
}

/// C10: what a usual installation costs.
fn usual(figures: &Figures) -> Verdict {
    let name = name(TUNNELS[MD5_DES]);
    let claim = Claim::new(
        "C10",
        &format!("{name} carries 40 % less of medium files than no tunnel."),
        &format!("throughput of medium files, {name} over no tunnel"),
        half_of(0.6),
    );
    let today = ratio(&figures.of(MD5_DES, MEDIUM), &figures.of(PLAIN, MEDIUM));
    judge(figures, &claim.printed(0.6, "Conclusion"), today)
}
