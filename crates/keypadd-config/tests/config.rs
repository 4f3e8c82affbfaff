//! Reads whole files: valid ones, faulty ones (every fault at once, with its position), and ones
//! with a private key pasted somewhere, which no message may quote.

#![allow(clippy::unwrap_used)]

use keypadd_config::{Config, Fault, Key, Part, PeerSettings, Place, Scope, Settings, Texts};
use keypadd_provider::PrivateKey;
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
        .map(|Fault { place: Place { line, column, .. }, cause, .. }| {
            format!("{line}:{column}: {cause}")
        })
        .collect()
}

/// A file with more peers.
fn part(name: &str, text: String) -> Part {
    Part { name: name.into(), text }
}

fn dialed(name: &str, key: &str, port: u16) -> String {
    format!(
        "[peer.{name}]\npublic-key = \"{key}\"\nendpoint = \"{name}\"\nlocal = \"{port}:a:1\"\n"
    )
}

fn hints(text: &str) -> Vec<String> {
    read(text).unwrap_err().into_iter().map(|fault| fault.hint.unwrap_or_default()).collect()
}

fn keys() -> impl Iterator<Item = &'static Key> {
    Settings::KEYS.iter().chain(PeerSettings::KEYS)
}

#[test]
fn a_file_for_both_roles_is_read() {
    let config = read(&format!(
        "listen = \"[::]:4433\"\npool-budget = \"16MiB\"\npermit-open = \"localhost:22\"\n\
         [peer.laptop]\npublic-key = \"{ONE}\"\npermit-open = [\"*:443\", \"db:5432\"]\n\
         [peer.lab]\npublic-key = \"{OTHER}\"\nendpoint = \"lab.example\"\n\
         local = [\"2222:localhost:22\"]\n"
    ))
    .unwrap();
    let [laptop, lab] = &config.peers[..] else { panic!("{:?}", config.peers) };
    assert_eq!(laptop.incoming.as_ref().unwrap().permit_open.len(), 2);
    assert!(laptop.outgoing.is_none());
    assert!(lab.incoming.is_none());
    let outgoing = lab.outgoing.as_ref().unwrap();
    assert_eq!(outgoing.endpoint.to_string(), "lab.example:4433");
    assert_eq!(outgoing.suites, keypadd_config::offered(None));
    assert_eq!(outgoing.suites.len(), 2);
    assert_eq!(config.settings.pool_budget.value, 16 << 20);
    assert!(config.warnings.is_empty());
    let is_default = |name| {
        let (_, setting) = config.settings.entries().find(|(key, _)| key.name == name).unwrap();
        setting.is_default()
    };
    assert!(is_default("metrics") && is_default("pool") && !is_default("listen"));
}

#[test]
fn a_hundred_faults_are_listed_and_the_others_counted() {
    let text: String = (1..=250).map(|line| format!("unknown-{line} = 1\n")).collect();
    let found = faults(&text);
    assert_eq!(found.len(), 101);
    assert_eq!(found[99], "100:1: unknown key `unknown-100`");
    assert_eq!(found[100], "100:1: and 150 more");
}

#[test]
fn the_faults_that_are_listed_are_the_first_in_the_file_and_not_the_first_found() {
    // A known key is read before the others, and they are before it.
    let unknown: String = (1..=100).map(|line| format!("unknown-{line} = 1\n")).collect();
    let found = faults(&format!("{unknown}pool-budget = 64\n"));
    assert_eq!(found.len(), 101);
    assert_eq!(found[99], "100:1: unknown key `unknown-100`");
    assert_eq!(found[100], "100:1: and 1 more");
}

#[test]
fn every_fault_is_reported_at_once_at_its_place() {
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
            "3:15: pool-budget: `64` is a number, expected a string",
            "4:25: suite: `rc4` is not a suite",
            "4:32: suite: `des-ctr-hmac-sha1` is insecure (legacy)",
            "5:16: allow-legacy: `yes` is a string, expected true or false",
            "6:1: unknown key `endpoint`",
            "9:9: local: peer `one` has no endpoint",
            "9:10: local: `2222`: expected [BIND:]PORT:HOST:HOSTPORT, with IPv6 addresses in \
                brackets, or a /PATH in place of either end",
            "10:1: unknown key `listen`",
            "11:7: peer `two` has no public-key",
            "14:14: public-key: peer `one` has the same key",
            "17:19: local: another forward already listens on `1`",
            "18:7: `two words` is not a valid peer name",
            "19:14: public-key: a public key is 44 characters of base64; this has 5",
        ]
    );
    let hints = hints(&text);
    assert_eq!(hints[1], "did you mean pool-budget?");
    assert_eq!(hints[6], "endpoint belongs in a [peer.NAME]");
    assert_eq!(hints[9], "listen belongs before the first [peer.NAME]");
}

