//! Defines the command line of `keypadd-bench`. Comments on flags are help texts. Every long flag has a
//! `KEYPADD_*` variable.

mod values;

use std::num::NonZeroU64;
use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, CommandFactory, Parser, Subcommand, ValueEnum};
use keypadd_cli::logging::LogFlags;
use keypadd_cli::values::path_parser;
use keypadd_keystream::{CipherEngine, Protection};
use keypadd_measure::LineRate;
use keypadd_papers::Paper;
use keypadd_provider::{Group, KeyExchange, PublicKey};
use keypadd_tunnel::{Congestion, ServerAddress, SpinShare};

/// Benchmark suites with and without a pool
///
/// Arms alternate within one run, until every claim is supported or contradicted, or time is over.
/// Results come with 95 % confidence intervals. Ctrl-C stops and keeps the results so far.
///
/// Benchmarks of a tunnel between two hosts need this program on both: `keypadd serve --permit-bench`
/// starts it to answer them.
#[derive(Debug, Parser)]
#[command(name = "keypadd-bench", bin_name = "keypadd bench", max_term_width = 100)]
#[command(disable_help_subcommand = true)]
#[command(subcommand_value_name = "WORKLOAD", subcommand_help_heading = "Workloads")]
#[command(after_help = "\
Examples:
  keypadd bench terminal --out report
  keypadd bench bulk --suite 3des-ctr-hmac-sha1 --pool on,off --cipher-backend auto,des-crate")]
pub(crate) struct Cli {
    #[command(subcommand)]
    pub(crate) workload: BenchWorkload,
    #[command(flatten)]
    pub(crate) log: LogFlags,
}

#[derive(Debug, Subcommand)]
pub(crate) enum BenchWorkload {
    /// Keystrokes and their echoes, at a human pace or at a fixed rate
    #[command(after_help = "\
Examples:
  keypadd bench terminal --suite 3des-ctr-hmac-sha1,aes-256-gcm --pool on,off
  keypadd bench terminal --rate 200 --size 128 --out report
  keypadd bench terminal host.example --peer PUBLIC-KEY")]
    Terminal(Box<TerminalArgs>),
    /// Bulk data: a burst from a full pool, then sustained throughput
    #[command(after_help = "Example:\n  keypadd bench bulk --burst 8MiB --streams 4 --out report")]
    Bulk(Box<BulkArgs>),
    /// Keystrokes while bulk data keeps the same tunnel busy
    #[command(after_help = "Example:\n  keypadd bench mixed --time 10s")]
    Mixed(Box<MixedArgs>),
    /// A call: 50 packets of UDP a second, alone and while bulk data keeps the same tunnel busy
    #[command(after_help = "\
Examples:
  keypadd bench voice --suite aes-256-gcm --out report
  keypadd bench voice host.example --peer PUBLIC-KEY")]
    Voice(Box<VoiceArgs>),
    /// File requests of several sizes from a growing number of clients
    #[command(after_help = "\
Example:
  keypadd bench files --clients 4,8,16 --file 10KiB:4,1MiB:1 --rate 20")]
    Files(Box<FilesArgs>),
    /// Find the rate at which the pool runs dry, and compare it with a prediction
    ///
    /// Finds the highest rate that the pool sustains, and how long a burst above it can last, for each
    /// suite, backend, pool size and background load. Predictions are saved before any traffic is sent.
    #[command(after_help = "\
Example:
  keypadd bench exhaustion --suite 3des-ctr-hmac-sha1 --cipher-backend des-crate,auto --out report")]
    Exhaustion(Box<ExhaustionArgs>),
    /// Handshakes: time, bytes and round trips of each key exchange
    #[command(after_help = "Example:\n  keypadd bench kex --kex x25519,secp384r1 --out report")]
    Kex(Box<KexArgs>),
    /// Should the pool be on here? The cost of sealing with each suite: inline, pooled, pool dry
    ///
    /// Takes a minute and opens no socket. Built with RUSTFLAGS='--cfg aes_backend="soft" --cfg
    /// polyval_backend="soft"' it shows a CPU without AES instructions.
    #[command(
        after_help = "Example:\n  keypadd bench suites --suite aes-256-gcm,chacha20-poly1305"
    )]
    Suites(Box<SuitesArgs>),
    /// Slow, long and lossy paths, beside kernel TCP and stunnel; needs root
    ///
    /// Both ends are network namespaces, joined by an emulated line, and run the real program. Bulk and small
    /// messages share a tunnel; goals are judged by rules that are printed.
    #[command(after_help = "\
