//! Peers and scrapers that take all they can get: nobody else notices, and the log says who.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::Arc;

use keypadd_keystream::{CipherEngine, Suite};
use keypadd_provider::{
    CryptoSettings, KeyExchange, Meters, PoolSwitch, PrivateKey, client_config,
};
use keypadd_tunnel::RemoteForward;
use keypadd_tunnel::wire::{Frame, Instance, VERSION};
use serde_json::Value;

use crate::daemons::{Daemon, Desk, PUBLIC_KEY, desk, text};
use crate::descriptors::with_few_files;
use crate::ends::{PATIENCE, echo, echoes, free_port, through, until};

/// Open files that the server may have, and forwards that one peer tries to open.
const OPEN_FILES: usize = 256;
const FORWARDS: usize = 200;

/// Log lines that one peer may cause at once, and a few of the daemon itself.
const LINES_MAX: usize = 45;

fn status(desk: &Desk, server: &Daemon) -> Value {
    let socket = desk.path("run").join(format!("{}.sock", server.pid()));
    let output = desk.keypadd(&["status", "--json", "--socket"]).arg(socket).output().unwrap();
    assert!(output.status.success(), "{}", text(&output.stderr));
    let answer: Value = serde_json::from_slice(&output.stdout).unwrap();
    answer["daemons"][0].clone()
}

fn local(client: &Daemon) -> SocketAddr {
    client.ready["forwards"][0]["listen"][0].as_str().unwrap().parse().unwrap()
}

#[test]
fn a_peer_and_scrapers_that_take_all_open_files_cost_nobody_else_anything() {
    let (desk, target, metrics) = (desk(), echo("127.0.0.1"), free_port());
    let other = text(&desk.keypadd(&["keygen", "other.key"]).output().unwrap().stdout);
    let (permit, metrics_at) = (target.to_string(), format!("127.0.0.1:{metrics}"));
    let mut serve = desk.keypadd(&["serve", "--log-format", "json", "--listen", "127.0.0.1:0"]);
    serve.args(["--allow", &format!("greedy={PUBLIC_KEY}"), "--allow", other.trim()]);
    serve.args(["--permit-open", &permit, "--metrics", &metrics_at, "--loops", "2"]);
    let server = Daemon::start(with_few_files(&serve, "-n", OPEN_FILES));
    let forward = format!("127.0.0.1:0:{permit}");
    let start = |key: Option<&str>| {
        let mut connect = server.connect(&desk, &["--log-format", "json", "-L", &forward]);
        connect.envs(key.map(|key| ("KEYPADD_KEY", desk.path(key))));
        Daemon::start(connect)
    };
    let (greedy, modest) = (start(None), start(Some("other.key")));

    let taken: Vec<_> = (0..FORWARDS).filter_map(|_| through(local(&greedy).port())).collect();
    assert!(taken.len() >= 16 && taken.len() < FORWARDS / 2, "{} forwards", taken.len());
    let idle: Vec<_> = (0..FORWARDS).map(|_| TcpStream::connect(&metrics_at).unwrap()).collect();

    let served = through(local(&modest).port()).expect("another peer is served");
    let another = start(Some("other.key"));
    assert!(through(local(&another).port()).is_some(), "a new session is served");
    let limits = &status(&desk, &server)["limits"];
    assert!(limits["descriptors_refused"].as_u64() > Some(0), "{limits}");
    assert!(limits["descriptors"].as_u64() < limits["descriptors_max"].as_u64(), "{limits}");
    let mut scrape = TcpStream::connect(&metrics_at).unwrap();
    scrape.set_read_timeout(Some(PATIENCE)).unwrap();
    scrape.write_all(b"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n").unwrap();
    let mut answer = String::new();
    scrape.read_to_string(&mut answer).unwrap();
    assert!(answer.contains("keypadd_refused_total{limit=\"descriptors\"}"), "{answer}");

    assert!(taken.iter().all(echoes) && echoes(&served), "those open stay open");
    drop((taken, served, idle));
    until("all are given back", || {
        (status(&desk, &server)["limits"]["descriptors"] == 0).then_some(())
    });
    let log = text(&server.stop().stderr);
    let lines = |words: &str| log.lines().filter(|line| line.contains(words)).count();
    assert_eq!(lines("too many open files"), 1, "{log}");
    assert!(log.lines().any(|line| line.contains("too many open files")
        && line.contains("\"peer\":\"greedy\"")
        && line.contains("ulimit -n")));
    assert_eq!(lines("metrics: too many connections"), 1, "{log}");
    drop((greedy, modest, another));
}

