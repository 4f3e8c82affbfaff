//! Tests reloads of forwards and permits under open connections, and of an unusable file.

use std::fs;
use std::net::{TcpListener, TcpStream, UdpSocket};
use std::thread;
use std::time::Duration;

use rustix::process::Signal;
use serde_json::Value;

use crate::daemons::{PUBLIC_KEY, text};
use crate::ends::{
    IPV4_LOOPBACK, ask_proxy, echo, echoes, exchange, exchange_on, free_port, listening_sockets,
    noise, through, until,
};
use crate::hosts::{Hosts, new_key};
use crate::replacing::Followers;

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
