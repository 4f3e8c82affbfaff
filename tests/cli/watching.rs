//! Tests `status --watch` and metrics of an active tunnel.

use std::fs::File;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::process::{Command, Stdio};
use std::time::Instant;

use rustix::process::{Pid, Signal, kill_process};
use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};
use rustix::termios::{Winsize, tcsetwinsize};
use serde_json::Value;

use crate::daemons::{Daemon, Desk, PUBLIC_KEY, desk, text};
use crate::ends::{echo, echoes, exchange, free_port, noise, scrape, until};
use crate::staying::forwarding;

#[test]
fn watching_prints_a_line_of_json_each_second_and_ends_on_ctrl_c() {
    let desk = desk();
    let _server = Daemon::serve(&desk, &[]);
    let mut command = desk.keypadd(&["status", "--watch", "--json"]);
    let mut watch = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let mut lines = BufReader::new(watch.stdout.take().unwrap()).lines();
    for _ in 0..2 {
        let line = lines.next().unwrap().unwrap();
        let document: serde_json::Value = serde_json::from_str(&line).unwrap();
        assert_eq!(document["daemons"][0]["verb"], "serve");
    }
    kill_process(Pid::from_child(&watch), Signal::INT).unwrap();
    let output = watch.wait_with_output().unwrap();
    assert_eq!((output.status.code(), text(&output.stderr).as_str()), (Some(0), ""));
}

#[test]
fn watch_reports_the_end_of_the_daemon() {
    let desk = desk();
    let server = Daemon::serve(&desk, &[]);
    let mut command = desk.keypadd(&["status", "--watch"]);
    let mut watch = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let mut shown = BufReader::new(watch.stdout.take().unwrap());
    let mut first = String::new();
    shown.read_line(&mut first).unwrap();
    assert!(first.starts_with("serve 127.0.0.1:"), "{first}");
    drop(server.stop());
    let mut rest = String::new();
    shown.read_to_string(&mut rest).unwrap();
    let output = watch.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(5));
    assert_eq!(text(&output.stderr), "keypadd: the daemon has exited\n");
}

#[test]
fn a_closed_reader_ends_the_watch() {
    let desk = desk();
    let _server = Daemon::serve(&desk, &[]);
    let mut command = desk.keypadd(&["status", "--watch"]);
    let mut watch = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    drop(watch.stdout.take());
    let output = watch.wait_with_output().unwrap();
    assert_eq!((output.status.code(), text(&output.stderr).as_str()), (Some(0), ""));
}

/// A key that nobody here has.
const OTHER_PUBLIC_KEY: &str = "/FHNjmIYoaONpH7QAjDwWAgW7RO6MwOsXeuRFUiQgCU=";

/// What `keypadd connections --json` says of the daemon that runs this command.
fn connections(desk: &Desk, verb: &str) -> Value {
    let output = desk.keypadd(&["connections", "--json"]).output().unwrap();
    let document: Value = serde_json::from_slice(&output.stdout).unwrap();
    let daemons = document["daemons"].as_array().unwrap();
    daemons.iter().find(|daemon| daemon["verb"] == verb).unwrap().clone()
}

