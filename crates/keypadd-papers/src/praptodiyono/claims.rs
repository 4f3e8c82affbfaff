//! Lists this paper's claims, each with the paper's figures and a rule to judge it.

use keypadd_measure::verdict::Rule;

use super::{Claim, GROUPS, Generated, MODP_1024, MODP_3072, SECP384R1, TABLE_1, TABLE_2, Task};
use crate::claim::half_of;

pub(super) fn claims() -> Vec<Claim> {
    let name = |group: usize| GROUPS[group].name();
    let key_pair: fn(&Generated) -> f64 = |it| it.key_pair_us;
    let handshake: fn(&Generated) -> f64 = |it| it.handshake_us;
    let mut claims = Vec::new();
    for (what, time, source) in [
        ("key pair", key_pair, "Table 1"),
        ("handshake", handshake, "Table 1, which has no handshakes: key generation"),
    ] {
        for (slower, faster) in [(MODP_1024, SECP384R1), (MODP_3072, MODP_1024)] {
            let (slow, fast) = (name(slower), name(faster));
            let claim = Claim::new(
                "P1",
                format!("A {what} takes less time with {fast} than with {slow}."),
                format!("time of a {what}, {slow} over {fast}"),
                Rule::AtLeast(1.0),
                [Task::Generation],
                move |it| it.generation.ratio(|it| time(&it[slower]), |it| time(&it[faster])),
            );
            let printed = TABLE_1[slower].mean() / TABLE_1[faster].mean();
            claims.push(claim.printed(printed, source));
        }
    }
    let printed = |group: usize| TABLE_2[group + 1].mean();
    claims.extend([MODP_1024, MODP_3072].map(|slower| {
        let (slow, fast) = (name(slower), name(SECP384R1));
        let paper = printed(SECP384R1) / printed(slower);
        Claim::new(
            "P2",
            format!("Throughput is higher after a key exchange with {fast} than with {slow}."),
            format!("throughput, {fast} over {slow}"),
            half_of(paper),
            [Task::Throughput],
            move |it| it.throughput.ratio(|it| it.tunnels[SECP384R1], |it| it.tunnels[slower]),
        )
        .printed(paper, "Table 2")
    }));
    claims.extend(GROUPS.iter().enumerate().map(|(group, it)| {
        let paper = printed(group) / TABLE_2[0].mean();
        Claim::new(
            "P2",
            format!("A tunnel whose key exchange was {it} carries less than no tunnel."),
            format!("throughput, {it} over plain"),
            half_of(paper),
            [Task::Throughput],
            move |it| it.throughput.ratio(|it| it.tunnels[group], |it| it.plain),
        )
        .printed(paper, "Table 2")
    }));
    claims
}
