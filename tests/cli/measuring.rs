//! Tests `--permit-bench`: benchmark clients connect with measurement suites and reach only the
//! bench service.

use std::fs;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::process::Command;
use std::sync::Arc;
use std::time::Duration;

use keypadd_keystream::MeasureSuite;
use keypadd_provider::{CryptoSettings, PrivateKey, PublicKey, Refusal, client_config};
use keypadd_traffic::Exchange;
use keypadd_tunnel::wire::Instance;
use keypadd_tunnel::{
    AuthError, BenchForward, Bind, Bound, Client, ClientError, ClientSettings, Forward, Listen,
};

use crate::daemons::{
    Daemon, Desk, NEAR_PRIVATE_KEY, NEAR_PUBLIC_KEY, PUBLIC_KEY, desk, text, write_file,
};
use crate::replacing::Followers;

/// Timeout for what takes milliseconds.
const HANG: Duration = Duration::from_secs(60);

/// A benchmark client, with a listener for the bench service and a forward to `target`.
async fn measuring(server: &str, target: SocketAddr) -> Client {
    let crypto = CryptoSettings::plain(
        Arc::new(PrivateKey::from_pem(NEAR_PRIVATE_KEY).unwrap()),
        MeasureSuite::NULL_HMAC_SHA1,
    );
    let listen = Listen::Tcp { bind: Bind::Loopback, port: 0 };
    let bench = Forward::Bench(BenchForward { listen });
    let settings = ClientSettings {
        server: server.parse().unwrap(),
        crypto: client_config(&crypto, PUBLIC_KEY.parse::<PublicKey>().unwrap()).unwrap(),
        name: None,
        forwards: vec![bench, Forward::Local(format!("0:{target}").parse().unwrap())],
        proxy_headers: <_>::default(),
        transport: <_>::default(),
        connect_timeout: HANG,
        instance: Instance([1; 16]),
    };
    Client::bind(settings).await.unwrap()
}

/// The first listen address of each forward.
fn entrances(client: &Client) -> Vec<SocketAddr> {
    let tcp = client.forwards().into_iter().filter_map(|(_, bound)| match bound.first() {
        Some(Bound::Tcp(address)) => Some(*address),
        _ => None,
    });
    tcp.collect()
}

/// Sends one request to the bench service through this address and returns the response.
fn ask(address: SocketAddr) -> std::io::Result<Vec<u8>> {
    let exchange = Exchange::new(Exchange::REQUEST_BYTES_MIN, 5);
    let mut stream = TcpStream::connect(address)?;
    stream.set_read_timeout(Some(HANG))?;
    stream.write_all(&exchange.request_bytes().to_be_bytes())?;
    stream.write_all(&exchange.response_bytes().to_be_bytes())?;
    let mut response = vec![0; 5];
    stream.read_exact(&mut response).map(|()| response)
}

/// Asserts that the service answers and that a permitted target is not reached.
async fn is_measured_and_no_more(server: &str) {
    let target = TcpListener::bind("127.0.0.1:0").unwrap();
    let client = measuring(server, target.local_addr().unwrap()).await;
    let session = client.connect().await.unwrap();
    let entrances = entrances(&client);
    let (bench, forward) = (entrances[0], entrances[1]);
    let asking = tokio::task::spawn_blocking(move || (ask(bench), ask(forward)));
    tokio::select! {
        asked = asking => {
            let (answered, refused) = asked.unwrap();
            assert_eq!(answered.unwrap().len(), 5);
            assert!(refused.is_err(), "a forward worked over a null suite");
        }
        () = client.run(Some(session), std::future::pending()) => {}
    }
    target.set_nonblocking(true).unwrap();
    assert!(target.accept().is_err(), "the target was reached");
}

/// The name of the program that a process runs.
fn program(pid: u32) -> String {
    let path = fs::read_link(format!("/proc/{pid}/exe")).unwrap();
    path.file_name().unwrap().to_str().unwrap().to_owned()
}

fn from_a_file(desk: &Desk) -> Daemon {
    let key = desk.path("good.key");
    let text = format!(
        "key = \"{}\"\nlisten = \"127.0.0.1:0\"\npermit-bench = true\npermit-open = [\"*:*\"]\n\
         [peer.laptop]\npublic-key = \"{NEAR_PUBLIC_KEY}\"\n",
        key.display()
    );
    write_file(&desk.path("keypadd.toml"), &text, 0o600);
    Daemon::start(desk.keypadd(&["run", "--config", "keypadd.toml", "--log-format", "json"]))
}

#[tokio::test]
async fn permit_bench_lets_measurements_in_and_to_their_service_alone() {
    let desk = desk();
    let server = Daemon::serve(&desk, &["--permit-bench", "--permit-open", "*:*"]);
    is_measured_and_no_more(&server.address()).await;
}

#[tokio::test]
async fn a_file_permits_measurements_also_after_a_reload() {
    let desk = desk();
    let server = from_a_file(&desk);
    is_measured_and_no_more(&server.address()).await;
    assert!(desk.keypadd(&["reload"]).status().unwrap().success());
    is_measured_and_no_more(&server.address()).await;
}

#[tokio::test]
async fn a_process_that_replaces_a_server_answers_measurements_as_that_did() {
    let desk = desk();
    let server = Daemon::serve(&desk, &["--permit-bench", "--permit-open", "*:*"]);
    let address = server.address();
    assert_eq!(program(server.pid()), "keypadd-bench");
    let socket = desk.path("run").join(format!("{}.sock", server.pid()));
    let args = ["reload", "--binary", "--socket", socket.to_str().unwrap()];
    let reloaded = desk.keypadd(&args).output().unwrap();
    let said = text(&reloaded.stdout);
    assert!(reloaded.status.success(), "{}", text(&reloaded.stderr));
    let mut followers = Followers::default();
    followers.add(&said);
    assert_eq!(program(followers.newest()), "keypadd-bench", "{said}");
    is_measured_and_no_more(&address).await;
}

#[test]
fn only_a_server_that_answers_measurements_runs_the_program_that_has_them() {
    let desk = desk();
    let server = Daemon::serve(&desk, &["--permit-open", "*:*"]);
    assert_eq!(program(server.pid()), "keypadd");
    let alone = desk.path("keypadd");
    fs::copy(env!("CARGO_BIN_EXE_keypadd"), &alone).unwrap();
    let key = desk.path("good.key");
    let args = ["serve", "--permit-bench", "--allow", NEAR_PUBLIC_KEY, "--key"];
    let ran = Command::new(alone).args(args).arg(key).env_clear().output().unwrap();
    let said = "keypadd: permit-bench: cannot find keypadd-bench next to keypadd or on PATH\n  \
                hint: `cargo build --release -p keypadd-bench` builds it; put it next to keypadd\n";
    assert_eq!((ran.status.code(), text(&ran.stderr).as_str()), (Some(1), said));
}

#[tokio::test]
async fn without_permit_bench_protection_for_measurements_is_refused() {
    let desk = desk();
    let server = Daemon::serve(&desk, &["--permit-open", "*:*"]);
    let client = measuring(&server.address(), "127.0.0.1:9".parse().unwrap()).await;
    let ClientError::Auth { cause: AuthError::Refused(refusal), .. } =
        client.connect().await.expect_err("it connected")
    else {
        panic!("another error")
    };
    let Refusal::NoCommonSuite { offered, allowed } = refusal else { panic!("{refusal}") };
    // Which does not know its name.
    assert!(&*offered == "0xff01" && allowed.starts_with("aes-256-gcm, "), "{allowed}");
}