#[test]
fn broken_toml_is_one_fault_per_line_and_hides_no_other_lines() {
    let text = format!(
        "listen = \"[::]:4433\npool = on\ncolor = \"red\"\n[peer.one\npublic-key = \"{ONE}\"\n"
    );
    let found = faults(&text);
    let lines: Vec<_> = found.iter().map(|fault| fault.split(':').next().unwrap()).collect();
    assert_eq!(lines[..3], ["1", "2", "3"], "{found:?}");
    assert!(found.iter().any(|fault| fault.starts_with("4:")), "{found:?}");
}

#[test]
fn an_empty_list_of_suites_is_a_fault_but_not_of_permits() {
    assert!(faults("suite = []\n").contains(&"1:9: suite: the list is empty".to_owned()));
    let text = format!(
        "listen = \"[::]:1\"\npermit-open = \"a:1\"\n[peer.one]\npublic-key = \
            \"{ONE}\"\npermit-open = []\n"
    );
    assert!(read(&text).unwrap().peers[0].incoming.as_ref().unwrap().permit_open.is_empty());
}

#[test]
fn loops_is_a_number_and_spin_a_string() {
    assert_eq!(
        faults("loops = \"4\"\nspin = 5\n")[..2],
        [
            "1:9: loops: `4` is a string, expected a whole number",
            "2:8: spin: `5` is a number, expected a string",
        ]
    );
    assert_eq!(faults("loops = 65\n")[0], "1:9: loops: `65` is not a number of event loops");
    assert_eq!(hints("loops = \"4\"\n")[0], "as in loops = 4, without quotes");
    let text = format!(
        "listen = \"[::]:1\"\nloops = 3\nspin = \"0%\"\n[peer.one]\npublic-key = \"{ONE}\"\n"
    );
    let config = read(&text).unwrap();
    assert_eq!(
        (config.settings.loops.unwrap().value, config.settings.spin.value.to_string()),
        (3, "0".into())
    );
}

#[test]
fn a_column_counts_characters() {
    assert_eq!(
        faults("congestion = \"ä\" # ö\n\"ü\" = 1\n")[..2],
        ["1:14: congestion: `ä` is not a congestion control algorithm", "2:1: unknown key `ü`",]
    );
    let after_umlauts = faults(&format!("[peer]\n\"ä\" = {{ public-key = \"{ONE}\", x = 1 }}\n"));
    assert!(
        after_umlauts.iter().any(|fault| fault.starts_with("2:70: unknown key `x`")),
        "{after_umlauts:?}"
    );
}

#[test]
fn a_dialed_peer_may_have_the_keys_of_a_fleet_and_another_one_two() {
    let keys: Vec<_> =
        (0..65).map(|_| PrivateKey::generate().unwrap().public().to_string()).collect();
    let dialed = |count| {
        let rest = "endpoint = \"_keypadd._udp.fleet.example\"\nlocal = \"1:a:1\"\n";
        format!("[peer.fleet]\npublic-key = {:?}\n{rest}", &keys[..count])
    };
    assert_eq!(read(&dialed(64)).unwrap().peers[0].keys.len(), 64);
    let place = "public-key = [".len() + 64 * "\"\", ".len() + 64 * keys[0].len() + 1;
    assert_eq!(faults(&dialed(65)), [format!("2:{place}: public-key: more than 64 keys")]);
    let listed =
        |count| format!("listen = \"[::]:1\"\n[peer.one]\npublic-key = {:?}\n", &keys[..count]);
    assert_eq!(read(&listed(2)).unwrap().peers[0].keys.len(), 2);
    assert_eq!(faults(&listed(3)), ["3:111: public-key: more than 2 keys"]);
    assert!(hints(&listed(3))[0].starts_with("list the old key and the new one"));
}

