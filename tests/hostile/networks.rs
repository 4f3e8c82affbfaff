//! Tests loss, duplication, reordering, corruption, address changes and outages.

use std::time::Duration;

use testbed::{Direction, LineSettings};
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep};

use crate::SUITES;
use crate::exchange::{Job, Outcome};
use crate::tunnel::Tunnel;

/// Concurrent connections through a bad network.
const CONNECTIONS: u64 = 3;

/// A path with a round trip of 4 ms.
fn path() -> LineSettings {
    LineSettings { delay: Duration::from_millis(2), ..<_>::default() }
}

/// All impairments at once, on a longer path.
pub(crate) fn everything() -> LineSettings {
    LineSettings {
        loss: 0.05,
        corrupt: 0.01,
        duplicate: 0.05,
        reorder: 0.1,
        hold: Duration::from_millis(10),
        delay: Duration::from_millis(10),
        jitter: Duration::from_millis(5),
        ..<_>::default()
    }
}

/// The networks on which no session may end, with their names.
fn bad_networks() -> Vec<(String, LineSettings)> {
    let hold = Duration::from_millis(5);
    let mut networks: Vec<_> = [0, 1, 5, 10, 20]
        .map(|loss| {
            (format!("loss {loss} %"), LineSettings { loss: loss as f64 / 100.0, ..path() })
        })
        .into();
    networks.extend([
        ("reordering 20 %".into(), LineSettings { reorder: 0.2, hold, ..path() }),
        ("duplication 5 %".into(), LineSettings { duplicate: 0.05, ..path() }),
        ("corruption 1 %".into(), LineSettings { corrupt: 0.01, ..path() }),
        ("everything".into(), everything()),
    ]);
    networks
}

/// Runs several bidirectional connections at once; returns how many were exact.
async fn carry_through(tunnel: &Tunnel, network: LineSettings, bytes: usize) -> u64 {
    tunnel.relay.set_both(network);
    let carried = (0..CONNECTIONS).map(|seed| tunnel.carry(Job::each_way(seed, bytes)));
    let outcomes = join_all(carried).await;
    outcomes.iter().filter(|outcome| **outcome == Outcome::Exact).count() as u64
}

/// Runs futures of one tunnel concurrently.
async fn join_all<T>(futures: impl IntoIterator<Item = impl Future<Output = T>>) -> Vec<T> {
    let mut futures: Vec<_> = futures.into_iter().map(Box::pin).collect();
    let mut done: Vec<Option<T>> = futures.iter().map(|_| None).collect();
    std::future::poll_fn(|cx| {
        for (future, done) in futures.iter_mut().zip(&mut done) {
            if done.is_none()
                && let std::task::Poll::Ready(value) = future.as_mut().poll(cx)
            {
                *done = Some(value);
            }
        }
        match done.iter().all(Option::is_some) {
            true => std::task::Poll::Ready(()),
            false => std::task::Poll::Pending,
        }
    })
    .await;
    done.into_iter().flatten().collect()
}

