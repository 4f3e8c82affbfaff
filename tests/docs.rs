//! Checks the documentation against the tree: links resolve, tests, pages and sections that are
//! named exist, configurations are valid, each step of the safety argument names a test.

#![allow(clippy::unwrap_used)]

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

const ROOT: &str = env!("CARGO_MANIFEST_DIR");

/// Files with this extension in our own folders, with their text.
fn files(ending: &str) -> Vec<(PathBuf, String)> {
    let mut found = Vec::new();
    let mut folders = vec![PathBuf::from(ROOT)];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            let name = path.file_name().unwrap().to_string_lossy().into_owned();
            if path.is_dir() {
                if name != "target" && !name.starts_with('.') {
                    folders.push(path);
                }
            } else if name.ends_with(ending) {
                let text = fs::read_to_string(&path).unwrap();
                found.push((path, text));
            }
        }
    }
    found
}

fn shown(path: &Path) -> String {
    path.strip_prefix(ROOT).unwrap_or(path).display().to_string()
}

/// Strips a page of its code blocks, whose brackets are not links and whose `#` are not headings.
fn prose(page: &str) -> String {
    let mut in_code = false;
    let lines = page.lines().filter(|line| {
        let is_fence = line.trim_start().starts_with("```");
        in_code ^= is_fence;
        !in_code && !is_fence
    });
    lines.collect::<Vec<_>>().join("\n")
}

/// The anchor of a heading, as the usual renderers generate it.
fn anchor(heading: &str) -> String {
    let kept = |c: &char| c.is_alphanumeric() || matches!(c, ' ' | '-' | '_');
    heading.trim().to_lowercase().chars().filter(kept).collect::<String>().replace(' ', "-")
}

fn anchors(page: &str) -> BTreeSet<String> {
    let prose = prose(page);
    let headings = prose.lines().filter(|line| line.starts_with('#'));
    headings.map(|line| anchor(line.trim_start_matches('#'))).collect()
}

#[test]
fn every_link_leads_somewhere() {
    let mut dead = Vec::new();
    for (page, text) in files(".md") {
        let prose = prose(&text);
        for link in prose.split("](").skip(1).filter_map(|rest| rest.split(')').next()) {
            if link.contains("://") {
                continue;
            }
            let (file, wanted) = link.split_once('#').unwrap_or((link, ""));
            let target = match file {
                "" => page.clone(),
                file => page.parent().unwrap().join(file),
            };
            let is_there = target.exists()
                && (wanted.is_empty()
                    || anchors(&fs::read_to_string(&target).unwrap()).contains(wanted));
            if !is_there {
                dead.push(format!("{}: {link}", shown(&page)));
            }
        }
    }
    assert!(dead.is_empty(), "{dead:#?}");
}

#[test]
fn every_page_and_section_that_code_names_exists() {
    let mut missing = Vec::new();
    for (file, text) in files(".rs") {
        // A comment's sentences, without its line breaks.
        let markers = |c| matches!(c, '/' | '!' | ' ');
        let lines = text.lines().map(|line| line.trim_start().trim_start_matches(markers));
        let text = lines.collect::<Vec<_>>().join(" ");
        for rest in text.split("docs/").skip(1) {
            let Some((page, rest)) = rest.split_once(".md") else { continue };
            let is_name = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '/');
            if !page.chars().all(is_name) {
                continue;
            }
            let rest = rest.trim_start_matches('`');
            let heading = rest.strip_prefix(", \"").or_else(|| rest.strip_prefix(" (\""));
            let heading = heading.and_then(|heading| heading.split('"').next());
            let page = format!("docs/{page}.md");
            let is_there = fs::read_to_string(Path::new(ROOT).join(&page)).is_ok_and(|text| {
                heading.is_none_or(|heading| anchors(&text).contains(&anchor(heading)))
            });
            if !is_there {
                missing.push(format!("{}: {page} {heading:?}", shown(&file)));
            }
        }
    }
    assert!(missing.is_empty(), "{missing:#?}");
}

#[test]
fn every_test_that_a_page_names_exists() {
    let code: String = files(".rs").into_iter().map(|(_, text)| text).collect();
    // A test name is a sentence; anything with fewer words may be a field or a metric.
    let is_sentence = |word: &&str| {
        word.matches('_').count() >= 4
            && !word.starts_with("keypadd_")
            && word.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'_')
    };
    let mut missing = Vec::new();
    for (page, text) in files(".md") {
        for name in text.split('`').skip(1).step_by(2).filter(is_sentence) {
            if !code.contains(&format!("fn {name}(")) {
                missing.push(format!("{}: {name}", shown(&page)));
            }
        }
    }
    assert!(missing.is_empty(), "{missing:#?}");
}

