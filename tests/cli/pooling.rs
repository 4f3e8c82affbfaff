//! Whether there is a pool: what `auto` finds and says, what a reload changes, what memory that cannot be locked
//! leads to. What seals take depends on the machine, so most claims are about what follows from it.

use std::fs;

use serde_json::Value;

use crate::daemons::{Daemon, Desk, PUBLIC_KEY, desk, text};
use crate::ends::{echo, echoes, free_port, through, until};

fn status(desk: &Desk) -> (String, Value) {
    let ask = |args: &[&str]| text(&desk.keypadd(args).output().unwrap().stdout);
    let document = ask(&["status", "--json"]);
    (ask(&["status"]), serde_json::from_str(&document).unwrap())
}

#[test]
fn auto_has_a_pool_where_a_cipher_is_slow_and_shows_the_figures() {
    let desk = desk();
    let slow = ["--suite", "3des-ctr-hmac-sha1", "--allow-legacy", "--cipher-backend", "des-crate"];
    let _server = Daemon::serve(&desk, &[&["--pool", "auto"][..], &slow].concat());
    let (shown, document) = status(&desk);
    assert!(shown.contains("\n  pool on (auto): 0 B filled of 4.0 MiB"), "{shown}");
    assert!(shown.contains("\n    3des-ctr-hmac-sha1 pooled: pooled/inline "), "{shown}");
    let suites = &document["daemons"][0]["pool"]["suites"];
    let lengths = suites[0]["seals"].as_array().unwrap().iter().map(|seal| &seal["payload_bytes"]);
    assert!(lengths.eq([64, 256, 1400].iter()), "{suites}");
}

#[test]
fn auto_has_no_pool_where_no_suite_gains_by_it_and_says_how_to_have_one() {
    let desk = desk();
    let _server = Daemon::serve(&desk, &["--pool", "auto"]);
    let (shown, document) = status(&desk);
    let pool = &document["daemons"][0]["pool"];
    let suites = pool["suites"].as_array().unwrap();
    assert_eq!((suites.len(), &pool["auto"]), (6, &Value::Bool(true)), "{pool}");
    let pays = suites.iter().any(|suite| suite["pays"] == true);
    assert_eq!(pool["mode"], if pays { "on" } else { "off" });
    if pays {
        assert!(shown.contains("\n  pool on (auto): "), "{shown}");
    } else {
        let line = shown.lines().find(|line| line.starts_with("  pool off (auto): pooled "));
        assert!(line.unwrap().ends_with(" us; force with --pool on"), "{shown}");
    }
    for suite in suites {
        let way = if suite["pays"] == true { "pooled" } else { "inline" };
        let line = format!("\n    {} {way}: pooled/inline ", suite["suite"].as_str().unwrap());
        assert!(shown.contains(&line), "{line}: {shown}");
    }
}

#[test]
fn memory_that_must_be_locked_and_cannot_be_is_a_reason_not_to_start() {
    let (first, second) = (desk(), desk());
    let _server = Daemon::serve(&first, &[]);
    let (_, document) = status(&first);
    let pool = &document["daemons"][0]["pool"];
    if pool["locked_bytes"] == pool["budget_bytes"] {
        Daemon::serve(&second, &["--require-locked"]);
        return;
    }
    let args = ["serve", "--allow", PUBLIC_KEY, "--listen", "127.0.0.1:0", "--require-locked"];
    let output = second.keypadd(&args).output().unwrap();
    let said = text(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{said}");
    assert!(said.contains("keypadd: no pool: the kernel locked "), "{said}");
    assert!(said.contains("LimitMEMLOCK="), "{said}");
}

#[test]
fn a_reload_takes_the_pool_from_live_sessions_and_gives_it_back() {
    let desk = desk();
    let (udp, port, target) = (free_port(), free_port(), echo("127.0.0.1"));
    let write = |pool: &str, of_peer: &str| {
        let peer = format!("[peer.self]\npublic-key = \"{PUBLIC_KEY}\"\n");
        let file = format!(
            "{pool}\nkey = \"good.key\"\npool-budget = \"4MiB\"\nlisten = \"127.0.0.1:{udp}\"\n\
             permit-open = [\"{target}\"]\n{peer}endpoint = \"127.0.0.1:{udp}\"\n\
             permit-listen = [\"1\"]\n{of_peer}local = [\"{port}:{target}\"]\n"
        );
        fs::write(desk.path("self.toml"), file).unwrap();
    };
    let reload = || {
        let output = desk.keypadd(&["reload"]).output().unwrap();
        assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
        text(&output.stdout)
    };
    // Bytes of pads that the sessions at both ends hold.
    let held = || -> Vec<u64> {
        let (_, document) = status(&desk);
        let sessions = document["daemons"][0]["sessions"].as_array().unwrap().clone();
        let directions = ["send", "receive"];
        let parts = ["head", "body"];
        let level = |keys: &Value| -> u64 {
            parts.iter().map(|part| keys[part]["bytes"].as_u64().unwrap()).sum()
        };
        let keys = sessions.iter().flat_map(|one| directions.map(|way| level(&one["keys"][way])));
        keys.collect()
    };
    write("pool = \"on\"", "");
    let _daemon =
        Daemon::start(desk.keypadd(&["run", "--config", "self.toml", "--log-format", "json"]));
    let kept = until("the forward works", || through(port));
    let is_full = || Some(held()).filter(|held| held.len() == 4 && held.iter().all(|&one| one > 0));
    until("there is more than a peer's later share", || {
        Some(()).filter(|()| held().iter().sum::<u64>() > 2 << 20)
    });
    // One peer, two sessions: both ends are this daemon.
    let share = "pool-budget = \"2MiB\"\n";
    write("pool = \"on\"", share);
    reload();
    until("both sessions have given back", || {
        assert!(echoes(&kept));
        Some(()).filter(|()| held().iter().sum::<u64>() <= 2 << 20)
    });
    until("all directions have pads", is_full);

    write("pool = \"off\"", share);
    assert!(reload().contains("  pool has changed\n"));
    let (shown, document) = status(&desk);
    assert!(shown.contains("\n  pool off: pool = \"off\"\n"), "{shown}");
    assert_eq!(document["daemons"][0]["sessions"][0]["keys"]["send"]["head"]["bytes"], 0);
    assert!(echoes(&kept));

    write("pool = \"on\"\nmax-fill-cpu = \"50\"", share);
    let said = reload();
    assert!(said.contains("  max-fill-cpu has changed\n"), "{said}");
    until("all directions have pads again", is_full);
    assert!(echoes(&kept));
    let (shown, _) = status(&desk);
    assert!(shown.contains(" % of one core, at most 50 %\n"), "{shown}");
}
