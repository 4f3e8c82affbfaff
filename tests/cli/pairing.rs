//! Tests `invite` and `join` on two directories that stand for two hosts: the files written, the
//! error messages, and what an attacker gains.

mod halves;

use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::process::{Child, ChildStdout, Command, Output, Stdio};
use std::sync::Arc;

use keypadd_provider::PairingSecret;
use keypadd_tunnel::Invitation;
use rustix::process::{Pid, Signal, kill_process};

use crate::daemons::{Daemon, Desk, bounded, desk, text, write_file};
use crate::ends::{echo, free_port};

/// Two hosts, each with a desk of its own.
struct Hosts {
    far: Desk,
    near: Desk,
    /// The port in the far host's file.
    udp: u16,
    /// What the far host permits.
    target: String,
}

/// A running `keypadd invite`.
struct Inviting {
    child: Child,
    _stdout: BufReader<ChildStdout>,
    line: String,
}

impl Hosts {
    fn new() -> Self {
        let hosts = Self {
            far: desk(),
            near: desk(),
            udp: free_port(),
            target: echo("127.0.0.1").to_string(),
        };
        let file = format!("# The far host.\n\nlisten = \"127.0.0.1:{}\"\n", hosts.udp);
        write_file(&hosts.far.path("keypadd.toml"), &file, 0o640);
        hosts
    }

    fn far(&self, args: &[&str]) -> Command {
        Self::at(&self.far, "good.key", args)
    }

    fn near(&self, args: &[&str]) -> Command {
        Self::at(&self.near, "connect.key", args)
    }

    fn at(desk: &Desk, key: &str, args: &[&str]) -> Command {
        let mut command = desk.keypadd(args);
        command.env("CONFIGURATION_DIRECTORY", desk.path("")).env("KEYPADD_KEY", desk.path(key));
        command
    }

    fn invite(&self, args: &[&str]) -> Inviting {
        let mut command = self.far(&["invite", "laptop", "--permit-open", &self.target]);
        command.args(args);
        Inviting::start(command)
    }

    fn far_file(&self) -> String {
        fs::read_to_string(self.far.path("keypadd.toml")).unwrap()
    }

    fn near_file(&self) -> Option<String> {
        fs::read_to_string(self.near.path("keypadd.toml")).ok()
    }

    /// Files that a command left behind in a host's directory.
    fn leftovers(&self) -> Vec<String> {
        let names = [&self.far, &self.near].map(|desk| fs::read_dir(desk.path("")).unwrap());
        let names = names.into_iter().flatten().map(|entry| entry.unwrap().file_name());
        names.map(|name| name.into_string().unwrap()).filter(|name| name.starts_with('.')).collect()
    }

    /// Sends bytes through `connect @NAME -W` and checks the echo.
    fn goes_through(&self, name: &str, flags: &[&str]) {
        let mut command = self.near(&["connect", name, "-W", &self.target]);
        command.args(flags).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().unwrap();
        child.stdin.take().unwrap().write_all(b"through the pairing").unwrap();
        let output = child.wait_with_output().unwrap();
        assert_eq!(text(&output.stdout), "through the pairing", "{}", text(&output.stderr));
    }
}

impl Inviting {
    fn start(mut command: Command) -> Self {
        let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        let _bounded = bounded(&child);
        let mut stdout = BufReader::new(child.stdout.take().unwrap());
        let mut line = String::new();
        stdout.read_line(&mut line).unwrap();
        assert!(line.starts_with("keypadd-invite:"), "{line}{}", rest(&mut child));
        Self { child, _stdout: stdout, line: line.trim().into() }
    }

    fn invitation(&self) -> Invitation {
        self.line.parse().unwrap()
    }

    /// Waits for the exit; returns the exit code and standard error.
    fn ended(mut self) -> (Option<i32>, String) {
        let _bounded = bounded(&self.child);
        let said = rest(&mut self.child);
        (self.child.wait().unwrap().code(), said)
    }

    fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.child), signal).unwrap();
    }
}

