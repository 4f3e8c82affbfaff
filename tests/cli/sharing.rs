//! Tests `connect @NAME -W` next to a daemon connected to that peer: its tunnel is shared.

use std::fs;
use std::io::{ErrorKind, Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::os::unix::net::UnixListener;
use std::process::{Child, Command, Output, Stdio};
use std::thread;
use std::time::Duration;

use keypadd_tunnel::proxy_protocol::LOCAL_HEADER;
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

use crate::daemons::{Daemon, Desk, PUBLIC_KEY, bounded, desk, text, write_file};
use crate::ends::{PATIENCE, echo, free_port, noise, until};

/// A server, a configuration file that names it, and a daemon run from the file or from flags.
struct Hosts {
    desk: Desk,
    server: Daemon,
    daemon: Daemon,
}

/// `connect @lab` from the file, which has the key.
fn connect(desk: &Desk, args: &[&str]) -> Command {
    let mut command = desk.keypadd(&["connect", "@lab", "--config", "keypadd.toml"]);
    command.args(args).env_remove("KEYPADD_KEY");
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}

/// Writes the configuration file.
fn name(server: &str, desk: &Desk) {
    let file = format!(
        "key = \"connect.key\"\n[peer.lab]\npublic-key = \"{PUBLIC_KEY}\"\nendpoint = \"{server}\"\n"
    );
    write_file(&desk.path("keypadd.toml"), &file, 0o644);
}

fn server(desk: &Desk) -> Daemon {
    Daemon::serve(desk, &["--permit-open", "127.0.0.1:*"])
}

/// `keypadd run` with that file.
fn run(desk: &Desk) -> Daemon {
    let mut command = desk.keypadd(&["run", "--config", "keypadd.toml", "--log-format", "json"]);
    command.env_remove("KEYPADD_KEY");
    Daemon::start(command)
}

/// Sessions listed by the server's daemon.
fn sessions(desk: &Desk, server: &Daemon) -> usize {
    let output = desk.keypadd(&["status", "--json"]).output().unwrap();
    let status: Value = serde_json::from_slice(&output.stdout).unwrap();
    let daemons = status["daemons"].as_array().unwrap();
    let pid = Value::from(server.pid());
    let serving = daemons.iter().find(|daemon| daemon["pid"] == pid).expect("the server answers");
    serving["sessions"].as_array().unwrap().len()
}

impl Hosts {
    fn new() -> Self {
        let desk = desk();
        let server = server(&desk);
        name(&server.address(), &desk);
        let daemon = run(&desk);
        let hosts = Self { desk, server, daemon };
        hosts.until_connected();
        hosts
    }

    fn until_connected(&self) {
        until("the daemon is connected", || (self.sessions() == 1).then_some(()));
    }

    fn sessions(&self) -> usize {
        sessions(&self.desk, &self.server)
    }

    /// Starts a `-W`, exchanges a word with its target, and returns it with the target's end.
    fn carried(&self, args: &[&str]) -> (Child, TcpStream) {
        let target = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = target.local_addr().unwrap().to_string();
        let mut child = connect(&self.desk, &[&["-W", &address], args].concat()).spawn().unwrap();
        let (far, _) = target.accept().unwrap();
        far.set_read_timeout(Some(PATIENCE)).unwrap();
        child.stdin.as_mut().unwrap().write_all(b"hello").unwrap();
        let mut word = [0; 5];
        (&far).read_exact(&mut word).unwrap();
        (&far).write_all(&word).unwrap();
        child.stdout.as_mut().unwrap().read_exact(&mut word).unwrap();
        assert_eq!(&word, b"hello");
        (child, far)
    }
}

/// Resets a connection (RST).
fn reset(stream: TcpStream) {
    rustix::net::sockopt::set_socket_linger(&stream, Some(Duration::ZERO)).unwrap();
}

/// Sends these bytes and returns the exit of the client.
fn pass(mut child: Child, sent: Vec<u8>) -> Output {
    let _bounded = bounded(&child);
    let mut input = child.stdin.take().unwrap();
    let writing = thread::spawn(move || input.write_all(&sent));
    let output = child.wait_with_output().unwrap();
    writing.join().unwrap().unwrap();
    output
}

#[test]
fn a_hundred_at_once_share_the_tunnel_of_a_daemon_byte_for_byte() {
    let hosts = Hosts::new();
    let target = echo("127.0.0.1").to_string();
    // A stalled reader delays nobody else.
    let stalled = {
        let mut child = connect(&hosts.desk, &["-W", &target]).spawn().unwrap();
        let mut input = child.stdin.take().unwrap();
        let writing = thread::spawn(move || while input.write_all(&[7; 64 << 10]).is_ok() {});
        (child, writing)
    };
    let all: Vec<_> = (0..100_u64)
        .map(|nth| {
            let child = connect(&hosts.desk, &["-W", &target]).spawn().unwrap();
            thread::spawn(move || {
                let sent = noise(100_000 + nth as usize);
                let output = pass(child, sent.clone());
                let said = text(&output.stderr);
                assert!(output.stdout == sent, "{nth}: {} bytes; {said}", output.stdout.len());
                assert_eq!((output.status.code(), said.as_str()), (Some(0), ""));
            })
        })
        .collect();
    // The daemon still answers requests, and no second tunnel exists.
    while all.iter().any(|one| !one.is_finished()) {
        assert_eq!(hosts.sessions(), 1);
    }
    all.into_iter().for_each(|one| one.join().unwrap());
    let (mut child, writing) = stalled;
    child.kill().unwrap();
    child.wait().unwrap();
    writing.join().unwrap();
    assert_eq!(hosts.sessions(), 1);
}

#[test]
fn a_connect_with_forwards_carries_too_and_each_direction_ends_by_itself() {
    let desk = desk();
    let server = server(&desk);
    name(&server.address(), &desk);
    let mut command = connect(&desk, &["-L", "127.0.0.1:0:127.0.0.1:1", "--log-format", "json"]);
    command.stdin(Stdio::null());
    let hosts = Hosts { daemon: Daemon::start(command), server, desk };
    hosts.until_connected();

    let (mut child, far) = hosts.carried(&[]);
    assert_eq!(hosts.sessions(), 1);
    // The target closes first; ssh sees the end of its pipe.
    far.shutdown(Shutdown::Write).unwrap();
    let mut rest = Vec::new();
    child.stdout.as_mut().unwrap().read_to_end(&mut rest).unwrap();
    assert_eq!(rest, b"");
    child.stdin.as_mut().unwrap().write_all(b"more").unwrap();
    drop(child.stdin.take());
    let mut more = Vec::new();
    (&far).read_to_end(&mut more).unwrap();
    assert_eq!(more, b"more");
    assert_eq!(child.wait().unwrap().code(), Some(0));
    assert_eq!(hosts.daemon.stop().status.code(), Some(0));
}

#[test]
fn a_daemon_that_is_killed_leaves_one_line_and_exit_1() {
    let hosts = Hosts::new();
    let (child, far) = hosts.carried(&[]);
    let target = far.local_addr().unwrap();
    hosts.daemon.signal(Signal::KILL);
    let _bounded = bounded(&child);
    let output = child.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(1));
    assert_eq!(
        text(&output.stderr),
        format!(
            "keypadd: connection to {target} lost: the daemon that carried it has exited\n  \
             hint: run it again; without a daemon it makes its own tunnel\n"
        )
    );
}

