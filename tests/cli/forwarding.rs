//! Tests every kind of forward end to end: data, ready lines, and what proxies and permits refuse.

use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{Ipv6Addr, TcpListener, TcpStream};
use std::process::Stdio;

use serde_json::Value;

use crate::daemons::{Daemon, Desk, PUBLIC_KEY, desk, text};
use crate::ends::{
    IPV4_LOOPBACK, IPV6_LOOPBACK, ask_proxy, by_name, echo, echo_at, exchange, exchange_on,
    free_port, noise, rest, until,
};

/// A path on the desk as text.
fn path(desk: &Desk, name: &str) -> String {
    desk.path(name).display().to_string()
}

/// A running client of this server with these flags.
fn client(server: &Daemon, desk: &Desk, flags: &[&str]) -> Daemon {
    let mut command = server.connect(desk, flags);
    command.args(["--log-format", "json"]);
    Daemon::start(command)
}

/// Listen addresses of the forwards in a ready line, by kind.
fn entrances(ready: &Value, kind: &str) -> Vec<String> {
    let forwards = ready["forwards"].as_array().unwrap().iter();
    let places =
        forwards.filter(|forward| forward["kind"] == kind).flat_map(
            |forward| match &forward["listen"] {
                Value::Array(places) => places.clone(),
                place => vec![place.clone()],
            },
        );
    places.map(|place| place.as_str().unwrap().to_owned()).collect()
}

#[test]
fn every_kind_of_forward_works_several_times_in_one_command() {
    let desk = desk();
    let (v4, v6) = (echo("127.0.0.1"), echo("::1"));
    echo_at(&desk.path("echo.sock"));
    let [target, local, local_too, remote, remote_too] =
        ["echo.sock", "l1.sock", "l2.sock", "r1.sock", "r2.sock"].map(|name| path(&desk, name));
    let open = format!("{v4},{v6},{target}");
    let listen = format!("localhost:*,{remote},{remote_too}");
    let server = Daemon::serve(&desk, &["--permit-open", &open, "--permit-listen", &listen]);
    let near = client(
        &server,
        &desk,
        &[
            &format!("-L0:{v4}"),
            &format!("-L127.0.0.1:0:{v6},[::1]:0:{target}"),
            &format!("-L{local}:{v4}"),
            "--local",
            &format!("{local_too}:{target}"),
            &format!("-R0:{v4}"),
            &format!("-R127.0.0.1:0:{v6},[::1]:0:{target}"),
            &format!("-R{remote}:{v4}"),
            "--remote",
            &format!("{remote_too}:{target}"),
            "-D127.0.0.1:0",
            "-D[::1]:0",
        ],
    );
    let sent = noise(100_000);
    let locals = entrances(&near.ready, "local");
    // Each localhost forward listens on IPv4 and IPv6.
    assert_eq!(locals.len(), 6, "{locals:?}");
    let remotes = entrances(&near.ready, "remote");
    assert_eq!(remotes.len(), 5, "{remotes:?}");
    for entrance in locals.iter().chain(&remotes) {
        assert!(exchange(entrance, &sent).unwrap() == sent, "{entrance}");
    }
    for proxy in entrances(&near.ready, "dynamic") {
        for (address, port) in [
            (IPV4_LOOPBACK, v4.port()),
            (IPV6_LOOPBACK, v6.port()),
            (&by_name("localhost"), v4.port()),
        ] {
            let (stream, reply) = ask_proxy(&proxy, address, port);
            assert_eq!(reply, 0, "{address:?}");
            assert!(exchange_on(stream, &sent).unwrap() == sent, "{address:?}");
        }
    }
    // Listeners close with the daemon, on both ends.
    assert_eq!(near.stop().status.code(), Some(0));
    until("no listener is left", || {
        remotes.iter().all(|entrance| exchange(entrance, b"").is_err()).then_some(())
    });
    for socket in [&local, &local_too, &remote, &remote_too] {
        until("the socket file is removed", || (!std::fs::exists(socket).unwrap()).then_some(()));
    }
}

