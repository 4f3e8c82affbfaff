//! Attackers: one on the path who replays and forges, and strangers who shake hands by the thousand.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use fastrand::Rng;
use keypadd_provider::{CryptoSettings, KeyExchange, Meters, PrivateKey, PublicKey, client_config};
use serde_json::Value;
use tokio::task::block_in_place;
use tokio::time::timeout;
use udp_relay::Direction;

use crate::SUITES;
use crate::daemons::{Daemon, PUBLIC_KEY, desk};
use crate::exchange::{HANG, Job};
use crate::tunnel::{Holding, LOOK, Tunnel};

/// Genuine datagrams that the attacker keeps of each direction.
const COPIES: usize = 4096;

/// Bytes of a connection ID as quinn makes them, after the first byte of a short header (RFC 9000
/// 17.3).
const CONNECTION_ID_BYTES: usize = 8;

/// Sends what `next` gives, `rate` datagrams a second, until told to stop or `most` are sent; how
/// many were. What the kernel does not take counts as sent: the attacker does not know better.
fn flood(
    tunnel: &Tunnel,
    direction: Direction,
    rate: f64,
    most: u64,
    stop: &AtomicBool,
    mut next: impl FnMut() -> Vec<u8>,
) -> u64 {
    let began = Instant::now();
    let mut sent = 0;
    while sent < most && !stop.load(Ordering::Relaxed) {
        let due = (began.elapsed().as_secs_f64() * rate) as u64;
        // A thread that was late does not catch up at any speed.
        for _ in 0..due.min(most).saturating_sub(sent).min(rate as u64 / 50) {
            let _ = tunnel.relay.inject(direction, &next());
            sent += 1;
        }
        thread::sleep(Duration::from_millis(1));
    }
    sent
}

fn number(figures: &Value, path: &str) -> u64 {
    figures.pointer(path).unwrap().as_u64().unwrap()
}

/// Packets sealed or opened by a daemon.
fn packets(tunnel: &Tunnel, verb: &str, direction: &str) -> u64 {
    let packets = &tunnel.figures(verb)["packets"][direction];
    ["hit", "partial", "miss"].iter().map(|pad| packets[pad].as_u64().unwrap()).sum()
}

/// No end opened more packets than the other sealed, whatever else it was given.
fn must_have_opened_each_once(tunnel: &Tunnel) {
    for (from, to) in [("connect", "serve"), ("serve", "connect")] {
        let opened = packets(tunnel, to, "receive");
        let sealed = packets(tunnel, from, "send");
        assert!(opened <= sealed, "{to} opened {opened} of {sealed} packets");
    }
}

/// Carries the job while one end is given replays; the replays sent.
async fn carry_under_replays(tunnel: &Tunnel, job: Job, at: Direction, rate: f64) -> u64 {
    let stop = AtomicBool::new(false);
    let mut rng = Rng::with_seed(job.seed);
    let mut copies = tunnel.relay.recorded(at);
    let mut copied = Instant::now();
    let replay = || {
        // The newest are the ones that are inside the window.
        if copied.elapsed() > Duration::from_millis(200) {
            (copies, copied) = (tunnel.relay.recorded(at), Instant::now());
        }
        copies[rng.usize(..copies.len())].clone()
    };
    let mut sent = 0;
    thread::scope(|scope| {
        let attacker = scope.spawn(|| flood(tunnel, at, rate, u64::MAX, &stop, replay));
        block_in_place(|| {
            tokio::runtime::Handle::current().block_on(tunnel.must_carry(job));
        });
        stop.store(true, Ordering::Relaxed);
        sent = attacker.join().unwrap();
    });
    sent
}

/// The arms, interleaved: no attack, and one at each end.
const ATTACKS: [Option<(Direction, &str)>; 3] =
    [None, Some((Direction::ToServer, "serve")), Some((Direction::ToClient, "connect"))];

