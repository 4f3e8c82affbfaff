//! Tests that no output or log ever contains a private key.

use std::process::{Command, Output, Stdio};

use keypadd_config::{Flag, Key, Kind, Settings};

use crate::daemons::{Daemon, PRIVATE_KEY, PUBLIC_KEY, desk};

/// Asserts that no 8-character piece of the seed's 43 base64 characters is in the output.
fn assert_silent(output: &[u8], what: &str) {
    let text = String::from_utf8_lossy(output);
    let line = PRIVATE_KEY.lines().nth(1).unwrap();
    let seed = &line[21..];
    for start in 0..=seed.len() - 8 {
        assert!(!text.contains(&seed[start..start + 8]), "{what}: {text}");
    }
    // The seed in hex, as in RFC 8032.
    assert!(!text.to_lowercase().contains("9d61b19deffd5a60"), "{what}: {text}");
}

fn assert_refused_in_silence(output: &Output, what: &str) {
    assert_ne!(output.status.code(), Some(0), "{what}");
    assert_ne!(output.status.code(), Some(101), "{what}: a panic");
    assert_silent(&output.stdout, what);
    assert_silent(&output.stderr, what);
    let lines = String::from_utf8_lossy(&output.stderr).lines().count();
    assert!(lines <= 2, "{what}: {}", String::from_utf8_lossy(&output.stderr));
}

#[test]
fn a_private_key_pasted_anywhere_is_refused_and_not_repeated() {
    let desk = desk();
    let line = PRIVATE_KEY.lines().nth(1).unwrap();
    let flags = [
        ("serve", vec!["allow", "listen", "permit-open", "suite", "kex"]),
        ("connect", vec!["peer", "local", "stdio", "connect-timeout", "suite", "kex"]),
        (
            "invite",
            vec!["permit-open", "permit-listen", "listen", "host", "expires", "config", "key"],
        ),
        ("join", vec!["name", "connect-timeout", "config", "key"]),
        ("status", vec!["socket", "nonsense"]),
        ("reload", vec!["socket"]),
        ("check", vec!["config"]),
        ("run", vec!["config"]),
    ];
    let is_common =
        |key: &&Key| matches!(key.flag, Flag::Daemons | Flag::All) && key.kind != Kind::Switch;
    let common: Vec<_> = Settings::KEYS.iter().filter(is_common).map(|key| key.name).collect();
    for pasted in [PRIVATE_KEY, line] {
        for (verb, own) in &flags {
            let common = common.iter().filter(|_| ["serve", "connect"].contains(verb));
            for flag in own.iter().chain(common) {
                let mut command = desk.keypadd(&[verb]);
                // All required arguments, so that only the pasted value is wrong.
                if *verb == "connect" {
                    command.args(["host.invalid", "--connect-timeout=100ms"]);
                    if !["local", "stdio"].contains(flag) {
                        command.args(["-L", "0:a:1"]);
                    }
                    if *flag != "peer" {
                        command.args(["--peer", PUBLIC_KEY]);
                    }
                } else if *verb == "invite" {
                    command.arg("laptop");
                } else if *verb == "serve" && *flag != "allow" {
                    command.args(["--allow", PUBLIC_KEY]);
                }
                let variable = flag.to_uppercase().replace('-', "_");
                let what = format!("{verb} --{flag}");
                if *flag != "connect-timeout" {
                    let inherited = command.get_args().map(ToOwned::to_owned).collect::<Vec<_>>();
                    let mut by_variable = desk.keypadd(&[]);
                    by_variable.args(inherited).env(format!("KEYPADD_{variable}"), pasted);
                    if *flag != "nonsense" {
                        assert_refused_in_silence(&by_variable.output().unwrap(), &what);
                    }
                    command.arg(format!("--{flag}")).arg(pasted);
                } else {
                    command.arg(format!("--{flag}={pasted}"));
                }
                assert_refused_in_silence(&command.output().unwrap(), &what);
            }
        }
        for switch in ["allow-legacy", "json"] {
            let verb = if switch == "json" { "status" } else { "serve" };
            let output = desk.keypadd(&[verb, &format!("--{switch}={pasted}")]).output().unwrap();
            assert_refused_in_silence(&output, switch);
        }
        for verb in [
            "keygen", "pubkey", "invite", "join", "serve", "connect", "run", "check", "doctor",
            "reload", "man", "status", pasted,
        ] {
            // As a path, the name is too long or its directory does not exist.
            let name = format!("missing/{pasted}/{pasted}");
            for argument in [pasted, &name] {
                let output = desk.keypadd(&[verb, argument]).output().unwrap();
                assert_refused_in_silence(&output, &format!("{verb} with an argument"));
                let mut command = desk.keypadd(&["connect", argument, "--peer", PUBLIC_KEY]);
                command.args(["-W", "a:1", "--connect-timeout=100ms"]);
                assert_refused_in_silence(&command.output().unwrap(), "connect to a key");
            }
        }
    }
}

#[test]
fn the_most_verbose_log_contains_no_private_key() {
    let desk = desk();
    let server = Daemon::serve(&desk, &["-vv", "--log", "trace", "--permit-open", "localhost:*"]);
    let output = server
        .connect(&desk, &["-vv", "--log", "trace", "-W", "127.0.0.1:9"])
        .stdin(Stdio::null())
        .output()
        .unwrap();
    assert!(!output.stderr.is_empty());
    assert_silent(&output.stderr, "connect");
    assert_silent(&server.stop().stderr, "serve");
    let keygen = Command::new(env!("CARGO_BIN_EXE_keypadd"))
        .args(["-vv", "keygen"])
        .arg(desk.path("new.key"))
        .output()
        .unwrap();
    let pem = std::fs::read_to_string(desk.path("new.key")).unwrap();
    let text = String::from_utf8_lossy(&keygen.stderr) + String::from_utf8_lossy(&keygen.stdout);
    assert!(keygen.status.success());
    assert!(!text.contains(pem.lines().nth(1).unwrap()));
}
