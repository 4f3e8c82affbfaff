//! Checks that the tables of docs/configuration.md list the keys as declared.

#![allow(clippy::unwrap_used)]

use std::fs;

use keypadd_config::{Key, PeerSettings, Settings};

const PAGE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/configuration.md");

const HEAD: &str = "| key | value | default | reload | |\n| --- | --- | --- | --- | --- |\n";

/// With `KEYPADD_WRITE_PAGE=1` the test writes the tables instead of comparing them.
#[test]
fn the_page_on_configuration_lists_the_keys_as_they_are() {
    let page = fs::read_to_string(PAGE).unwrap();
    let mut wanted = page.clone();
    for (name, keys) in [("global", Settings::KEYS), ("peer", PeerSettings::KEYS)] {
        let begin = format!("<!-- keys: {name} -->\n");
        let start = wanted.find(&begin).expect("a mark before the table") + begin.len();
        let end = start + wanted[start..].find("<!-- end -->").expect("a mark after the table");
        let rows: String = keys.iter().map(Key::row).collect();
        wanted.replace_range(start..end, &format!("{HEAD}{rows}"));
    }
    if std::env::var_os("KEYPADD_WRITE_PAGE").is_some() {
        fs::write(PAGE, &wanted).unwrap();
        return;
    }
    assert!(
        page == wanted,
        "KEYPADD_WRITE_PAGE=1 cargo test -p keypadd-config writes it:\n{wanted}"
    );
}

#[test]
fn the_example_of_the_page_can_be_used() {
    let page = fs::read_to_string(PAGE).unwrap();
    let example = page.split("```toml\n").nth(1).unwrap().split("```").next().unwrap();
    let config = keypadd_config::Config::read(example, u64::MAX).unwrap();
    assert_eq!((config.peers.len(), config.warnings.len()), (2, 0));
}
