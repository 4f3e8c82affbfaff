//! The file from outside: what it may say, that every fault is found at once and in its place, and that
//! nothing that it holds by mistake is repeated.

#![allow(clippy::unwrap_used)]

use keypadd_config::keys::{KEYS, Scope};
use keypadd_config::{Config, Fault};
use proptest::prelude::*;

const ONE: &str = "11qYAYKxCrfVS/7TyWQHOg7hcvPapiMlrwIaaPcHURo=";
const OTHER: &str = "PUAXw+hDiVqStwqnTRt+vJyYLM8uxJaMwM1V8Sr0Zgw=";

fn read(text: &str) -> Result<Config, Vec<Fault>> {
    Config::read(text, 1 << 40).map_err(|refused| refused.faults)
}

/// The faults as `LINE:COLUMN: cause`.
fn faults(text: &str) -> Vec<String> {
    let found = read(text).unwrap_err();
    found
        .iter()
        .map(|Fault { line, column, cause, .. }| format!("{line}:{column}: {cause}"))
        .collect()
}

fn hints(text: &str) -> Vec<String> {
    read(text).unwrap_err().into_iter().map(|fault| fault.hint.unwrap_or_default()).collect()
}

#[test]
fn a_file_of_both_roles_is_read() {
    let config = read(&format!(
        "listen = \"[::]:4433\"\npool-budget = \"16MiB\"\npermit-open = \"localhost:22\"\n\
         [peer.laptop]\npublic-key = \"{ONE}\"\npermit-open = [\"*:443\", \"db:5432\"]\n\
         [peer.lab]\npublic-key = \"{OTHER}\"\nendpoint = \"lab.example\"\n\
         local = [\"2222:localhost:22\"]\n"
    ))
    .unwrap();
    let [laptop, lab] = &config.peers[..] else { panic!("{:?}", config.peers) };
    assert_eq!(laptop.incoming.as_ref().unwrap().permit_open.len(), 2);
    assert!(laptop.dialled.is_none());
    assert!(lab.incoming.is_none());
    let dialled = lab.dialled.as_ref().unwrap();
    assert_eq!(dialled.endpoint.to_string(), "lab.example:4433");
    assert_eq!(dialled.suite.name(), "aes-256-gcm");
    assert_eq!(config.pool_budget_bytes, 16 << 20);
    assert!(config.warnings.is_empty());
    assert!(config.defaults.contains(&"metrics") && !config.defaults.contains(&"listen"));
}

#[test]
fn every_fault_is_found_at_once_and_in_its_place() {
    let text = format!(
        "listen = \"nowhere\"\n\
         pool_budget = \"1MiB\"\n\
         pool-budget = 64\n\
         suite = [\"aes-256-gcm\", \"rc4\", \"des-ctr-hmac-sha1\"]\n\
         allow-legacy = \"yes\"\n\
         endpoint = \"a\"\n\
         [peer.one]\n\
         public-key = \"{ONE}\"\n\
         local = [\"2222\"]\n\
         listen = \"[::]:1\"\n\
         [peer.two]\n\
         endpoint = \"b\"\n\
         [peer.three]\n\
         public-key = \"{ONE}\"\n\
         endpoint = \"c\"\n\
         permit-open = []\n\
         local = [\"1:a:1\", \"1:b:1\"]\n\
         [peer.\"two words\"]\n\
         public-key = \"short\"\n"
    );
    assert_eq!(
        faults(&text),
        [
            "1:10: listen: `nowhere` is not ADDR:PORT",
            "2:1: unknown key `pool_budget`",
            "3:15: pool-budget: `64` is a number, a text belongs here",
            "4:25: suite: `rc4` is not a suite",
            "4:32: suite: `des-ctr-hmac-sha1` is insecure (legacy)",
            "5:16: allow-legacy: `yes` is a text, true or false belongs here",
            "6:1: unknown key `endpoint`",
            "9:9: local: peer `one` is not dialled",
            "9:10: local: `2222`: expected [BIND:]PORT:HOST:HOSTPORT, with IPv6 addresses in brackets, \
             or a /PATH in place of either end",
            "10:1: unknown key `listen`",
            "11:7: peer `two` has no public-key",
            "14:14: public-key: peer `one` has the same",
            "17:19: local: `1` is listened on twice",
            "18:7: `two words` is not a name for a peer",
            "19:14: public-key: a public key is 44 characters of base64; this has 5",
        ]
    );
    let hints = hints(&text);
    assert_eq!(hints[1], "did you mean pool-budget?");
    assert_eq!(hints[6], "endpoint belongs into a [peer.NAME]");
    assert_eq!(hints[9], "listen belongs before the first [peer.NAME]");
}

#[test]
fn broken_toml_is_one_fault_a_line_and_hides_no_other_lines() {
    let text = format!(
        "listen = \"[::]:4433\npool = on\ncolour = \"red\"\n[peer.one\npublic-key = \"{ONE}\"\n"
    );
    let found = faults(&text);
    let lines: Vec<_> = found.iter().map(|fault| fault.split(':').next().unwrap()).collect();
    assert_eq!(lines[..3], ["1", "2", "3"], "{found:?}");
    assert!(found.iter().any(|fault| fault.starts_with("4:")), "{found:?}");
}

#[test]
fn an_empty_list_of_suites_is_a_fault_and_an_empty_list_of_permits_is_none() {
    assert!(faults("suite = []\n").contains(&"1:9: suite: the list is empty".to_owned()));
    let text = format!(
        "listen = \"[::]:1\"\npermit-open = \"a:1\"\n[peer.one]\npublic-key = \"{ONE}\"\npermit-open = []\n"
    );
    assert!(read(&text).unwrap().peers[0].incoming.as_ref().unwrap().permit_open.is_empty());
}

