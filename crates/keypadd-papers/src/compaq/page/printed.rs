//! Holds the figures the paper prints, and finds where it contradicts itself.

use super::super::{BASE_OVER_DES, LARGE, MEDIUM, SMALL};

/// Numbers of virtual clients.
pub(super) const CLIENTS: [u32; 5] = [4, 8, 12, 16, 20];

/// Table 2: throughput of the base, Mbit/s, by number of clients: small, medium, large files.
pub(super) const BASE_MBIT: [[f64; 5]; 3] = [
    [1.01, 1.48, 1.89, 2.13, 2.27],
    [4.12, 7.12, 8.94, 9.56, 10.06],
    [10.95, 13.96, 14.31, 13.94, 14.19],
];

/// Twice the deviation of the paper's tool, by file size: smaller differences count as equal.
pub(super) const NOISE: [f64; 3] = [0.2748, 0.1212, 0.049];

/// Throughput over the base, where the text prints it; by position in the list of tunnels.
pub(super) fn printed_over_base(tunnel: usize, size: usize) -> Option<f64> {
    Some(match (tunnel, size) {
        (0, LARGE) => 1.0 / 0.60,
        (1, _) => 1.0,
        (2, LARGE) => 0.81,
        (2, MEDIUM) => 0.78,
        (3, LARGE) => 0.79,
        (3, MEDIUM) => 0.82,
        (4, LARGE) => 1.0 / BASE_OVER_DES,
        (5, LARGE) => 0.48,
        (6, LARGE) => 0.45,
        _ => return None,
    })
}

/// Table 3: triple over single DES: by hash, then medium and large files.
pub(super) const TRIPLE_OVER_SINGLE: [[f64; 2]; 3] = [[0.72, 0.54], [0.80, 0.62], [0.77, 0.62]];

/// Table 3, "ISAKMP with MD5": the same with negotiated keys, as ours are.
pub(super) const TRIPLE_NEGOTIATED: [f64; 2] = [0.73, 0.55];

/// Table 4: SHA-1 over MD5: without a cipher, with DES and with 3DES, then medium and large files.
/// The table has ".04%" where the text has 4 %.
pub(super) const SHA1_OVER_MD5: [[f64; 2]; 3] = [[1.04, 0.97], [1.02, 0.99], [0.99, 0.99]];

/// Table 5: gain of a 400 MHz processor over a 266 MHz one, medium and large files.
pub(super) struct Gain {
    /// The setting, as the paper names it.
    what: &'static str,
    /// With manual keys.
    manual: [f64; 2],
    /// With negotiated keys, as here; without a cipher one row covers both.
    pub(super) negotiated: [f64; 2],
}

/// In the order of `PROCESSORS`.
pub(super) const PROCESSOR_GAINS: [Gain; 3] = [
    Gain { what: "none", manual: [1.12, 1.31], negotiated: [1.12, 1.31] },
    Gain { what: "MD5, DES", manual: [1.29, 1.36], negotiated: [1.22, 1.27] },
    Gain { what: "MD5, 3DES", manual: [1.23, 1.39], negotiated: [1.26, 1.31] },
];

/// Gain of the faster processor according to the text.
const TEXT_GAINS: [f64; 2] = [1.2, 1.4];

/// Where the paper's text contradicts its figures.
pub(super) fn contradictions() -> Vec<String> {
    let mut notes = Vec::new();
    for gain in &PROCESSOR_GAINS {
        for (size, manual, negotiated) in [
            ("medium", gain.manual[0], gain.negotiated[0]),
            ("large", gain.manual[1], gain.negotiated[1]),
        ] {
            if negotiated > manual {
                notes.push(format!(
                    "C11: the paper says that a faster processor helps negotiated keys less. Its Table 5 contradicts it \
                     in the row of {}, {size} files: {:.0} % with manual keys, {:.0} % with negotiated ones.",
                    gain.what,
                    (manual - 1.0) * 1e2,
                    (negotiated - 1.0) * 1e2,
                ));
            }
        }
    }
    let all = PROCESSOR_GAINS.iter().flat_map(|it| it.manual.into_iter().chain(it.negotiated));
    let least = all.fold(f64::INFINITY, f64::min);
    if least < TEXT_GAINS[0] {
        notes.push(format!(
            "C5: the paper's text has the faster processor gain 20 to 40 %, its Table 5 begins at {:.0} %.",
            (least - 1.0) * 1e2,
        ));
    }
    let over_base = |tunnel, size| printed_over_base(tunnel, size).unwrap_or(f64::NAN);
    if over_base(3, MEDIUM) > over_base(2, MEDIUM) {
        notes.push(
            "C4: the paper calls SHA-1 slightly slower than MD5; with medium files its figures have SHA-1 lose less."
                .into(),
        );
    }
    let by_text = over_base(5, LARGE) / over_base(4, LARGE);
    let [_, by_table] = TRIPLE_OVER_SINGLE[0];
    if (by_text / by_table - 1.0).abs() > NOISE[LARGE] {
        notes.push(format!(
            "C2 and C9: triple DES keeps {:.0} % of single DES by what the text says of each over the base, large files, \
             and {:.0} % by Table 3.",
            by_text * 1e2,
            by_table * 1e2,
        ));
    }
    if BASE_MBIT[LARGE].is_sorted() != BASE_MBIT[SMALL].is_sorted() {
        notes.push(
            "The base's throughput of large files does not rise with the clients throughout (Table 2), as the others \
             do: it is at what the gateways carry from 8 clients on."
                .into(),
        );
    }
    notes
}