#[test]
fn a_peer_without_endpoint_needs_a_listen() {
    let peer = format!("[peer.one]\npublic-key = \"{ONE}\"\n");
    assert_eq!(faults(&peer), ["1:7: peer `one` has no endpoint, and there is no listen"]);
    let both = format!("{peer}endpoint = \"a\"\npermit-open = \"a:1\"\n");
    assert_eq!(
        faults(&both),
        ["4:15: permit-open: peer `one` cannot connect to this host without a listen"]
    );
    let both = read(&format!("listen = \"[::]:1\"\n{both}")).unwrap();
    assert!(both.peers[0].incoming.is_some() && both.peers[0].outgoing.is_some());
    assert_eq!(faults(""), ["1:1: no peers"]);
    assert_eq!(faults("[[peer]]\n"), ["1:1: peer: expected a table for each peer"]);
}

#[test]
fn a_probable_mistake_is_a_warning() {
    let config = read(&format!(
        "listen = \"[::]:1\"\n[peer.one]\npublic-key = \"{ONE}\"\nendpoint = \"a\"\n"
    ))
    .unwrap();
    let warnings: Vec<_> = config.warnings.iter().map(|warning| warning.cause.as_str()).collect();
    assert_eq!(
        warnings,
        [
            "listen: no peer may connect to this host: each one has an endpoint",
            "peer `one` has an endpoint but no forwards",
        ]
    );
}

#[test]
fn a_legacy_suite_must_be_allowed_wherever_it_is_set() {
    let text = format!(
        "[peer.one]\npublic-key = \"{ONE}\"\nendpoint = \"a\"\nsuite = \"3des-ctr-hmac-sha1\"\n"
    );
    assert_eq!(faults(&text), ["4:9: suite: `3des-ctr-hmac-sha1` is insecure (legacy)"]);
    assert!(read(&format!("allow-legacy = true\n{text}")).is_ok());
}

