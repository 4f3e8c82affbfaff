//! Lists each paper's tables and figures, and which claims judge what they hold: a part of
//! docs/papers.md, made from the claims.

use std::collections::{BTreeMap, BTreeSet};

use super::{Paper, bollinger, compaq, lomas, praptodiyono, ridzuan};

/// A table or a figure of a paper.
#[derive(Clone, Copy, Debug)]
struct Exhibit {
    /// As the paper names it: `Table 3`.
    name: &'static str,
    /// What it shows, in a few words.
    shows: &'static str,
    /// Why no claim judges it; empty if one does.
    unjudged: &'static str,
}

/// One that claims judge.
const fn judged(name: &'static str, shows: &'static str) -> Exhibit {
    Exhibit { name, shows, unjudged: "" }
}

/// One that holds nothing to judge, and why.
const fn unjudged(name: &'static str, shows: &'static str, why: &'static str) -> Exhibit {
    Exhibit { name, shows, unjudged: why }
}

/// A claim's name, and where it is in the paper.
pub(crate) type Place = (&'static str, &'static str);

const TOPOLOGY: &str = "it describes what is measured";
const NO_MANUAL_KEYS: &str = "the same is judged with negotiated keys, as ours are";
const STEPS: &str = "it shows steps, not results";

/// The tables and figures of a paper, and where its claims are.
fn contents(paper: Paper) -> (Vec<Exhibit>, Vec<Place>) {
    match paper {
        // The paper has no captions: they are counted from the first.
        Paper::Lomas => (
            vec![
                judged("Graph 1", "round trips by length and delay, not encrypted"),
                judged("Graph 2", "the same with the cipher inline"),
                judged("Graph 3", "the same with precomputed keystream"),
            ],
            lomas::places(),
        ),
        Paper::Compaq => (
            vec![
                unjudged("Figure 1", "the network", TOPOLOGY),
                unjudged("Table 1", "lengths of files", TOPOLOGY),
                judged("Figure 2", "a tunnel without encryption beside no tunnel"),
                unjudged("Table 2", "the rate of that tunnel", "all ratios are to it"),
                judged("Table 3", "3DES beside DES, by hash and key exchange"),
                judged("Figure 3", "the ciphers, large files"),
                judged("Figure 4", "DES and 3DES without a hash, by clients"),
                judged("Figure 5", "the same with MD5"),
                judged("Figure 6", "the same with SHA-1"),
                judged("Figure 7", "the same with MD5 and negotiated keys"),
                judged("Figure 8", "RC2 beside no encryption"),
                judged("Figure 9", "MD5 beside no hash"),
                judged("Figure 10", "SHA-1 beside no hash"),
                judged("Table 4", "SHA-1 beside MD5, by cipher"),
                judged("Table 5", "a faster processor, by cipher and key exchange"),
                judged("Figure 11", "a faster processor without encryption, by clients"),
                unjudged("Figure 12", "the same with MD5 and DES, manual keys", NO_MANUAL_KEYS),
                unjudged("Figure 13", "the same with MD5 and 3DES, manual keys", NO_MANUAL_KEYS),
                judged("Figure 14", "the same with MD5 and DES, negotiated keys"),
                judged("Figure 15", "the same with MD5 and 3DES, negotiated keys"),
            ],
            compaq::places(),
        ),
        Paper::Bollinger => (
            vec![
                unjudged("Table 1", "protocols by medium", "it lists what exists"),
                judged("Table 2", "streams of 30 s, by cipher and forward secrecy"),
                judged("Table 3", "streams of ten minutes with keys that live for two"),
            ],
            bollinger::places(),
        ),
        Paper::Ridzuan => (
            vec![
                unjudged("Figure 1", "an example of a private network", TOPOLOGY),
                unjudged("Figure 2", "the network", TOPOLOGY),
                unjudged("Table 1", "the routers and the line", TOPOLOGY),
                unjudged("Table 2", "the pairs of cipher and hash", TOPOLOGY),
                unjudged("Figure 3", "addresses of the hosts", TOPOLOGY),
                unjudged("Figure 4", "the course of the experiment", STEPS),
                judged("Figure 5", "round trips with and without encryption"),
                judged("Table 3", "mean round trips by cipher and hash"),
                judged("Figure 6", "the same, plotted"),
                judged("Figure 7", "round trips by length, AES-256 and SHA-1"),
                judged("Figure 8", "the same, AES-256 and MD5"),
                judged("Figure 9", "the same, 3DES and SHA-1"),
                judged("Figure 10", "the same, 3DES and MD5"),
            ],
            ridzuan::places(),
        ),
        Paper::Praptodiyono => (
            vec![
                unjudged("Figure 1", "the header of IKEv2", "it shows a packet format"),
                unjudged("Figure 2", "the network", TOPOLOGY),
                judged("Table 1", "times of key generation by group"),
                judged("Table 2", "throughput by group of the key exchange"),
            ],
            praptodiyono::places(),
        ),
    }
}