#[test]
fn every_step_of_the_argument_for_safety_names_a_test() {
    let page = fs::read_to_string(Path::new(ROOT).join("docs/argument.md")).unwrap();
    let (_, argument) = page.split_once("\n## Keystream is never used twice\n").unwrap();
    let (argument, _) = argument.split_once("\n## ").unwrap();
    let steps = argument.lines().filter_map(|line| line.split_once(". ")?.0.parse::<u32>().ok());
    let steps: Vec<u32> = steps.collect();
    assert_eq!(steps, (1..=steps.len() as u32).collect::<Vec<_>>());
    // The test above checks which names these are and that they exist.
    let names_a_test =
        |cell: &str| cell.split('`').skip(1).step_by(2).any(|name| name.matches('_').count() >= 4);
    let shown: BTreeSet<u32> = rows(argument)
        .iter()
        .filter(|row| names_a_test(row[1]))
        .map(|row| row[0].parse().unwrap())
        .collect();
    let silent: Vec<_> = steps.iter().filter(|step| !shown.contains(step)).collect();
    assert!(steps.len() >= 14 && silent.is_empty(), "{} steps: {silent:?}", steps.len());
}

#[test]
fn every_configuration_that_a_page_shows_can_be_used() {
    let mut shown_by = BTreeSet::new();
    for (page, text) in files(".md") {
        for block in text.split("```toml\n").skip(1) {
            let block = block.split("```").next().unwrap();
            if !block.contains("[peer.") {
                continue;
            }
            if let Err(faults) = keypadd_config::Config::read(block, u64::MAX) {
                panic!("{}: {faults:?}", shown(&page));
            }
            shown_by.insert(shown(&page));
        }
    }
    assert!(shown_by.contains("docs/configuration.md"), "{shown_by:?}");
}

/// The cells of a table's rows, without the header row.
fn rows(page: &str) -> Vec<Vec<&str>> {
    let rows = page.lines().filter(|line| line.starts_with("| ")).skip(2);
    rows.map(|row| row.trim_matches('|').split('|').map(str::trim).collect()).collect()
}

#[test]
fn every_fault_has_a_test_that_runs_where_the_table_says_and_a_figure() {
    const FAULTS: u32 = 31;
    let page = fs::read_to_string(Path::new(ROOT).join("tests/FAULTS.md")).unwrap();
    let nightly = fs::read_to_string(Path::new(ROOT).join("scripts/nightly")).unwrap();
    let code: String = files(".rs").into_iter().map(|(_, text)| text).collect();
    // Whatever stands between the end of the previous test and this test's name.
    let attributes = |name: &str| {
        let (before, _) = code.split_once(&format!("fn {name}("))?;
        before.rsplit("\n}").next().map(|attributes| attributes.to_owned())
    };
    let (mut missing, mut faults) = (Vec::new(), BTreeSet::new());
    for row in rows(&page) {
        let [fault, ci, every_night, figure] = row[..] else { panic!("{row:?}") };
        faults.extend(fault.split(' ').next());
        let names = |cell: &str| -> Vec<String> {
            let names = cell.split(", ").filter(|name| !name.is_empty());
            names.map(|name| name.replace('`', "")).collect()
        };
        let runs = |name: &String, is_long: bool| {
            if name.contains('/') {
                return Path::new(ROOT).join(name).is_file();
            }
            // A section name is one word, a test name a sentence.
            if is_long && !name.contains('_') {
                return nightly.contains(&format!("\n    \"{name} "));
            }
            attributes(name).is_some_and(|attributes| {
                attributes.contains("test") && attributes.contains("#[ignore") == is_long
            })
        };
        let (ci, every_night) = (names(ci), names(every_night));
        missing.extend(ci.iter().filter(|name| !runs(name, false)).cloned());
        missing.extend(every_night.iter().filter(|name| !runs(name, true)).cloned());
        if ci.is_empty() && every_night.is_empty() || figure.is_empty() {
            missing.push(fault.to_owned());
        }
    }
    assert!(missing.is_empty(), "{missing:#?}");
    let expected = (1..=FAULTS).map(|number| format!("T-{number}"));
    let forgotten: Vec<_> = expected.filter(|name| !faults.contains(name.as_str())).collect();
    assert!(forgotten.is_empty(), "{forgotten:?}");
}

/// The numbers of a table's cells, emphasized or not.
fn figures(row: &str) -> Vec<String> {
    let cells = row.split('|').skip(2).map(|cell| cell.trim().trim_matches('*').to_string());
    cells.filter(|cell| cell.parse::<f64>().is_ok()).collect()
}

#[test]
fn the_citation_names_this_version() {
    let citation = fs::read_to_string(Path::new(ROOT).join("CITATION.cff")).unwrap();
    let version = format!("\nversion: {}\n", env!("CARGO_PKG_VERSION"));
    assert!(citation.contains(&version), "no {version:?}");
}

/// What stands between these words, the first time that they come.
fn figure_in<'a>(text: &'a str, before: &str, after: &str) -> &'a str {
    let (_, rest) = text.split_once(before).unwrap_or_else(|| panic!("no {before:?}"));
    rest.split_once(after).unwrap_or_else(|| panic!("no {after:?}")).0
}