#[test]
fn every_example_is_valid() {
    for key in keys() {
        let global = if key.scope == Scope::Global { key.line() } else { String::new() };
        let own = if key.scope == Scope::Peer { key.line() } else { String::new() };
        let mut text = format!("{global}\n[peer.one]\n{own}\n");
        for (name, line) in [
            ("public-key", format!("public-key = \"{ONE}\"")),
            ("endpoint", "endpoint = \"a\"".into()),
            ("networks", "networks = \"10.9.0.0/16\"".into()),
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
    fn no_text_panics(text in "(\\PC|\n){0,200}") {
        let _ = read(&text);
    }

    #[test]
    fn a_private_key_is_never_quoted(at in 0..keys().count(), form in 0..6_usize) {
        let line = "MC4CAQAwBQYDK2VwBCIEIJ1hsZ3v/VpguoRK9JLsLMREScVpezJpGXA7rAMcrn9g";
        let pem = format!("-----BEGIN PRIVATE KEY-----\n{line}\n-----END PRIVATE KEY-----\n");
        let name = keys().nth(at).unwrap().name;
        let pasted = match form {
            0 => format!("{name} = \"{line}\"\n"),
            1 => format!("{name} = [\"{line}\"]\n"),
            2 => format!("{name} = \"\"\"{pem}\"\"\"\n"),
            3 => format!("{name} = {line}\n"),
            4 => format!("{pem}{name} = 1\n"),
            _ => format!("\"{line}\" = \"{line}\"\n[peer.\"{line}\"]\nx = 1\n"),
        };
        for text in [pasted.clone(), format!("[peer.a]\n{pasted}")] {
            let faults = read(&text).unwrap_err();
            let said: String = faults.iter().map(|fault| format!("{fault}\n")).collect();
            for start in 0..line.len() - 29 {
                prop_assert!(!said.contains(&line[21 + start..29 + start]), "{}", said);
            }
        }
    }
}

#[test]
fn a_peer_has_one_or_two_keys_and_some_endpoints_and_a_last_day() {
    let peer = |public_key: &str, endpoint: &str, more: &str| {
        format!(
            "[peer.a]\npublic-key = {public_key}\nendpoint = {endpoint}\nlocal = \"1:a:1\"\n{more}"
        )
    };
    let two = format!("[\"{ONE}\", \"{OTHER}\"]");
    let one = format!("\"{ONE}\"");
    let text = peer(&two, "[\"a.example\", \"b.example:1\"]", "valid-until = \"2027-01-31\"\n");
    let read = &read(&text).unwrap().peers[0];
    assert_eq!(read.keys, [ONE, OTHER].map(|key| key.parse().unwrap()));
    let endpoints = &read.outgoing.as_ref().unwrap().endpoint;
    assert_eq!(endpoints.to_string(), "a.example:4433, b.example:1");
    assert!(read.valid_until.is_some());

    let nine = (1..=9).map(|port| format!("\"a:{port}\"")).collect::<Vec<_>>().join(", ");
    for (text, fault) in [
        (peer("[]", "\"a\"", ""), "1:7: peer `a` has no public-key"),
        (peer(&one, "[]", ""), "1:7: endpoint: the list is empty"),
        (peer(&one, &format!("[{nine}]"), ""), "3:13: endpoint: too many"),
        (
            peer(&format!("[\"{ONE}\", \"{ONE}\"]"), "\"a\"", ""),
            "2:63: public-key: the key is listed twice",
        ),
        (
            peer(&one, "\"a\"", "valid-until = 2027-01-31\n"),
            "5:15: valid-until: `2027-01-31` is a date, expected a string",
        ),
        (
            peer(&one, "\"a\"", "valid-until = \"tomorrow\"\n"),
            "5:15: valid-until: `tomorrow` is not a date or a time in UTC",
        ),
        (
            format!(
                "{}[peer.b]\npublic-key = \"{OTHER}\"\nendpoint = \"b\"\n",
                peer(&two, "\"a\"", "")
            ),
            "6:14: public-key: peer `a` has the same key",
        ),
    ] {
        assert_eq!(faults(&text), [fault], "{text}");
    }
}

#[test]
fn peers_of_several_files_are_read_as_those_of_one() {
    let main = "permit-open = [\"db:5432\"]\nlisten = \"[::]:1\"\n";
    let parts = [
        part("a.toml", format!("# of the office\n[peer.office]\npublic-key = \"{ONE}\"\n")),
        part("b.toml", dialed("lab", OTHER, 2222)),
        part("c.toml", String::new()),
    ];
    let config = Config::read(Texts { main, parts: &parts }, 1 << 40).unwrap();
    let names: Vec<_> = config.peers.iter().map(|peer| peer.name.as_str()).collect();
    assert_eq!(names, ["office", "lab"]);
    assert_eq!(config.peers[0].incoming.as_ref().unwrap().permit_open.len(), 1);
    assert!(config.warnings.is_empty(), "{:?}", config.warnings);
    let own = config.own_key_fault(OTHER.parse().unwrap()).unwrap();
    assert_eq!(own.to_string().lines().next().unwrap().split(' ').next(), Some("b.toml:2:14:"));
}

#[test]
fn what_two_files_both_have_is_refused_at_the_one_place_and_names_the_other() {
    let main = dialed("lab", ONE, 1);
    let parts = [
        part("a.toml", format!("\n{}", dialed("lab", OTHER, 2))),
        part("b.toml", dialed("office", OTHER, 3)),
        part("c.toml", dialed("desk", ONE, 4) + &dialed("home", OTHER, 1)),
        part("d.toml", dialed("office", ONE, 5) + "[peer.x]\n"),
    ];
    let refused = Config::read(Texts { main: &main, parts: &parts }, 1 << 40).unwrap_err();
    let said: Vec<_> = refused
        .faults
        .iter()
        .map(|fault| fault.to_string().lines().next().unwrap_or_default().to_owned())
        .collect();
    assert_eq!(
        said,
        [
            "a.toml:2:7: peer `lab` is also in line 1 of the main file",
            "c.toml:2:14: public-key: peer `lab` has the same key, in line 2 of the main file",
            "c.toml:6:14: public-key: peer `office` has the same key, in line 2 of `b.toml`",
            "c.toml:8:9: local: another forward already listens on `1`, in line 4 of the main file",
            "d.toml:1:7: peer `office` is also in line 1 of `b.toml`",
            "d.toml:5:7: peer `x` has no public-key",
            "d.toml:5:7: peer `x` has no endpoint, and there is no listen",
        ]
    );
}

#[test]
fn a_file_of_peers_has_nothing_but_peers() {
    let text = format!("listen = \"[::]:1\"\nnonsense = 1\n{}broken\n", dialed("lab", ONE, 1));
    let parts = [part("lab.toml", text)];
    let refused = Config::read(Texts { main: "", parts: &parts }, 1 << 40).unwrap_err();
    let said: Vec<_> = refused.faults.iter().map(Fault::to_string).collect();
    assert_eq!(said.len(), 3, "{said:?}");
    let hint = "files there contain only [peer.NAME] tables; move it to the main file";
    assert_eq!(
        said[0],
        format!("lab.toml:1:1: `listen` is not allowed in peers.d\n  hint: {hint}")
    );
    assert!(
        said[1].starts_with("lab.toml:2:1: `nonsense` is not allowed in peers.d"),
        "{}",
        said[1]
    );
    assert!(said[2].starts_with("lab.toml:7:"), "{}", said[2]);
}

#[test]
fn a_range_of_ports_is_a_forward_for_each() {
    let text = dialed("lab", ONE, 1).replace("\"1:a:1\"", "[\"80-82:a:90-92\", \"1:a:1\"]");
    let config = read(&text).unwrap();
    assert_eq!(config.peers[0].outgoing.as_ref().unwrap().forwards.len(), 4);
    let twice = text.replace("1:a:1", "81:a:1");
    assert_eq!(faults(&twice), ["4:27: local: another forward already listens on `81`"]);
}

/// A peer that is dialed, with these keys.
fn peer(name: &str, key: &str, keys: &str) -> String {
    format!("[peer.{name}]\npublic-key = \"{key}\"\nendpoint = \"192.0.2.1\"\n{keys}\n")
}

#[test]
fn the_networks_of_a_peer_are_read_and_need_no_forwards() {
    let keys = "networks = [\"10.2.0.0/16\", \"fd02::/48\"]\naddress = \"10.255.0.1/31\"\n\
        permit-networks = [\"10.1.0.0/16:443\", \"[fd01::/48]:udp:53\"]\nroutes = \"install\"";
    let config = read(&peer("a-site-with-a-long-name", ONE, keys)).unwrap();
    assert!(config.warnings.is_empty(), "{:?}", config.warnings);
    let networks = config.peers[0].networks.as_ref().unwrap();
    assert_eq!(networks.device, "kp-a-site-with-");
    assert_eq!((networks.prefixes.len(), networks.permits.len()), (2, 2));
    assert_eq!((networks.mtu, networks.addresses.len()), (None, 1));
}

#[test]
fn networks_that_lead_nowhere_or_two_ways_are_refused() {
    let overlap = peer("a", ONE, "networks = \"10.0.0.0/8\"\ndevice = \"t\"")
        + &peer("b", OTHER, "networks = [\"10.2.0.0/16\", \"10.0.0.0/8\"]\ndevice = \"t\"");
    assert_eq!(
        faults(&overlap),
        [
            "6:7: device: peer `a` also has `t`",
            "9:28: networks: 10.0.0.0/8 is also behind peer `a`",
        ]
    );
    for (keys, cause) in [
        ("mtu = 1300", "4:7: mtu: peer `a` has no networks"),
        (
            "networks = [\"192.0.0.0/16\"]",
            "4:13: networks: 192.0.0.0/16 covers the peer's own endpoint 192.0.2.1",
        ),
        (
            "networks = [\"0.0.0.0/0\"]\nroutes = \"install\"",
            "5:10: routes: cannot install a route to 0.0.0.0/0",
        ),
        (
            "networks = [\"10.2.3.4/16\"]",
            "4:13: networks: `10.2.3.4/16` is an address in the network 10.2.0.0/16, not a network",
        ),
        (
            "networks = [\"10.2.0.0/16\"]\ndevice = \"a/b\"",
            "5:10: device: `a/b` is not a device name",
        ),
        ("networks = [\"10.2.0.0/16\"]\nmtu = 1279", "5:7: mtu: `1279` is not an MTU for a device"),
    ] {
        assert_eq!(faults(&peer("a", ONE, keys)), [cause], "{keys}");
    }
}