#[test]
fn a_killed_or_interrupted_command_resets_its_target() {
    let hosts = Hosts::new();
    for signal in [Signal::KILL, Signal::TERM, Signal::HUP] {
        let (mut child, far) = hosts.carried(&[]);
        let target = far.local_addr().unwrap();
        let _bounded = bounded(&child);
        kill_process(Pid::from_child(&child), signal).unwrap();
        let error = (&far).read(&mut [0; 1]).expect_err("the target saw a clean end");
        assert_eq!(error.kind(), ErrorKind::ConnectionReset);
        let mut said = String::new();
        child.stderr.take().unwrap().read_to_string(&mut said).unwrap();
        let code = child.wait().unwrap().code();
        match signal {
            Signal::KILL => assert_eq!(code, None),
            _ => {
                let line = format!("keypadd: interrupted before {target} finished\n");
                assert_eq!((code, said), (Some(1), line));
            }
        }
    }
    assert_eq!(hosts.sessions(), 1);
}

#[test]
fn a_signal_ends_a_command_with_unread_output_after_its_target_has_finished() {
    let hosts = Hosts::new();
    let (mut child, mut far) = hosts.carried(&[]);
    let target = far.local_addr().unwrap();
    // More than a pipe holds, less than the pipe and the sockets together.
    far.write_all(&[7; 150_000]).unwrap();
    drop(child.stdin.take());
    assert_eq!(far.read(&mut [0]).unwrap(), 0);
    drop(far);
    until("the daemon has written everything", || {
        let status = hosts.desk.keypadd(&["status", "--json"]).output().unwrap();
        (!text(&status.stdout).contains(&format!("\"-W {target}\""))).then_some(())
    });
    let _bounded = bounded(&child);
    kill_process(Pid::from_child(&child), Signal::TERM).unwrap();
    assert_eq!(child.wait().unwrap().code(), Some(1));
}

#[test]
fn a_target_that_resets_is_an_error_after_what_it_has_said() {
    let hosts = Hosts::new();
    let (mut child, far) = hosts.carried(&[]);
    let target = far.local_addr().unwrap();
    (&far).write_all(b"a last word").unwrap();
    let mut word = [0; 11];
    child.stdout.as_mut().unwrap().read_exact(&mut word).unwrap();
    reset(far);
    let _bounded = bounded(&child);
    let ended = child.wait_with_output().unwrap();
    assert_eq!(&word, b"a last word");
    let line = format!("keypadd: {target}: connection reset\n");
    assert_eq!((ended.status.code(), text(&ended.stderr)), (Some(1), line));
}