/// Runs the same proof for every suite, concurrently.
async fn for_every_suite<F>(proof: impl Fn(&'static str) -> F)
where
    F: Future<Output = ()> + Send + 'static,
{
    let mut proofs: JoinSet<()> = SUITES.into_iter().map(proof).collect();
    while let Some(done) = proofs.join_next().await {
        if let Err(failed) = done {
            std::panic::resume_unwind(failed.into_panic());
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn bytes_are_exact_where_packets_are_lost_doubled_reordered_and_damaged() {
    for_every_suite(async |suite| {
        let tunnel = Tunnel::start(suite, 1).await;
        let exact = carry_through(&tunnel, everything(), 1 << 20).await;
        assert_eq!(exact, CONNECTIONS, "{suite}");
        let counts = tunnel.relay.counts(Direction::ToClient);
        assert!(counts.lost > 0 && counts.corrupted > 0 && counts.duplicated > 0, "{counts:?}");
        tunnel.must_be_as_before().await;
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "a long proof: minutes"]
async fn every_bad_network_leaves_bytes_exact_and_both_ends_as_before() {
    for_every_suite(async |suite| {
        let mut tunnel = Tunnel::start(suite, 2).await;
        // The first pass shows the baseline; a leak keeps growing in the second.
        for again in [false, true] {
            for (words, network) in bad_networks() {
                let began = Instant::now();
                let bytes = 1 << 20;
                let exact = carry_through(&tunnel, network, bytes).await;
                let seconds = began.elapsed().as_secs_f64();
                let rate = exact as f64 * bytes as f64 * 16.0 / seconds / 1e6;
                println!(
                    "{suite}, {words}: {exact} of {CONNECTIONS} exact, {seconds:.1} s, {rate:.1} Mbit/s"
                );
                assert_eq!(exact, CONNECTIONS, "{suite}, {words}");
            }
            if !again {
                tunnel.settle().await;
            }
        }
        tunnel.must_be_as_before().await;
    })
    .await;
}

/// Transfers for `length` while the client's address changes every `interval`; nothing may be lost.
async fn roam(suite: &'static str, interval: Duration, length: Duration) {
    let tunnel = Tunnel::start(suite, 3).await;
    tunnel.relay.set_both(path());
    let pause = Duration::from_millis(10);
    let chunks = (length.as_micros() / pause.as_micros()) as usize;
    let bytes = chunks * (16 << 10);
    let throughout = Job { seed: 1, up_bytes: bytes, down_bytes: bytes, pause };
    let until = Instant::now() + length;
    let moving = async {
        let mut moves = 0;
        while Instant::now() + interval < until {
            sleep(interval).await;
            tunnel.relay.rebind().unwrap();
            moves += 1;
        }
        moves
    };
    let many = async {
        let mut carried = 0;
        while Instant::now() < until {
            tunnel.must_carry(Job::each_way(carried, 64 << 10)).await;
            carried += 1;
        }
        carried
    };
    let began = Instant::now();
    let ((), moves, carried) = tokio::join!(tunnel.must_carry(throughout), moving, many);
    let late = began.elapsed().saturating_sub(length);
    println!(
        "{suite}: {moves} addresses, {carried} short connections and a long one exact, the long one {late:.1?} late"
    );
    assert!(moves > 0);
    tunnel.must_be_as_before().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_client_that_changes_its_address_loses_nothing() {
    for_every_suite(|suite| roam(suite, Duration::from_millis(1500), Duration::from_secs(5))).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "a long proof: a minute"]
async fn a_client_that_changes_its_address_every_5_s_loses_nothing() {
    for_every_suite(|suite| roam(suite, Duration::from_secs(5), Duration::from_secs(60))).await;
}

/// Directions to cut.
const CUTS: [(&str, [bool; 2]); 3] = [
    ("both ways", [true, true]),
    ("to the server", [true, false]),
    ("to the client", [false, true]),
];

/// Cuts the path under a busy and an idle connection and opens a third during the cut; returns how
/// they ended.
async fn cut(tunnel: &Tunnel, ways: [bool; 2], length: Duration) -> Vec<Outcome> {
    tunnel.relay.set_both(path());
    // Busy throughout, a little longer than the cut.
    let pause = Duration::from_millis(20);
    let bytes =
        ((length + Duration::from_secs(2)).as_micros() / pause.as_micros()) as usize * (16 << 10);
    let busy = Job { seed: 1, up_bytes: bytes, down_bytes: bytes, pause };
    // Two chunks each way, the second well into the cut.
    let idle =
        Job { pause: (length / 2).max(Duration::from_secs(2)), ..Job::each_way(2, 32 << 10) };
    let cutting = async {
        sleep(Duration::from_secs(1)).await;
        for (direction, cut) in [Direction::ToServer, Direction::ToClient].into_iter().zip(ways) {
            tunnel.relay.set(direction, LineSettings { cut, ..path() });
        }
        sleep(length / 2).await;
        let meanwhile = tunnel.carry(Job::each_way(3, 64 << 10));
        let mending = async {
            sleep(length / 2).await;
            tunnel.relay.set_both(path());
        };
        tokio::join!(meanwhile, mending).0
    };
    let (busy, idle, meanwhile) = tokio::join!(tunnel.carry(busy), tunnel.carry(idle), cutting);
    vec![busy, idle, meanwhile]
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_path_that_is_gone_for_3_s_costs_nothing_but_time() {
    for_every_suite(async |suite| {
        let tunnel = Tunnel::start(suite, 4).await;
        let outcomes = cut(&tunnel, [true, true], Duration::from_secs(3)).await;
        assert_eq!(outcomes, [Outcome::Exact; 3], "{suite}");
        tunnel.must_be_as_before().await;
    })
    .await;
}

/// The minimum.
const PEER_TIMEOUT: [&str; 2] = ["--peer-timeout", "10s"];

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_path_that_is_gone_for_most_of_the_peer_timeout_costs_nothing_but_time() {
    let tunnel = Tunnel::start_with(SUITES[0], 5, &PEER_TIMEOUT).await;
    let outcomes = cut(&tunnel, [true, true], Duration::from_secs(7)).await;
    // The connection opened during the cut may time out waiting for its target.
    assert_eq!(outcomes[..2], [Outcome::Exact; 2]);
    tunnel.must_be_as_before().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_path_that_is_gone_longer_than_a_session_lives_costs_a_connection_nothing_but_time() {
    let tunnel = Tunnel::start_with(SUITES[0], 5, &PEER_TIMEOUT).await;
    let outcomes = cut(&tunnel, [true, true], Duration::from_secs(14)).await;
    // The connection opened during the cut may time out waiting for a session.
    assert_eq!(outcomes[..2], [Outcome::Exact; 2]);
    assert_eq!(tunnel.figures("connect")["links"][0]["reconnects"]["silent"], 1);
    tunnel.must_recover(Job::each_way(5, 256 << 10)).await;
    tunnel.must_be_as_before().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "a long proof: minutes"]
async fn a_cut_of_60_s_costs_a_connection_nothing_but_time() {
    for (words, ways) in CUTS {
        for_every_suite(move |suite| async move {
            let tunnel = Tunnel::start(suite, 6).await;
            let outcomes = cut(&tunnel, ways, Duration::from_secs(60)).await;
            let mended = Instant::now();
            tunnel.must_recover(Job::each_way(5, 1 << 20)).await;
            let recovered = mended.elapsed();
            println!("{suite}, cut {words}: busy, idle, meanwhile {outcomes:?}, new ones after {recovered:.1?}");
            assert_eq!(outcomes[..2], [Outcome::Exact; 2], "{suite}, cut {words}");
            tunnel.must_be_as_before().await;
        })
        .await;
    }
}