#[test]
fn readmes_figures_are_recorded_and_its_pictures_are_there() {
    let readme = fs::read_to_string(Path::new(ROOT).join("README.md")).unwrap();
    let recorded = |file: &str| {
        let text = fs::read_to_string(Path::new(ROOT).join("docs/benchmarks").join(file)).unwrap();
        let words = |line: &str| line.split_whitespace().collect::<Vec<_>>().join(" ");
        text.lines().map(words).collect::<Vec<String>>()
    };

    // Each row is a column of a table of the record, whose arms are the columns of README's.
    let compare: Vec<String> = recorded("2026-11-30-compare.txt");
    let rows: Vec<_> = readme.lines().filter(|line| figures(line).len() == 3).collect();
    assert_eq!(rows.len(), 4);
    let medians = |table: &str, nth: usize| {
        let at = compare.iter().position(|line| line.starts_with(table)).unwrap();
        ["keypadd ", "ssh ", "stunnel "].map(|arm| {
            let line = compare[at..].iter().find(|line| line.starts_with(arm)).unwrap();
            // A cell is a median and its range: `6.22 [5.71-6.36]`.
            line.split(' ').skip(1).step_by(2).nth(nth).unwrap().to_string()
        })
    };
    assert_eq!(figures(rows[0]), medians("Bulk, one TCP stream", 2));
    assert_eq!(figures(rows[1]), medians("Idle round trips", 0));
    assert_eq!(figures(rows[2]), medians("Round trips of 128 B beside a download", 1));
    assert_eq!(figures(rows[3]), medians("CPU of both tunnel ends", 2));

    let paths: Vec<String> = recorded("2026-11-28-paths.txt");
    let at = paths.iter().position(|line| line == "Bulk in the steady state: 300 Mbit/s, 20 ms");
    let lossy = paths[at.unwrap()..].iter().skip_while(|line| !line.starts_with("arm 10 % lost"));
    let lossy: Vec<_> = lossy.collect();
    let prose = readme.split_whitespace().collect::<Vec<_>>().join(" ");
    for (arm, sentence) in [
        ("keypadd ", "keypadd carries FIGURE Mbit/s;"),
        ("tcp-cubic ", "TCP carries FIGURE with CUBIC,"),
        ("tcp-bbr ", "and FIGURE with BBR."),
    ] {
        let line = lossy.iter().find(|line| line.starts_with(arm)).unwrap();
        let sentence = sentence.replace("FIGURE", line.split(' ').nth(1).unwrap());
        assert!(prose.contains(&sentence), "README does not say {sentence:?}");
    }

    // Tunnels between networks.
    let networks = recorded("2026-11-30-networks-keypadd.txt").join(" ");
    let ratio = |claim: &str| -> f64 {
        let (_, verdict) = networks.split_once(claim).unwrap();
        figure_in(verdict, "in its round ", ",").parse().unwrap()
    };
    let rate = ratio("keypadd carries at least 3.5 times what boringtun does");
    let cpu = ratio("keypadd takes at most a quarter of boringtun's CPU time");
    for sentence in [
        format!("one stream through keypadd is {rate:.1} times as fast as through boringtun,"),
        format!("and takes {cpu:.2} of its CPU time."),
    ] {
        assert!(prose.contains(&sentence), "README does not say {sentence:?}");
    }

    // What sealing gains from the pool, and what users gain end to end.
    let paired: Vec<String> = recorded("2026-11-29-paired.txt");
    let sealing = "chacha20-poly1305, sealing 1400 bytes, hit, 64 MiB: ";
    let sealing = paired.iter().find_map(|line| line.strip_prefix(sealing)).unwrap();
    let ratio = sealing.split("time of off ").nth(1).and_then(|rest| rest.split(',').next());
    let ratio: f64 = ratio.unwrap().parse().unwrap();
    let runs = recorded("README.md").join(" ");
    let bulk = figure_in(&runs, "bulk without a pause from a pool is ", " times as fast");
    let cpu = figure_in(&runs, "| ChaCha20-Poly1305, 300 Mbit/s | ", " |");
    for sentence in [
        format!("takes {ratio:.2} of the time with a pool"),
        format!("bulk is {bulk} times as fast"),
        format!("at 300 Mbit/s the event loops take {cpu} of the CPU time."),
    ] {
        assert!(prose.contains(&sentence), "README does not say {sentence:?}");
    }

    for picture in ["outage-light.svg", "outage-dark.svg"] {
        assert!(readme.contains(&format!("docs/pictures/{picture}")));
        let bytes =
            fs::metadata(Path::new(ROOT).join("docs/pictures").join(picture)).unwrap().len();
        assert!((1..100_000).contains(&bytes), "{picture}: {bytes} bytes");
    }
}
