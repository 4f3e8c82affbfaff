//! Tests shutdown with open connections: SIGTERM drains for `--drain-timeout`; Ctrl-C or a second
//! signal stops at once.

use std::fs;
use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::thread;
use std::time::{Duration, Instant};

use rustix::process::Signal;

use crate::daemons::{Daemon, Desk, NEAR_PUBLIC_KEY, PUBLIC_KEY, desk, text};
use crate::ends::{PATIENCE, echo, echoes, free_port, noise, until};
use crate::staying::forwarding;

/// Less than any drain timeout here, and more than a shutdown takes.
const SOON: Duration = Duration::from_secs(40);

/// A drain timeout that no test waits out.
const LONG: [&str; 2] = ["--drain-timeout", "50s"];

/// Bytes to transfer while a daemon shuts down.
const TRANSFER_BYTES: usize = 4 << 20;

/// Two tunnels, each with a forward to the target: in the first `serve` stops first, then
/// `connect`.
fn pairs(target: &str, drain: &[&str]) -> Vec<(Desk, Daemon, Daemon, SocketAddr)> {
    let pair = |server_first| {
        let desk = desk();
        let server = Daemon::serve(&desk, &[&["--permit-open", target], drain].concat());
        let (client, entrance) = forwarding(&server, &desk, target, drain);
        match server_first {
            true => (desk, server, client, entrance),
            false => (desk, client, server, entrance),
        }
    };
    [true, false].map(pair).into()
}

/// Two `run`, one that connects and one that listens, with a forward each way, and the listen
/// address of the forward to the target.
fn running(desk: &Desk, target: &str) -> (Daemon, Daemon, SocketAddr, SocketAddr) {
    let common = "pool-budget = \"4MiB\"\ndrain-timeout = \"50s\"\n";
    let port = free_port();
    let run = |name: &str, more: String| {
        fs::write(desk.path(name), format!("{common}{more}")).unwrap();
        Daemon::start(desk.keypadd(&["run", "--config", name, "--log-format", "json"]))
    };
    let far = run(
        "far.toml",
        format!(
            "key = \"good.key\"\nlisten = \"127.0.0.1:0\"\n\
             [peer.near]\npublic-key = \"{NEAR_PUBLIC_KEY}\"\n\
             permit-open = [\"{target}\"]\npermit-listen = [\"{port}\"]\n"
        ),
    );
    let endpoint = far.address();
    let near = run(
        "near.toml",
        format!(
            "key = \"connect.key\"\n[peer.far]\npublic-key = \"{PUBLIC_KEY}\"\nendpoint = \"{endpoint}\"\n\
             local = [\"127.0.0.1:0:{target}\"]\nremote = [\"127.0.0.1:{port}:{target}\"]\n"
        ),
    );
    let local = &near.ready["dialing"][0]["forwards"][0]["listen"][0];
    let local = local.as_str().unwrap().parse().unwrap();
    (near, far, local, ([127, 0, 0, 1], port).into())
}

/// Sends a few MiB and checks that the echo is identical.
fn transfers(stream: &TcpStream) {
    let sent = noise(TRANSFER_BYTES);
    let mut heard = vec![0; sent.len()];
    thread::scope(|scope| {
        scope.spawn(|| { stream }.write_all(&sent).unwrap());
        { stream }.read_exact(&mut heard).unwrap();
    });
    assert!(heard == sent, "the echo differs");
}

/// SIGTERM lets open connections finish, including later data, and accepts no new ones.
fn drains(desk: &Desk, mut ending: Daemon, other: Daemon, open: Vec<(SocketAddr, TcpStream)>) {
    ending.signal(Signal::TERM);
    ending.hear("draining for up to 50s");
    for (entrance, _) in &open {
        until("new connections are refused", || {
            let late = TcpStream::connect(entrance).ok();
            late.filter(echoes).is_none().then_some(())
        });
    }
    let status = desk.keypadd(&["status", "--json"]).output().unwrap();
    let status: serde_json::Value = serde_json::from_slice(&status.stdout).unwrap();
    assert_eq!(status["daemons"].as_array().unwrap().len(), 2, "status works while draining");

    let began = Instant::now();
    for (_, mut open) in open {
        transfers(&open);
        open.shutdown(std::net::Shutdown::Write).unwrap();
        assert_eq!(open.read(&mut [0]).unwrap(), 0, "the stream ends cleanly");
    }
    let output = ending.ended();
    assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
    assert!(began.elapsed() < SOON, "it kept draining");
    assert_eq!(other.stop().status.code(), Some(0));
}

