//! Lists the claims, each with the paper's figures and its rule.

use keypadd_measure::results::Estimate;
use keypadd_measure::sequence::ratio;
use keypadd_measure::verdict::Rule;

use super::printed::{
    NOISE, PROCESSOR_GAINS, SHA1_OVER_MD5, TRIPLE_NEGOTIATED, TRIPLE_OVER_SINGLE, printed_over_base,
};
use super::{
    ArmId, BASE, Claim, LARGE, MEDIUM, Measurements, PLAIN, PROCESSORS, Rates, SIZES, SMALL, Task,
    at, protection, typical,
};
use crate::claim::half_of;
use crate::lab::Today;

const MD5: ArmId = ArmId::Tunnel(2);
const SHA1: ArmId = ArmId::Tunnel(3);
const DES: ArmId = ArmId::Tunnel(4);
const TRIPLE_DES: ArmId = ArmId::Tunnel(5);
const RC2: ArmId = ArmId::Tunnel(6);
const MD5_DES: ArmId = ArmId::Tunnel(7);
const MD5_TRIPLE: ArmId = ArmId::Tunnel(8);
const EMULATED_DES: ArmId = ArmId::Emulated(0);
const EMULATED_TRIPLE: ArmId = ArmId::Emulated(1);
/// Pairs of single and triple DES with no hash, MD5 and SHA-1.
const PAIRS: [[ArmId; 2]; 3] =
    [[DES, TRIPLE_DES], [MD5_DES, MD5_TRIPLE], [ArmId::Tunnel(9), ArmId::Tunnel(10)]];
/// Pairs of MD5 and SHA-1 with no cipher, DES and 3DES.
const HASHES: [[ArmId; 2]; 3] =
    [[MD5, SHA1], [MD5_DES, ArmId::Tunnel(9)], [MD5_TRIPLE, ArmId::Tunnel(10)]];

pub(in super::super) fn claims() -> Vec<Claim> {
    let mut claims = vec![tunnel(LARGE), tunnel(MEDIUM), tunnel(SMALL)];
    claims.extend([DES, TRIPLE_DES, RC2].map(|cipher| cost("C2", cipher, LARGE)));
    claims.extend([DES, TRIPLE_DES, RC2].map(less_for_medium));
    claims.extend(triple_over_single());
    for size in [LARGE, MEDIUM] {
        claims.extend([MD5, SHA1].map(|hash| cost("C4", hash, size)));
        claims.extend((0..HASHES.len()).map(|nth| hashes_alike(nth, size)));
    }
    claims.extend((0..PROCESSORS.len()).flat_map(|nth| [0, 1].map(|size| processor(nth, size))));
    claims.extend([
        Claim::lacking(
            "C6",
            "Protection from replays costs nothing.",
            "throughput, with protection over without",
            "QUIC has no mode without: a receiver must drop a packet number that it has seen (RFC 9000, 12.3), and \
             encryption under a number that may repeat would not be safe",
        ),
        Claim::lacking(
            "C7",
            "Negotiated keys are 14 % faster than manual ones with large files, 7 % with medium ones.",
            "throughput, negotiated over manual keys",
            "keys are always negotiated: TLS 1.3 has no manual ones",
        ),
    ]);
    claims.extend(grows_with_size());
    claims.extend([
        Claim::new(
            "C10",
            format!("{} carries 40 % less of medium files than no tunnel.", MD5_DES.name()),
            format!("throughput of medium files, {} over no tunnel", MD5_DES.name()),
            half_of(0.6),
            both(PLAIN, MD5_DES),
            over(MD5_DES, PLAIN, MEDIUM),
        )
        .printed(0.6, "Conclusion"),
        Claim::lacking(
            "C11",
            "A faster processor helps negotiated keys less than manual ones.",
            "gain of a faster processor, negotiated over manual keys",
            "keys are always negotiated: TLS 1.3 has no manual ones",
        ),
    ]);
    claims
}

/// The tasks of a claim about two arms.
fn both(one: ArmId, other: ArmId) -> [Task; 2] {
    [one, other].map(Task::Arm)
}

/// Ratio of two arms' throughput for files of one size.
fn over(arm: ArmId, base: ArmId, size: usize) -> impl Fn(&Measurements) -> Today {
    move |it| {
        it.rounds.ratio(|it| typical(&arm.rates(it)[size]), |it| typical(&base.rates(it)[size]))
    }
}

