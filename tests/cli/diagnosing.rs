//! Tests `keypadd doctor`: its report on a healthy host, on a peer that does not answer, and on
//! files that others can change.

use std::process::Output;

use serde_json::Value;

use crate::daemons::{Daemon, Desk, PUBLIC_KEY, desk, text, write_file};
use crate::ends::free_port;

/// Writes a file with one peer, `lab`, at this address.
fn write_config(desk: &Desk, endpoint: &str, mode: u32) {
    let file = format!(
        "key = \"connect.key\"\n[peer.lab]\npublic-key = \"{PUBLIC_KEY}\"\nendpoint = \"{endpoint}\"\n\
         local = [\"127.0.0.1:1:a:1\"]\n"
    );
    write_file(&desk.path("doctor.toml"), &file, mode);
}

fn doctor(desk: &Desk, args: &[&str]) -> Output {
    desk.keypadd(&["doctor", "--config", "doctor.toml"]).args(args).output().unwrap()
}

#[test]
fn doctor_finds_a_host_its_daemon_and_its_peer_in_order() {
    let desk = desk();
    let server = Daemon::serve(&desk, &[]);
    write_config(&desk, &server.address(), 0o600);
    let output = doctor(&desk, &[]);
    let said = text(&output.stdout);
    assert_eq!(output.status.code(), Some(0), "{said}{}", text(&output.stderr));
    for line in [
        "ok    configuration: `doctor.toml` is valid, peers: 1\n".to_owned(),
        format!("ok    daemon: `keypadd serve`, {} runs\n", server.address()),
        format!("ok    peer lab: {} answers, round trip ", server.address()),
    ] {
        assert!(said.contains(&line), "{line}: {said}");
    }
    for check in ["CPU", "clock", "UDP buffers", "UDP offload", "open files", "pool: aes-256-gcm"] {
        assert!(said.contains(&format!("  {check}: ")), "{check}: {said}");
    }
    // A single peer, as JSON.
    let output = doctor(&desk, &["@lab", "--json"]);
    let document: Value = serde_json::from_slice(&output.stdout).unwrap();
    let findings = document["findings"].as_array().unwrap();
    assert!(findings.iter().any(|one| one["check"] == "peer lab" && one["verdict"] == "ok"));
    assert!(!findings.iter().any(|one| one["check"] == "CPU"), "{document}");
}

#[test]
fn doctor_says_what_is_wrong_with_a_peer_and_with_files_and_fails() {
    let desk = desk();
    let silent = free_port();
    write_config(&desk, &format!("127.0.0.1:{silent}"), 0o600);
    let output = doctor(&desk, &["@lab"]);
    let said = text(&output.stdout);
    assert_eq!(output.status.code(), Some(1), "{said}");
    let line = format!("FAIL  peer lab: cannot reach 127.0.0.1:{silent}: ");
    assert!(
        said.contains(&line) && said.contains("      fix: check that `keypadd serve`"),
        "{said}"
    );
    assert_eq!(text(&output.stderr), "keypadd: 1 check failed\n");

    let output = doctor(&desk, &["@lib"]);
    assert_eq!(output.status.code(), Some(2));
    assert!(text(&output.stderr).contains("did you mean @lab?"));

    write_config(&desk, &format!("127.0.0.1:{silent}"), 0o666);
    let output = doctor(&desk, &[]);
    let said = text(&output.stdout);
    assert_eq!(output.status.code(), Some(1), "{said}");
    let found = "FAIL  configuration: configuration `doctor.toml` can be changed by other users";
    assert!(said.contains(found) && said.contains("fix: chmod go-w doctor.toml"), "{said}");
    // Without a usable file it contacts no peer but still checks the host.
    assert!(said.contains("  CPU: ") && !said.contains("  peer "), "{said}");
}