#[test]
fn each_connection_is_listed_with_its_peer_target_bytes_and_state() {
    let (desk, target) = (desk(), echo("127.0.0.1").to_string());
    let server = Daemon::serve(&desk, &["--permit-open", &target]);
    let (client, entrance) = forwarding(&server, &desk, &target, &["--max-forwards", "2"]);
    let open = [(); 2].map(|()| TcpStream::connect(entrance).unwrap());
    assert!(open.iter().all(echoes));
    let waiting = TcpStream::connect(entrance).unwrap();
    let listed = until("one waits for a slot", || {
        let listed = connections(&desk, "connect");
        (listed["counts"]["waiting"] == 1).then_some(listed)
    });
    assert_eq!(listed["counts"]["open"], 2, "{listed}");
    let one = &listed["connections"][0];
    assert_eq!(one["peer"], &PUBLIC_KEY[..8]);
    assert_eq!(one["from"], open[0].local_addr().unwrap().to_string());
    assert_eq!(
        (&one["forward"], &one["target"]),
        (&format!("-L 127.0.0.1:0:{target}").into(), &Value::from(target.clone()))
    );
    assert_eq!((&one["state"], &one["sent_bytes"]), (&"open".into(), &Value::from(5)));
    let there = connections(&desk, "serve");
    assert_eq!(there["counts"]["open"], 2, "{there}");
    assert_eq!(there["connections"][0]["target"], target);

    let shown = text(&desk.keypadd(&["connections"]).output().unwrap().stdout);
    assert!(shown.contains(": 2 open, 0 held, 0 connecting, 1 waiting for a slot\n"), "{shown}");
    let line = format!(" from {} -L 127.0.0.1:0:{target}\n", open[0].local_addr().unwrap());
    assert!(shown.contains(&line), "{shown}");
    let shown = text(&desk.keypadd(&["status"]).output().unwrap().stdout);
    assert!(shown.contains("\n  1 connection waits for a free slot (max-forwards)"), "{shown}");
    let other = desk.keypadd(&["connections", "@nobody", "--json"]).output().unwrap();
    let other: Value = serde_json::from_slice(&other.stdout).unwrap();
    assert_eq!(other["daemons"][0]["connections"], Value::Array(Vec::new()));

    drop(open);
    assert!(echoes(&waiting), "it has a place");
    // A server that has forgotten the connection, and lets this client not in again.
    let listen = server.address();
    drop(server);
    let other = ["serve", "--allow", OTHER_PUBLIC_KEY, "--listen", &listen, "--log-format", "json"];
    let _other = Daemon::start(desk.keypadd(&other));
    (&waiting).write_all(b"?").unwrap();
    until("it is held", || {
        let listed = connections(&desk, "connect");
        (listed["connections"][0]["state"] == "held").then_some(())
    });
    drop(client);
}

#[test]
fn a_peer_that_does_not_answer_is_called_silent_before_it_counts_as_lost() {
    let (desk, target) = (desk(), echo("127.0.0.1").to_string());
    let server = Daemon::serve(&desk, &["--permit-open", &target]);
    let (client, entrance) = forwarding(&server, &desk, &target, &["--peer-timeout", "1h"]);
    let kept = TcpStream::connect(entrance).unwrap();
    assert!(echoes(&kept));
    let shown = || {
        let path = desk.path("run");
        let sockets = std::fs::read_dir(path).unwrap().map(|entry| entry.unwrap().path());
        let own = format!("{}.sock", client.pid());
        let socket = sockets.into_iter().find(|path| path.ends_with(&own)).unwrap();
        let output = desk.keypadd(&["status", "--socket", socket.to_str().unwrap()]).output();
        text(&output.unwrap().stdout)
    };
    until("rates are shown", || shown().contains("    now ").then_some(()));
    server.signal(Signal::STOP);
    (&kept).write_all(b"anybody?").unwrap();
    let silent = until("it is called silent", || {
        Some(shown()).filter(|shown| shown.contains("    silent for "))
    });
    assert!(silent.contains(" s: the peer does not answer\n"), "{silent}");
    server.signal(Signal::CONT);
    until("it answers", || shown().contains("    now ").then_some(()));
}

/// A terminal of 80x24: the end of who looks at it, and the programs'.
fn terminal() -> (File, File) {
    let master = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY).unwrap();
    grantpt(&master).unwrap();
    unlockpt(&master).unwrap();
    let size = Winsize { ws_row: 24, ws_col: 80, ws_xpixel: 0, ws_ypixel: 0 };
    tcsetwinsize(&master, size).unwrap();
    let path = ptsname(&master, Vec::new()).unwrap().into_string().unwrap();
    let terminal = File::options().read(true).write(true).open(path);
    (master.into(), terminal.unwrap())
}

/// What a terminal has shown after so many frames, each of which ends with what q does.
fn frames(master: &mut File, count: usize) -> String {
    let mut shown = Vec::new();
    while text(&shown).matches("q quits").count() < count {
        let mut bytes = [0; 4096];
        let count = master.read(&mut bytes).unwrap();
        shown.extend(&bytes[..count]);
    }
    text(&shown)
}

#[test]
fn a_watch_in_the_background_goes_on_and_is_quit_in_the_foreground() {
    let desk = desk();
    let _server = Daemon::serve(&desk, &[]);
    let (mut master, terminal) = terminal();
    let watch = desk.keypadd(&["status", "--watch"]);
    // With job control: what runs in the background has not the terminal's keys.
    let script = "\"$@\" & read -r line && fg";
    let mut shell = Command::new("setsid");
    shell.args(["--ctty", "timeout", "--foreground", "30", "sh", "-m", "-c", script, "sh"]);
    shell.arg(watch.get_program()).args(watch.get_args()).env_clear();
    shell.envs(watch.get_envs().filter_map(|(name, value)| Some((name, value?))));
    shell.current_dir(desk.path("")).stdin(terminal.try_clone().unwrap());
    shell.stdout(terminal.try_clone().unwrap()).stderr(terminal);
    let mut watching = shell.spawn().unwrap();
    drop(shell);
    frames(&mut master, 2);
    master.write_all(b"\n").unwrap();
    frames(&mut master, 2);
    master.write_all(b"q").unwrap();
    assert_eq!(watching.wait().unwrap().code(), Some(0));
}