Examples:
  keypadd bench paths --quick --out quick
  keypadd bench paths --line 300,20,2 --rtt 20ms --loss 0,0.5,2 --out slow
  keypadd bench paths --rtt 20ms --loss 10 --two-way --arm new='--pool off'")]
    Paths(Box<PathsArgs>),
    /// keypadd's and other programs' tunnels between two gateways that carry networks; needs root
    ///
    /// Client, gateway, gateway and server are network namespaces in a row. TCP, UDP, echo requests
    /// and CPU time of each tunnel, beside plain routing. Arms whose programs are missing are left
    /// out, with a line that says what installs them.
    #[command(after_help = "\
Examples:
  keypadd bench networks --out networks
  keypadd bench networks --arms plain,vxlan,boringtun --rounds 3 --time 1s")]
    Networks(NetworksArgs),
    /// Reproduce the experiments of five papers, and judge their claims
    ///
    /// Varies what each paper varied, with as many repetitions, and prints today's ratios beside the
    /// paper's. A full run takes hours; the same command line and directory resume a stopped one.
    #[command(after_help = "\
Examples:
  keypadd bench reproduce all --quick --out quick
  keypadd bench reproduce praptodiyono --out papers")]
    Reproduce(Box<ReproduceArgs>),
    /// Print the manual page
    #[command(hide = true, after_help = "Example:\n  keypadd bench man")]
    Man(ManArgs),
}

#[derive(Debug, Args)]
pub(crate) struct ManArgs {
    /// Write keypadd-bench.1 and a page for each workload to this directory
    #[arg(value_name = "DIR", value_parser = path_parser())]
    pub(crate) directory: Option<PathBuf>,
}

/// The definition from which manual pages are generated.
pub(crate) fn definition() -> clap::Command {
    Cli::command().mut_args(|arg| arg.hide_env_values(true))
}