/// The names of tables and figures in the words that say where something is: `Figures 9 and 10`.
fn names(source: &str) -> BTreeSet<String> {
    let (mut names, mut kind, mut last, mut is_range) = (BTreeSet::new(), None, 0, false);
    for word in source.split(|c: char| !c.is_ascii_alphanumeric()).filter(|it| !it.is_empty()) {
        match (word, word.parse::<u32>(), kind) {
            ("Table" | "Tables", ..) => kind = Some("Table"),
            ("Figure" | "Figures", ..) => kind = Some("Figure"),
            ("Graph" | "Graphs", ..) => kind = Some("Graph"),
            ("to", _, Some(_)) => is_range = true,
            (_, Ok(number), Some(kind)) => {
                let from = if is_range { last + 1 } else { number };
                names.extend((from..=number).map(|number| format!("{kind} {number}")));
                (last, is_range) = (number, false);
            }
            ("and", _, Some(_)) => {}
            _ => kind = None,
        }
    }
    names
}

/// A table of a paper's tables and figures, in Markdown.
fn table(paper: Paper) -> String {
    let (exhibits, places) = contents(paper);
    let mut claims: BTreeMap<String, BTreeSet<&'static str>> = BTreeMap::new();
    let mut of_text = BTreeSet::new();
    for (claim, source) in places {
        let names = names(source);
        if names.is_empty() {
            of_text.insert(claim);
        }
        for name in names {
            claims.entry(name).or_default().insert(claim);
        }
    }
    let mut table =
        "| In the paper | What it shows | Judged by |\n| --- | --- | --- |\n".to_owned();
    let list = |claims: BTreeSet<&'static str>| {
        let mut claims: Vec<_> = claims.into_iter().collect();
        // L10 comes after L2.
        claims.sort_by_key(|claim| claim.len());
        claims.join(", ")
    };
    for Exhibit { name, shows, unjudged } in exhibits {
        let judged = list(claims.remove(name).unwrap_or_default());
        assert!(judged.is_empty() != unjudged.is_empty(), "{paper}, {name}: {judged} {unjudged}");
        table += &format!("| {name} | {shows} | {judged}{unjudged} |\n");
    }
    if !of_text.is_empty() {
        table += &format!("| the text alone | | {} |\n", list(of_text));
    }
    assert!(claims.is_empty(), "{paper} has none of these: {claims:?}");
    table
}

#[cfg(test)]
mod tests {
    use super::*;

    const PAGE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/papers.md");

    #[test]
    fn names_are_read_from_the_words_that_say_where_something_is() {
        let read = |source: &str| names(source).into_iter().collect::<Vec<_>>().join(", ");
        assert_eq!(read("Conclusion, Figures 3, 9 and 10"), "Figure 10, Figure 3, Figure 9");
        assert_eq!(
            read("Table 5, negotiated keys; Figures 11 to 13"),
            "Figure 11, Figure 12, Figure 13, Table 5"
        );
        assert_eq!(read("16 blocks of 8.5 ms beside 4.6 ms"), "");
    }

    /// `PAPERS=overwrite` rewrites them.
    #[test]
    fn the_page_lists_every_table_and_figure_with_the_claims_that_judge_it() {
        let mut page = std::fs::read_to_string(PAGE).unwrap();
        for paper in Paper::ALL {
            let begin = format!("<!-- index of {paper} -->\n");
            let start = page.find(&begin).unwrap() + begin.len();
            let end = start + page[start..].find("<!-- end -->").unwrap();
            let table = table(paper);
            if std::env::var_os("PAPERS").is_some_and(|value| value == "overwrite") {
                page.replace_range(start..end, &table);
                std::fs::write(PAGE, &page).unwrap();
            } else {
                assert_eq!(page[start..end], table, "PAPERS=overwrite rewrites it");
            }
        }
    }
}
