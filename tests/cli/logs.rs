//! Tests log lines: their format, and those about forwarded connections.

use std::fs::{self, File};
use std::net::{TcpListener, TcpStream};
use std::os::unix::fs::MetadataExt;
use std::thread;

use rustix::process::{Pid, Resource, Rlimit, Signal, kill_process, prlimit};
use serde_json::Value;

use crate::daemons::{Daemon, NEAR_PUBLIC_KEY, PUBLIC_KEY, bounded, desk, text};
use crate::ends::{echo, exchange, free_port, rest, until};
use crate::staying::forwarding;

#[test]
fn log_lines_have_a_time_except_in_the_systemd_journal() {
    let desk = desk();
    let path = desk.path("log");
    for is_journal in [true, false] {
        let log = File::create(&path).unwrap();
        let file = log.metadata().unwrap();
        let named = format!("{}:{}", file.dev(), file.ino() + u64::from(!is_journal));
        let nobody = ["-v", "connect", "127.0.0.1:9", "--peer", PUBLIC_KEY, "-W", "a:1"];
        let mut connect = desk.keypadd(&nobody);
        connect.args(["--connect-timeout", "50ms"]).env("JOURNAL_STREAM", named).stderr(log);
        connect.status().unwrap();
        let text = fs::read_to_string(&path).unwrap();
        let line = text.lines().find(|line| line.contains("UDP buffers")).unwrap();
        assert_eq!(!line.starts_with("20"), is_journal, "{text}");
    }
}

#[test]
fn a_log_that_may_not_grow_does_not_end_the_daemon() {
    let desk = desk();
    let path = desk.path("log");
    let mut serve = desk.keypadd(&["serve", "--listen", "127.0.0.1:0", "--log-format", "json"]);
    serve.args(["--allow", NEAR_PUBLIC_KEY]);
    let mut server = serve.stderr(File::create(&path).unwrap()).spawn().unwrap();
    let _bounded = bounded(&server);
    until("it is ready", || fs::read_to_string(&path).unwrap().contains("ready").then_some(()));
    let full = Rlimit { current: Some(0), maximum: None };
    let pid = Pid::from_child(&server);
    prlimit(Some(pid), Resource::Fsize, full).unwrap();
    // It logs that it is shutting down.
    kill_process(pid, Signal::TERM).unwrap();
    assert_eq!(server.wait().unwrap().code(), Some(0));
}

/// The lines about forwarded connections in a JSON log.
fn connections(log: &str) -> Vec<Value> {
    let lines = log.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
    lines.filter(|line| line["message"] == "connection").collect()
}

#[test]
fn each_forwarded_connection_is_logged_at_both_ends_where_that_is_wanted() {
    let (desk, target) = (desk(), echo("127.0.0.1"));
    let mute = TcpListener::bind("127.0.0.1:0").unwrap();
    let mute_at = mute.local_addr().unwrap();
    thread::spawn(move || mute.incoming().for_each(drop));
    let server = Daemon::serve(&desk, &["--permit-open", "127.0.0.1:*", "--log-connections"]);
    let refused = format!("127.0.0.1:0:127.0.0.1:{}", free_port());
    let to_mute = format!("127.0.0.1:0:{mute_at}");
    let more = ["-L", &refused, "-L", &to_mute, "--log-connections"];
    let (client, entrance) = forwarding(&server, &desk, &target.to_string(), &more);
    let at = |nth: usize| client.ready["forwards"][nth]["listen"][0].as_str().unwrap().to_owned();

    assert_eq!(exchange(&entrance.to_string(), b"twelve bytes").unwrap(), b"twelve bytes");
    assert!(exchange(&at(1), b"").is_err());
    // Sends nothing: waits for the target to speak first.
    assert_eq!(rest(&mut TcpStream::connect(at(2)).unwrap()).unwrap(), b"");
    let logs = [client.stop(), server.stop()].map(|output| text(&output.stderr));
    let [near, far] = logs.each_ref().map(|log| connections(log));
    let ends = |lines: &[Value], target: &str| -> Vec<Value> {
        lines.iter().filter(|line| line["target"] == target).cloned().collect()
    };
    for (lines, log) in [(&near, &logs[0]), (&far, &logs[1])] {
        assert_eq!(lines.len(), 3, "{log}");
        let [whole] = &ends(lines, &target.to_string())[..] else { panic!("{log}") };
        assert_eq!(whole["ended"], "closed");
        assert_eq!((&whole["sent_bytes"], &whole["received_bytes"]), (&12.into(), &12.into()));
        assert!(whole["seconds"].as_f64().is_some() && whole["peer"].as_str().is_some(), "{whole}");
        let [refusal] = &ends(lines, refused.strip_prefix("127.0.0.1:0:").unwrap())[..] else {
            panic!("{log}")
        };
        assert_eq!(refusal["ended"], "refused: connection refused");
    }
    assert!(near.iter().all(|line| line["from"].as_str().is_some()), "{}", logs[0]);
    let mute = "the target closed the connection without sending a byte";
    assert_eq!([0, 1].map(|end| logs[end].matches(mute).count()), [0, 1], "{}", logs[1]);
}

#[test]
fn connections_are_logged_only_if_configured() {
    let (desk, target) = (desk(), echo("127.0.0.1"));
    let server = Daemon::serve(&desk, &["--permit-open", "127.0.0.1:*"]);
    let (client, entrance) = forwarding(&server, &desk, &target.to_string(), &[]);
    assert_eq!(exchange(&entrance.to_string(), b"x").unwrap(), b"x");
    for daemon in [client, server] {
        assert_eq!(connections(&text(&daemon.stop().stderr)), [Value::Null; 0]);
    }
}

#[test]
fn a_target_that_the_server_does_not_permit_is_logged_with_what_would_permit_it() {
    let (desk, target) = (desk(), echo("127.0.0.1"));
    let server = Daemon::serve(&desk, &["--permit-open", "127.0.0.1:9"]);
    let (client, entrance) = forwarding(&server, &desk, &target.to_string(), &[]);
    assert!(exchange(&entrance.to_string(), b"x").is_err());
    let log = text(&client.stop().stderr);
    let permit = format!("{target}; to permit it on the server: --permit-open {target}");
    assert!(log.contains(&permit), "{log}");
}