/// The far end, and the suites to compare.
#[derive(Debug, Args)]
pub(crate) struct TunnelFlags {
    /// Measure against this server, which must run with --permit-bench [default: both ends run here]
    ///
    /// Without it both ends run in this process, over UDP on loopback, with ephemeral keys.
    #[arg(value_name = "HOST[:PORT]", value_parser = values::server)]
    pub(crate) server: Option<ServerAddress>,
    /// The server's public key
    #[arg(long, env = "KEYPADD_PEER", value_name = "PUBKEY", value_parser = values::public_key)]
    #[arg(allow_hyphen_values = true, help_heading = "Common")]
    pub(crate) peer: Option<PublicKey>,
    /// This host's private key, for a server elsewhere
    ///
    /// [default: as for `keypadd connect`]
    #[arg(long, env = "KEYPADD_KEY", value_name = "FILE", help_heading = "Common")]
    #[arg(value_parser = path_parser())]
    pub(crate) key: Option<PathBuf>,
    /// Suites to compare
    ///
    /// Those of `keypadd connect`, and for benchmarks only: each cipher, and rc2-40, with hmac-md5
    /// or a null MAC, as in rc2-40-ctr-hmac-md5 and 3des-ctr-null; null-hmac-sha1, null-hmac-md5 and
    /// null, which do not encrypt. A wrong name lists them all.
    #[arg(long, env = "KEYPADD_SUITE", value_name = "NAME", value_delimiter = ',')]
    #[arg(value_parser = values::bench_suite, help_heading = "Arms")]
    #[arg(default_value = "3des-ctr-hmac-sha1,aes-256-gcm,null-hmac-sha1")]
    pub(crate) suite: Vec<Protection>,
    /// Implementation of DES and 3DES: auto, bitslice-{64,128,256,512}, des-crate
    #[arg(long, env = "KEYPADD_CIPHER_BACKEND", value_name = "NAME", value_delimiter = ',')]
    #[arg(value_parser = values::cipher_backend, help_heading = "Arms")]
    #[arg(default_value = "auto")]
    pub(crate) cipher_backend: Vec<CipherEngine>,
    /// Throttle keystream generation to this many bytes per second of CPU time
    ///
    /// Emulates a slower cipher, or a slower machine on the same network. Every table and plot says so.
    #[arg(
        long,
        env = "KEYPADD_EMULATE_CIPHER_RATE",
        value_name = "BYTES/S",
        help_heading = "Arms"
    )]
    #[arg(value_parser = values::cipher_rate)]
    pub(crate) emulate_cipher_rate: Option<NonZeroU64>,
    /// The key exchange: x25519, x25519mlkem768 or secp384r1
    #[arg(long, env = "KEYPADD_KEX", value_name = "NAME", value_parser = values::kex)]
    #[arg(default_value_t = KeyExchange::default(), help_heading = "Common")]
    pub(crate) kex: KeyExchange,
    /// Congestion control: rate or cubic
    #[arg(long, env = "KEYPADD_CONGESTION", value_name = "NAME")]
    #[arg(default_value_t = Congestion::default(), value_parser = values::congestion)]
    #[arg(help_heading = "Common")]
    pub(crate) congestion: Congestion,
    /// Share of one core that each event loop may spend on polls that find nothing; 0 turns polling off
    #[arg(long, env = "KEYPADD_SPIN", value_name = "PERCENT")]
    #[arg(default_value_t = SpinShare::default(), value_parser = values::spin)]
    #[arg(help_heading = "Common")]
    pub(crate) spin: SpinShare,
    /// Event loops of a server, one thread each [default: the cores, rounded down to even, from 2 to 8]
    #[arg(long, env = "KEYPADD_LOOPS", value_name = "NUMBER", value_parser = values::loops)]
    #[arg(help_heading = "Common")]
    pub(crate) loops: Option<usize>,
}

/// With and without a pool.
#[derive(Debug, Args)]
pub(crate) struct PoolFlags {
    /// With a pool, without one, or both
    #[arg(long, env = "KEYPADD_POOL", value_name = "MODE", value_delimiter = ',')]
    #[arg(default_value = "on,off", help_heading = "Arms")]
    pub(crate) pool: Vec<OnOff>,
    /// Memory for keystream at each end of an arm with a pool
    #[arg(long, env = "KEYPADD_POOL_BUDGET", value_name = "SIZE", default_value = "16MiB")]
    #[arg(value_parser = values::pool_budget, help_heading = "Arms")]
    pub(crate) pool_budget: usize,
}

/// Flags of every workload whose arms alternate.
#[derive(Debug, Args)]
pub(crate) struct TurnFlags {
    #[command(flatten)]
    pub(crate) tunnel: TunnelFlags,
    #[command(flatten)]
    pub(crate) pools: PoolFlags,
    /// Short turns, for a minute at most
    #[arg(long, env = "KEYPADD_QUICK", value_parser = values::switch, help_heading = "Common")]
    pub(crate) quick: bool,
    /// Stop after this time, whether every claim is decided or not [default: 10m; quick: 1m]
    #[arg(long, env = "KEYPADD_TIME_BUDGET", value_name = "DURATION", help_heading = "Common")]
    #[arg(value_parser = values::time_budget)]
    pub(crate) time_budget: Option<Duration>,
    #[command(flatten)]
    pub(crate) run: RunFlags,
}

