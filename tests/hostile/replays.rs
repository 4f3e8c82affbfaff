//! Replays genuine packets at both ends: none opens (I5), and other traffic keeps its throughput.

use std::net::UdpSocket;
use std::sync::atomic::AtomicBool;
use std::thread;
use std::time::{Duration, Instant};

use fastrand::Rng;
use testbed::Direction;
use tokio::runtime::Handle;
use tokio::task::block_in_place;

use crate::SUITES;
use crate::exchange::Job;
use crate::flood::{Until, flood, forget, listen_in, must_have_opened_each_once, number};
use crate::tunnel::{Holding, Tunnel};

/// How much a daemon may grow during a flood: 10 MiB of queued datagrams (docs/limits.md, "Memory")
/// and the job's own bytes in transit. Measured: up to 14 MiB.
const BACKLOG_BYTES_MAX: u64 = 32 << 20;

/// Who receives the replays.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Victim {
    Nobody,
    /// A socket that nobody reads: measures the sender's cost to the machine.
    Bystander,
    Server,
    Client,
}

impl Victim {
    fn verb(self) -> &'static str {
        match self {
            Self::Nobody => "nobody",
            Self::Bystander => "a bystander",
            Self::Server => "serve",
            Self::Client => "connect",
        }
    }

    /// Direction of the replays; the bystander gets copies of packets to the server.
    fn at(self) -> Direction {
        match self {
            Self::Client => Direction::ToClient,
            _ => Direction::ToServer,
        }
    }

    fn is_an_end(self) -> bool {
        matches!(self, Self::Server | Self::Client)
    }
}

/// The result of a job under replays.
#[derive(Clone, Copy, Debug, Default)]
struct ReplayOutcome {
    seconds: f64,
    sent: u64,
    /// Recognized as replays.
    refused: u64,
    /// Too old: the truncated number expands to another one (RFC 9000 A.3), so the tag is wrong.
    failed: u64,
    /// Dropped by the kernel before the daemon read them, genuine ones among them.
    dropped: u64,
    cpu_seconds: f64,
    /// The victim's peak memory.
    held_bytes: u64,
}

/// The victim's counters so far.
fn counted(tunnel: &Tunnel, victim: Victim) -> ReplayOutcome {
    if !victim.is_an_end() {
        return ReplayOutcome::default();
    }
    let figures = tunnel.figures(victim.verb());
    let daemon = tunnel.daemon(victim.verb());
    ReplayOutcome {
        refused: number(&figures, "/replays"),
        failed: number(&figures, "/open_failures"),
        dropped: tunnel.dropped(victim.at()),
        cpu_seconds: daemon.cpu_seconds(),
        ..ReplayOutcome::default()
    }
}

/// Runs the job while the victim receives `rate` replays a second.
async fn carry(tunnel: &Tunnel, job: Job, victim: Victim, rate: f64) -> ReplayOutcome {
    let bystander = UdpSocket::bind("127.0.0.1:0").unwrap();
    let address = bystander.local_addr().unwrap();
    let (stop, at) = (AtomicBool::new(victim == Victim::Nobody), victim.at());
    let mut rng = Rng::with_seed(job.seed);
    let mut copies = tunnel.relay.recorded(at);
    let (mut copied, mut looked, mut held_bytes) = (Instant::now(), Instant::now(), 0);
    let before = counted(tunnel, victim);
    let replay = || {
        if copied.elapsed() > Duration::from_millis(5) {
            (copies, copied) = (tunnel.relay.recorded(at), Instant::now());
        }
        if victim.is_an_end() && looked.elapsed() > Duration::from_millis(100) {
            let holding = Holding::of(tunnel.daemon(victim.verb()));
            (held_bytes, looked) = (held_bytes.max(holding.resident_bytes), Instant::now());
        }
        let copy = &copies[rng.usize(..copies.len())];
        // Datagrams that the kernel rejects count as sent: the attacker cannot tell.
        match victim {
            Victim::Bystander => drop(bystander.send_to(&copy.bytes, address)),
            _ => drop(tunnel.relay.inject(at, copy)),
        }
    };
    let began = Instant::now();
    let sent = thread::scope(|scope| {
        let attacker = scope.spawn(|| flood(rate, u64::MAX, &stop, replay));
        let carried = Until(&stop);
        block_in_place(|| Handle::current().block_on(tunnel.must_carry(job)));
        drop(carried);
        attacker.join().unwrap()
    });
    let seconds = began.elapsed().as_secs_f64();
    let after = counted(tunnel, victim);
    ReplayOutcome {
        seconds,
        sent,
        refused: after.refused - before.refused,
        failed: after.failed - before.failed,
        dropped: after.dropped - before.dropped,
        cpu_seconds: after.cpu_seconds - before.cpu_seconds,
        held_bytes,
    }
}