/// Replays at each end in turn; every byte stays exact and no packet is opened twice.
async fn replays(suite: &'static str, bytes: usize, pause: Duration, rounds: u64, rate: f64) {
    let mut tunnel = Tunnel::start(suite, 7).await;
    for way in [Direction::ToServer, Direction::ToClient] {
        tunnel.relay.record(way, COPIES);
    }
    tunnel.must_carry(Job::each_way(1, 1 << 20)).await;
    let mut seconds = [0.0; 3];
    let mut attacked = [0; 3];
    for seed in 0..=rounds {
        for (arm, attack) in ATTACKS.into_iter().enumerate() {
            let job = Job { pause, ..Job::each_way(seed, bytes) };
            let began = Instant::now();
            let sent = match attack {
                None => {
                    tunnel.must_carry(job).await;
                    0
                }
                Some((at, _)) => carry_under_replays(&tunnel, job, at, rate).await,
            };
            // The first round shows what such traffic takes; what leaks would go on growing.
            if seed > 0 {
                seconds[arm] += began.elapsed().as_secs_f64();
                attacked[arm] += sent;
            }
        }
        if seed == 0 {
            tunnel.settle().await;
        }
    }
    must_have_opened_each_once(&tunnel);
    for (arm, attack) in ATTACKS.into_iter().enumerate() {
        let Some((_, verb)) = attack else { continue };
        let refused = number(&tunnel.figures(verb), "/replays");
        let (sent, time) = (attacked[arm], seconds[arm]);
        println!(
            "{suite}, {:.0} Mbit/s each way alone, {:.0} replays a second at {verb}: goodput {:.2}x, {refused} refused as replays",
            bytes as f64 * 8.0 * rounds as f64 / seconds[0] / 1e6,
            sent as f64 / time,
            seconds[0] / time,
        );
        assert!(refused > 0, "{suite}: no replay came to {verb}");
    }
    for way in [Direction::ToServer, Direction::ToClient] {
        tunnel.relay.record(way, 0);
    }
    tunnel.must_be_as_before().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn replays_change_no_byte_and_open_nothing() {
    for suite in SUITES {
        replays(suite, 1 << 20, Duration::from_millis(5), 1, 10_000.0).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "a long proof: minutes"]
async fn a_hundred_thousand_replays_a_second_leave_the_goodput_as_it_was() {
    for suite in SUITES {
        // 26 Mbit/s each way are offered; then as much as goes.
        replays(suite, 8 << 20, Duration::from_millis(5), 3, 100_000.0).await;
        replays(suite, 32 << 20, Duration::ZERO, 3, 100_000.0).await;
    }
}

/// A packet that is none: random bytes under a genuine connection ID, or a genuine one with a bit or
/// three flipped.
fn forged(rng: &mut Rng, copies: &[Vec<u8>]) -> Vec<u8> {
    let mut datagram = copies[rng.usize(..copies.len())].clone();
    if rng.bool() {
        datagram.resize(rng.usize(40..1400), 0);
        // The fixed bit is set, the long header's is not.
        datagram[0] = 0x40 | rng.u8(..0x40);
        rng.fill(&mut datagram[1 + CONNECTION_ID_BYTES..]);
    } else {
        for _ in 0..rng.usize(1..=3) {
            let bit = rng.usize(..datagram.len() * 8);
            datagram[bit / 8] ^= 1 << (bit % 8);
        }
    }
    datagram
}

/// What a daemon has spent of keystream, made for its pool, and refused.
#[derive(Clone, Copy, Debug)]
struct Spent {
    keystream_bytes: u64,
    fill_bytes: u64,
    failures: u64,
}

impl Spent {
    fn of(tunnel: &Tunnel, verb: &str) -> Self {
        let figures = tunnel.figures(verb);
        Self {
            keystream_bytes: number(&figures, "/keystream_pool_bytes")
                + number(&figures, "/keystream_inline_bytes"),
            fill_bytes: number(&figures, "/pool/fill_bytes"),
            failures: number(&figures, "/open_failures"),
        }
    }
}

/// What a silent session may spend meanwhile: keep-alives, their acknowledgements, a search for the
/// path's MTU. One forged packet in ten at its length would be far more.
const SILENT_BYTES_MAX: u64 = 128 << 10;

/// Forges at both ends of a silent tunnel.
async fn forgeries(suite: &'static str, most: u64, rate: f64) {
    let tunnel = Tunnel::start(suite, 8).await;
    for way in [Direction::ToServer, Direction::ToClient] {
        tunnel.relay.record(way, COPIES);
    }
    tunnel.must_carry(Job::each_way(1, 1 << 20)).await;
    tunnel.quiet().await;
    for (verb, at) in [("serve", Direction::ToServer), ("connect", Direction::ToClient)] {
        let mut copies = tunnel.relay.recorded(at);
        copies.retain(|copy| copy.len() > 40 && copy[0] & 0x80 == 0);
        let mut rng = Rng::with_seed(most);
        let before = Spent::of(&tunnel, verb);
        let never = AtomicBool::new(false);
        block_in_place(|| flood(&tunnel, at, rate, most, &never, || forged(&mut rng, &copies)));
        // What the socket's queue holds is still to be refused.
        let deadline = Instant::now() + HANG;
        while Spent::of(&tunnel, verb).failures - before.failures < most / 2 {
            assert!(Instant::now() < deadline, "{suite}: most forgeries never came to {verb}");
            tokio::time::sleep(LOOK).await;
        }
        let after = Spent::of(&tunnel, verb);
        let spent = after.keystream_bytes - before.keystream_bytes;
        let filled = after.fill_bytes - before.fill_bytes;
        let failures = after.failures - before.failures;
        println!(
            "{suite}, {most} forged at {verb}: {failures} refused, {spent} bytes of keystream spent, {filled} filled"
        );
        assert!(spent <= SILENT_BYTES_MAX, "{suite}: {spent} bytes of keystream");
        // What was missing before may have been made; what was spent would be made again.
        assert!(filled <= tunnel.pool_budget_bytes(verb), "{suite}: {filled} bytes filled");
    }
    must_have_opened_each_once(&tunnel);
    for way in [Direction::ToServer, Direction::ToClient] {
        tunnel.relay.record(way, 0);
    }
    tunnel.must_be_as_before().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn forgeries_spend_no_pad() {
    for suite in SUITES {
        forgeries(suite, 2_000, 10_000.0).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "a long proof: a minute"]
async fn a_hundred_thousand_forgeries_spend_no_pad() {
    for suite in SUITES {
        forgeries(suite, 100_000, 20_000.0).await;
    }
}

/// Shakes hands with keys that are not listed, `at_once` side by side; all are refused.
async fn shake_hands(server: SocketAddr, handshakes: u64, at_once: u64) {
    let crypto = CryptoSettings {
        key: Arc::new(PrivateKey::generate().unwrap()),
        suites: vec![SUITES[0].parse().unwrap()],
        kex: vec![KeyExchange::X25519],
        pool: None,
        meters: Arc::new(Meters::default()),
    };
    let key: PublicKey = PUBLIC_KEY.parse().unwrap();
    let config = quinn::ClientConfig::new(client_config(&crypto, key).unwrap());
    let endpoint = quinn::Endpoint::client("127.0.0.1:0".parse().unwrap()).unwrap();
    let mut strangers = tokio::task::JoinSet::new();
    for stranger in 0..at_once {
        let (endpoint, config) = (endpoint.clone(), config.clone());
        let turns = handshakes / at_once + u64::from(stranger < handshakes % at_once);
        strangers.spawn(async move {
            for _ in 0..turns {
                let connecting = endpoint.connect_with(config.clone(), server, "x").unwrap();
                // The server judges last: we may believe in a connection for a moment.
                let refused = async {
                    match connecting.await {
                        Ok(connection) => connection.closed().await,
                        Err(error) => error,
                    }
                };
                let refused = timeout(HANG, refused).await.expect("a handshake hangs");
                let text = refused.to_string();
                assert!(text.contains("not allowed"), "{text}");
            }
        });
    }
    while let Some(done) = strangers.join_next().await {
        done.unwrap();
    }
}

/// Strangers at a server: nothing is made for them and nothing is kept of them.
async fn strangers(warm_up: u64, handshakes: u64) {
    /// 400 bytes for each of 10^4 strangers would be more.
    const GROWTH_BYTES_MAX: u64 = 4 << 20;

    let desk = desk();
    let server = Daemon::serve(&desk, &["--pool", "on"]);
    let address = server.address().parse().unwrap();
    shake_hands(address, warm_up, 3).await;
    let before = Holding::of(&server);
    let began = Instant::now();
    shake_hands(address, handshakes, 3).await;
    let seconds = began.elapsed().as_secs_f64();
    let grown = Holding::of(&server).resident_bytes.saturating_sub(before.resident_bytes);
    let status = desk.keypadd(&["status", "--json"]).output().unwrap();
    let status: Value = serde_json::from_slice(&status.stdout).unwrap();
    let filled = number(&status, "/daemons/0/pool/fill_bytes");
    println!(
        "{handshakes} strangers in {seconds:.1} s: {filled} bytes filled, grown by {} KiB",
        grown >> 10
    );
    assert_eq!(filled, 0);
    assert!(grown <= GROWTH_BYTES_MAX, "grown by {} KiB", grown >> 10);
    // Who is listed is let in as ever: the refusal is the permits'.
    let output = server.connect(&desk, &["-W", "127.0.0.1:9"]).output().unwrap();
    assert_eq!(crate::daemons::text(&output.stderr), "keypadd: 127.0.0.1:9: not permitted\n");
    assert_eq!(server.stop().status.code(), Some(0));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn strangers_fill_no_chunk() {
    strangers(500, 500).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "a long proof: a minute"]
async fn ten_thousand_strangers_fill_no_chunk_and_leave_memory_flat() {
    strangers(500, 10_000).await;
}