/// Rounds, seed and report.
#[derive(Debug, Args)]
pub(crate) struct RunFlags {
    /// Most rounds; each arm has one turn per round
    ///
    /// [default: kex 10, networks and paths 6, suites 5, exhaustion 3 (quick: 1), else until all is decided].
    /// Confidence intervals are computed over rounds: they need at least 3, those of verdicts 6.
    #[arg(long, env = "KEYPADD_ROUNDS", value_name = "NUMBER", value_parser = values::count)]
    #[arg(help_heading = "Common")]
    pub(crate) rounds: Option<u32>,
    #[command(flatten)]
    pub(crate) report: ReportFlags,
}

/// Seed and report.
#[derive(Debug, Args)]
pub(crate) struct ReportFlags {
    /// Seed of all traffic: the same seed gives the same traffic
    #[arg(long, env = "KEYPADD_SEED", value_name = "NUMBER", default_value = "1")]
    #[arg(value_parser = values::seed, help_heading = "Common")]
    pub(crate) seed: u64,
    /// Write report.html, plots, results.json and CSV files into this directory
    #[arg(long, env = "KEYPADD_OUT", value_name = "DIR", value_parser = path_parser())]
    #[arg(help_heading = "Common")]
    pub(crate) out: Option<PathBuf>,
    /// Print JSON
    #[arg(long, env = "KEYPADD_JSON", value_parser = values::switch, help_heading = "Common")]
    pub(crate) json: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum OnOff {
    On,
    Off,
}

/// How keys are pressed.
#[derive(Clone, Copy, Debug, Args)]
pub(crate) struct TypingFlags {
    /// Simulated typists, each at human speed [default: 20; quick: 200]
    #[arg(long, env = "KEYPADD_TYPISTS", value_name = "NUMBER", value_parser = values::count)]
    pub(crate) typists: Option<u32>,
    /// Evenly spaced keystrokes per second, instead of typists
    #[arg(long, env = "KEYPADD_RATE", value_name = "PER-SECOND", value_parser = values::rate)]
    #[arg(allow_negative_numbers = true)]
    pub(crate) rate: Option<f64>,
    /// With --rate: size of a keystroke and of its echo, at least 16 [default: 64]
    #[arg(long, env = "KEYPADD_SIZE", value_name = "SIZE", value_parser = values::key_size)]
    #[arg(requires = "rate")]
    pub(crate) size: Option<u64>,
}

#[derive(Debug, Args)]
pub(crate) struct TerminalArgs {
    #[command(flatten)]
    pub(crate) typing: TypingFlags,
    /// How long each arm runs in a round [default: 3s; quick: 250ms]
    #[arg(long, env = "KEYPADD_TIME", value_name = "DURATION", value_parser = values::turn_time)]
    pub(crate) time: Option<Duration>,
    #[command(flatten)]
    pub(crate) turns: TurnFlags,
}

#[derive(Debug, Args)]
pub(crate) struct BulkArgs {
    /// Connections at once
    #[arg(long, env = "KEYPADD_STREAMS", value_name = "NUMBER", default_value = "1")]
    #[arg(value_parser = values::connections)]
    pub(crate) streams: u32,
    /// How long each arm continues after its burst [default: 2s; quick: 300ms]
    #[arg(long, env = "KEYPADD_TIME", value_name = "DURATION", value_parser = values::turn_time)]
    pub(crate) time: Option<Duration>,
    /// Size of the burst from a full pool
    #[arg(long, env = "KEYPADD_BURST", value_name = "SIZE", default_value = "3MiB")]
    #[arg(value_parser = values::size)]
    pub(crate) burst: u64,
    /// Direction of the data, seen from this host
    #[arg(long, env = "KEYPADD_DIRECTION", value_name = "WAY", default_value = "up")]
    pub(crate) direction: Direction,
    #[command(flatten)]
    pub(crate) turns: TurnFlags,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Direction {
    Up,
    Down,
}

#[derive(Debug, Args)]
pub(crate) struct MixedArgs {
    #[command(flatten)]
    pub(crate) typing: TypingFlags,
    /// Streams of bulk data
    #[arg(long, env = "KEYPADD_STREAMS", value_name = "NUMBER", default_value = "1")]
    #[arg(value_parser = values::connections)]
    pub(crate) streams: u32,
    /// How long each arm runs in a round [default: 3s; quick: 500ms]
    #[arg(long, env = "KEYPADD_TIME", value_name = "DURATION", value_parser = values::turn_time)]
    pub(crate) time: Option<Duration>,
    #[command(flatten)]
    pub(crate) turns: TurnFlags,
}

#[derive(Debug, Args)]
pub(crate) struct VoiceArgs {
    /// Streams of bulk data
    #[arg(long, env = "KEYPADD_STREAMS", value_name = "NUMBER", default_value = "1")]
    #[arg(value_parser = values::connections)]
    pub(crate) streams: u32,
    /// How long each arm calls in a round, alone and again beside bulk data [default: 3s; quick: 500ms]
    #[arg(long, env = "KEYPADD_TIME", value_name = "DURATION", value_parser = values::turn_time)]
    pub(crate) time: Option<Duration>,
    #[command(flatten)]
    pub(crate) turns: TurnFlags,
}

#[derive(Debug, Args)]
pub(crate) struct FilesArgs {
    /// Numbers of clients, tested one by one
    #[arg(long, env = "KEYPADD_CLIENTS", value_name = "NUMBER", default_value = "4,8,16")]
    #[arg(value_delimiter = ',', value_parser = values::connections)]
    pub(crate) clients: Vec<u32>,
    /// File sizes, and the relative weight of each
    #[arg(long, env = "KEYPADD_FILE", value_name = "SIZE[:WEIGHT]", value_delimiter = ',')]
    #[arg(value_parser = values::file, default_value = "1KiB:4,10KiB:4,100KiB:2")]
    pub(crate) file: Vec<(u64, f64)>,
    /// Requests per second from each client
    #[arg(long, env = "KEYPADD_RATE", value_name = "PER-SECOND", default_value = "20")]
    #[arg(value_parser = values::rate, allow_negative_numbers = true)]
    pub(crate) rate: f64,
    /// How long each number of clients runs in a round [default: 2s; quick: 300ms]
    #[arg(long, env = "KEYPADD_TIME", value_name = "DURATION", value_parser = values::turn_time)]
    pub(crate) time: Option<Duration>,
    #[command(flatten)]
    pub(crate) turns: TurnFlags,
}

#[derive(Debug, Args)]
pub(crate) struct ExhaustionArgs {
    /// Memory for keystream at each end, tested one by one
    #[arg(long, env = "KEYPADD_POOL_BUDGET", value_name = "SIZE", default_value = "16MiB")]
    #[arg(value_delimiter = ',', value_parser = values::pool_budget)]
    pub(crate) pool_budget: Vec<usize>,
    /// Load on every core by other programs, in percent, tested one by one
    ///
    /// At 100 no CPU is idle: the pool never fills. [default: 0,50,100; quick: 0]
    #[arg(long, env = "KEYPADD_BACKGROUND", value_name = "PERCENT", value_delimiter = ',')]
    #[arg(value_parser = values::percent)]
    pub(crate) background: Vec<f64>,
    /// Longest test at one rate; a pool that lasts this long counts as sustained [default: 4s; quick: 1s]
    #[arg(long, env = "KEYPADD_TIME", value_name = "DURATION", value_parser = values::turn_time)]
    pub(crate) time: Option<Duration>,
    /// One short round without a load: a suite takes two minutes at most
    #[arg(long, env = "KEYPADD_QUICK", value_parser = values::switch)]
    pub(crate) quick: bool,
    #[command(flatten)]
    pub(crate) tunnel: TunnelFlags,
    #[command(flatten)]
    pub(crate) run: RunFlags,
}

#[derive(Debug, Args)]
pub(crate) struct KexArgs {
    /// Key exchanges to compare
    ///
    /// Those of `keypadd connect`, and for benchmarks only: modp-768, modp-1024, modp-3072 and
    /// ffdhe3072.
    #[arg(long, env = "KEYPADD_KEX", value_name = "NAME", value_delimiter = ',')]
    #[arg(value_parser = values::bench_kex, default_value = "x25519,x25519mlkem768,secp384r1")]
    pub(crate) kex: Vec<Group>,
    /// Sequential handshakes of each arm, in the first half of its time
    #[arg(long, env = "KEYPADD_HANDSHAKES", value_name = "NUMBER", default_value = "100")]
    #[arg(value_parser = values::count)]
    pub(crate) handshakes: u32,
    /// Handshakes per second in the second half, started whether or not earlier ones are done
    #[arg(long, env = "KEYPADD_RATE", value_name = "PER-SECOND", default_value = "100")]
    #[arg(value_parser = values::rate, allow_negative_numbers = true)]
    pub(crate) rate: f64,
    /// How long that second half lasts
    #[arg(long, env = "KEYPADD_TIME", value_name = "DURATION", default_value = "2s")]
    #[arg(value_parser = values::turn_time)]
    pub(crate) time: Duration,
    #[command(flatten)]
    pub(crate) run: RunFlags,
}

#[derive(Debug, Args)]
pub(crate) struct SuitesArgs {
    /// Suites to compare: those of every `--suite` here
    #[arg(long, env = "KEYPADD_SUITE", value_name = "NAME", value_delimiter = ',')]
    #[arg(value_parser = values::bench_suite)]
    #[arg(
        default_value = "aes-256-gcm,aes-128-gcm,chacha20-poly1305,aes-256-ctr-hmac-sha256,3des-ctr-hmac-sha1"
    )]
    pub(crate) suite: Vec<Protection>,
    /// Implementation of DES and 3DES, as for the other workloads
    #[arg(long, env = "KEYPADD_CIPHER_BACKEND", value_name = "NAME", default_value = "auto")]
    #[arg(value_parser = values::cipher_backend)]
    pub(crate) cipher_backend: CipherEngine,
    /// Pool size of the cold-cache case
    #[arg(long, env = "KEYPADD_POOL_BUDGET", value_name = "SIZE", default_value = "64MiB")]
    #[arg(value_parser = values::pool_budget)]
    pub(crate) pool_budget: usize,
    /// Round-trip time to compare savings with
    #[arg(long, env = "KEYPADD_RTT", value_name = "DURATION", default_value = "100us")]
    #[arg(value_parser = values::some_round_trip)]
    pub(crate) rtt: Duration,
    #[command(flatten)]
    pub(crate) run: RunFlags,
}

