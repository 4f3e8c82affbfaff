//! Tests reloads of forwards, permits and peers under open connections, and of an unusable file.

use std::fs;
use std::net::{SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::process::Command;
use std::thread;
use std::time::Duration;

use rustix::process::{Pid, Resource, Rlimit, Signal, prlimit};
use serde_json::Value;

use crate::daemons::{Daemon, Desk, PUBLIC_KEY, desk, text};
use crate::ends::{
    IPV4_LOOPBACK, ask_proxy, echo, echoes, exchange, exchange_on, free_port, listening_sockets,
    noise, through, until,
};
use crate::replacing::Followers;

/// More than glibc keeps of threads that have ended, so that each needs memory of its own.
const LARGE_STACK_BYTES: u64 = 256 << 20;

/// Two hosts on one desk, a server and a connecting host, each with a key of its own.
struct Hosts {
    desk: Desk,
    udp: u16,
    target: SocketAddr,
    near_key: String,
}

impl Hosts {
    fn new() -> Self {
        let desk = desk();
        let near_key = new_key(&desk, "near.key");
        Self { desk, udp: free_port(), target: echo("127.0.0.1"), near_key }
    }

    /// Writes the server's file, with these lines for its peer.
    fn write_far(&self, peer: &str) {
        let Self { udp, target, near_key, .. } = self;
        let text = format!(
            "listen = \"127.0.0.1:{udp}\"\nkey = \"good.key\"\npool-budget = \"1MiB\"\n\
             permit-open = [\"{target}\"]\n[peer.laptop]\npublic-key = \"{near_key}\"\n{peer}\n"
        );
        fs::write(self.desk.path("far.toml"), text).unwrap();
    }

    /// Writes the connecting host's file, with these forwards and perhaps more peers.
    fn write_near(&self, forwards: &str) {
        self.write_near_to("127.0.0.1", forwards);
    }

    /// The same, with another name for the server's address.
    fn write_near_to(&self, server: &str, forwards: &str) {
        let udp = self.udp;
        let text = format!(
            "key = \"near.key\"\npool-budget = \"1MiB\"\n[peer.office]\npublic-key = \"{PUBLIC_KEY}\"\n\
             endpoint = \"{server}:{udp}\"\n{forwards}\n"
        );
        fs::write(self.desk.path("near.toml"), text).unwrap();
    }

    fn run(&self, file: &str) -> Daemon {
        Daemon::start(self.command(file))
    }

    fn run_with_large_stacks(&self, file: &str) -> Daemon {
        let mut command = self.command(file);
        command.env("RUST_MIN_STACK", LARGE_STACK_BYTES.to_string());
        Daemon::start(command)
    }

    fn command(&self, file: &str) -> Command {
        self.desk.keypadd(&["run", "--config", file, "--log-format", "json"])
    }

    /// Exit code, standard output, standard error.
    fn keypadd(&self, args: &[&str]) -> (Option<i32>, String, String) {
        let output = self.desk.keypadd(args).output().unwrap();
        (output.status.code(), text(&output.stdout), text(&output.stderr))
    }

    /// The output of a successful `reload`.
    fn reload(&self) -> String {
        let (code, said, error) = self.keypadd(&["reload"]);
        assert_eq!(code, Some(0), "{error}");
        said
    }

    /// Status of one forward of the connecting host.
    fn forward(&self, name: &str) -> Option<Value> {
        let (_, document, _) = self.keypadd(&["status", "--json"]);
        let document: Value = serde_json::from_str(&document).unwrap();
        let daemons = document["daemons"].as_array()?.iter();
        let sessions = daemons.filter_map(|daemon| daemon["sessions"].as_array()).flatten();
        let near = sessions.filter(|session| session["role"] == "client");
        let mut forwards = near.filter_map(|session| session["forwards"].as_array()).flatten();
        forwards.find(|forward| forward["forward"] == name).cloned()
    }
}

/// Generates a key on the desk; returns its public key.
fn new_key(desk: &Desk, name: &str) -> String {
    let output = desk.keypadd(&["keygen", name]).output().unwrap();
    text(&output.stdout).trim().to_owned()
}

/// Limits the memory of a daemon with large stacks so that it can start no thread. False, and nothing is limited, if
/// the C library keeps the stack of a thread that has ended: the next one would get that.
fn limit_threads(daemon: &Daemon) -> bool {
    until("no thread is about to end", || (!runs_once(daemon)).then_some(()));
    let of = |file: &str| fs::read_to_string(format!("/proc/{}/{file}", daemon.pid())).unwrap();
    let status = of("status");
    let value = |name: &str| -> u64 {
        let value = status.lines().find_map(|line| line.strip_prefix(name)).unwrap();
        value.trim().trim_end_matches(" kB").parse().unwrap()
    };
    let maps = of("maps");
    let is_stack = |line: &&str| {
        let (first, end) = line.split_once(' ').unwrap().0.split_once('-').unwrap();
        let [first, end] = [first, end].map(|at| u64::from_str_radix(at, 16).unwrap());
        end - first == LARGE_STACK_BYTES
    };
    let stacks = maps.lines().filter(is_stack).count() as u64;
    // The first thread's is another one.
    if stacks != value("Threads:") - 1 {
        eprintln!("skipped: the stack of a thread that has ended is kept");
        return false;
    }
    set_memory_limit(daemon, Some((value("VmSize:") << 10) + LARGE_STACK_BYTES / 8));
    true
}

/// Whether a thread does a single piece of work, after which it ends.
fn runs_once(daemon: &Daemon) -> bool {
    let threads = fs::read_dir(format!("/proc/{}/task", daemon.pid())).unwrap();
    let mut names =
        threads.filter_map(|thread| fs::read_to_string(thread.ok()?.path().join("comm")).ok());
    names.any(|name| name.trim_end() == "keypadd-once")
}

fn set_memory_limit(daemon: &Daemon, current: Option<u64>) {
    let limit = Rlimit { current, maximum: None };
    prlimit(Some(Pid::from_raw(daemon.pid() as i32).unwrap()), Resource::As, limit).unwrap();
}

#[test]
fn a_reload_that_cannot_start_a_thread_is_refused_and_the_daemon_goes_on() {
    let hosts = Hosts::new();
    hosts.write_far("");
    let far = hosts.run_with_large_stacks("far.toml");
    for _ in 0..20 {
        if !limit_threads(&far) {
            return;
        }
        let (code, _, error) = hosts.keypadd(&["reload"]);
        set_memory_limit(&far, None);
        // A thread that ends at the wrong moment leaves its stack to the next one, which can start.
        if code == Some(0) {
            continue;
        }
        assert_eq!(code, Some(3), "{error}");
        assert!(error.contains("cannot start a thread"), "{error}");
        hosts.reload();
        return;
    }
    panic!("a thread could be started each time");
}

#[test]
fn names_that_no_thread_can_look_up_are_refused_with_one_line() {
    let hosts = Hosts::new();
    let (target, bind) = (hosts.target, "127.0.0.1");
    hosts.write_far(&format!("permit-open = [\"*:9\", \"{target}\"]"));
    let far = hosts.run_with_large_stacks("far.toml");
    let [to_name, to_target] = [free_port(), free_port()];
    hosts.write_near(&format!(
        "local = [\"{bind}:{to_name}:host.invalid:9\", \"{bind}:{to_target}:{target}\"]"
    ));
    let _near = hosts.run("near.toml");
    let open = through(to_target).expect("the connection is forwarded");
    if !limit_threads(&far) {
        return;
    }
    for _ in 0..3 {
        assert!(through(to_name).is_none(), "refused");
    }
    assert!(echoes(&open), "the daemon goes on");
    set_memory_limit(&far, None);
    let log = text(&far.stop().stderr);
    assert!(!log.contains("panicked"), "{log}");
    assert_eq!(log.matches("cannot start a thread").count(), 1, "{log}");
}

#[test]
fn a_reload_adds_and_removes_forwards_of_every_kind_and_listen_permits() {
    let hosts = Hosts::new();
    let (target, [one, two, three]) = (hosts.target, [free_port(), free_port(), free_port()]);
    let local = format!("local = [\"127.0.0.1:{one}:{target}\"]");
    hosts.write_far("");
    hosts.write_near(&local);
    let (far, _near) = (hosts.run("far.toml"), hosts.run("near.toml"));
    let kept = until("the forward works", || through(one));

    let more = format!("{local}\nremote = [\"{two}:{target}\"]\ndynamic = [\"127.0.0.1:{three}\"]");
    hosts.write_near(&more);
    let said = hosts.reload();
    let (remote, dynamic) = (format!("-R {two}:{target}"), format!("-D 127.0.0.1:{three}"));
    for line in [format!("forward {remote} added\n"), format!("forward {dynamic} added\n")] {
        assert!(said.contains(&format!("  peer office: {line}")), "{said}");
    }
    let sent = noise(50_000);
    let (stream, reply) = ask_proxy(&format!("127.0.0.1:{three}"), IPV4_LOOPBACK, target.port());
    assert_eq!(reply, 0);
    assert!(exchange_on(stream, &sent).unwrap() == sent);
    // The server does not permit the remote forward, and status says so.
    until("status shows the refusal", || {
        let forward = hosts.forward(&remote)?;
        (forward["cause"] == "not permitted").then_some(())
    });

    // Once permitted, it is requested again.
    hosts.write_far(&format!("permit-listen = [\"{two}\"]"));
    let said = hosts.reload();
    assert!(said.contains("  peer laptop: permit-listen changed\n"), "{said}");
    let entrance = format!("127.0.0.1:{two}");
    until("the remote forward listens", || {
        exchange(&entrance, &sent).ok().filter(|got| *got == sent)
    });
    assert_eq!(hosts.forward(&remote).unwrap()["cause"], Value::Null);

    hosts.write_near(&local);
    let said = hosts.reload();
    assert!(said.contains(&format!("  peer office: forward {remote} removed\n")), "{said}");
    until("the remote forward is closed", || TcpStream::connect(&entrance).is_err().then_some(()));
    assert!(TcpStream::connect(("127.0.0.1", three)).is_err());
    assert!(echoes(&kept));
    let said = text(&far.stop().stderr);
    assert!(said.contains(&format!("to permit it: --permit-listen localhost:{two}")), "{said}");
}

/// What an echo server on UDP sends back through a forward.
fn datagram_through(port: u16) -> Option<()> {
    let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
    socket.set_read_timeout(Some(Duration::from_millis(200))).unwrap();
    socket.send_to(b"here", ("127.0.0.1", port)).unwrap();
    let length = socket.recv(&mut [0; 16]).ok()?;
    (length == 4).then_some(())
}

#[test]
fn listeners_go_to_another_endpoint_or_stay_where_that_fails() {
    let hosts = Hosts::new();
    let (target, [tcp, udp]) = (hosts.target, [free_port(), free_port()]);
    let echoed = UdpSocket::bind("127.0.0.1:0").unwrap();
    let echoed_at = echoed.local_addr().unwrap();
    thread::spawn(move || {
        let mut buffer = [0; 16];
        while let Ok((length, from)) = echoed.recv_from(&mut buffer) {
            let _ = echoed.send_to(&buffer[..length], from);
        }
    });
    hosts.write_far(&format!("permit-open = [\"{target}\", \"udp:{echoed_at}\"]"));
    let forwards = |more: &str| {
        format!("local = [\"127.0.0.1:{tcp}:{target}\", \"127.0.0.1:{udp}:udp:{echoed_at}\"{more}]")
    };
    hosts.write_near(&forwards(""));
    let (_far, _near) = (hosts.run("far.toml"), hosts.run("near.toml"));
    let both = || {
        through(tcp)?;
        datagram_through(udp)
    };
    until("the forwards work", both);

    // The client of the new endpoint binds what the old one has just closed.
    for server in ["localhost", "127.0.0.1", "localhost"] {
        hosts.write_near_to(server, &forwards(""));
        let said = hosts.reload();
        assert!(said.contains("peer office: endpoint "), "{said}");
        until("the forwards work over the other endpoint", both);
    }

    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let more = format!(", \"{}:{target}\"", taken.local_addr().unwrap());
    hosts.write_near_to("127.0.0.1", &forwards(&more));
    let (code, _, error) = hosts.keypadd(&["reload"]);
    assert_eq!(code, Some(6), "{error}");
    assert!(error.contains("address already in use"), "{error}");
    assert!(!error.contains(&tcp.to_string()) && !error.contains(&udp.to_string()), "{error}");
    until("the forwards work as before", both);
}

#[test]
fn sockets_stay_open_when_their_forwards_go_to_another_peer_or_cannot() {
    let hosts = Hosts::new();
    let (target, [tcp, udp]) = (hosts.target, [free_port(), free_port()]);
    hosts.write_far("");
    let attic_key = new_key(&hosts.desk, "attic.key");
    let forwards =
        format!("local = [\"127.0.0.1:{tcp}:{target}\", \"127.0.0.1:{udp}:udp:{target}\"]");
    let peers = |of_office: &str, of_attic: &str| {
        hosts.write_near(&format!(
            "{of_office}\n[peer.attic]\npublic-key = \"{attic_key}\"\nendpoint = \"127.0.0.1:9\"\n{of_attic}"
        ));
    };
    peers("", &forwards);
    let (_far, _near) = (hosts.run("far.toml"), hosts.run("near.toml"));
    let listening = || (listening_sockets("tcp", tcp), listening_sockets("udp", udp));
    let before = listening();
    assert_eq!((before.0.len(), before.1.len()), (1, 1));
    let listed = |peer: &str| {
        let (_, listed, _) = hosts.keypadd(&["forward", "list", &format!("@{peer}")]);
        listed.matches(" listening on ").count()
    };

    // One listener more than can be bound.
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let taken = taken.local_addr().unwrap();
    peers(&forwards.replace(']', &format!(", \"{taken}:{target}\"]")), "");
    let (code, _, error) = hosts.keypadd(&["reload"]);
    assert_eq!(code, Some(6), "{error}");
    assert!(error.contains(&format!("peer office: cannot listen on tcp {taken}")), "{error}");
    assert_eq!(listening(), before);
    assert_eq!((listed("attic"), listed("office")), (2, 0));

    peers(&forwards, "");
    hosts.reload();
    assert_eq!(listening(), before);
    assert_eq!((listed("attic"), listed("office")), (0, 2));
    until("the forward works", || through(tcp));

    // With another target, and then over another endpoint.
    let other = echo("127.0.0.1");
    hosts.write_far(&format!("permit-open = [\"{other}\"]"));
    hosts.write_near_to("localhost", &forwards.replace(&target.to_string(), &other.to_string()));
    hosts.reload();
    assert_eq!(listening(), before);
}

#[test]
fn a_reload_that_fails_at_one_peer_changes_no_headers_of_another() {
    let hosts = Hosts::new();
    let (target, [here, there, added]) = (hosts.target, [free_port(), free_port(), free_port()]);
    hosts.write_far(&format!("permit-listen = [\"{there}\", \"{added}\"]"));
    let forwards =
        format!("local = [\"127.0.0.1:{here}:{target}\"]\nremote = [\"{there}:{target}\"]");
    hosts.write_near(&forwards);
    let (far, _near) = (hosts.run("far.toml"), hosts.run("near.toml"));
    // The target would send a header back.
    let exchanged = |port| exchange(&format!("127.0.0.1:{port}"), b"x");
    let works = |port| exchanged(port).ok().filter(|got| got == b"x");
    until("the local forward works", || works(here));
    until("the remote forward listens", || works(there));

    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let taken = taken.local_addr().unwrap();
    let later_key = new_key(&hosts.desk, "later.key");
    hosts.write_near(&format!(
        "{forwards}\nsend-proxy = true\n[peer.zoo]\npublic-key = \"{later_key}\"\n\
         endpoint = \"127.0.0.1:9\"\nlocal = [\"{taken}:{target}\"]"
    ));
    let (code, _, error) = hosts.keypadd(&["reload"]);
    assert_eq!(code, Some(6), "{error}");
    assert!(error.contains("peer zoo: cannot listen on"), "{error}");
    assert_eq!(exchanged(here).unwrap(), b"x");
    // Requests all remote forwards whose headers have changed, and then this one.
    let added_forward = format!("{added}:{target}");
    let (code, _, error) = hosts.keypadd(&["forward", "add", "@office", "-R", &added_forward]);
    assert_eq!(code, Some(0), "{error}");
    until("the added forward listens", || works(added));
    assert_eq!(exchanged(there).unwrap(), b"x");
    let said = text(&far.stop().stderr);
    assert_eq!(said.matches("remote forward opened").count(), 2, "{said}");
}

#[test]
fn each_peer_keeps_the_port_that_the_system_has_chosen_for_it() {
    let hosts = Hosts::new();
    let key = new_key(&hosts.desk, "attic.key");
    let write = |port: u16| {
        let forwards = format!("local = [\"0:{}\"]", hosts.target);
        let endpoint = format!("endpoint = \"127.0.0.1:{port}\"");
        fs::write(
            hosts.desk.path("near.toml"),
            format!(
                "key = \"near.key\"\npool = \"off\"\n\
                 [peer.office]\npublic-key = \"{key}\"\n{endpoint}\n{forwards}\n\
                 [peer.attic]\npublic-key = \"{PUBLIC_KEY}\"\n{endpoint}\n{forwards}\n"
            ),
        )
        .unwrap();
    };
    write(9);
    let _near = hosts.run("near.toml");
    let ports = || ["@office", "@attic"].map(|peer| hosts.keypadd(&["forward", "list", peer]).1);
    let before = ports();
    assert_ne!(before[0], before[1]);
    write(10);
    hosts.reload();
    assert_eq!(ports(), before);
}

#[test]
fn a_listen_address_may_grow_and_shrink_over_its_own_sockets() {
    let hosts = Hosts::new();
    let (target, [tcp, udp]) = (hosts.target, [free_port(), free_port()]);
    hosts.write_far("");
    let write = |bind: &str| {
        let forwards = format!("\"{bind}{tcp}:{target}\", \"{bind}{udp}:udp:{target}\"");
        hosts.write_near(&format!("local = [{forwards}]"));
    };
    write("127.0.0.1:");
    let (_far, _near) = (hosts.run("far.toml"), hosts.run("near.toml"));
    until("the forward works", || through(tcp));
    for bind in ["0.0.0.0:", "", "*:", "127.0.0.1:"] {
        write(bind);
        hosts.reload();
        until("the forward works", || through(tcp));
        let (_, listed, _) = hosts.keypadd(&["forward", "list"]);
        assert_eq!(listed.matches(&format!("-L {bind}")).count(), 2, "{listed}");
    }
    // The same address in other words is the same socket.
    let listening = || [listening_sockets("tcp", tcp), listening_sockets("udp", udp)].concat();
    let before = listening();
    for bind in ["", "127.0.0.1:"] {
        write(bind);
        hosts.reload();
        let after = listening();
        assert!(before.iter().all(|one| after.contains(one)), "{before:?} became {after:?}");
    }

    // An address of another program is not shared.
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = taken.local_addr().unwrap().port();
    hosts.write_near(&format!("local = [\"127.0.0.2:{port}:{target}\"]"));
    hosts.reload();
    hosts.write_near(&format!("local = [\"*:{port}:{target}\"]"));
    let (code, _, error) = hosts.keypadd(&["reload"]);
    assert_eq!(code, Some(6), "{error}");
    assert!(TcpStream::connect(("127.0.0.2", port)).is_ok());
}

#[test]
fn added_peers_are_admitted_and_dialed() {
    let hosts = Hosts::new();
    let (target, [one, two]) = (hosts.target, [free_port(), free_port()]);
    hosts.write_far("");
    let office = format!("local = [\"127.0.0.1:{one}:{target}\"]");
    hosts.write_near(&office);
    let (_far, _near) = (hosts.run("far.toml"), hosts.run("near.toml"));
    let kept = until("the forward works", || through(one));

    // A peer to connect to, which refuses until it lists our key.
    let stranger = new_key(&hosts.desk, "attic.key");
    let attic = format!(
        "key = \"attic.key\"\npool = \"off\"\nlisten = \"127.0.0.1:0\"\n[peer.nobody]\n\
         public-key = \"{PUBLIC_KEY}\"\npermit-open = [\"{target}\"]\n"
    );
    fs::write(hosts.desk.path("attic.toml"), &attic).unwrap();
    let third = hosts.run("attic.toml");
    let address = third.address();
    hosts.write_near(&format!(
        "{office}\n[peer.attic]\npublic-key = \"{stranger}\"\nendpoint = \"{address}\"\n\
         local = [\"127.0.0.1:{two}:{target}\"]\n"
    ));
    assert!(hosts.reload().contains("  peer attic added\n"));
    let shown = until("near says why it is not connected", || {
        let (_, shown, _) = hosts.keypadd(&["status"]);
        shown.contains("does not allow this key").then_some(shown)
    });
    assert!(shown.contains(&format!("  peer attic at {address}: not connected for ")), "{shown}");
    let near_key = &hosts.near_key;
    fs::write(
        hosts.desk.path("attic.toml"),
        format!(
            "{attic}[peer.laptop]\npublic-key = \"{near_key}\"\npermit-open = [\"{target}\"]\n"
        ),
    )
    .unwrap();
    assert!(hosts.reload().contains("  peer laptop added\n"));
    until("the new peer is reached", || through(two));

    hosts.write_near(&office);
    assert!(hosts.reload().contains("  peer attic removed\n"));
    assert!(TcpStream::connect(("127.0.0.1", two)).is_err());
    assert!(echoes(&kept));
}

/// The token with which a server resets a connection that it does not know (RFC 9000 10.3).
fn reset_token(udp: u16) -> [u8; 16] {
    let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
    socket.set_read_timeout(Some(Duration::from_millis(200))).unwrap();
    // A short header with the ID of a loop that no server has.
    let stray = [&[0x40, 0xff][..], &[7; 47]].concat();
    let mut buffer = [0; 2_048];
    until("the server answers", || {
        socket.send_to(&stray, ("127.0.0.1", udp)).unwrap();
        let bytes = socket.recv(&mut buffer).ok()?;
        buffer[bytes - 16..bytes].try_into().ok()
    })
}

#[test]
fn a_reload_with_another_key_resets_connections_by_its_tokens_and_not_by_the_old_ones() {
    let hosts = Hosts::new();
    hosts.write_far("");
    let far = hosts.run("far.toml");
    let old = reset_token(hosts.udp);
    let file = hosts.desk.path("far.toml");
    new_key(&hosts.desk, "other.key");
    let changed = fs::read_to_string(&file).unwrap().replace("good.key", "other.key");
    fs::write(&file, changed).unwrap();
    hosts.reload();
    let new = reset_token(hosts.udp);
    assert_ne!(new, old);
    assert_eq!(far.stop().status.code(), Some(0));
    let _again = hosts.run("far.toml");
    assert_eq!(reset_token(hosts.udp), new, "a restart has the same");
}

#[test]
fn a_file_whose_key_or_permits_cannot_be_used_changes_nothing() {
    let hosts = Hosts::new();
    let (target, one) = (hosts.target, free_port());
    hosts.write_far("");
    hosts.write_near(&format!("local = [\"127.0.0.1:{one}:{target}\"]"));
    let (_far, _near) = (hosts.run("far.toml"), hosts.run("near.toml"));
    let kept = until("the forward works", || through(one));
    let good = fs::read_to_string(hosts.desk.path("far.toml")).unwrap();
    for (bad, cause) in [
        (good.replace("good.key", "missing.key"), "missing.key` does not exist\n"),
        (
            good.replace("permit-open = [", "permit-open = [\"web\", "),
            "far.toml:4:16: permit-open: `web`: ",
        ),
        (good.replace("1MiB", "1KiB"), "pool-budget: `1KiB` is too small for a pool\n"),
    ] {
        // If this file took effect, the listed key would no longer be allowed.
        let bad = bad.replace(&hosts.near_key, "PUAXw+hDiVqStwqnTRt+vJyYLM8uxJaMwM1V8Sr0Zgw=");
        fs::write(hosts.desk.path("far.toml"), bad).unwrap();
        let (code, said, error) = hosts.keypadd(&["reload"]);
        assert_eq!(code, Some(3), "{error}");
        assert!(error.contains(cause), "{error}");
        assert!(error.ends_with("reload failed; the old settings remain in effect\n"));
        assert!(said.contains("near.toml\n  no changes\n"), "{said}");
        assert!(echoes(&kept));
        until("a new connection works too", || through(one));
    }
}

#[test]
fn a_port_that_a_permit_adds_is_reached_once_the_sandbox_is_made_anew() {
    let hosts = Hosts::new();
    let ([one, two], later) = ([free_port(), free_port()], echo("127.0.0.1"));
    hosts.write_far("");
    hosts.write_near(&format!(
        "local = [\"127.0.0.1:{one}:{}\", \"127.0.0.1:{two}:{later}\"]",
        hosts.target
    ));
    let (_far, _near) = (hosts.run("far.toml"), hosts.run("near.toml"));
    until("the permitted forward works", || through(one));

    hosts.write_far(&format!("permit-open = [\"{later}\"]"));
    let said = hosts.reload();
    assert!(said.contains("  peer laptop: permit-open changed\n"), "{said}");
    let mut followers = Followers::default();
    let (_, shown, _) = hosts.keypadd(&["status"]);
    match shown.contains(&format!("TCP connections to ports 53 {}", hosts.target.port())) {
        true => {
            let line = "restart to apply, as with `keypadd reload --binary`: TCP ports outside";
            assert!(said.contains(line), "{said}");
            assert!(through(two).is_none());
            let (code, said, error) = hosts.keypadd(&["reload", "--binary"]);
            assert_eq!(code, Some(0), "{error}");
            followers.add(&said);
        }
        // Kernels before Linux 6.7.
        false => assert!(shown.contains("missing: ") && !said.contains("restart"), "{shown}{said}"),
    }
    until("the new target is reached", || through(two));
}

#[test]
fn a_reload_names_the_way_to_peers_that_the_sandbox_hides() {
    let hosts = Hosts::new();
    let file = |name: &str| hosts.desk.path(&format!("near/{name}"));
    fs::create_dir(file("")).unwrap();
    let peer = |name: &str, key: &str| {
        format!("[peer.{name}]\npublic-key = \"{key}\"\nendpoint = \"127.0.0.1:{}\"\n", hosts.udp)
    };
    let text = "key = \"../near.key\"\npool-budget = \"1MiB\"\n".to_owned();
    fs::write(file("keypadd.toml"), text + &peer("office", PUBLIC_KEY)).unwrap();
    let mut command = hosts.command("near/keypadd.toml");
    // Other programs share a home.
    command.env("HOME", file(""));
    let _near = Daemon::start(command);

    let other = new_key(&hosts.desk, "other.key");
    fs::create_dir(file("peers.d")).unwrap();
    fs::write(file("peers.d/lab.toml"), peer("lab", &other)).unwrap();
    let mut followers = Followers::default();
    let (code, said, error) = hosts.keypadd(&["reload"]);
    match code {
        Some(3) => {
            assert!(error.contains("peers.d` cannot be read: permission denied\n"), "{error}");
            assert!(error.contains("\n  hint: this process gave up reading it"), "{error}");
            let (code, said, error) = hosts.keypadd(&["reload", "--binary"]);
            assert_eq!(code, Some(0), "{error}");
            followers.add(&said);
        }
        // Kernels before Linux 5.13.
        _ => assert!(said.contains("peer lab added"), "{said}{error}"),
    }
    until("the peer is there", || hosts.keypadd(&["status"]).1.contains("lab").then_some(()));
}

#[test]
fn a_stopped_daemon_is_named_soon_and_the_others_are_reloaded() {
    let hosts = Hosts::new();
    hosts.write_far("");
    hosts.write_near("");
    let (far, near) = (hosts.run("far.toml"), hosts.run("near.toml"));
    far.signal(Signal::STOP);
    for binary in [&[][..], &["--binary"]] {
        let (code, said, error) = hosts.keypadd(&[&["reload"], binary].concat());
        assert_eq!(code, Some(5), "{error}");
        assert!(said.contains("near.toml") || said.contains("runs this program"), "{said}");
        assert!(error.contains("it is stopped or too busy"), "{error}");
        assert!(error.lines().count() == 1, "{error}");
    }
    far.signal(Signal::CONT);
    assert_eq!(near.stop().status.code(), Some(0));
}

#[test]
fn peers_come_and_go_with_their_files_in_a_directory_though_the_daemon_is_confined() {
    let hosts = Hosts::new();
    let port = free_port();
    hosts.write_far("");
    let far = hosts.run("far.toml");
    // Not beside the server's file, which would have these peers, too.
    let file = |name: &str| hosts.desk.path(&format!("near/{name}"));
    fs::create_dir_all(file("peers.d")).unwrap();
    fs::write(file("keypadd.toml"), "key = \"../near.key\"\npool-budget = \"1MiB\"\n").unwrap();
    let peer = |name: &str, key: &str, port: u16| {
        format!(
            "[peer.{name}]\npublic-key = \"{key}\"\nendpoint = \"127.0.0.1:{}\"\n\
             local = \"127.0.0.1:{port}:{}\"\n",
            hosts.udp, hosts.target
        )
    };
    fs::write(file("peers.d/office.toml"), peer("office", PUBLIC_KEY, port)).unwrap();
    let _near = hosts.run("near/keypadd.toml");
    let works = || (exchange(&format!("127.0.0.1:{port}"), b"x").ok()? == b"x").then_some(());
    until("the forward works", works);

    let reload = || {
        let (code, said, error) = hosts.keypadd(&["reload"]);
        (code, said + &error)
    };
    let other = new_key(&hosts.desk, "other.key");
    fs::write(file("peers.d/another.toml"), peer("office", &other, free_port())).unwrap();
    let (code, said) = reload();
    assert_eq!(code, Some(3), "{said}");
    let both = "office.toml:1:7: peer `office` is also in line 1 of `another.toml`";
    assert!(said.contains(&format!("peers.d/{both}")), "{said}");
    until("the forward still works", works);

    fs::write(file("peers.d/another.toml"), peer("lab", &other, free_port())).unwrap();
    let (code, said) = reload();
    assert!(code == Some(0) && said.contains("peer lab added"), "{said}");
    fs::remove_file(file("peers.d/another.toml")).unwrap();
    // What an editor leaves.
    fs::write(file("peers.d/another.toml~"), "nonsense").unwrap();
    let (code, said) = reload();
    assert!(code == Some(0) && said.contains("peer lab removed"), "{said}");
    until("the forward works to the end", works);
    drop(far);
}
