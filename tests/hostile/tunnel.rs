//! Runs two daemons with the relay between them and tracks their memory and descriptors.

use std::fs;
use std::net::SocketAddr;
use std::time::Duration;

use serde_json::Value;
use testbed::{Direction, Relay};
use tokio::task::block_in_place;
use tokio::time::{Instant, sleep};

use crate::daemons::{Daemon, Desk, watched_desk};
use crate::exchange::{HANG, Job, Outcome, Target, exchange};

/// Maximum growth of a daemon: buffers that the allocator and quinn keep for the next burst.
/// Measured: 1 to 4 MiB after any of the proofs.
const GROWTH_BYTES_MAX: u64 = 12 << 20;

/// Polling interval while waiting for something.
pub(crate) const LOOK: Duration = Duration::from_millis(50);

pub(crate) struct Tunnel {
    desk: Desk,
    server: Daemon,
    client: Daemon,
    pub(crate) relay: Relay,
    pub(crate) target: Target,
    /// The client's listen address.
    pub(crate) listener: SocketAddr,
    suite: &'static str,
    before: [Holding; 2],
}

/// Resources a daemon holds.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Holding {
    /// Resident memory not backed by files.
    pub(crate) resident_bytes: u64,
    descriptors: usize,
}

impl Holding {
    pub(crate) fn of(daemon: &Daemon) -> Self {
        let descriptors = fs::read_dir(format!("/proc/{}/fd", daemon.pid())).unwrap().count();
        Self { resident_bytes: resident_bytes(daemon.pid()), descriptors }
    }
}

/// A process's resident memory not backed by files.
pub(crate) fn resident_bytes(pid: u32) -> u64 {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let line = status.lines().find(|line| line.starts_with("RssAnon:")).unwrap();
    let kib: u64 = line.split_whitespace().nth(1).unwrap().parse().unwrap();
    kib << 10
}

/// The statistics of a daemon of this desk.
pub(crate) fn figures(desk: &Desk, daemon: &Daemon) -> Value {
    let mut status = desk.keypadd(&["status", "--json"]);
    let output = block_in_place(|| status.output()).unwrap();
    let document: Value = serde_json::from_slice(&output.stdout).unwrap();
    let daemons = document["daemons"].as_array().unwrap();
    daemons.iter().find(|one| one["pid"] == daemon.pid()).unwrap().clone()
}

impl Tunnel {
    /// Starts a tunnel and warms it up with traffic, so that its current memory is the baseline.
    pub(crate) async fn start(suite: &'static str, seed: u64) -> Self {
        Self::start_with(suite, seed, &[]).await
    }

    /// Like [`start`](Self::start), with more flags for `connect`.
    pub(crate) async fn start_with(suite: &'static str, seed: u64, flags: &[&str]) -> Self {
        let legacy: &[&str] = match suite.starts_with("3des") {
            true => &["--allow-legacy"],
            false => &[],
        };
        let suite_flags = [&["--suite", suite, "--pool", "on"], legacy].concat();
        let target = Target::start().await;
        let desk = watched_desk();
        let permit = target.address.to_string();
        let server =
            Daemon::serve(&desk, &[&["--permit-open", &permit][..], &suite_flags].concat());
        let relay = Relay::start(server.address().parse().unwrap(), seed).await.unwrap();
        let mut connect = Daemon::connect_to(&desk, &relay.address().to_string());
        connect.args(&suite_flags).args(flags).args(["--log-format", "json", "-L"]);
        connect.arg(format!("127.0.0.1:0:{permit}"));
        // Starting waits for an answer through the relay, so this thread must not block the relay.
        let client = block_in_place(|| Daemon::start(connect));
        let listener = &client.ready["forwards"][0]["listen"][0];
        let listener = listener.as_str().unwrap().parse().unwrap();
        let before = [&server, &client].map(Holding::of);
        let mut tunnel = Self { desk, server, client, relay, target, listener, suite, before };
        for seed in 0..4 {
            tunnel.must_carry(Job::each_way(seed, 2 << 20)).await;
        }
        tunnel.settle().await;
        tunnel
    }

    /// Takes what the ends hold now as the new baseline.
    pub(crate) async fn settle(&mut self) {
        self.quiet().await;
        self.before = self.holdings();
    }

    pub(crate) async fn carry(&self, job: Job) -> Outcome {
        exchange(self.listener, job).await
    }

    pub(crate) async fn must_carry(&self, job: Job) {
        assert_eq!(self.carry(job).await, Outcome::Exact, "{}: {job:?}", self.suite);
    }

    /// Waits up to a minute until a new connection works.
    pub(crate) async fn must_recover(&self, job: Job) {
        let deadline = Instant::now() + HANG;
        while self.carry(job).await != Outcome::Exact {
            assert!(Instant::now() < deadline, "{}: no new connection works", self.suite);
            sleep(LOOK).await;
        }
    }

    /// The daemon with this verb: `serve` or `connect`.
    pub(crate) fn daemon(&self, verb: &str) -> &Daemon {
        if verb == "serve" { &self.server } else { &self.client }
    }

