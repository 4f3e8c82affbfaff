//! Tests `keypadd drain`: a server accepts no new sessions, says so, and accepts them again.

use serde_json::Value;

use crate::daemons::text;
use crate::ends::{echoes, free_port, get, scrape, through, until};
use crate::replacing::Hosts;

/// Its output, or its error, and its exit code.
fn drain(hosts: &Hosts, args: &[&str]) -> (String, Option<i32>) {
    let output = hosts.desk.keypadd(&[&["drain"], args].concat()).output().unwrap();
    (text(&output.stdout) + &text(&output.stderr), output.status.code())
}

/// Whether this process's status says that it is drained, and how long what is open may stay.
fn state(hosts: &Hosts, pid: u32) -> (Value, Option<u64>) {
    let socket = hosts.socket(pid);
    let asked = ["status", "--json", "--socket", socket.to_str().unwrap()];
    let shown = hosts.desk.keypadd(&asked).output().unwrap();
    let mut status: Value = serde_json::from_slice(&shown.stdout).unwrap();
    let daemon = status["daemons"][0].take();
    (daemon["draining"].clone(), daemon["drain_left_seconds"].as_u64())
}

#[test]
fn a_drain_is_shown_outlasts_the_process_and_can_be_taken_back() {
    let port = free_port();
    let mut hosts = Hosts::new(&format!("metrics = \"127.0.0.1:{port}\""), "");
    let (mut far, near) = (hosts.run("far"), hosts.run("near"));
    let open = until("the forward works", || through(hosts.ports[0]));
    let ready = || get(port, "/readyz");
    assert!(ready().starts_with("HTTP/1.1 200"), "{}", ready());
    assert!(scrape(port).contains("\nkeypadd_draining 0\n"), "{}", scrape(port));

    let (said, exit) = drain(&hosts, &[]);
    assert!(said.ends_with(": draining; sessions 1, open connections 1\n"), "{said}");
    assert_eq!(exit, Some(0));
    assert!(ready().starts_with("HTTP/1.1 503"), "{}", ready());
    until("the metrics show it", || scrape(port).contains("\nkeypadd_draining 1\n").then_some(()));
    assert_eq!(state(&hosts, far.pid()), (true.into(), None));
    far.hear("draining: accepts no new sessions");
    // Again, with a time.
    assert_eq!(drain(&hosts, &["--for", "1h"]).1, Some(0));
    assert!(state(&hosts, far.pid()).1.is_some_and(|left| (3_000..=3_600).contains(&left)));
    let shown = text(&hosts.desk.keypadd(&["status"]).output().unwrap().stdout);
    let line = "\n  draining: accepts no new sessions; open connections stay for up to 59m";
    assert!(shown.contains(line), "{shown}");
    // The client knows no other server.
    assert!(echoes(&until("a new connection works", || through(hosts.ports[0]))));

    let reloaded =
        hosts.desk.keypadd(&["reload", "--socket"]).arg(hosts.socket(far.pid())).output();
    assert!(reloaded.unwrap().status.success());
    assert_eq!(state(&hosts, far.pid()).0, Value::from(true));
    let output = hosts.replace(&far);
    assert!(output.status.success(), "{}", text(&output.stderr));
    let (is_drained, left) = state(&hosts, hosts.follower());
    assert!(is_drained == true && left.is_some_and(|left| (3_000..=3_600).contains(&left)));
    assert!(echoes(&open));

    let (said, exit) = drain(&hosts, &["--off"]);
    assert!(said.contains(": accepts new sessions; "), "{said}");
    assert_eq!(exit, Some(0));
    assert!(ready().starts_with("HTTP/1.1 200"), "{}", ready());
    assert_eq!(state(&hosts, hosts.follower()), (false.into(), None));
    assert!(echoes(&open));
    drop(near);
}

#[test]
fn only_a_server_is_drained() {
    let hosts = Hosts::new("", "");
    let near = hosts.run("near");
    let socket = hosts.socket(near.pid());
    let (said, exit) = drain(&hosts, &["--socket", socket.to_str().unwrap()]);
    assert!(said.contains("this `keypadd run` is not a server"), "{said}");
    assert_eq!(exit, Some(2));
    let (said, exit) = drain(&hosts, &[]);
    assert!(said.contains("no server found"), "{said}");
    assert_eq!(exit, Some(5));
}