#[test]
fn on_a_terminal_the_watch_fits_breaks_no_word_and_ends_on_q() {
    let desk = desk();
    let _server = Daemon::serve(&desk, &[]);
    let (mut master, terminal) = terminal();
    let mut command = desk.keypadd(&["status", "--watch"]);
    command.stdin(terminal.try_clone().unwrap()).stdout(terminal.try_clone().unwrap());
    command.stderr(Stdio::piped());
    let watch = command.spawn().unwrap();
    drop((command, terminal));
    let shown = frames(&mut master, 1);
    let (_, shown) = shown.split_once("\x1b[J").unwrap();
    assert!(shown.starts_with("serve 127.0.0.1:"), "{shown}");
    assert!(shown.lines().count() <= 24 && shown.lines().all(|line| line.len() <= 80), "{shown}");
    master.write_all(b"q").unwrap();
    let output = watch.wait_with_output().unwrap();
    assert_eq!((output.status.code(), text(&output.stderr).as_str()), (Some(0), ""));
}

/// A histogram: bucket bounds in seconds with their counts, the number of samples, and their sum.
type Samples = (Vec<(f64, u64)>, u64, f64);

/// The histogram of one stage.
fn stage(scraped: &str, stage: &str) -> Option<Samples> {
    let label = format!("stage=\"{stage}\"");
    let of = |kind: &str| {
        let begin = format!("keypadd_packet_stage_seconds_{kind}{{");
        let lines = scraped.lines().filter_map(move |line| line.strip_prefix(begin.as_str()));
        lines.filter(|line| line.contains(&label)).filter_map(|line| line.rsplit_once(' '))
    };
    let buckets = of("bucket").map(|(labels, count)| {
        let bound = labels.split("le=\"").nth(1).unwrap().split('"').next().unwrap();
        let bound = bound.parse().unwrap_or(f64::INFINITY);
        (bound, count.parse().unwrap())
    });
    let count = of("count").next()?.1.parse().unwrap();
    Some((buckets.collect(), count, of("sum").next()?.1.parse().unwrap()))
}

#[test]
fn metrics_say_how_long_each_stage_of_packets_takes() {
    let started = Instant::now();
    let (desk, target, [port, metrics]) = (desk(), echo("127.0.0.1"), [free_port(), free_port()]);
    // Pads that one-pass AES-GCM does not replace, so that every stage occurs.
    let suite = ["--suite", "aes-256-ctr-hmac-sha256", "--log-format", "json"];
    let server = Daemon::serve(&desk, &[&suite[..2], &["--permit-open", "localhost:*"]].concat());
    let (forward, metrics_at) = (format!("{port}:{target}"), format!("127.0.0.1:{metrics}"));
    let flags = [&suite[..], &["-L", &forward, "--metrics", &metrics_at]].concat();
    let _client = Daemon::start(server.connect(&desk, &flags));
    let stages = ["pad", "xor", "mac", "udp_send"];
    for name in stages {
        let (_, count, sum) = stage(&scrape(metrics), name).unwrap();
        assert!(count < 8 && sum < 1.0, "{name}: {count} samples before any traffic");
    }
    let sent = noise(1 << 20);
    let scraped = until("every stage has samples", || {
        assert!(exchange(&format!("127.0.0.1:{port}"), &sent).unwrap() == sent);
        let scraped = scrape(metrics);
        let is_sampled = |name| stage(&scraped, name).is_some_and(|(_, count, _)| count > 8);
        stages.into_iter().all(is_sampled).then_some(scraped)
    });
    assert!(scraped.contains("# TYPE keypadd_packet_stage_seconds histogram\n"), "{scraped}");
    for name in stages {
        let (buckets, count, sum) = stage(&scraped, name).unwrap();
        assert!(buckets.len() > 8 && buckets.is_sorted(), "{name}: {buckets:?}");
        assert!(buckets.iter().is_sorted_by_key(|(_, count)| count), "{name}: {buckets:?}");
        assert_eq!(buckets.last(), Some(&(f64::INFINITY, count)), "{name}");
        // One packet in 64 of two daemons: in any wrong unit the sum would exceed the time elapsed.
        assert!(sum > 0.0 && sum < started.elapsed().as_secs_f64(), "{name}: {sum} s");
    }
}

