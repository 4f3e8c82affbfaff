//! Lists this paper's claims, each with the paper's figures and a rule to judge it.

use keypadd_measure::verdict::Rule;

use super::{
    Claim, EMULATED, Echoes, LONGEST, Round, SCENARIOS, SHORTEST, SIZES, TABLE_3, TEXT_SAYS,
    scenario, whole,
};
use crate::claim::half_of;

/// 3DES against AES-256 with either hash, then SHA-1 against MD5 with either cipher: the slower one
/// first.
const SLOWER: [(usize, usize); 4] = [(2, 0), (3, 1), (0, 1), (2, 3)];

pub(super) fn claims() -> Vec<Claim> {
    let mut claims: Vec<_> = (0..SCENARIOS.len()).map(added).collect();
    claims.extend(SLOWER.map(slower));
    claims.extend(
        (0..SCENARIOS.len())
            .map(|nth| length(scenario(nth).to_string(), move |it| it.tunnels[nth])),
    );
    claims.extend(EMULATED.into_iter().enumerate().map(|(nth, of)| {
        length(format!("{}, emulated", scenario(of)), move |it| it.emulated[nth])
    }));
    claims
}

fn added(nth: usize) -> Claim {
    let suite = scenario(nth);
    Claim::new(
        "R1",
        format!("Encryption with {suite} adds 10 to 20 % to a round trip."),
        format!("round trip, {suite} over no tunnel"),
        Rule::Within(TEXT_SAYS[0], TEXT_SAYS[1]),
        [()],
        move |it| it.ratio(|it| whole(&it.tunnels[nth]), |it| whole(&it.plain)),
    )
    .printed(TABLE_3[nth + 1] / TABLE_3[0], "Table 3, Figure 5")
}

fn slower((slow, fast): (usize, usize)) -> Claim {
    let paper = TABLE_3[slow + 1] / TABLE_3[fast + 1];
    Claim::new(
        "R2",
        format!("{} is slower than {}.", scenario(slow), scenario(fast)),
        format!("round trip, {} over {}", scenario(slow), scenario(fast)),
        half_of(paper),
        [()],
        move |it| it.ratio(|it| whole(&it.tunnels[slow]), |it| whole(&it.tunnels[fast])),
    )
    .printed(paper, "Table 3, Figure 6")
}

fn length(name: String, of: impl Fn(&Round) -> Echoes + 'static) -> Claim {
    let least = TABLE_3[1..].iter().copied().fold(f64::INFINITY, f64::min);
    let half = ((least / TABLE_3[0] - 1.0) / 2.0 * 1e3).round() / 1e3;
    let (long, short) = (SIZES[LONGEST], SIZES[SHORTEST]);
    Claim::new(
        "R3",
        format!("With {name}, a packet of {long} bytes takes as long as one of {short}."),
        format!("round trip, {long} bytes over {short}, {name}"),
        Rule::Within(1.0 - half, 1.0 + half),
        [()],
        move |it| it.ratio(|it| of(it)[LONGEST], |it| of(it)[SHORTEST]),
    )
    .shown("Figures 7 to 10")
}