#[test]
fn loops_are_a_number_and_a_spin_share_is_a_text() {
    assert_eq!(
        faults("loops = \"4\"\nspin = 5\n")[..2],
        [
            "1:9: loops: `4` is a text, a whole number belongs here",
            "2:8: spin: `5` is a number, a text belongs here",
        ]
    );
    assert_eq!(faults("loops = 65\n")[0], "1:9: loops: `65` is not a number of loops");
    assert_eq!(hints("loops = \"4\"\n")[0], "as in loops = 4, without quotes");
    let text = format!(
        "listen = \"[::]:1\"\nloops = 3\nspin = \"0%\"\n[peer.one]\npublic-key = \"{ONE}\"\n"
    );
    let config = read(&text).unwrap();
    assert_eq!((config.loops, config.spin.to_string().as_str()), (Some(3), "0"));
}

#[test]
fn a_column_counts_characters() {
    assert_eq!(
        faults("congestion = \"ä\" # ö\n\"ü\" = 1\n")[..2],
        ["1:14: congestion: `ä` is not a congestion control", "2:1: unknown key `ü`",]
    );
    let after_umlauts = faults(&format!("[peer]\n\"ä\" = {{ public-key = \"{ONE}\", x = 1 }}\n"));
    assert!(
        after_umlauts.iter().any(|fault| fault.starts_with("2:70: unknown key `x`")),
        "{after_umlauts:?}"
    );
}

#[test]
fn who_can_neither_come_in_nor_be_dialled_is_a_fault() {
    let peer = format!("[peer.one]\npublic-key = \"{ONE}\"\n");
    assert_eq!(
        faults(&peer),
        ["1:7: peer `one` has no endpoint, and cannot come in: there is no listen"]
    );
    let both = format!("{peer}endpoint = \"a\"\npermit-open = \"a:1\"\n");
    assert_eq!(faults(&both), ["4:15: permit-open: peer `one` cannot come in: there is no listen"]);
    let both = read(&format!("listen = \"[::]:1\"\n{both}")).unwrap();
    assert!(both.peers[0].incoming.is_some() && both.peers[0].dialled.is_some());
    assert_eq!(faults(""), ["1:1: no peers: there is nothing to do"]);
    assert_eq!(faults("[[peer]]\n"), ["1:1: peer: a table for each peer belongs here"]);
}

#[test]
fn what_is_probably_not_meant_is_a_warning() {
    let config = read(&format!(
        "listen = \"[::]:1\"\n[peer.one]\npublic-key = \"{ONE}\"\nendpoint = \"a\"\n"
    ))
    .unwrap();
    let warnings: Vec<_> = config.warnings.iter().map(|warning| warning.cause.as_str()).collect();
    assert_eq!(
        warnings,
        [
            "listen: no peer can come in: each one has an endpoint",
            "peer `one` is dialled, and nothing is forwarded",
        ]
    );
}

#[test]
fn a_legacy_suite_needs_consent_wherever_it_stands() {
    let text = format!(
        "[peer.one]\npublic-key = \"{ONE}\"\nendpoint = \"a\"\nsuite = \"3des-ctr-hmac-sha1\"\n"
    );
    assert_eq!(faults(&text), ["4:9: suite: `3des-ctr-hmac-sha1` is insecure (legacy)"]);
    assert!(read(&format!("allow-legacy = true\n{text}")).is_ok());
}

#[test]
fn every_key_is_read_by_the_example_that_explains_it() {
    for key in KEYS {
        let global = if key.scope == Scope::Global { key.example } else { "" };
        let own = if key.scope == Scope::Peer { key.example } else { "" };
        let mut text = format!("{global}\n[peer.one]\n{own}\n");
        for (name, line) in [
            ("public-key", format!("public-key = \"{ONE}\"")),
            ("endpoint", "endpoint = \"a\"".into()),
        ] {
            if !own.starts_with(name) {
                text += &format!("{line}\n");
            }
        }
        if key.scope == Scope::Peer {
            text = format!("listen = \"[::]:1\"\n{text}");
        }
        assert!(read(&text).is_ok(), "{text}{:?}", read(&text));
    }
}

proptest! {
    #[test]
    fn any_text_is_read_or_refused_without_a_panic(text in "(\\PC|\n){0,200}") {
        let _ = read(&text);
    }

    #[test]
    fn a_private_key_anywhere_is_never_repeated(at in 0..KEYS.len(), form in 0..6_usize) {
        let line = "MC4CAQAwBQYDK2VwBCIEIJ1hsZ3v/VpguoRK9JLsLMREScVpezJpGXA7rAMcrn9g";
        let pem = format!("-----BEGIN PRIVATE KEY-----\n{line}\n-----END PRIVATE KEY-----\n");
        let name = KEYS[at].name;
        let pasted = match form {
            0 => format!("{name} = \"{line}\"\n"),
            1 => format!("{name} = [\"{line}\"]\n"),
            2 => format!("{name} = \"\"\"{pem}\"\"\"\n"),
            3 => format!("{name} = {line}\n"),
            4 => format!("{pem}{name} = 1\n"),
            _ => format!("\"{line}\" = \"{line}\"\n[peer.\"{line}\"]\nx = 1\n"),
        };
        for text in [pasted.clone(), format!("[peer.a]\n{pasted}")] {
            let said: String = read(&text).unwrap_err().iter().map(|fault| format!("{fault}\n")).collect();
            for start in 0..line.len() - 29 {
                prop_assert!(!said.contains(&line[21 + start..29 + start]), "{}", said);
            }
        }
    }
}