impl Drop for Inviting {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn rest(child: &mut Child) -> String {
    let mut said = String::new();
    child.stderr.take().unwrap().read_to_string(&mut said).unwrap();
    said
}

/// Runs a command with this line on standard input.
fn fed(command: &mut Command, line: &str) -> Output {
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().unwrap();
    let _bounded = bounded(&child);
    // It may exit without reading.
    let _ = child.stdin.take().unwrap().write_all(format!("{line}\n").as_bytes());
    child.wait_with_output().unwrap()
}

fn refused(output: &Output, code: i32, words: &str) {
    let said = text(&output.stderr);
    assert_eq!(output.status.code(), Some(code), "{said}");
    assert!(said.contains(words), "{said}");
    assert!(said.lines().count() == 2 && said.contains("\n  hint: "), "{said}");
}

#[test]
fn two_commands_pair_two_hosts_without_files_and_a_tunnel_goes_from_one_to_the_other() {
    let hosts = Hosts::new();
    fs::remove_file(hosts.far.path("keypadd.toml")).unwrap();
    let (at, port) = (format!("127.0.0.1:{}", hosts.udp), hosts.udp);
    let far =
        ["--config", "new/k.toml", "--key", "new/key", "--listen", &at, "--host", "127.0.0.1"];
    let inviting = hosts.invite(&far);
    assert_eq!(inviting.invitation().tunnel_port, 4433);
    let near = ["join", "--config", "etc/k.toml", "--key", "etc/key", "--name", "lab"];
    let output = fed(&mut hosts.near(&near), &inviting.line);
    let (said, file) = (text(&output.stdout), hosts.near.path("etc/k.toml"));
    assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
    let port_there = hosts.target.rsplit_once(':').unwrap().1;
    let command = format!(
        "keypadd connect @lab --config {} -L {port_there}:{}\n",
        file.display(),
        hosts.target
    );
    assert!(said.starts_with("paired with lab, key ") && said.ends_with(&command), "{said}");
    let (code, said) = inviting.ended();
    assert_eq!(code, Some(0), "{said}");
    assert!(said.contains("keypadd: paired with laptop (127.0.0.1), key "), "{said}");
    assert!(
        said.contains(&format!("run `keypadd run --config {}", hosts.far.path("new").display()))
    );
    assert_eq!(hosts.leftovers(), Vec::<String>::new());

    // The generated file says port 4433, which this test cannot count on having.
    let written = fs::read_to_string(hosts.far.path("new/k.toml")).unwrap();
    assert!(written.contains("listen = \"[::]:4433\"\n"), "{written}");
    write_file(&hosts.far.path("new/k.toml"), &written.replace("[::]:4433", &at), 0o644);
    let near = fs::read_to_string(&file).unwrap();
    write_file(&file, &near.replace(":4433", &format!(":{port}")), 0o644);
    let run = ["run", "--config", "new/k.toml", "--log-format", "json"];
    let mut run = hosts.far(&run);
    run.env_remove("KEYPADD_KEY");
    let _daemon = Daemon::start(run);
    hosts.goes_through("@lab", &["--config", "etc/k.toml", "--key", "etc/key"]);
}

#[test]
fn a_running_daemon_lets_the_new_peer_in_at_once_and_its_file_keeps_what_was_in_it() {
    let hosts = Hosts::new();
    let before = format!("{}spin = \"5%\"\n", hosts.far_file());
    write_file(&hosts.far.path("keypadd.toml"), &before, 0o640);
    let paired = hosts.invite(&[]);
    // Edits made while it waits are kept.
    let edited = format!("{before}# An edit.\n");
    write_file(&hosts.far.path("keypadd.toml"), &edited, 0o640);
    // Pass the invitation as an argument this time.
    let output = hosts.near(&["join", &paired.line, "--name", "a"]).output().unwrap();
    assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
    assert_eq!(paired.ended().0, Some(0));
    let _daemon = Daemon::start(hosts.far(&["run", "--log-format", "json"]));
    hosts.goes_through("@a", &[]);

    let key = text(&hosts.near(&["keygen", "second.key"]).output().unwrap().stdout);
    let inviting = hosts.far(&["invite", "tablet", "--permit-open", &hosts.target]);
    let inviting = Inviting::start(inviting);
    // The daemon holds the port of the file.
    assert_ne!(inviting.invitation().pairing.port, hosts.udp);
    assert_eq!(inviting.invitation().tunnel_port, hosts.udp);
    let second = ["--config", "second.toml", "--key", "second.key"];
    let output = fed(hosts.near(&["join", "--name", "lab"]).args(second), &inviting.line);
    assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
    hosts.goes_through("@lab", &second);
    let (code, said) = inviting.ended();
    assert!(code == Some(0) && said.ends_with("the daemon has reloaded it\n"), "{said}");
    let after = hosts.far_file();
    assert!(after.starts_with("# The far host.\n\nkey = \""), "{after}");
    assert!(after.contains("spin = \"5%\"\n# An edit.\n\n[peer.laptop]\n"), "{after}");
    assert!(
        after.contains(&format!("\n\n[peer.tablet]\npublic-key = \"{}\"\n", key.trim())),
        "{after}"
    );
}

#[test]
fn a_line_works_once() {
    let hosts = Hosts::new();
    let inviting = hosts.invite(&[]);
    let line = inviting.line.clone();
    assert_eq!(fed(&mut hosts.near(&["join", "--name", "lab"]), &line).status.code(), Some(0));
    assert_eq!(inviting.ended().0, Some(0));
    let again = ["join", "--config", "other.toml", "--connect-timeout", "1s"];
    refused(&fed(&mut hosts.near(&again), &line), 5, "no answer in 1s");
    assert!(!hosts.near.path("other.toml").exists());
    // If a daemon has taken the port since, it answers that no invitation is waiting.
    let _daemon = Daemon::start(hosts.far(&["run", "--log-format", "json"]));
    refused(&fed(&mut hosts.near(&again), &line), 4, "no invitation is waiting there");
    assert!(!hosts.near.path("other.toml").exists());
    assert_eq!(hosts.leftovers(), Vec::<String>::new());
}

#[test]
fn an_invitation_ends_in_time_and_by_a_signal_and_leaves_nothing() {
    let hosts = Hosts::new();
    let before = hosts.far_file();
    let inviting = hosts.invite(&["--expires", "300ms"]);
    let line = inviting.line.clone();
    let (code, said) = inviting.ended();
    assert_eq!(code, Some(5), "{said}");
    assert!(said.contains("nobody joined in 300ms; nothing was written on either host"), "{said}");
    let late = fed(&mut hosts.near(&["join", "--connect-timeout", "1s"]), &line);
    refused(&late, 5, "no answer in 1s");
    let inviting = hosts.invite(&[]);
    inviting.signal(Signal::INT);
    let (code, said) = inviting.ended();
    assert!(code == Some(1) && said.contains("interrupted; nothing was written"), "{said}");
    let killed = hosts.invite(&[]);
    let line = killed.line.clone();
    killed.signal(Signal::KILL);
    killed.ended();
    refused(
        &fed(&mut hosts.near(&["join", "--connect-timeout", "1s"]), &line),
        5,
        "no answer in 1s",
    );
    assert_eq!((hosts.far_file(), hosts.near_file()), (before, None));
    assert_eq!(hosts.leftovers(), Vec::<String>::new());
}

#[test]
fn an_inviting_host_meets_strangers_in_a_sandbox() {
    let hosts = Hosts::new();
    let inviting = hosts.invite(&[]);
    let status = fs::read_to_string(format!("/proc/{}/status", inviting.child.id())).unwrap();
    // No new privileges on exec, and a system call filter where the architecture has one.
    assert!(status.contains("\nNoNewPrivs:\t1\n"), "{status}");
    if cfg!(any(target_arch = "x86_64", target_arch = "aarch64")) {
        assert!(status.contains("\nSeccomp:\t2\n"), "{status}");
    }
}

#[test]
fn who_has_not_the_line_is_turned_away_and_the_line_still_works() {
    let hosts = Hosts::new();
    let inviting = hosts.invite(&[]);
    let guess = Arc::new(PairingSecret::generate().unwrap());
    for _ in 0..4 {
        let guess = Invitation { secret: Arc::clone(&guess), ..inviting.invitation() };
        let turned = fed(&mut hosts.near(&["join"]), &guess.line());
        refused(&turned, 4, "this is not the invitation that the host is waiting for");
        assert_eq!(hosts.near_file(), None);
    }
    let output = fed(&mut hosts.near(&["join"]), &inviting.line);
    assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
    let (code, said) = inviting.ended();
    assert_eq!(code, Some(0), "{said}");
    assert!(said.contains("a host tried to join with another invitation"), "{said}");
}

#[test]
fn the_most_verbose_log_of_either_end_contains_nothing_of_the_line() {
    let hosts = Hosts::new();
    let loud = ["-vv", "--log", "trace"];
    let inviting = hosts.invite(&loud);
    let output = fed(hosts.near(&["join"]).args(loud), &inviting.line);
    assert_eq!(output.status.code(), Some(0));
    let line = inviting.line.clone();
    let said = inviting.ended().1 + &text(&output.stderr) + &text(&output.stdout);
    assert!(said.contains("DEBUG"), "{said}");
    let (_, body) = line.split_once(':').unwrap();
    for part in body.as_bytes().chunks(12) {
        let part = str::from_utf8(part).unwrap();
        assert!(part.len() < 12 || !said.contains(part), "{part} in {said}");
    }
    let secret = hex::encode(line.parse::<Invitation>().unwrap().secret.as_bytes());
    assert!(!said.contains(&secret[..12]));
}

#[test]
fn an_interceptor_that_has_not_the_line_gains_nothing() {
    let hosts = Hosts::new();
    let inviting = hosts.invite(&[]);
    // An interceptor with its own key receives all packets for the inviting host, waits in its
    // place, and then tries at the real host with what it has.
    let interceptor = Hosts::new();
    let key = text(&interceptor.far(&["keygen", "own.key"]).output().unwrap().stdout);
    let its_own = interceptor.invite(&["--key", "own.key"]);
    let redirected = Invitation { pairing: its_own.invitation().pairing, ..inviting.invitation() };
    let output = fed(&mut hosts.near(&["join"]), &redirected.line());
    refused(&output, 4, "SERVER KEY MISMATCH: expected ");
    assert!(text(&output.stderr).contains(&format!("got {}", key.trim())));
    let without = Invitation { secret: its_own.invitation().secret, ..inviting.invitation() };
    let turned = fed(&mut interceptor.near(&["join", "--config", "x.toml"]), &without.line());
    refused(&turned, 4, "this is not the invitation");
    assert_eq!(hosts.near_file(), None);
    assert!(!hosts.far_file().contains("[peer."));
    inviting.signal(Signal::INT);
    inviting.ended();
}

#[test]
fn what_stands_in_the_way_is_said_before_anything_is_sent() {
    let hosts = Hosts::new();
    let inviting = hosts.invite(&[]);
    let line = &inviting.line;
    // A directory that even root cannot write to.
    let readonly = ["join", "--config", "/proc/keypadd.toml"];
    refused(&fed(&mut hosts.near(&readonly), line), 1, "cannot write `/proc/keypadd.toml`");
    let shared = ["join", "--config", "/tmp/keypadd.toml"];
    refused(&fed(&mut hosts.near(&shared), line), 3, "could write to everything in that directory");
    refused(&fed(&mut hosts.far(&["join"]), line), 2, "this host made the invitation");
    refused(&fed(&mut hosts.near(&["join"]), &line[..60]), 2, "damaged or incomplete");
    refused(&fed(&mut hosts.near(&["join"]), "hello"), 2, "this is not an invitation");
    let mut given = hosts.near(&["join", "hello"]);
    refused(&fed(&mut given, ""), 2, "INVITATION: this is not an invitation");
    let taken =
        format!("[peer.lab]\npublic-key = \"{}\"\nendpoint = \"x\"\n", inviting.invitation().key);
    write_file(&hosts.near.path("keypadd.toml"), &taken, 0o644);
    refused(&fed(&mut hosts.near(&["join", "--name", "lab"]), line), 2, "has a [peer.lab] already");
    refused(
        &fed(&mut hosts.near(&["join", "--name", "b"]), line),
        2,
        "lists that key already, as [peer.lab]",
    );
    write_file(&hosts.near.path("keypadd.toml"), "spn = 1\n", 0o644);
    let output = fed(&mut hosts.near(&["join"]), line);
    assert!(text(&output.stderr).contains("keypadd.toml:1:1: unknown key `spn`"));
    assert_eq!(output.status.code(), Some(3));
    write_file(&hosts.near.path("keypadd.toml"), "key = \"good.key\"\n", 0o644);
    refused(&fed(&mut hosts.near(&["join"]), line), 2, "names another, ");
    write_file(&hosts.near.path("keypadd.toml"), "", 0o666);
    refused(&fed(&mut hosts.near(&["join"]), line), 3, "can be changed by other users");
    // None of these failures uses up the invitation.
    fs::remove_file(hosts.near.path("keypadd.toml")).unwrap();
    assert_eq!(fed(&mut hosts.near(&["join"]), line).status.code(), Some(0));
    assert_eq!(inviting.ended().0, Some(0));

    // The far host already lists this host's key, under another name.
    let inviting = Inviting::start(hosts.far(&["invite", "tablet", "--permit-open", "a:1"]));
    let again = fed(&mut hosts.near(&["join", "--config", "b.toml"]), &inviting.line);
    refused(&again, 4, "the inviting host cannot list this one, and says why");
    let (code, said) = inviting.ended();
    assert!(code == Some(2) && said.contains("lists that key already, as [peer.laptop]"), "{said}");
    assert!(!hosts.near.path("b.toml").exists());

    let again = hosts.far(&["invite", "laptop", "--permit-open", "a:1"]).output().unwrap();
    refused(&again, 2, "has a [peer.laptop] already");
    let nothing = hosts.far(&["invite", "tablet"]).output().unwrap();
    refused(&nothing, 2, "nothing is permitted to tablet");
    let mut invite = hosts.far(&["invite", "x", "--permit-open", "a:1"]);
    refused(&invite.args(readonly[1..].iter()).output().unwrap(), 1, "cannot write");
    let udp = format!("127.0.0.1:{}", hosts.udp);
    let _taken = std::net::UdpSocket::bind(&udp).unwrap();
    let mut invite = hosts.far(&["invite", "x", "--permit-open", "a:1", "--listen"]);
    refused(&invite.arg(&udp).output().unwrap(), 6, "--listen: cannot listen on udp ");
}

/// Runs the same command with a file size limit of zero, as on a full disk.
fn on_a_full_disk(command: &Command) -> Command {
    let mut full = Command::new("sh");
    full.args(["-c", "trap '' XFSZ; ulimit -f 0; exec \"$0\" \"$@\""]);
    full.arg(command.get_program()).args(command.get_args()).env_clear();
    full.envs(command.get_envs().filter_map(|(name, value)| Some((name, value?))));
    full.current_dir(command.get_current_dir().unwrap());
    full
}

#[test]
fn a_full_disk_leaves_the_files_as_they_were() {
    let hosts = Hosts::new();
    let before = hosts.far_file();
    write_file(&hosts.near.path("keypadd.toml"), "# Mine.\n", 0o600);
    let inviting = hosts.invite(&[]);
    let output = fed(&mut on_a_full_disk(&hosts.near(&["join"])), &inviting.line);
    refused(&output, 1, "keypadd.toml`: file too large");
    let invite = hosts.far(&["invite", "x", "--permit-open", "a:1"]);
    refused(&on_a_full_disk(&invite).output().unwrap(), 1, "keypadd.toml`: file too large");
    let keygen = hosts.near(&["keygen", "new.key"]);
    assert_eq!(on_a_full_disk(&keygen).output().unwrap().status.code(), Some(1));
    assert!(!hosts.near.path("new.key").exists());
    assert_eq!((hosts.far_file(), hosts.near_file().as_deref()), (before, Some("# Mine.\n")));
    assert_eq!(hosts.leftovers(), Vec::<String>::new());
    // The invitation is still valid.
    assert_eq!(fed(&mut hosts.near(&["join"]), &inviting.line).status.code(), Some(0));
}
