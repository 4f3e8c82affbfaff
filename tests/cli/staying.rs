//! Tests reconnects: a restarted server, client status, and ownership of remote ports.

use std::io::{self, ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::process::Command;
use std::thread;

use rustix::process::Signal;
use serde_json::Value;

use crate::daemons::{Daemon, Desk, desk, text};
use crate::ends::{
    PATIENCE, echo, echoes, exchange, exchange_on, free_port, get, noise, scrape, until,
};

/// Display name of a peer without a name: the first characters of its key.
const NAME: &str = "11qYAYKx";

/// A client with one forward to the target, and that forward's listen address.
pub(crate) fn forwarding(
    server: &Daemon,
    desk: &Desk,
    target: &str,
    flags: &[&str],
) -> (Daemon, SocketAddr) {
    let forward = format!("127.0.0.1:0:{target}");
    let mut command = server.connect(desk, &["-L", &forward, "--log-format", "json"]);
    command.args(flags);
    let client = Daemon::start(command);
    let entrance = client.ready["forwards"][0]["listen"][0].as_str().unwrap().parse().unwrap();
    (client, entrance)
}

/// Status of the `connect` daemon.
fn client_status(desk: &Desk) -> Value {
    let output = desk.keypadd(&["status", "--json"]).output().unwrap();
    let document: Value = serde_json::from_slice(&output.stdout).unwrap();
    let daemons = document["daemons"].as_array().unwrap();
    daemons.iter().find(|daemon| daemon["verb"] == "connect").unwrap().clone()
}

#[test]
fn a_restarted_server_counts_as_that_and_forges_no_packets() {
    let (desk, target) = (desk(), echo("127.0.0.1").to_string());
    let permit = ["--permit-open", &target];
    let server = Daemon::serve(&desk, &permit);
    let (_client, entrance) = forwarding(&server, &desk, &target, &["--peer-timeout", "1h"]);
    // Both connections of the session are there, and sent long packets.
    let sent = noise(1 << 20);
    assert!(exchange(&entrance.to_string(), &sent).unwrap() == sent);
    let kept = TcpStream::connect(entrance).unwrap();
    assert!(echoes(&kept));

    let listen = server.address();
    drop(server); // SIGKILL: no close is sent
    let again: Vec<&str> = permit.into_iter().chain(["--listen", &listen]).collect();
    let _server = Daemon::serve_at(&desk, &again);
    assert!(echoes(&TcpStream::connect(entrance).unwrap()));
    let status = until("the client has learned that the server has restarted", || {
        let status = client_status(&desk);
        (status["resets"].as_u64()? > 0).then_some(status)
    });
    assert_eq!(status["open_failures"], 0, "{status}");
}

#[test]
fn other_forwards_of_a_new_client_do_not_wait_for_the_port_of_one_that_was_killed() {
    let (desk, target) = (desk(), echo("127.0.0.1").to_string());
    let [local, remote] = [free_port(), free_port()];
    let permit = format!("127.0.0.1:{remote}");
    let server = Daemon::serve(&desk, &["--permit-open", &target, "--permit-listen", &permit]);
    let remote = format!("127.0.0.1:{remote}:{target}");
    let (killed, _) = forwarding(&server, &desk, &target, &["-R", &remote]);
    drop(killed); // SIGKILL: no close is sent
    let forward = format!("127.0.0.1:{local}:{target}");
    let mut command = server.connect(&desk, &["-L", &forward, "-R", &remote]);
    command.args(["--log-format", "json", "--log-connections"]);
    // It accepts before it is connected, and is ready three seconds after that: until then the
    // server waits for the one that was killed.
    let used = thread::spawn(move || {
        let stream = until("it listens", || TcpStream::connect(("127.0.0.1", local)).ok());
        exchange_on(stream, b"at once").unwrap()
    });
    let client = Daemon::start(command);
    assert_eq!(used.join().unwrap(), b"at once");
    let log = text(&client.stop().stderr);
    let [carried, ready] = ["\"message\":\"connection\"", "\"event\":\"ready\""];
    let [carried, ready] = [carried, ready].map(|line| log.find(line).unwrap());
    assert!(carried < ready, "{log}");
}

#[test]
fn clients_reconnect_to_a_restarted_server_and_waiting_connections_are_served() {
    let (desk, target, metrics) = (desk(), echo("127.0.0.1").to_string(), free_port());
    let permit = ["--permit-open", &target];
    let server = Daemon::serve(&desk, &permit);
    // Longer than this test: only a stateless reset can tell the client.
    let flags = ["--metrics", &format!("127.0.0.1:{metrics}"), "--peer-timeout", "1h"];
    let (client, entrance) = forwarding(&server, &desk, &target, &flags);
    let mut before = TcpStream::connect(entrance).unwrap();
    assert!(echoes(&before));
    assert_eq!(client_status(&desk)["links"][0]["state"], "connected");
    assert!(get(metrics, "/readyz").starts_with("HTTP/1.1 200"));
    let up = format!("\nkeypadd_link_up{{peer=\"{NAME}\"}} 1\n");
    assert!(scrape(metrics).contains(&up), "{}", scrape(metrics));
    let reconnects = |count| {
        format!("\nkeypadd_reconnects_total{{peer=\"{NAME}\",reason=\"forgotten\"}} {count}\n")
    };
    assert!(scrape(metrics).contains(&reconnects(0)), "{}", scrape(metrics));

    let listen = server.address();
    drop(server); // SIGKILL: no close is sent
    let meanwhile = TcpStream::connect(entrance).unwrap();
    let again: Vec<&str> = permit.into_iter().chain(["--listen", &listen]).collect();
    let _server = Daemon::serve_at(&desk, &again);
    assert!(echoes(&meanwhile));
    assert!(echoes(&TcpStream::connect(entrance).unwrap()));
    assert_eq!(before.read(&mut [0]).unwrap_err().kind(), ErrorKind::ConnectionReset);

    let link = client_status(&desk)["links"][0].clone();
    assert_eq!(link["state"], "connected");
    assert_eq!(link["endpoint"], listen);
    assert_eq!(link["reconnects"]["forgotten"], 1, "{link}");
    let shown = text(&desk.keypadd(&["status"]).output().unwrap().stdout);
    assert!(shown.contains("; reconnects: forgotten 1\n"), "{shown}");
    assert!(scrape(metrics).contains(&reconnects(1)), "{}", scrape(metrics));
    let output = client.stop();
    let log = text(&output.stderr);
    assert_eq!(output.status.code(), Some(0), "{log}");
    let away = "is away (reset by peer); 1 connection held for up to 600s; reconnecting";
    for line in [away, "reconnected after "] {
        assert_eq!(log.matches(line).count(), 1, "{log}");
    }
}

#[test]
fn a_client_without_a_server_says_when_it_retries() {
    let (desk, target, metrics) = (desk(), echo("127.0.0.1").to_string(), free_port());
    let server = Daemon::serve(&desk, &["--permit-open", &target]);
    let flags = ["--metrics", &format!("127.0.0.1:{metrics}"), "--peer-timeout", "10s"];
    let (client, entrance) = forwarding(&server, &desk, &target, &flags);
    assert_eq!(server.stop().status.code(), Some(0));
    let link = until("the client has lost its session", || {
        let link = client_status(&desk)["links"][0].clone();
        (link["state"] == "waiting").then_some(link)
    });
    assert_eq!(link["cause"], "closed by peer: \"the server is shutting down\"");
    until("status shows the next attempt", || {
        let shown = text(&desk.keypadd(&["status"]).output().unwrap().stdout);
        assert!(shown.contains(": not connected for "), "{shown}");
        shown.contains("; retrying in ").then_some(())
    });
    until("the metrics show it too", || {
        let scraped = scrape(metrics);
        let down = format!("\nkeypadd_link_up{{peer=\"{NAME}\"}} 0\n");
        assert!(scraped.contains(&down), "{scraped}");
        scraped.contains("\nkeypadd_link_retry_timestamp_seconds{peer=").then_some(())
    });
    let asked = desk.keypadd(&["status"]).output().unwrap();
    let said = format!("keypadd: not connected: `{NAME}`\n");
    assert_eq!((asked.status.code(), text(&asked.stderr)), (Some(5), said));
    assert!(get(metrics, "/healthz").starts_with("HTTP/1.1 200"));
    let ready = get(metrics, "/readyz");
    assert!(ready.starts_with("HTTP/1.1 503"), "{ready}");
    assert!(ready.ends_with(&format!("\r\n\r\nnot connected: {NAME}\n")), "{ready}");
    assert!(TcpStream::connect(entrance).is_ok(), "the local port stays open");
    assert_eq!(client.stop().status.code(), Some(0));
}

/// Starts a target that sends this byte to every client; returns its address.
fn greeter(greeting: u8) -> String {
    let target = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = target.local_addr().unwrap().to_string();
    thread::spawn(move || {
        while let Ok((mut stream, _)) = target.accept() {
            let _ = stream.write_all(&[greeting]);
        }
    });
    address
}

/// The greeting at this port of the server.
fn greeted(port: u16) -> io::Result<u8> {
    let mut stream = TcpStream::connect(("127.0.0.1", port))?;
    stream.set_read_timeout(Some(PATIENCE))?;
    let mut greeting = [0];
    stream.read_exact(&mut greeting)?;
    Ok(greeting[0])
}

/// A client that publishes a target at the server, not started yet.
fn publishing(server: &Daemon, desk: &Desk, port: u16, target: &str) -> Command {
    let forward = format!("127.0.0.1:{port}:{target}");
    server.connect(desk, &["-R", &forward, "--connect-timeout", "60s", "--log-format", "json"])
}

#[test]
fn a_port_goes_to_a_newer_run_of_the_same_key_once_its_holder_is_silent_and_not_before() {
    let (desk, port) = (desk(), free_port());
    let server = Daemon::serve(&desk, &["--permit-listen", "localhost:*"]);
    let mut old = Daemon::start(publishing(&server, &desk, port, &greeter(1)));
    assert_eq!(greeted(port).unwrap(), 1);

    let target = greeter(2);
    let refused = publishing(&server, &desk, port, &target).output().unwrap();
    let said = text(&refused.stderr);
    assert_eq!(refused.status.code(), Some(6), "{said}");
    let cause =
        format!("-R 127.0.0.1:{port}:{target} failed on the server: address in use\n  hint: ");
    assert!(said.contains(&cause), "{said}");
    assert_eq!(greeted(port).unwrap(), 1, "the live client keeps the port");

    old.signal(Signal::STOP);
    let new = Daemon::start(publishing(&server, &desk, port, &target));
    assert_eq!(greeted(port).unwrap(), 2);
    old.signal(Signal::CONT);
    old.hear("remote forward failed");
    assert_eq!(greeted(port).unwrap(), 2, "the newer client keeps the port");
    for daemon in [old, new, server] {
        assert_eq!(daemon.stop().status.code(), Some(0));
    }
}

#[test]
fn a_restarted_client_gets_its_port_back() {
    let (desk, port) = (desk(), free_port());
    let server = Daemon::serve(&desk, &["--permit-listen", "localhost:*"]);
    drop(Daemon::start(publishing(&server, &desk, port, &greeter(1)))); // SIGKILL
    let _client = Daemon::start(publishing(&server, &desk, port, &greeter(2)));
    assert_eq!(greeted(port).unwrap(), 2);
}

#[test]
fn a_held_port_is_refused_to_another_key() {
    let (desk, port) = (desk(), free_port());
    let other = desk.keypadd(&["keygen", "other.key"]).output().unwrap();
    let other = text(&other.stdout);
    let server = Daemon::serve(&desk, &["--allow", other.trim(), "--permit-listen", "localhost:*"]);
    let _holder = Daemon::start(publishing(&server, &desk, port, &greeter(1)));
    let mut intruder = publishing(&server, &desk, port, &greeter(2));
    let refused = intruder.args(["--key", "other.key"]).output().unwrap();
    let said = text(&refused.stderr);
    assert_eq!(refused.status.code(), Some(6), "{said}");
    assert!(said.contains(": address in use\n"), "{said}");
    assert_eq!(greeted(port).unwrap(), 1);
}