/// What the paper prints of an arm over the base; 1 where it prints nothing.
fn printed(arm: ArmId, size: usize) -> f64 {
    arm.tunnel().and_then(|nth| printed_over_base(nth, size)).unwrap_or(1.0)
}

/// C1: the cost of the tunnel without encryption.
fn tunnel(size: usize) -> Claim {
    let files = SIZES[size];
    let what = format!("throughput of {files} files, base over no tunnel");
    let today = over(BASE, PLAIN, size);
    match size {
        LARGE => {
            let claim =
                "A tunnel without encryption carries 40 % less of large files than no tunnel.";
            Claim::new("C1", claim, what, half_of(0.6), both(PLAIN, BASE), today)
                .printed(0.6, "Figure 2, Conclusion")
        }
        _ => {
            let claim = format!(
                "A tunnel without encryption carries as much of {files} files as no tunnel."
            );
            Claim::new("C1", claim, what, equal(size), both(PLAIN, BASE), today).shown("Figure 2")
        }
    }
}

/// The two differ by no more than the noise of the paper's tool.
fn equal(size: usize) -> Rule {
    let [least, most] = noise(size);
    Rule::Within(least, most)
}

/// The ratio limits within which there is no difference, rounded because people read them.
fn noise(size: usize) -> [f64; 2] {
    [1.0 - NOISE[size], 1.0 + NOISE[size]].map(|limit| (limit * 1e4).round() / 1e4)
}

/// C2, C4: the cost of a cipher or a hash.
fn cost(id: &'static str, arm: ArmId, size: usize) -> Claim {
    let (name, paper) = (arm.name(), printed(arm, size));
    let source = match arm {
        MD5 => "Conclusion, Figure 9",
        SHA1 => "Conclusion, Figure 10",
        RC2 => "Conclusion, Figures 3 and 8",
        _ => "Conclusion, Figure 3",
    };
    let less = (1.0 - paper) * 1e2;
    Claim::new(
        id,
        format!("{name} carries {less:.0} % less of {} files than the base.", SIZES[size]),
        format!("throughput of {} files, {name} over the base", SIZES[size]),
        half_of(paper),
        both(BASE, arm),
        over(arm, BASE, size),
    )
    .printed(paper, source)
}

/// C2: a cipher costs medium files less.
fn less_for_medium(arm: ArmId) -> Claim {
    let name = arm.name();
    Claim::new(
        "C2",
        format!("{name} costs medium files less than large ones."),
        format!("throughput of {name} over the base, medium over large files"),
        Rule::AtLeast(1.0),
        both(BASE, arm),
        move |it| left_of(it, arm, MEDIUM),
    )
}

/// What an arm keeps of the base's throughput with files of one size, over what it keeps with large
/// ones.
fn left_of(figures: &Measurements, arm: ArmId, size: usize) -> Today {
    let left = |size: usize| {
        let of = |arm: ArmId| figures.of(arm, size);
        of(arm).iter().zip(of(BASE)).map(|(of_arm, base)| of_arm / base).collect::<Vec<f64>>()
    };
    let today: Option<Estimate> = ratio(&left(size), &left(LARGE));
    (today, figures.rounds.missed.clone())
}

