//! Tests `run` and `reload` with two configured daemons and an open connection.

use std::fs;
use std::io::Read;
use std::net::{SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::os::unix::net::UnixDatagram;

use rustix::process::Signal;

use crate::daemons::{Daemon, Desk, NEAR_PUBLIC_KEY, PUBLIC_KEY, desk, text};
use crate::ends::{PATIENCE, echo, echoes, free_port, scrape, through, until};

/// A key that nobody here has.
const OTHER_PUBLIC_KEY: &str = "/FHNjmIYoaONpH7QAjDwWAgW7RO6MwOsXeuRFUiQgCU=";

/// Two configurations with their ports.
struct Pair {
    desk: Desk,
    udp: u16,
    target: SocketAddr,
}

impl Pair {
    fn new() -> Self {
        Self { desk: desk(), udp: free_port(), target: echo("127.0.0.1") }
    }

    fn write_far(&self, permits: &str, more: &str) {
        let udp = self.udp;
        let pool = if more.contains("pool =") { "" } else { "pool = \"on\"" };
        let text = format!(
            "listen = \"127.0.0.1:{udp}\"\nkey = \"good.key\"\npool-budget = \"4MiB\"\n{pool}\n{more}\n\
             [peer.laptop]\npublic-key = \"{NEAR_PUBLIC_KEY}\"\npermit-open = [{permits}]\n"
        );
        fs::write(self.desk.path("far.toml"), text).unwrap();
    }

    fn write_near(&self, ports: &[u16]) {
        let (udp, target) = (self.udp, self.target);
        let forwards: Vec<_> =
            ports.iter().map(|port| format!("\"127.0.0.1:{port}:{target}\"")).collect();
        let text = format!(
            "key = \"connect.key\"\npool-budget = \"4MiB\"\npool = \"on\"\n\
             [peer.office]\npublic-key = \"{PUBLIC_KEY}\"\nendpoint = \"127.0.0.1:{udp}\"\nlocal = [{}]\n",
            forwards.join(", ")
        );
        fs::write(self.desk.path("near.toml"), text).unwrap();
    }

    fn permit(&self) -> String {
        format!("\"{}\"", self.target)
    }

    fn run(&self, name: &str) -> Daemon {
        let file = format!("{name}.toml");
        Daemon::start(self.desk.keypadd(&["run", "--config", &file, "--log-format", "json"]))
    }

    /// Exit code, standard output, standard error.
    fn keypadd(&self, args: &[&str]) -> (Option<i32>, String, String) {
        let output = self.desk.keypadd(args).output().unwrap();
        (output.status.code(), text(&output.stdout), text(&output.stderr))
    }
}

#[test]
fn two_configured_daemons_connect_in_either_start_order() {
    let pair = Pair::new();
    let port = free_port();
    pair.write_far(&pair.permit(), "");
    pair.write_near(&[port]);
    let near = pair.run("near");
    assert_eq!(near.ready["dialing"][0]["peer"], "office");
    let waiting = until("near reports that it is waiting", || {
        let (_, shown, _) = pair.keypadd(&["status"]);
        shown.contains("peer office at 127.0.0.1:").then_some(shown)
    });
    assert!(waiting.contains(": not connected for "), "{waiting}");
    let far = pair.run("far");
    assert_eq!(far.ready["incoming"][0], "laptop");
    let kept = until("the forward works", || through(port));
    let (code, shown, said) = pair.keypadd(&["status"]);
    assert_eq!((code, said.as_str()), (Some(0), ""));
    for line in [
        "  peer laptop at 127.0.0.1:",
        "  peer office at 127.0.0.1:",
        // QUIC's first key update comes after a random number of packets.
        "    key updates: ",
        "s old, renewed after key-lifetime",
    ] {
        assert!(shown.contains(line), "{line}: {shown}");
    }
    assert!(echoes(&kept));
    for daemon in [near, far] {
        let output = daemon.stop();
        assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
    }
}

#[test]
fn the_log_has_one_warning_of_a_peer_that_is_not_there_and_a_line_when_it_is() {
    let pair = Pair::new();
    pair.write_far(&pair.permit(), "");
    pair.write_near(&[free_port()]);
    let file = pair.desk.path("near.toml");
    let settings = fs::read_to_string(&file).unwrap();
    fs::write(&file, format!("connect-timeout = \"1s\"\n{settings}")).unwrap();
    let mut near = pair.run("near");
    near.hear("; retrying");
    let _far = pair.run("far");
    near.hear("\"connected\"");
    let said = text(&near.stop().stderr);
    assert_eq!(said.matches("; retrying").count(), 1, "{said}");
}

#[test]
fn a_reload_changes_forwards_and_permits_under_a_connection_that_stays() {
    let pair = Pair::new();
    let (first, second) = (free_port(), free_port());
    pair.write_far(&pair.permit(), "");
    pair.write_near(&[first]);
    let (far, near) = (pair.run("far"), pair.run("near"));
    let kept = until("the forward works", || through(first));

    pair.write_near(&[second]);
    let (code, said, error) = pair.keypadd(&["reload"]);
    assert_eq!(code, Some(0), "{error}");
    let target = pair.target;
    for line in [
        format!("  peer office: forward -L 127.0.0.1:{second}:{target} added\n"),
        format!("  peer office: forward -L 127.0.0.1:{first}:{target} removed\n"),
        "far.toml\n  no changes\n".into(),
    ] {
        assert!(said.contains(&line), "{said}");
    }
    until("the new forward works", || through(second));
    assert!(TcpStream::connect(("127.0.0.1", first)).is_err());
    assert!(echoes(&kept));

    // SIGHUP prints nothing, so wait for its effect.
    pair.write_far("\"127.0.0.1:9\"", "");
    far.signal(Signal::HUP);
    until("the revoked target is refused", || through(second).is_none().then_some(()));
    assert!(echoes(&kept));
    pair.write_far(&pair.permit(), "");
    far.signal(Signal::HUP);
    until("the target works once permitted again", || through(second));
    assert!(echoes(&kept));

    // A peer removed from the file is disconnected.
    let text = fs::read_to_string(pair.desk.path("far.toml")).unwrap();
    let other = text.replace(NEAR_PUBLIC_KEY, OTHER_PUBLIC_KEY);
    fs::write(pair.desk.path("far.toml"), other).unwrap();
    far.signal(Signal::HUP);
    let mut gone = &kept;
    gone.set_read_timeout(Some(PATIENCE)).unwrap();
    assert!(matches!(gone.read(&mut [0; 1]), Ok(0) | Err(_)));
    drop(near);
}

#[test]
fn a_second_run_of_a_file_is_told_that_the_first_is_running() {
    let pair = Pair::new();
    pair.write_far(&pair.permit(), &format!("metrics = \"127.0.0.1:{}\"", free_port()));
    let far = pair.run("far");
    for file in ["far.toml", "./far.toml"] {
        let (code, _, error) = pair.keypadd(&["run", "--config", file]);
        assert_eq!(code, Some(6), "{error}");
        let expected = format!("keypadd: already running: process {} runs `", far.pid());
        assert!(error.contains(&expected) && error.contains("far.toml`\n"), "{error}");
        assert!(error.contains("hint: `keypadd reload` applies changes to the file"), "{error}");
    }
    // Another file's port is in use as before.
    let text = fs::read_to_string(pair.desk.path("far.toml")).unwrap();
    fs::write(pair.desk.path("other.toml"), text).unwrap();
    let (code, _, error) = pair.keypadd(&["run", "--config", "other.toml"]);
    assert_eq!((code, error.contains("already running")), (Some(6), false), "{error}");
}

#[test]
fn the_key_of_this_host_is_no_peers() {
    let pair = Pair::new();
    pair.write_far(&pair.permit(), "");
    let far = pair.run("far");
    let text = fs::read_to_string(pair.desk.path("far.toml")).unwrap();
    let own = text.replace(NEAR_PUBLIC_KEY, PUBLIC_KEY);
    fs::write(pair.desk.path("far.toml"), &own).unwrap();
    let line = own.lines().position(|line| line.starts_with("public-key")).unwrap() + 1;
    let expected = format!("far.toml:{line}:14: public-key: {PUBLIC_KEY} is this host's own key\n");
    for command in ["check", "run", "reload"] {
        let file = ["--config", "far.toml"];
        let args = if command == "reload" { &file[..0] } else { &file[..] };
        let (code, _, error) = pair.keypadd(&[&[command], args].concat());
        assert!(code == Some(3) && error.contains(&expected), "{command}: {error}");
    }
    drop(far);
}

#[test]
fn a_failed_reload_changes_nothing() {
    let pair = Pair::new();
    let (port, taken) = (free_port(), TcpListener::bind("127.0.0.1:0").unwrap());
    pair.write_far(&pair.permit(), "");
    pair.write_near(&[port]);
    let (far, near) = (pair.run("far"), pair.run("near"));
    let kept = until("the forward works", || through(port));

    pair.write_near(&[taken.local_addr().unwrap().port()]);
    let (code, said, error) = pair.keypadd(&["reload"]);
    assert_eq!((code, said.contains("near")), (Some(6), false), "{error}");
    assert!(error.starts_with("keypadd: peer office: cannot listen on tcp 127.0.0.1:"), "{error}");
    assert!(error.ends_with("reload failed; the old settings remain in effect\n"), "{error}");
    until("the old forward works", || through(port));

    let file = pair.desk.path("near.toml");
    fs::write(&file, "key = \"connect.key\"\ncolor = \"red\"\n[peer.office]\nlocal = [\"1\"]\n")
        .unwrap();
    let (code, _, error) = pair.keypadd(&["reload"]);
    assert_eq!(code, Some(3), "{error}");
    for place in
        ["2:1: unknown key `color`\n", "3:7: peer `office` has no public-key\n", "4:10: local: "]
    {
        assert!(error.contains(&format!("{}:{place}", file.display())), "{error}");
    }
    fs::remove_file(&file).unwrap();
    near.signal(Signal::HUP);
    assert!(echoes(&kept));
    until("the old forward works", || through(port));
    drop(far);
    let said = text(&near.stop().stderr);
    assert!(said.contains("reload failed: configuration"), "{said}");
}

#[test]
fn a_reload_names_changes_that_need_a_restart_and_a_daemon_without_a_file_refuses_it() {
    let pair = Pair::new();
    pair.write_far(&pair.permit(), "");
    let far = pair.run("far");
    pair.write_far(
        &pair.permit(),
        "congestion = \"cubic\"\nspin = \"0%\"\nloops = 3\nmetrics = \"127.0.0.1:1\"\nsuite = \"aes-128-gcm\"",
    );
    for _ in 0..2 {
        let (code, said, error) = pair.keypadd(&["reload"]);
        assert_eq!(code, Some(0), "{error}");
        assert!(said.contains("`: congestion, spin, loops, metrics\n"), "{said}");
    }
    drop(far.stop());
    let _serve = Daemon::serve(&pair.desk, &[]);
    let (code, _, error) = pair.keypadd(&["reload"]);
    assert_eq!(code, Some(2));
    assert!(
        error.starts_with("keypadd: `keypadd serve` runs without a configuration file\n"),
        "{error}"
    );
}

#[test]
fn an_unbindable_listener_exits_6_before_anything_is_sent() {
    let pair = Pair::new();
    let silent = UdpSocket::bind(("127.0.0.1", pair.udp)).unwrap();
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    pair.write_near(&[taken.local_addr().unwrap().port()]);
    let (code, _, error) = pair.keypadd(&["run", "--config", "near.toml"]);
    assert_eq!(code, Some(6), "{error}");
    silent.set_nonblocking(true).unwrap();
    assert!(silent.recv(&mut [0; 1500]).is_err());
    pair.write_far(&pair.permit(), "");
    let (code, _, error) = pair.keypadd(&["run", "--config", "far.toml"]);
    assert_eq!(code, Some(6), "{error}");
    assert!(error.starts_with("keypadd: listen: cannot listen on udp 127.0.0.1:"), "{error}");
}

#[test]
fn systemd_is_told_of_readiness_and_of_every_reload() {
    let pair = Pair::new();
    pair.write_far(&pair.permit(), "");
    let socket = UnixDatagram::bind(pair.desk.path("notify")).unwrap();
    socket.set_read_timeout(Some(PATIENCE)).unwrap();
    let mut command = pair.desk.keypadd(&["run", "--config", "far.toml", "--log-format", "json"]);
    command.env("NOTIFY_SOCKET", pair.desk.path("notify"));
    let far = Daemon::start(command);
    let hear = || {
        let mut buffer = [0; 256];
        let length = socket.recv(&mut buffer).unwrap();
        text(&buffer[..length])
    };
    assert_eq!(hear().trim(), "READY=1");
    far.signal(Signal::HUP);
    let reloading = hear();
    assert!(reloading.starts_with("RELOADING=1\nMONOTONIC_USEC="), "{reloading}");
    assert_eq!(hear().trim(), "READY=1");
    far.signal(Signal::TERM);
    assert_eq!(hear().trim(), "STOPPING=1\nEXTEND_TIMEOUT_USEC=15000000");
}

#[test]
fn status_shows_how_long_pads_last_and_calls_a_quiet_tunnel_idle() {
    let pair = Pair::new();
    let (port, metrics) = (free_port(), free_port());
    pair.write_far(&pair.permit(), &format!("metrics = \"127.0.0.1:{metrics}\""));
    pair.write_near(&[port]);
    let (_far, _near) = (pair.run("far"), pair.run("near"));
    let stream = until("the forward works", || through(port));
    let quiet = until("the tunnel is idle", || {
        let (_, shown, _) = pair.keypadd(&["status"]);
        shown.contains(" packets, idle\n").then_some(shown)
    });
    assert!(quiet.contains("  pool hit rate: "), "{quiet}");
    let document = until("keystrokes use pads at both ends", || {
        for _ in 0..100 {
            assert!(echoes(&stream));
        }
        let (_, document, _) = pair.keypadd(&["status", "--json"]);
        let document: serde_json::Value = serde_json::from_str(&document).unwrap();
        let daemons = document["daemons"].as_array().unwrap();
        let busy = daemons.iter().all(|daemon| daemon["pool"]["seconds_left"].is_number());
        busy.then_some(document)
    });
    for daemon in document["daemons"].as_array().unwrap() {
        assert!(daemon["pool"]["seconds_left"].as_f64() >= Some(0.0), "{daemon}");
        assert!(daemon["sessions"][0]["keys"]["send"]["packets_per_second"].as_f64() > Some(1.0));
        assert!(daemon["packets"]["send"]["hit_ratio"].as_f64() <= Some(1.0));
    }
    let (_, busy, _) = pair.keypadd(&["status"]);
    for words in [" s at the current rate\n", "    send pool: ", " packets/s\n"] {
        assert!(busy.contains(words), "{words}: {busy}");
    }
    let answer = scrape(metrics);
    assert!(answer.contains("\nkeypadd_pool_seconds_left{peer=\"laptop\",session="), "{answer}");
}

#[test]
fn a_reload_changes_this_hosts_key_and_the_pools_budget_under_a_connection_that_stays() {
    let pair = Pair::new();
    let port = free_port();
    pair.write_far(&pair.permit(), "");
    pair.write_near(&[port]);
    let (_far, _near) = (pair.run("far"), pair.run("near"));
    let kept = until("the forward works", || through(port));
    let (_, key, _) = pair.keypadd(&["keygen", "new.key"]);
    let key = key.trim();
    let file = pair.desk.path("far.toml");
    let text = fs::read_to_string(&file).unwrap().replace("good.key", "new.key");
    fs::write(&file, text.replace("4MiB", "8MiB")).unwrap();
    let (code, said, error) = pair.keypadd(&["reload"]);
    assert_eq!(code, Some(0), "{error}");
    for line in [
        format!("  this host's public key is now {key}\n"),
        "  key changed\n".into(),
        "  pool-budget changed\n".into(),
    ] {
        assert!(said.contains(&line), "{said}");
    }
    let shown = until("the pool has the new budget", || {
        let (_, shown, _) = pair.keypadd(&["status"]);
        shown.contains("of 8.0 MiB").then_some(shown)
    });
    assert!(shown.contains(&format!("  key {key}\n")), "{shown}");
    assert!(echoes(&kept));

    // New connections see the new key: a client that expects the old one is told so.
    let address = format!("127.0.0.1:{}", pair.udp);
    let connect = ["connect", &address, "--peer", PUBLIC_KEY, "--key", "connect.key", "-W", "a:1"];
    let (code, _, error) = pair.keypadd(&connect);
    assert_eq!(code, Some(4), "{error}");
    assert!(
        error.contains(&format!("SERVER KEY MISMATCH: expected {PUBLIC_KEY}, got {key}")),
        "{error}"
    );
}

#[test]
fn without_a_pool_status_says_why_and_shows_no_pads() {
    let pair = Pair::new();
    let port = free_port();
    pair.write_far(&pair.permit(), "pool = \"off\"");
    pair.write_near(&[port]);
    let (far, _near) = (pair.run("far"), pair.run("near"));
    until("the forward works", || through(port));
    let (_, shown, _) = pair.keypadd(&["status"]);
    let far_part = shown.split("\n\n").find(|part| part.contains("far.toml")).unwrap();
    assert!(far_part.contains("  pool off: pool = \"off\"\n"), "{shown}");
    assert!(!far_part.contains("pads"), "{shown}");
    drop(far);
}