#[test]
fn polling_time_is_shown_and_is_zero_without_a_share() {
    let (desk, target, [port, metrics]) = (desk(), echo("127.0.0.1"), [free_port(), free_port()]);
    let server =
        Daemon::serve(&desk, &["--permit-open", "localhost:*", "--spin", "0", "--loops", "2"]);
    let (forward, metrics_at) = (format!("{port}:{target}"), format!("127.0.0.1:{metrics}"));
    let flags = ["-L", &forward, "--metrics", &metrics_at, "--spin", "100", "--log-format", "json"];
    let _client = Daemon::start(server.connect(&desk, &flags));
    until("busy polling is counted", || {
        assert_eq!(exchange(&format!("127.0.0.1:{port}"), b"hello").unwrap(), b"hello");
        let scraped = scrape(metrics);
        assert!(scraped.contains("\nkeypadd_transport_datagrams_dropped_total 0\n"), "{scraped}");
        let mut lines = scraped.lines();
        let spun =
            lines.find_map(|line| line.strip_prefix("keypadd_transport_spin_seconds_total "));
        (spun.unwrap().parse::<f64>().unwrap() > 0.0).then_some(())
    });
    let shown = text(&desk.keypadd(&["status"]).output().unwrap().stdout);
    assert!(shown.contains(", busy polling used 0.00 s of CPU, 0.0 % of one core\n"), "{shown}");
    let document = desk.keypadd(&["status", "--json"]).output().unwrap().stdout;
    let document: serde_json::Value = serde_json::from_slice(&document).unwrap();
    for daemon in document["daemons"].as_array().unwrap() {
        let transport = &daemon["transport"];
        let polls = daemon["verb"] == "connect";
        assert!(transport["loops"].as_u64().unwrap() > 0, "{transport}");
        assert_eq!(transport["spin_seconds"].as_f64().unwrap() > 0.0, polls, "{transport}");
        assert!(transport["spin_ratio"].as_f64().unwrap() < 1.0, "{transport}");
        assert_eq!(transport["datagrams_dropped"], 0, "{transport}");
    }
}

#[test]
fn forwards_count_their_bytes_and_how_their_connections_ended_by_peer() {
    let (desk, target, metrics) =
        (desk(), echo("127.0.0.1").to_string(), [(); 2].map(|()| free_port()));
    let [at_client, at_server] = metrics.map(|port| format!("127.0.0.1:{port}"));
    let permit = ["--permit-open", "127.0.0.1:*", "--metrics", &at_server];
    let server = Daemon::serve(&desk, &permit);
    let refused = format!("127.0.0.1:0:127.0.0.1:{}", free_port());
    let more = ["-L", &refused, "--metrics", &at_client];
    let (client, entrance) = forwarding(&server, &desk, &target, &more);
    let refusing = client.ready["forwards"][1]["listen"][0].as_str().unwrap();
    assert_eq!(exchange(&entrance.to_string(), b"twelve bytes").unwrap(), b"twelve bytes");
    assert!(exchange(refusing, b"").is_err());
    // Bytes of an open connection count too.
    let open = TcpStream::connect(entrance).unwrap();
    assert!(echoes(&open));

    let forward = format!("-L 127.0.0.1:0:{target}");
    for (port, peer, carried, cut) in [
        (metrics[0], "11qYAYKx", &forward, format!("-L {refused}")),
        (metrics[1], "", &target, refused.strip_prefix("127.0.0.1:0:").unwrap().to_owned()),
    ] {
        until("everything is counted", || {
            let scraped = scrape(port);
            let is_there = |name: &str, forward: &str, label: &str, value: u64| {
                let begins = format!("keypadd_forward_{name}_total{{peer=\"{peer}");
                let ends = format!("\",forward=\"{forward}\",{label}}} {value}");
                scraped.lines().any(|line| line.starts_with(&begins) && line.ends_with(&ends))
            };
            let all = is_there("bytes", carried, "direction=\"send\"", 17)
                && is_there("bytes", carried, "direction=\"receive\"", 17)
                && is_there("connections", carried, "outcome=\"closed\"", 1)
                && is_there("connections", carried, "outcome=\"lost\"", 0)
                && is_there("connections", &cut, "outcome=\"refused\"", 1);
            all.then_some(())
        });
    }
    drop(open);
    assert_eq!(client.stop().status.code(), Some(0));
}