/// C3 with a hash, C9 without: triple over single DES.
fn triple_over_single() -> Vec<Claim> {
    let mut claims = Vec::new();
    let less = |printed: f64| (1.0 - printed) * 1e2;
    for (pair, [single, triple]) in PAIRS.into_iter().enumerate() {
        let id = if pair == 0 { "C9" } else { "C3" };
        let [one, three] = [single, triple].map(ArmId::name);
        for (printed, size) in TRIPLE_OVER_SINGLE[pair].into_iter().zip([MEDIUM, LARGE]) {
            let (less, files) = (less(printed), SIZES[size]);
            let claim = Claim::new(
                id,
                format!("{three} carries {less:.0} % less of {files} files than {one}."),
                format!("throughput of {files} files, {three} over {one}"),
                half_of(printed),
                both(single, triple),
                over(triple, single, size),
            );
            let source = ["Table 3, Figure 4", "Table 3, Figure 5", "Table 3, Figure 6"][pair];
            claims.push(claim.printed(printed, source));
        }
    }
    for (printed, size) in TRIPLE_NEGOTIATED.into_iter().zip([MEDIUM, LARGE]) {
        let (less, files) = (less(printed), SIZES[size]);
        let [one, three] = [MD5_DES, MD5_TRIPLE].map(ArmId::name);
        let claim = Claim::new(
            "C3",
            format!(
                "With negotiated keys, {three} carries {less:.0} % less of {files} files than {one}."
            ),
            format!("throughput of {files} files, {three} over {one}"),
            half_of(printed),
            both(MD5_DES, MD5_TRIPLE),
            over(MD5_TRIPLE, MD5_DES, size),
        );
        claims.push(claim.printed(printed, "Table 3, ISAKMP with MD5; Figure 7"));
    }
    for (printed, size) in TRIPLE_OVER_SINGLE[0].into_iter().zip([MEDIUM, LARGE]) {
        let (less, files) = (less(printed), SIZES[size]);
        let claim = Claim::new(
            "C9",
            format!(
                "The same with ciphers as slow beside the network as the paper's: {less:.0} % less of {files} files."
            ),
            format!("throughput of {files} files, triple over single DES, both emulated"),
            half_of(printed),
            both(EMULATED_DES, EMULATED_TRIPLE),
            over(EMULATED_TRIPLE, EMULATED_DES, size),
        );
        claims.push(claim.printed(printed, "Table 3"));
    }
    claims
}

/// C4: hashes cost the same.
fn hashes_alike(nth: usize, size: usize) -> Claim {
    let [md5, sha1] = HASHES[nth];
    let (with, files) = (["no cipher", "DES", "3DES"][nth], SIZES[size]);
    let printed = SHA1_OVER_MD5[nth][usize::from(size == LARGE)];
    Claim::new(
        "C4",
        format!("With {with}, SHA-1 is as fast as MD5 with {files} files."),
        format!("throughput of {files} files, SHA-1 over MD5, {with}"),
        equal(size),
        both(md5, sha1),
        over(sha1, md5, size),
    )
    .printed(printed, "Table 4")
}

/// C5: a faster processor helps.
fn processor(nth: usize, size: usize) -> Claim {
    let (suite, files) = (protection(PROCESSORS[nth]), ["medium", "large"][size]);
    let printed = PROCESSOR_GAINS[nth].negotiated[size];
    let more = (printed - 1.0) * 1e2;
    Claim::new(
        "C5",
        format!("Gateways of 400 rather than 266 MHz carry {more:.0} % more of {files} files with {suite}."),
        format!("throughput of {files} files with {suite}, faster over slower gateways"),
        half_of(printed),
        [Task::Processors(nth)],
        move |it| it.speeds.ratio(|it| at(&it.fast[nth], size), |it| at(&it.slow[nth], size),
    ),
    )
    .printed(
        printed,
        [
            "Table 5, Figure 11",
            "Table 5, negotiated keys; Figure 14",
            "Table 5, negotiated keys; Figure 15",
        ][nth],
    )
}

/// C8: larger files lose more; small ones lose nothing unless there are many clients.
fn grows_with_size() -> Vec<Claim> {
    let triple = TRIPLE_DES.name();
    let arms = [(triple.clone(), TRIPLE_DES), (format!("{triple} (emulated)"), EMULATED_TRIPLE)];
    let mut claims: Vec<_> = arms
        .iter()
        .map(|&(ref label, arm)| {
            Claim::new(
                "C8",
                format!("{label} costs large files more than small ones."),
                format!("throughput over the base with {label}, small over large files"),
                Rule::AtLeast(1.0),
                both(BASE, arm),
                move |it| left_of(it, arm, SMALL),
            )
        })
        .collect();
    for (label, arm) in arms {
        for (is_most, clients, rule, costs) in [
            (false, 4, equal(SMALL), "nothing"),
            (true, 20, Rule::AtMost(noise(SMALL)[0]), "something"),
        ] {
            let of = move |rates: &Rates| {
                let rates = &rates[SMALL];
                let nth = if is_most { rates.last() } else { rates.first() };
                nth.copied().unwrap_or(f64::NAN)
            };
            let claim = Claim::new(
                "C8",
                format!("With {clients} clients, {label} costs small files {costs}."),
                format!("throughput of small files with {clients} clients, {label} over the base"),
                rule,
                both(BASE, arm),
                move |it| it.rounds.ratio(|it| of(arm.rates(it)), |it| of(BASE.rates(it))),
            );
            claims.push(claim);
        }
    }
    claims
}