#[derive(Debug, Args)]
pub(crate) struct PathsArgs {
    /// Line rates, in Mbit/s of IP packets, as 300, or 100/2 where the uplink is slower
    #[arg(long, env = "KEYPADD_LINE", value_name = "MBIT/S", value_delimiter = ',')]
    #[arg(default_value = "300", value_parser = values::line_rate, help_heading = "Line")]
    pub(crate) line: Vec<LineRate>,
    /// Round-trip times of the idle line
    #[arg(long, env = "KEYPADD_RTT", value_name = "DURATION", value_delimiter = ',')]
    #[arg(default_value = "20ms,150ms", value_parser = values::round_trip, help_heading = "Line")]
    pub(crate) rtt: Vec<Duration>,
    /// Random packet loss in each direction, in percent [default: 0,0.5,2,10,20; quick: 0,2,10]
    #[arg(long, env = "KEYPADD_LOSS", value_name = "PERCENT", value_delimiter = ',')]
    #[arg(value_parser = values::loss, help_heading = "Line")]
    pub(crate) loss: Vec<f64>,
    /// Lose packets after the bottleneck instead of before it
    #[arg(long, env = "KEYPADD_LOSS_AFTER", value_parser = values::switch, help_heading = "Line")]
    pub(crate) loss_after: bool,
    /// Also measure every case with bulk data in both directions
    #[arg(long, env = "KEYPADD_TWO_WAY", value_parser = values::switch, help_heading = "Line")]
    pub(crate) two_way: bool,
    /// Arms to run: keypadd, keypadd-cubic, tcp-cubic, tcp-bbr, stunnel-cubic, stunnel-bbr and keypadd-3des
    ///
    /// [default: all but keypadd-3des]
    #[arg(long, env = "KEYPADD_ARMS", value_name = "ARM", value_delimiter = ',')]
    #[arg(help_heading = "Arms")]
    pub(crate) arms: Vec<String>,
    /// Add an arm: keypadd with these flags at both ends, split at white space
    #[arg(long, env = "KEYPADD_ARM", value_name = "NAME=FLAGS", value_parser = values::arm)]
    #[arg(help_heading = "Arms")]
    pub(crate) arm: Vec<(String, String)>,
    /// The keypadd to measure [default: the one next to this program]
    #[arg(long, env = "KEYPADD_KEYPADD", value_name = "PATH", value_parser = path_parser())]
    #[arg(help_heading = "Arms")]
    pub(crate) keypadd: Option<PathBuf>,
    /// How long to measure the steady state, after startup [default: 8s; quick: 2s]
    #[arg(long, env = "KEYPADD_TIME", value_name = "DURATION", value_parser = values::turn_time)]
    pub(crate) time: Option<Duration>,
    /// One short round with fewer loss rates, in a few minutes: numbers without verdicts
    #[arg(long, env = "KEYPADD_QUICK", value_parser = values::switch)]
    pub(crate) quick: bool,
    #[command(flatten)]
    pub(crate) run: RunFlags,
}