#[test]
fn sigterm_drains_open_connections_and_refuses_new_ones() {
    for (desk, ending, other, entrance) in pairs(&echo("127.0.0.1").to_string(), &LONG) {
        let open = TcpStream::connect(entrance).unwrap();
        assert!(echoes(&open));
        drains(&desk, ending, other, vec![(entrance, open)]);
    }
}

#[test]
fn sigterm_drains_local_and_remote_forwards_of_a_configured_daemon() {
    for near_first in [true, false] {
        let desk = desk();
        let (near, far, local, remote) = running(&desk, &echo("127.0.0.1").to_string());
        until("the server listens", || TcpStream::connect(remote).ok());
        let open = [local, remote].map(|entrance| {
            let open = TcpStream::connect(entrance).unwrap();
            assert!(echoes(&open));
            (entrance, open)
        });
        let (ending, other) = if near_first { (near, far) } else { (far, near) };
        drains(&desk, ending, other, open.into());
    }
}

#[test]
fn connections_still_open_at_the_drain_timeout_are_reset() {
    let target = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = target.local_addr().unwrap().to_string();
    for (_desk, ending, other, entrance) in pairs(&address, &["--drain-timeout", "300ms"]) {
        let mut writer = TcpStream::connect(entrance).unwrap();
        // Reads nothing, so that the writer stays blocked.
        let (mut held, _) = target.accept().unwrap();
        let stuck = thread::spawn(move || {
            let block = [0; 64 << 10];
            loop {
                if let Err(error) = writer.write_all(&block) {
                    return error.kind();
                }
            }
        });
        let began = Instant::now();
        ending.signal(Signal::TERM);
        let output = ending.ended();
        let log = text(&output.stderr);
        assert_eq!(output.status.code(), Some(0), "{log}");
        assert!(began.elapsed() >= Duration::from_millis(300), "it did not drain");
        assert!(log.contains("drain timeout: resetting open connections"), "{log}");
        let kind = stuck.join().unwrap();
        assert!([ErrorKind::ConnectionReset, ErrorKind::BrokenPipe].contains(&kind), "{kind}");
        held.set_read_timeout(Some(PATIENCE)).unwrap();
        let at_target = held.read_to_end(&mut Vec::new()).unwrap_err().kind();
        assert_eq!(at_target, ErrorKind::ConnectionReset, "a reset, not a clean end");
        assert_eq!(other.stop().status.code(), Some(0));
    }
}

#[test]
fn ctrl_c_resets_open_connections() {
    for (_desk, ending, other, entrance) in pairs(&echo("127.0.0.1").to_string(), &LONG) {
        let mut open = TcpStream::connect(entrance).unwrap();
        assert!(echoes(&open));
        let began = Instant::now();
        ending.signal(Signal::INT);
        let output = ending.ended();
        assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
        assert!(began.elapsed() < SOON, "it drained");
        assert_eq!(open.read(&mut [0]).unwrap_err().kind(), ErrorKind::ConnectionReset);
        assert_eq!(other.stop().status.code(), Some(0));
    }
}

#[test]
fn a_second_signal_ends_a_drain() {
    let pairs = pairs(&echo("127.0.0.1").to_string(), &LONG);
    for ((_desk, mut ending, _other, entrance), (second, code)) in
        pairs.into_iter().zip([(Signal::TERM, 143), (Signal::INT, 130)])
    {
        let open = TcpStream::connect(entrance).unwrap();
        assert!(echoes(&open));
        let began = Instant::now();
        ending.signal(Signal::TERM);
        ending.hear("draining for up to 50s");
        ending.signal(second);
        assert_eq!(ending.ended().status.code(), Some(code));
        assert!(began.elapsed() < SOON, "it drained");
    }
}