#[test]
fn refusals_are_those_of_a_tunnel_of_its_own() {
    let hosts = Hosts::new();
    let closed = format!("127.0.0.1:{}", free_port());
    for (target, exit) in [(&*closed, 1), ("127.0.0.2:22", 4), ("no-such-name.invalid:1", 1)] {
        let shared = connect(&hosts.desk, &["-W", target]).output().unwrap();
        let own = connect(&hosts.desk, &["-W", target, "--hold", "0"]).output().unwrap();
        let seen = |output: &Output| (output.status.code(), text(&output.stderr));
        assert_eq!(seen(&shared), seen(&own));
        assert_eq!(shared.status.code(), Some(exit), "{}", text(&shared.stderr));
    }
}

#[test]
fn what_a_daemon_does_not_have_takes_a_tunnel_of_its_own() {
    let hosts = Hosts::new();
    let target = echo("127.0.0.1").to_string();
    let other = text(&hosts.desk.keypadd(&["keygen", "other.key"]).output().unwrap().stdout);
    assert!(!other.is_empty());
    for args in [&["--suite", "aes-128-gcm"][..], &["--kex", "x25519"], &["--hold", "1m"]] {
        let (child, far) = hosts.carried(args);
        assert_eq!(hosts.sessions(), 2, "{args:?}");
        drop(far);
        pass(child, Vec::new());
        until("its own tunnel is closed", || (hosts.sessions() == 1).then_some(()));
    }
    // Flags that match the daemon's settings.
    let (child, far) = hosts.carried(&["--kex", "x25519mlkem768"]);
    assert_eq!(hosts.sessions(), 1);
    drop(far);
    pass(child, Vec::new());
    // Another key of this host, unknown to the server: not sent through the daemon's tunnel.
    let refused = connect(&hosts.desk, &["-W", &target, "--key", "other.key"]).output().unwrap();
    assert_eq!(refused.status.code(), Some(4), "{}", text(&refused.stderr));
    // Another key of the peer, under the same name.
    let file = std::fs::read_to_string(hosts.desk.path("keypadd.toml")).unwrap();
    write_file(&hosts.desk.path("keypadd.toml"), &file.replace(PUBLIC_KEY, other.trim()), 0o644);
    let refused = connect(&hosts.desk, &["-W", &target]).output().unwrap();
    let said = text(&refused.stderr);
    assert_eq!(refused.status.code(), Some(4), "{said}");
    assert!(said.contains("SERVER KEY MISMATCH"), "{said}");
}

#[test]
fn without_a_daemon_or_with_one_whose_link_is_down_it_connects_by_itself() {
    let desk = desk();
    let server = server(&desk);
    let target = echo("127.0.0.1").to_string();
    name(&server.address(), &desk);
    let alone = || pass(connect(&desk, &["-W", &target]).spawn().unwrap(), b"alone".to_vec());
    assert_eq!(text(&alone().stdout), "alone");
    // A daemon that connects to a port where nobody answers.
    name(&format!("127.0.0.1:{}", free_port()), &desk);
    let daemon = run(&desk);
    name(&server.address(), &desk);
    assert_eq!(text(&alone().stdout), "alone");
    // A stopped daemon does not answer.
    daemon.signal(Signal::STOP);
    assert_eq!(text(&alone().stdout), "alone");
    daemon.signal(Signal::CONT);
    assert_eq!(daemon.stop().status.code(), Some(0));
}

#[test]
fn a_daemon_that_is_stopped_does_not_hide_the_next_one() {
    let hosts = Hosts::new();
    // Asked first.
    let path = hosts.desk.path("run/0.sock");
    let stopped = UnixListener::bind(&path).unwrap();
    let (child, far) = hosts.carried(&[]);
    drop(stopped);
    fs::remove_file(path).unwrap();
    assert_eq!(hosts.sessions(), 1);
    reset(far);
    assert_eq!(child.wait_with_output().unwrap().status.code(), Some(1));
}

#[test]
fn a_header_precedes_what_standard_input_says() {
    let hosts = Hosts::new();
    let target = echo("127.0.0.1").to_string();
    for own in [&[][..], &["--hold", "0"]] {
        let args = [&["-W", &target, "--send-proxy"], own].concat();
        let output = pass(connect(&hosts.desk, &args).spawn().unwrap(), b"hello".to_vec());
        assert_eq!(output.stdout, [&LOCAL_HEADER[..], b"hello"].concat());
        assert_eq!((output.status.code(), text(&output.stderr)), (Some(0), String::new()));
    }
}

#[test]
fn a_connection_is_counted_by_its_target() {
    let hosts = Hosts::new();
    let (mut child, far) = hosts.carried(&[]);
    let output = hosts.desk.keypadd(&["status", "--json"]).output().unwrap();
    let said = text(&output.stdout);
    let target = far.local_addr().unwrap();
    let named = format!("\"forward\": \"-W {target}\"");
    assert!(said.contains(&named), "{said}");
    drop((child.stdin.take(), far));
    assert_eq!(child.wait().unwrap().code(), Some(0));
}