#[derive(Debug, Args)]
pub(crate) struct NetworksArgs {
    /// Arms to run: plain, vxlan, keypadd, keypadd-3des, keypadd-pooled, keypadd-null, boringtun,
    /// gotatun, wireguard-go, openvpn, openvpn-3des, strongswan, strongswan-3des, tinc and quincy
    /// [default: all]
    #[arg(long, env = "KEYPADD_ARMS", value_name = "ARM", value_delimiter = ',')]
    #[arg(help_heading = "Arms")]
    pub(crate) arms: Vec<String>,
    /// How long each load of an arm is measured
    #[arg(long, env = "KEYPADD_TIME", value_name = "DURATION", default_value = "2s")]
    #[arg(value_parser = values::turn_time)]
    pub(crate) time: Duration,
    #[command(flatten)]
    pub(crate) run: RunFlags,
}

#[derive(Debug, Args)]
pub(crate) struct ReproduceArgs {
    /// The papers, or all
    #[arg(value_name = "PAPER", value_delimiter = ',', required = true)]
    #[arg(value_parser = values::papers)]
    pub(crate) paper: Vec<Papers>,
    /// Fewer and shorter repetitions: all papers in under five minutes
    ///
    /// Intervals are wider, and experiments that do not fit are skipped. The report says how much
    /// weaker the results are.
    #[arg(long, env = "KEYPADD_QUICK", value_parser = values::switch)]
    pub(crate) quick: bool,
    /// Time for all papers together, whether every claim is decided or not
    ///
    /// [default: none; quick: under five minutes, less for fewer papers]
    #[arg(long, env = "KEYPADD_TIME_BUDGET", value_name = "DURATION")]
    #[arg(value_parser = values::time_budget)]
    pub(crate) time_budget: Option<Duration>,
    #[command(flatten)]
    pub(crate) report: ReportFlags,
}

/// The papers that one value names: a single one, or all.
#[derive(Clone, Debug)]
pub(crate) struct Papers(pub(crate) Vec<Paper>);

#[cfg(test)]
mod tests {

    use super::*;

    #[test]
    fn every_flag_has_the_variable_of_its_name_and_every_verb_an_example() {
        Cli::command().debug_assert();
        assert_eq!(
            keypadd_cli::inconsistencies(&Cli::command(), "keypadd bench"),
            Vec::<String>::new()
        );
    }
}
