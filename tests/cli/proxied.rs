//! Tests `send-proxy` and `accept-proxy`: headers that targets get, log lines, and reloads.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};

use keypadd_tunnel::proxy_protocol::{Endpoints, decode, wanted};
use serde_json::Value;

use crate::daemons::{Daemon, PUBLIC_KEY, desk, text, write_file};
use crate::ends::{PATIENCE, exchange, free_port, rest, until};
use crate::staying::forwarding;

/// A client behind a load balancer.
const HEADER: &[u8] = b"PROXY TCP4 203.0.113.9 198.51.100.1 40000 443\r\n";

/// The PROXY header at the start of a connection to this target; `None` if it is not one.
fn begin(target: &TcpListener) -> Option<Option<Endpoints>> {
    let (mut stream, _) = target.accept().unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    let mut header = Vec::new();
    loop {
        let read = header.len();
        match wanted(&header).ok()? {
            0 => return decode(&header).ok(),
            wanted => header.resize(read + wanted, 0),
        }
        stream.read_exact(&mut header[read..]).ok()?;
    }
}

#[test]
fn the_log_has_the_source_that_a_header_tells_and_one_line_for_those_without() {
    let (desk, target) = (desk(), TcpListener::bind("127.0.0.1:0").unwrap());
    let at = target.local_addr().unwrap().to_string();
    let server = Daemon::serve(&desk, &["--permit-open", "127.0.0.1:*"]);
    let flags = ["--accept-proxy", "--send-proxy", "--log-connections"];
    let (client, entrance) = forwarding(&server, &desk, &at, &flags);
    for _ in 0..3 {
        let _ = exchange(&entrance.to_string(), b"GET / HTTP/1.1\r\n\r\n");
    }
    let mut stream = TcpStream::connect(entrance).unwrap();
    stream.write_all(HEADER).unwrap();
    let told = begin(&target).flatten().expect("addresses");
    assert_eq!(told.source, "203.0.113.9:40000".parse().unwrap());
    drop(stream);
    let log = text(&client.stop().stderr);
    let lines = log.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
    let connections: Vec<_> = lines.filter(|line| line["message"] == "connection").collect();
    assert_eq!(connections.len(), 4, "{log}");
    let told = connections.iter().filter(|line| line["from"] == "203.0.113.9:40000");
    assert_eq!(told.count(), 1, "{log}");
    let refused = connections.iter().filter(|line| line["ended"] == "no valid PROXY header");
    assert_eq!(refused.count(), 3, "{log}");
    assert_eq!(log.matches("does not begin with a PROXY header").count(), 1, "{log}");
}

#[test]
fn a_reload_switches_headers_on_and_off() {
    let (desk, target) = (desk(), TcpListener::bind("127.0.0.1:0").unwrap());
    let (at, port) = (target.local_addr().unwrap(), free_port());
    let server = Daemon::serve(&desk, &["--permit-open", "127.0.0.1:*"]);
    let write = |more: &str| {
        let file = format!(
            "key = \"connect.key\"\n[peer.lab]\npublic-key = \"{PUBLIC_KEY}\"\nendpoint = \"{}\"\n\
             local = [\"127.0.0.1:{port}:{at}\"]\n{more}",
            server.address()
        );
        write_file(&desk.path("keypadd.toml"), &file, 0o644);
    };
    write("");
    let mut command = desk.keypadd(&["run", "--config", "keypadd.toml", "--log-format", "json"]);
    command.env_remove("KEYPADD_KEY");
    let _run = Daemon::start(command);
    let entrance = SocketAddr::from(([127, 0, 0, 1], port));
    let told = || {
        let mut stream = TcpStream::connect(entrance).unwrap();
        stream.write_all(b"not a PROXY header").unwrap();
        begin(&target)
    };
    assert_eq!(told(), None);
    for (more, is_told, said) in [
        ("send-proxy = true\n", true, "peer lab: send-proxy changed"),
        ("", false, "peer lab: send-proxy changed"),
    ] {
        write(more);
        let reload = desk.keypadd(&["reload"]).output().unwrap();
        assert!(text(&reload.stdout).contains(said), "{}", text(&reload.stdout));
        assert_eq!(told().is_some(), is_told);
    }
    write("accept-proxy = true\n");
    assert!(desk.keypadd(&["reload"]).output().unwrap().status.success());
    let mut stream = TcpStream::connect(entrance).unwrap();
    stream.write_all(b"not a PROXY header").unwrap();
    assert_eq!(rest(&mut stream).unwrap_or_default(), b"");
    let check = desk.keypadd(&["check", "--config", "keypadd.toml"]).output().unwrap();
    let shown = until("the configuration is accepted", || {
        check.status.success().then(|| text(&check.stdout))
    });
    assert!(shown.contains("\n  accept-proxy\n") && !shown.contains("send-proxy"), "{shown}");
}

#[test]
fn headers_that_nobody_could_send_or_read_are_refused() {
    let desk = desk();
    let args = ["connect", "127.0.0.1", "--peer", PUBLIC_KEY, "-W", "a:1", "--accept-proxy"];
    let output = desk.keypadd(&args).output().unwrap();
    let expected = "keypadd: --accept-proxy: -W has no listener\n  \
                    hint: leave it out; it applies to -L and -R\n";
    assert_eq!((output.status.code(), text(&output.stderr)), (Some(2), expected.into()));
    let file = format!(
        "listen = \"127.0.0.1:4433\"\nkey = \"good.key\"\n[peer.lab]\npublic-key = \"{PUBLIC_KEY}\"\n\
         permit-open = [\"a:1\"]\nsend-proxy = true\n"
    );
    write_file(&desk.path("keypadd.toml"), &file, 0o644);
    let output = desk.keypadd(&["check", "--config", "keypadd.toml"]).output().unwrap();
    let said = text(&output.stderr);
    assert!(said.contains("send-proxy: peer `lab` has no endpoint"), "{said}");
    assert_eq!(output.status.code(), Some(3));
}