/// A listed peer without manners: speaks the protocol by hand.
struct Raw {
    endpoint: quinn::Endpoint,
    config: quinn::ClientConfig,
    server: SocketAddr,
}

impl Raw {
    fn new(key: PrivateKey, server: &str) -> Self {
        let crypto = CryptoSettings {
            key: Arc::new(key),
            suites: vec![Suite::default().into()],
            kex: vec![KeyExchange::X25519.into()],
            pool: PoolSwitch::default(),
            cipher_engine: CipherEngine::default(),
            meters: Arc::new(Meters::default()),
        };
        let config = client_config(&crypto, PUBLIC_KEY.parse().unwrap()).unwrap();
        let endpoint = quinn::Endpoint::client("127.0.0.1:0".parse().unwrap()).unwrap();
        let server = server.parse().unwrap();
        Self { endpoint, config: quinn::ClientConfig::new(config), server }
    }

    /// Establishes a session.
    async fn session(&self) -> (quinn::Connection, quinn::SendStream, quinn::RecvStream) {
        let connecting = self.endpoint.connect_with(self.config.clone(), self.server, "x");
        let connection = connecting.unwrap().await.unwrap();
        let (mut send, mut recv) = connection.open_bi().await.unwrap();
        let hello =
            Frame::HelloClient { version: VERSION, instance: Instance([9; 16]), hold: None };
        send.write_all(&hello.encode()).await.unwrap();
        recv.read_exact(&mut [0; 4]).await.unwrap();
        (connection, send, recv)
    }
}

#[test]
fn a_peer_that_churns_sessions_and_listeners_writes_few_lines_and_is_told_of_by_count() {
    let (desk, key) = (desk(), PrivateKey::generate().unwrap());
    let port = free_port();
    let mut serve = desk.keypadd(&["serve", "--log-format", "json", "--listen", "127.0.0.1:0"]);
    serve.args(["--allow", &format!("noisy={}", key.public()), "--permit-listen", "localhost:*"]);
    let server = Daemon::start(serve);
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let control = runtime.block_on(async {
        let raw = Raw::new(key, &server.address());
        for _ in 0..60 {
            raw.session().await.0.close(1_u32.into(), b"x\" peer=root\n\xe2\x80\xae");
        }
        let (connection, mut send, recv) = raw.session().await;
        let forward: RemoteForward = format!("{port}:a:1").parse().unwrap();
        for id in 0..200 {
            let listen = Frame::Listen { id, listen: forward.listen.clone() };
            send.write_all(&listen.encode()).await.unwrap();
            send.write_all(&Frame::Unlisten { id }.encode()).await.unwrap();
        }
        (raw, connection, send, recv)
    });
    until("lines are suppressed and frames wait", || {
        let limits = &status(&desk, &server)["limits"];
        let counts = [&limits["log_lines_suppressed"], &limits["frames_delayed"]];
        counts.iter().all(|count| count.as_u64() > Some(50)).then_some(())
    });
    drop(control);
    let log = text(&server.stop().stderr);
    let lines = log.lines().filter(|line| line.contains("\"peer\":\"noisy\"")).count();
    assert!(lines > 10 && lines <= LINES_MAX, "{lines} lines: {log}");
    assert!(log.contains("closed by peer: \\\"x' peer=root??\\\""), "{log}");
    assert!(!log.contains('\u{202e}'), "{log}");
}

#[test]
fn a_session_beyond_the_limit_of_its_key_is_refused_by_the_name_of_the_setting() {
    let desk = desk();
    let server = Daemon::serve(&desk, &["--max-sessions-per-key", "1"]);
    let first = Daemon::start(server.connect(&desk, &["--log-format", "json", "-D", "0"]));
    let second = server.connect(&desk, &["-D", "0"]).output().unwrap();
    let told = text(&second.stderr);
    assert_eq!(second.status.code(), Some(4), "{told}");
    assert!(told.contains("this key already has 1 session (max-sessions-per-key)"), "{told}");
    assert!(!told.contains("firewall"), "{told}");
    assert_eq!(status(&desk, &server)["limits"]["sessions_refused"], 1);
    drop(first);
}
