//! Tests that a greedy peer or scraper affects nobody else, and that the log names it.

use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use keypadd_keystream::Suite;
use keypadd_provider::{CryptoSettings, PrivateKey, PublicKey, client_config};
use keypadd_tunnel::wire::{Frame, Instance, StreamHeader, VERSION};
use keypadd_tunnel::{Destination, RemoteForward, Target};
use serde_json::Value;

use crate::daemons::{Daemon, Desk, NEAR_PUBLIC_KEY, PUBLIC_KEY, desk, text};
use crate::descriptors::with_few_files;
use crate::ends::{PATIENCE, echo, echoes, free_port, through, until};

/// The server's open file limit, and the forwards that one peer tries to open.
const OPEN_FILES: usize = 256;
const FORWARDS: usize = 200;

/// Burst of log lines that one peer may cause, plus a few of the daemon's own; then one in 2.5 s.
const LINES_AT_ONCE_MAX: usize = 45;
const LINE_INTERVAL: Duration = Duration::from_millis(2_500);

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
    serve.args(["--allow", &format!("greedy={NEAR_PUBLIC_KEY}"), "--allow", other.trim()]);
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

    let served = through(local(&modest).port()).expect("another peer connects");
    let another = start(Some("other.key"));
    assert!(through(local(&another).port()).is_some(), "a new session connects");
    let limits = &status(&desk, &server)["limits"];
    assert!(limits["descriptors_refused"].as_u64() > Some(0), "{limits}");
    assert!(limits["descriptors"].as_u64() < limits["descriptors_max"].as_u64(), "{limits}");
    let mut scrape = TcpStream::connect(&metrics_at).unwrap();
    scrape.set_read_timeout(Some(PATIENCE)).unwrap();
    scrape.write_all(b"GET /metrics HTTP/1.1\r\nHost: localhost\r\n\r\n").unwrap();
    let mut answer = String::new();
    scrape.read_to_string(&mut answer).unwrap();
    assert!(answer.contains("keypadd_refused_total{limit=\"descriptors\"}"), "{answer}");

    assert!(taken.iter().all(echoes) && echoes(&served), "open connections stay");
    drop((taken, served, idle));
    until("all descriptors are released", || {
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

#[test]
fn silent_control_connections_and_scrapers_that_take_all_open_files_do_not_delay_status() {
    const FILES: usize = 128;
    const SILENT: usize = 300;
    let (desk, metrics_at) = (desk(), format!("127.0.0.1:{}", free_port()));
    let mut serve = desk.keypadd(&["serve", "--log-format", "json", "--listen", "127.0.0.1:0"]);
    serve.args(["--allow", NEAR_PUBLIC_KEY, "--metrics", &metrics_at, "--loops", "2"]);
    let mut server = Daemon::start(with_few_files(&serve, "-n", FILES));
    let _scrapers = [(); 32].map(|()| TcpStream::connect(&metrics_at).unwrap());
    let socket = desk.path("run").join(format!("{}.sock", server.pid()));
    let _silent: Vec<_> = (0..SILENT).map(|_| UnixStream::connect(&socket).unwrap()).collect();
    status(&desk, &server);
    server.hear("control socket: accept failed");
}

#[test]
fn a_local_program_leaves_files_for_status_however_many_listeners_there_are() {
    // Two sockets each, so that few files are left, though more than the reserve.
    const FILES: usize = 512;
    const LISTENERS: usize = 210;
    let (desk, target) = (desk(), echo("127.0.0.1"));
    let permit = target.to_string();
    let server = Daemon::serve(&desk, &["--permit-open", &permit]);
    let forward = format!("0:{permit}");
    let mut arguments = vec!["--log-format", "json"];
    arguments.extend([["-L", &forward]; LISTENERS].as_flattened());
    let client = Daemon::start(with_few_files(&server.connect(&desk, &arguments), "-n", FILES));
    let opened = || TcpStream::connect(("127.0.0.1", local(&client).port())).unwrap();
    let taken: Vec<_> = (0..FORWARDS).map(|_| opened()).collect();
    until("the rest waits", || {
        let limits = &status(&desk, &client)["limits"];
        (limits["descriptors_refused"].as_u64() > Some(0)).then_some(())
    });
    assert!(taken.iter().take(1).all(echoes), "the first is forwarded");
}

#[test]
fn a_target_refused_to_one_peer_hides_none_refused_to_another_at_the_same_address() {
    let desk = desk();
    let other = text(&desk.keypadd(&["keygen", "other.key"]).output().unwrap().stdout);
    let allowed = [format!("one={NEAR_PUBLIC_KEY}"), format!("two={}", other.trim())];
    let mut serve = desk.keypadd(&["serve", "--log-format", "json", "--listen", "127.0.0.1:0"]);
    serve.args(allowed.iter().flat_map(|peer| ["--allow", peer]));
    let server = Daemon::start(serve);
    let arguments = ["--log-format", "json", "-L", "127.0.0.1:0:127.0.0.1:9"];
    let clients = [None, Some("other.key")].map(|key| {
        let mut connect = server.connect(&desk, &arguments);
        connect.envs(key.map(|key| ("KEYPADD_KEY", desk.path(key))));
        Daemon::start(connect)
    });
    for client in clients.iter().chain(&clients) {
        let mut refused = TcpStream::connect(local(client)).unwrap();
        refused.set_read_timeout(Some(PATIENCE)).unwrap();
        let closed = refused.read(&mut [0]).map_err(|error| error.kind());
        assert!(matches!(closed, Ok(0) | Err(ErrorKind::ConnectionReset)), "{closed:?}");
    }
    let log = text(&server.stop().stderr);
    let named = |name: &str| {
        let peer = format!("\"peer\":\"{name}\"");
        log.lines().filter(|it| it.contains("not permitted") && it.contains(&peer)).count()
    };
    assert_eq!((named("one"), named("two")), (1, 1), "{log}");
}

/// A connection and its control stream.
type Session = (quinn::Connection, quinn::SendStream, quinn::RecvStream);

/// A listed but abusive peer: speaks the protocol by hand.
struct Raw {
    endpoint: quinn::Endpoint,
    config: quinn::ClientConfig,
    server: SocketAddr,
}

impl Raw {
    fn new(key: PrivateKey, server: &str) -> Self {
        let crypto = CryptoSettings::plain(Arc::new(key), Suite::default());
        let config = client_config(&crypto, PUBLIC_KEY.parse::<PublicKey>().unwrap()).unwrap();
        let endpoint = quinn::Endpoint::client("127.0.0.1:0".parse().unwrap()).unwrap();
        let server = server.parse().unwrap();
        Self { endpoint, config: quinn::ClientConfig::new(config), server }
    }

    /// Establishes a session, which replaces any of the same instance; `None` if the server accepts
    /// no more of this key now.
    async fn session(&self, instance: u8) -> Option<Session> {
        let connecting = self.endpoint.connect_with(self.config.clone(), self.server, "x");
        let connection = connecting.unwrap().await.ok()?;
        let (mut send, mut recv) = connection.open_bi().await.ok()?;
        let hello =
            Frame::HelloClient { version: VERSION, instance: Instance([instance; 16]), hold: None };
        send.write_all(&hello.encode()).await.ok()?;
        recv.read_exact(&mut [0; 4]).await.ok()?;
        Some((connection, send, recv))
    }

    /// Establishes a session as soon as the server accepts one.
    async fn lasting_session(&self, instance: u8) -> Session {
        loop {
            if let Some(session) = self.session(instance).await {
                return session;
            }
        }
    }

    /// Opens and closes sessions, with a close reason that would break a log line.
    async fn churn_sessions(&self, rounds: usize) {
        for _ in 0..rounds {
            if let Some((connection, ..)) = self.session(3).await {
                connection.close(1_u32.into(), b"x\" peer=root\n\xe2\x80\xae");
            }
        }
    }

    /// Makes the server open and close listeners; some requests are still queued when this returns.
    async fn churn_listeners(&self, port: u16, rounds: usize) -> Session {
        let (connection, mut send, recv) = self.lasting_session(1).await;
        let forward: RemoteForward = format!("{port}:a:1").parse().unwrap();
        for round in 0..rounds {
            let id = round as u16;
            let (listen, headers) = (forward.listen.clone(), <_>::default());
            let listen = Frame::Listen { id, listen, headers }.encode();
            send.write_all(&[listen, Frame::Unlisten { id }.encode()].concat()).await.unwrap();
        }
        (connection, send, recv)
    }

    /// Opens streams to targets that are not permitted.
    async fn churn_streams(&self, rounds: usize) {
        let (connection, _send, _recv) = self.lasting_session(2).await;
        let target: Target = "127.0.0.1:1".parse().unwrap();
        let header = StreamHeader::Destination(Destination::Tcp(target)).encode();
        for _ in 0..rounds {
            let (mut send, mut recv) = connection.open_bi().await.unwrap();
            // The server may refuse while this is written.
            let _ = send.write_all(&header).await;
            recv.read_to_end(64).await.unwrap_err();
        }
    }

    /// Opens streams to a target that says nothing, each time under another of its names.
    async fn churn_names(&self, port: u16, rounds: usize) {
        let (connection, _send, _recv) = self.lasting_session(4).await;
        for round in 0..rounds {
            let upper = |(at, letter): (usize, char)| match round >> at & 1 {
                0 => letter,
                _ => letter.to_ascii_uppercase(),
            };
            let name: String = "localhost".chars().enumerate().map(upper).collect();
            let target: Target = format!("{name}:{port}").parse().unwrap();
            let header = StreamHeader::Destination(Destination::Tcp(target)).encode();
            let (mut send, mut recv) = connection.open_bi().await.unwrap();
            send.write_all(&header).await.unwrap();
            let _ = recv.read_to_end(64).await;
        }
    }
}

/// Runs a listed peer that churns sessions, listeners and streams at once, for `rounds` each or for
/// `time`. Returns the number of log lines, of suppressed lines, and the time taken.
fn churn(rounds: usize, time: Duration) -> (usize, u64, Duration) {
    let began = Instant::now();
    let (desk, key) = (desk(), PrivateKey::generate().unwrap());
    let port = free_port();
    let silent = TcpListener::bind("127.0.0.1:0").unwrap();
    let silent_port = silent.local_addr().unwrap().port();
    thread::spawn(move || silent.incoming().for_each(drop));
    let mut serve = desk.keypadd(&["serve", "--log-format", "json", "--listen", "127.0.0.1:0"]);
    serve.args(["--allow", &format!("noisy={}", key.public()), "--permit-listen", "localhost:*"]);
    serve.args(["--permit-open", &format!("localhost:{silent_port}")]);
    let mut server = Daemon::start(serve);
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let raw = runtime.block_on(async { Raw::new(key, &server.address()) });
    // Before lines are suppressed.
    runtime.block_on(raw.churn_sessions(1));
    server.hear("closed by peer: \\\"x' peer=root??\\\"");
    let kept = runtime.block_on(async {
        let all = async {
            tokio::join!(
                raw.churn_sessions(rounds),
                raw.churn_listeners(port, rounds),
                raw.churn_streams(rounds),
                raw.churn_names(silent_port, rounds)
            )
        };
        tokio::time::timeout(time, all).await
    });
    let suppressed = until("lines are suppressed and frames wait", || {
        let limits = &status(&desk, &server)["limits"];
        let [suppressed, delayed] =
            ["log_lines_suppressed", "frames_delayed"].map(|count| limits[count].as_u64().unwrap());
        (suppressed > 50 && delayed > 50).then_some(suppressed)
    });
    drop((kept, raw, runtime));
    let log = text(&server.stop().stderr);
    assert!(!log.contains('\u{202e}'), "{log}");
    let lines = log.lines().filter(|line| line.contains("\"peer\":\"noisy\"")).count();
    (lines, suppressed, began.elapsed())
}

#[test]
fn a_peer_that_churns_sessions_listeners_and_streams_writes_few_lines_and_is_told_of_by_count() {
    let (lines, _, taken) = churn(200, PATIENCE);
    let later = taken.div_duration_f64(LINE_INTERVAL) as usize;
    assert!(lines > 10 && lines <= LINES_AT_ONCE_MAX + later, "{lines} lines in {taken:?}");
}

#[test]
#[ignore = "a long proof: a minute"]
fn a_peer_that_churns_for_a_minute_writes_at_most_a_line_a_second() {
    let (lines, suppressed, taken) = churn(usize::MAX, Duration::from_secs(60));
    println!("{lines} lines in {taken:.1?}, {suppressed} suppressed");
    assert!(lines as f64 <= taken.as_secs_f64(), "{lines} lines in {taken:?}");
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
