//! Daemons that outlive their connections, and how they end while some are open.

use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::thread;
use std::time::{Duration, Instant};

use rustix::process::Signal;
use serde_json::Value;

use crate::daemons::{Daemon, Desk, desk, text};

/// Longer than anything here takes; reaching it means a hang.
const HANG: Duration = Duration::from_secs(60);

/// A target that says everything back, and where it is.
fn echo() -> String {
    let target = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = target.local_addr().unwrap().to_string();
    thread::spawn(move || {
        while let Ok((mut stream, _)) = target.accept() {
            thread::spawn(move || {
                let mut back = stream.try_clone().unwrap();
                let _ = std::io::copy(&mut stream, &mut back);
            });
        }
    });
    address
}

/// A client with one forward to the target, and where that listens.
fn forwarding(server: &Daemon, desk: &Desk, target: &str, flags: &[&str]) -> (Daemon, SocketAddr) {
    let forward = format!("127.0.0.1:0:{target}");
    let mut command = server.connect(desk, &["-L", &forward, "--log-format", "json"]);
    command.args(flags);
    let client = Daemon::start(command);
    let entrance = client.ready["forwards"][0]["listen"][0].as_str().unwrap().parse().unwrap();
    (client, entrance)
}

fn enter(entrance: SocketAddr) -> TcpStream {
    let stream = TcpStream::connect(entrance).unwrap();
    stream.set_read_timeout(Some(HANG)).unwrap();
    stream
}

/// What comes back of what is said.
fn said_back(stream: &mut TcpStream, words: &[u8]) -> std::io::Result<Vec<u8>> {
    stream.write_all(words)?;
    let mut back = vec![0; words.len()];
    stream.read_exact(&mut back)?;
    Ok(back)
}

/// The figures of the `connect` among the daemons.
fn client_status(desk: &Desk) -> Value {
    let output = desk.keypadd(&["status", "--json"]).output().unwrap();
    let document: Value = serde_json::from_slice(&output.stdout).unwrap();
    let daemons = document["daemons"].as_array().unwrap();
    daemons.iter().find(|daemon| daemon["verb"] == "connect").unwrap().clone()
}

fn until(what: &str, condition: impl Fn() -> bool) {
    let began = Instant::now();
    while !condition() {
        assert!(began.elapsed() < HANG, "never: {what}");
        thread::sleep(Duration::from_millis(50));
    }
}

#[test]
fn a_server_killed_and_started_again_is_found_and_who_came_meanwhile_is_served() {
    let (desk, target) = (desk(), echo());
    let permit = ["--permit-open", &target];
    let server = Daemon::serve(&desk, &permit);
    let (client, entrance) = forwarding(&server, &desk, &target, &[]);
    let mut before = enter(entrance);
    assert_eq!(said_back(&mut before, b"before").unwrap(), b"before");
    assert_eq!(client_status(&desk)["links"][0]["state"], "connected");

    let listen = server.address();
    drop(server); // SIGKILL: nobody says goodbye
    let mut meanwhile = enter(entrance);
    let again: Vec<&str> = permit.into_iter().chain(["--listen", &listen]).collect();
    let _server = Daemon::serve_at(&desk, &again);
    assert_eq!(said_back(&mut meanwhile, b"meanwhile").unwrap(), b"meanwhile");
    assert_eq!(said_back(&mut enter(entrance), b"after").unwrap(), b"after");
    let cut = said_back(&mut before, b"?").unwrap_err();
    assert_eq!(cut.kind(), ErrorKind::ConnectionReset);

    let link = client_status(&desk)["links"][0].clone();
    assert_eq!(link["state"], "connected");
    assert_eq!(link["endpoint"], listen);
    assert_eq!(link["reconnects"]["silent"], 1, "{link}");
    let output = client.stop();
    let log = text(&output.stderr);
    assert_eq!(output.status.code(), Some(0), "{log}");
    for line in ["lost: no answer; trying again", "connected again after "] {
        assert_eq!(log.matches(line).count(), 1, "{log}");
    }
}

#[test]
fn a_client_without_its_server_says_so_and_keeps_trying() {
    let (desk, target) = (desk(), echo());
    let server = Daemon::serve(&desk, &["--permit-open", &target]);
    let (client, entrance) = forwarding(&server, &desk, &target, &[]);
    assert_eq!(server.stop().status.code(), Some(0));
    until("it knows", || client_status(&desk)["links"][0]["state"] == "waiting");
    let link = client_status(&desk)["links"][0].clone();
    assert_eq!(link["cause"], "closed by peer: the server is shutting down");
    let output = desk.keypadd(&["status"]).output().unwrap();
    let shown = text(&output.stdout);
    assert!(shown.contains(": not connected for "), "{shown}");
    assert!(TcpStream::connect(entrance).is_ok(), "its port stays");
    assert_eq!(client.stop().status.code(), Some(0));
}

/// Both ends in turn: a daemon that is told to end, by SIGTERM, while a connection is open.
#[test]
fn on_sigterm_what_is_open_may_finish_and_nothing_new_comes_in() {
    for ends_first in ["serve", "connect"] {
        let (desk, target) = (desk(), echo());
        let drain = ["--drain-timeout", "50s"];
        let server = Daemon::serve(&desk, &["--permit-open", &target, drain[0], drain[1]]);
        let (client, entrance) = forwarding(&server, &desk, &target, &drain);
        let mut open = enter(entrance);
        assert_eq!(said_back(&mut open, b"one").unwrap(), b"one");

        let (ending, other) =
            if ends_first == "serve" { (server, client) } else { (client, server) };
        ending.signal(Signal::TERM);
        until("nothing new comes in", || {
            let late = TcpStream::connect(entrance);
            late.and_then(|mut late| said_back(&mut late, b"late")).is_err()
        });
        assert_eq!(said_back(&mut open, b"two").unwrap(), b"two");
        let shown = text(&desk.keypadd(&["status"]).output().unwrap().stdout);
        assert!(shown.contains(&format!("\n{ends_first} ")) || shown.starts_with(ends_first));

        let began = Instant::now();
        open.shutdown(std::net::Shutdown::Write).unwrap();
        assert_eq!(open.read(&mut [0]).unwrap(), 0, "{ends_first}: its end is in order");
        let output = ending.ended();
        assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
        assert!(began.elapsed() < Duration::from_secs(30), "it waited for more");
        assert_eq!(other.stop().status.code(), Some(0));
    }
}

#[test]
fn the_time_to_drain_is_bounded_and_a_second_signal_ends_it_at_once() {
    let (desk, target) = (desk(), echo());
    let server = Daemon::serve(&desk, &["--permit-open", &target, "--drain-timeout", "50s"]);
    let (client, entrance) = forwarding(&server, &desk, &target, &["--drain-timeout", "300ms"]);
    let mut open = enter(entrance);
    assert_eq!(said_back(&mut open, b"one").unwrap(), b"one");
    assert_eq!(client.stop().status.code(), Some(0));
    assert_eq!(open.read(&mut [0]).unwrap_err().kind(), ErrorKind::ConnectionReset);

    let (client, entrance) = forwarding(&server, &desk, &target, &["--drain-timeout", "50s"]);
    let mut open = enter(entrance);
    assert_eq!(said_back(&mut open, b"one").unwrap(), b"one");
    for (daemon, signal, code) in [(client, Signal::TERM, 143), (server, Signal::INT, 130)] {
        daemon.signal(Signal::TERM);
        thread::sleep(Duration::from_millis(200)); // two at once would be one
        daemon.signal(signal);
        assert_eq!(daemon.ended().status.code(), Some(code));
    }
}