/// Starts recording a tunnel and runs this job on it under attack. A leak keeps growing after that.
async fn warm(suite: &'static str, job: Job, rate: f64) -> Tunnel {
    let mut tunnel = Tunnel::start(suite, 7).await;
    listen_in(&tunnel);
    tunnel.must_carry(Job::each_way(1, 1 << 20)).await;
    for victim in [Victim::Server, Victim::Client] {
        carry(&tunnel, job, victim, rate).await;
    }
    tunnel.settle().await;
    tunnel
}

async fn must_be_unharmed(tunnel: Tunnel) {
    must_have_opened_each_once(&tunnel);
    forget(&tunnel);
    tunnel.must_be_as_before().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn replays_change_no_byte_and_open_nothing() {
    for suite in SUITES {
        let job = Job { pause: Duration::from_millis(5), ..Job::each_way(2, 1 << 20) };
        let tunnel = warm(suite, job, 10_000.0).await;
        for victim in [Victim::Server, Victim::Client] {
            let carried = carry(&tunnel, job, victim, 10_000.0).await;
            println!("{suite}, replays at {}: {carried:?}", victim.verb());
            assert!(carried.refused > 0, "{suite}: no replay reached {}", victim.verb());
        }
        must_be_unharmed(tunnel).await;
    }
}

fn median(figures: impl Iterator<Item = f64>) -> f64 {
    let mut figures: Vec<f64> = figures.collect();
    figures.sort_by(f64::total_cmp);
    figures[figures.len() / 2]
}

/// Runs the same job against each victim in turn, several times. Returns goodput per victim as a
/// share of that with the first victim.
async fn goodputs(tunnel: &Tunnel, job: Job, victims: &[Victim]) -> Vec<f64> {
    const RATE: f64 = 100_000.0;
    const ROUNDS: u64 = 5;

    let mut rounds = Vec::new();
    for seed in 0..ROUNDS {
        let mut round = Vec::new();
        for victim in victims {
            round.push(carry(tunnel, Job { seed, ..job }, *victim, RATE).await);
        }
        rounds.push(round);
    }
    let mut goodputs = Vec::new();
    for (arm, victim) in victims.iter().enumerate() {
        let of = |figure: fn(&ReplayOutcome) -> f64| {
            median(rounds.iter().map(|round| figure(&round[arm])))
        };
        let goodput = median(rounds.iter().map(|round| round[0].seconds / round[arm].seconds));
        let mut words = format!(
            "  replays at {}: {:.0} a second, goodput {:.0} Mbit/s each way, {goodput:.2}x",
            victim.verb(),
            of(|carried| carried.sent as f64 / carried.seconds),
            job.up_bytes as f64 * 8e-6 / of(|carried| carried.seconds),
        );
        if victim.is_an_end() {
            let held_bytes = rounds.iter().map(|round| round[arm].held_bytes).max().unwrap();
            words += &format!(
                "; of them {:.0} % refused as replays, {:.0} % by their tag, {:.0} % dropped by the kernel; {:.0} % of a core, at most {} MiB held",
                of(|carried| carried.refused as f64 / carried.sent as f64) * 100.0,
                of(|carried| carried.failed as f64 / carried.sent as f64) * 100.0,
                of(|carried| carried.dropped as f64 / carried.sent as f64) * 100.0,
                of(|carried| carried.cpu_seconds / carried.seconds) * 100.0,
                held_bytes >> 20,
            );
            let grown = tunnel.more_than_before(victim.verb(), held_bytes);
            assert!(grown <= BACKLOG_BYTES_MAX, "{}: {grown} bytes more", victim.verb());
        }
        println!("{words}");
        goodputs.push(goodput);
    }
    goodputs
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "a long proof: minutes, and a figure of time decides it"]
async fn a_hundred_thousand_replays_a_second_leave_nine_tenths_of_the_goodput() {
    const GOODPUT_MIN: f64 = 0.9;

    let paced = Job { pause: Duration::from_millis(5), ..Job::each_way(0, 8 << 20) };
    let faster = Job { pause: Duration::from_millis(1), ..Job::each_way(0, 32 << 20) };
    let all_that_goes = Job::each_way(0, 64 << 20);
    for suite in SUITES {
        let tunnel = warm(suite, paced, 100_000.0).await;
        println!("{suite}, 26 Mbit/s offered each way");
        let victims = [Victim::Nobody, Victim::Server, Victim::Client];
        let paced = goodputs(&tunnel, paced, &victims).await;
        println!("{suite}, 131 Mbit/s offered each way");
        goodputs(&tunnel, faster, &victims).await;
        println!("{suite}, as much as goes");
        // Here the attacker takes CPU from the daemons whomever it attacks.
        let victims = [Victim::Bystander, Victim::Nobody, Victim::Server, Victim::Client];
        goodputs(&tunnel, all_that_goes, &victims).await;
        assert!(paced.iter().all(|goodput| *goodput >= GOODPUT_MIN), "{suite}: {paced:?}");
        must_be_unharmed(tunnel).await;
    }
}
