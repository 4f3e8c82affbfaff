//! Tests `keypadd doctor`: its report on a healthy host, on a peer that does not answer, on files
//! that others can change, and on networks of peers.

use std::net::{IpAddr, UdpSocket};
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
        said.contains(&line) && said.contains("      fix: check that keypadd is running"),
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

/// Writes a file with a peer that has these networks and connects to this host.
fn write_networks(desk: &Desk, networks: &str) {
    let file = format!(
        "key = \"connect.key\"\nlisten = \"127.0.0.1:0\"\n[peer.lab]\npublic-key = \
         \"{PUBLIC_KEY}\"\nnetworks = [{networks}]\n"
    );
    write_file(&desk.path("doctor.toml"), &file, 0o600);
}

#[test]
fn doctor_looks_at_what_networks_need_of_this_host() {
    let desk = desk();
    write_networks(&desk, "\"10.86.3.0/24\", \"fd86:3::/64\"");
    let output = doctor(&desk, &["--json"]);
    let document: Value = serde_json::from_slice(&output.stdout).unwrap();
    let findings = document["findings"].as_array().unwrap();
    let found = |check: &str, part: &str| {
        findings.iter().any(|one| {
            one["check"] == check && one["found"].as_str().is_some_and(|said| said.contains(part))
        })
    };
    for (check, part) in [
        ("networks", "/dev/net/tun"),
        ("networks of lab", "kp-lab"),
        ("networks", "v4"),
        ("networks", "v6"),
    ] {
        assert!(found(check, part), "{check}, {part}: {document:#}");
    }
    let of_networks = findings
        .iter()
        .filter(|one| one["check"].as_str().is_some_and(|check| check.starts_with("networks")));
    for one in of_networks.filter(|one| one["verdict"] != "ok") {
        assert!(one["fix"].is_string(), "{one}");
    }
}

/// An address of this host in a network with others, if it is in one. Connecting sends nothing.
fn own_address() -> Option<IpAddr> {
    let socket = UdpSocket::bind("0.0.0.0:0").ok()?;
    socket.connect("192.0.2.1:9").ok()?;
    let address = socket.local_addr().ok()?.ip();
    (!address.is_loopback()).then_some(address)
}

#[test]
fn check_and_doctor_warn_of_a_network_that_this_host_is_in() {
    let desk = desk();
    write_networks(&desk, "\"10.86.3.0/24\"");
    let check = || desk.keypadd(&["check", "--config", "doctor.toml"]).output().unwrap();
    let warns = |said: &[u8], prefix: &str| {
        text(said).contains(&format!("peer lab: {prefix} of its networks overlaps "))
    };
    assert!(!warns(&check().stderr, "10.86.3.0/24"));
    // A host that is in no network cannot overlap with one.
    let Some(own) = own_address() else { return };
    let prefix = format!("{own}/32");
    write_networks(&desk, &format!("\"{prefix}\""));
    let checked = check();
    let said = text(&checked.stderr);
    assert!(checked.status.success() && warns(&checked.stderr, &prefix), "{said}");
    assert!(said.contains("(warning)\n  hint: leave it out of `networks`"), "{said}");
    assert!(warns(&doctor(&desk, &[]).stdout, &prefix));
}