    /// Datagrams that the kernel dropped because a receiver of this direction did not read them
    /// in time (`/proc/net/udp`, last column).
    pub(crate) fn dropped(&self, direction: Direction) -> u64 {
        let receivers: Vec<SocketAddr> = match direction {
            Direction::ToServer => vec![self.server.address().parse().unwrap()],
            Direction::ToClient => self.relay.clients(),
        };
        let sockets =
            ["/proc/net/udp", "/proc/net/udp6"].map(|path| fs::read_to_string(path).unwrap());
        let lines = sockets.iter().flat_map(|sockets| sockets.lines());
        let fields = lines.map(|line| line.split_whitespace().collect::<Vec<_>>());
        let ports: Vec<_> =
            receivers.iter().map(|address| format!(":{:04X}", address.port())).collect();
        fields
            .filter(|fields| ports.iter().any(|port| fields[1].ends_with(port)))
            .map(|fields| fields.last().unwrap().parse::<u64>().unwrap())
            .sum()
    }

    /// The statistics of a daemon: `serve` or `connect`.
    pub(crate) fn figures(&self, verb: &str) -> Value {
        figures(&self.desk, self.daemon(verb))
    }

    /// Waits until no forwarded connection is open and every descriptor is released.
    pub(crate) async fn quiet(&self) {
        let deadline = Instant::now() + HANG;
        loop {
            let open: u64 = ["serve", "connect"].iter().map(|verb| self.open(verb)).sum();
            let now = self.holdings();
            let more = |end: usize| now[end].descriptors > self.before[end].descriptors;
            if open == 0 && !more(0) && !more(1) {
                return;
            }
            let before = self.before;
            assert!(Instant::now() < deadline, "{open} open, {before:?}, now {now:?}");
            sleep(LOOK).await;
        }
    }

    /// Pool budget of a daemon.
    pub(crate) fn pool_budget_bytes(&self, verb: &str) -> u64 {
        self.figures(verb)["pool"]["budget_bytes"].as_u64().unwrap()
    }

    fn open(&self, verb: &str) -> u64 {
        let figures = self.figures(verb);
        let sessions = figures["sessions"].as_array().unwrap().iter();
        let forwards = sessions.flat_map(|session| session["forwards"].as_array().unwrap());
        forwards.map(|forward| forward["open"].as_u64().unwrap()).sum()
    }

    fn holdings(&self) -> [Holding; 2] {
        [&self.server, &self.client].map(Holding::of)
    }

    /// Waits until both ends have logged the reconnect. Also drains their logs: a full pipe would
    /// block a daemon that runs for hours.
    pub(crate) fn hear_reconnected(&mut self) {
        self.client.hear("reconnected after");
        self.server.hear("session established");
    }

    /// Key phase count of the client's newest session.
    pub(crate) fn key_phases(&self) -> u64 {
        let figures = self.figures("connect");
        let sessions = figures["sessions"].as_array().unwrap().iter();
        sessions
            .map(|session| session["keys"]["send"]["key_phase"].as_u64().unwrap())
            .max()
            .unwrap_or(0)
    }

    /// Asserts the end state of every proof: no fault at the target, nothing open, no keystream
    /// used twice, no growth, and a clean exit of both daemons.
    pub(crate) async fn must_be_as_before(self) {
        self.must_be_quiet().await;
        let grown = self.grown_bytes();
        println!("{}: grown by {} and {} KiB", self.suite, grown[0] >> 10, grown[1] >> 10);
        assert!(grown.iter().all(|grown| *grown <= GROWTH_BYTES_MAX), "{}: {grown:?}", self.suite);
        self.must_end_well();
    }

    /// Like [`must_be_as_before`](Self::must_be_as_before), for a proof that judges growth itself.
    pub(crate) async fn must_be_sound(self) {
        self.must_be_quiet().await;
        self.must_end_well();
    }

    async fn must_be_quiet(&self) {
        self.relay.set_both(testbed::LineSettings::default());
        self.target.exact();
        self.must_recover(Job::each_way(99, 256 << 10)).await;
        self.quiet().await;
    }

    fn must_end_well(self) {
        for verb in ["serve", "connect"] {
            assert_eq!(self.figures(verb)["pad_reuse"], 0, "{}", self.suite);
        }
        for daemon in [self.client, self.server] {
            let output = block_in_place(|| daemon.stop());
            let said = crate::daemons::text(&output.stderr);
            assert_eq!(output.status.code(), Some(0), "{said}");
            assert!(!said.contains("panicked"), "{said}");
        }
    }

    /// How much this exceeds a daemon's baseline.
    pub(crate) fn more_than_before(&self, verb: &str, resident_bytes: u64) -> u64 {
        let before = self.before[usize::from(verb != "serve")];
        resident_bytes.saturating_sub(before.resident_bytes)
    }

    /// Growth of server and client over their baselines.
    pub(crate) fn grown_bytes(&self) -> [u64; 2] {
        let now = self.holdings();
        [0, 1].map(|end| now[end].resident_bytes.saturating_sub(self.before[end].resident_bytes))
    }
}