#[test]
fn ready_lines_name_both_ends_of_every_forward() {
    let desk = desk();
    let [one, two, three] = [free_port(), free_port(), free_port()];
    let socket = path(&desk, "there.sock");
    let listen = format!("{two},{socket}");
    let server = Daemon::serve(&desk, &["--permit-listen", &listen]);
    let mut command = server.connect(&desk, &["-L", &format!("127.0.0.1:{one}:db.example:5432")]);
    command.args(["-R", &format!("{two}:[::1]:80"), "-R", &format!("{socket}:/run/web.sock")]);
    command.args(["-D", &format!("[::1]:{three}")]);
    let mut child = command.stderr(Stdio::piped()).spawn().unwrap();
    let lines = BufReader::new(child.stderr.take().unwrap()).lines().map(Result::unwrap);
    let said: Vec<String> = lines.filter(|line| !line.contains("INFO")).take(6).collect();
    let _ = child.kill();
    let _ = child.wait();
    let address = server.address();
    assert_eq!(
        said[0],
        format!("keypadd: ready, connected to {address} (udp {address}), key {PUBLIC_KEY}")
    );
    let suite = "  suite aes-256-gcm (standard), key exchange x25519mlkem768, round trip ";
    assert!(said[1].starts_with(suite) && said[1].ends_with(" ms"), "{said:?}");
    assert_eq!(
        said[2..],
        [
            format!("  forward 127.0.0.1:{one} -> db.example:5432"),
            format!("  SOCKS proxy [::1]:{three}"),
            format!("  remote forward: localhost:{two} on the server -> [::1]:80 from here"),
            format!("  remote forward: {socket} on the server -> /run/web.sock from here"),
        ]
    );
}

#[test]
fn socks_replies_2_4_and_5_match_their_causes() {
    let desk = desk();
    let closed = free_port();
    let unpermitted = TcpListener::bind("127.0.0.1:0").unwrap();
    let open = format!("localhost:{closed},no-such-host.invalid:*");
    let server = Daemon::serve(&desk, &["--permit-open", &open]);
    let near = client(&server, &desk, &["-D", "127.0.0.1:0"]);
    let proxy = &entrances(&near.ready, "dynamic")[0];
    for (address, port, reply) in [
        (IPV4_LOOPBACK, unpermitted.local_addr().unwrap().port(), 2),
        (&by_name("no-such-host.invalid"), 80, 4),
        (IPV4_LOOPBACK, closed, 5),
        (IPV6_LOOPBACK, closed, 5),
    ] {
        let (mut stream, said) = ask_proxy(proxy, address, port);
        assert_eq!(said, reply, "{address:?}");
        assert_eq!(rest(&mut stream).unwrap(), b"");
    }
    let said = text(&server.stop().stderr);
    assert!(said.contains("not permitted; to permit it: --permit-open 127.0.0.1:"), "{said}");
}

/// A link-local address of this host and its interface, as `fe80::1%eth0` (proc(5), `if_inet6`).
fn link_local() -> Option<String> {
    let table = fs::read_to_string("/proc/net/if_inet6").ok()?;
    table.lines().find_map(|line| {
        let mut words = line.split_whitespace();
        let address = u128::from_str_radix(words.next()?, 16).ok().map(Ipv6Addr::from)?;
        let interface = words.next_back()?;
        address.is_unicast_link_local().then(|| format!("{address}%{interface}"))
    })
}

#[test]
fn a_server_is_reached_at_a_link_local_address_of_an_interface() {
    let Some(host) = link_local() else {
        eprintln!("skipped: this host has no link-local address");
        return;
    };
    let (desk, target) = (desk(), echo("127.0.0.1"));
    let permit = target.to_string();
    let server = Daemon::serve_at(&desk, &["--listen", "[::]:0", "--permit-open", &permit]);
    let port = server.address().rsplit_once(':').unwrap().1.to_owned();
    let mut connect = Daemon::connect_to(&desk, &format!("[{host}]:{port}"));
    connect.args(["--log-format", "json", "-L", &format!("127.0.0.1:0:{permit}")]);
    let client = Daemon::start(connect);
    let [place] = &entrances(&client.ready, "local")[..] else { panic!("{}", client.ready) };
    assert_eq!(exchange(place, b"over the link").unwrap(), b"over the link");
}

#[test]
fn a_client_that_speaks_another_protocol_than_socks5_is_named_in_the_log_once() {
    let desk = desk();
    let server = Daemon::serve(&desk, &["--permit-open", "*:*"]);
    let near = client(&server, &desk, &["-D", "0"]);
    let [proxy, ..] = &entrances(&near.ready, "dynamic")[..] else { panic!("{}", near.ready) };
    for asked in
        [&b"\x04\x01\x00\x50\x7f\0\0\x01\0"[..], b"GET http://a/ HTTP/1.1\r\n\r\n", b"GET /"]
    {
        let mut stream = TcpStream::connect(proxy).unwrap();
        stream.write_all(asked).unwrap();
        // Unread bytes may reset the connection.
        assert!(matches!(stream.read(&mut [0]), Ok(0) | Err(_)), "nothing is answered");
    }
    let said = text(&near.stop().stderr);
    for protocol in ["SOCKS4", "HTTP"] {
        let line = format!("a client sent {protocol}; -D accepts SOCKS5 only (socks5h://)");
        assert_eq!(said.matches(&line).count(), 1, "{said}");
    }
}
