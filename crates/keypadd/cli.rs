//! The command line: verbs, flags, their variables and their help. Every long flag has a `KEYPADD_*`
//! variable; list flags repeat or take commas. Knows what can be said, not whether it makes sense
//! together: a verb's own file judges that.

#![expect(
    rustdoc::broken_intra_doc_links,
    reason = "comments on flags are help texts: their brackets are the command line's"
)]

mod values;

use std::ffi::OsString;
use std::net::{Ipv6Addr, SocketAddr};
use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, CommandFactory, Parser, Subcommand, ValueEnum};
use keypadd_config::values::PoolMode;
use keypadd_keystream::{CipherEngine, Suite};
use keypadd_provider::{KeyExchange, PublicKey};
use keypadd_tunnel::{
    Congestion, DEFAULT_PORT, DynamicForward, ListenPermit, LocalForward, Permit, RemoteForward,
    ServerAddress, SpinShare, Target,
};

pub(crate) use keypadd_cli::logging::{LogFlags, LogFormat};
pub(crate) use keypadd_cli::values::memory_bytes;
pub(crate) use values::Allowed;
use values::path_parser;

/// Tunnels TCP over UDP on keystream that idle CPU has made ahead of need
///
/// keypadd carries TCP connections between two hosts inside one encrypted UDP connection (QUIC).
/// While the CPU is idle it fills a pool with keystream, the costly half of encryption, so that
/// sending is an XOR and a checksum. When the pool runs dry the same bytes are made on the spot.
#[derive(Debug, Parser)]
#[command(name = "keypadd", version, max_term_width = 100, disable_help_subcommand = true)]
#[command(after_help = "\
Two hosts in a minute:
  both hosts  keypadd keygen
  far host    keypadd serve --allow NEAR-HOSTS-KEY --permit-open localhost:22
  near host   keypadd connect FAR-HOST --peer FAR-HOSTS-KEY -L 2222:localhost:22
  near host   ssh -p 2222 localhost

`keypadd COMMAND --help` says more about a command. Every flag can also be set by
a variable: --pool-budget is KEYPADD_POOL_BUDGET.

Exit codes: 0 ok, 1 failed while running, 2 wrong command line, 3 unusable
configuration or key file, 4 one end refused the other, 5 the other end does not answer, 6 a local
address cannot be bound.")]
pub(crate) struct Cli {
    #[command(subcommand)]
    pub(crate) verb: Verb,
    #[command(flatten)]
    pub(crate) log: LogFlags,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Verb {
    /// Make this host's key and print its public half
    ///
    /// The private key goes to FILE, readable by you alone; an existing file is never overwritten.
    /// Standard output is the public key and nothing else.
    #[command(after_help = "Example:\n  keypadd keygen")]
    Keygen(KeyFileArgs),
    /// Print the public half of a key file
    #[command(after_help = "Example:\n  keypadd pubkey /etc/keypadd/key")]
    Pubkey(KeyFileArgs),
    /// Let listed peers in and connect them to permitted targets
    ///
    /// Says on standard error when it is ready, with the exact line to run on the other host.
    /// Ctrl-C or SIGTERM ends it.
    #[command(after_help = "\
Examples:
  keypadd serve --allow laptop=PUBLIC-KEY --permit-open localhost:22,10.0.0.0/8:5432
  keypadd serve --allow laptop=PUBLIC-KEY --permit-listen 8080")]
    Serve(Box<ServeArgs>),
    /// Reach a server and forward ports, or standard input and output, through it
    ///
    /// Binds its listeners first, then connects, then says on standard error that it is ready.
    /// Ctrl-C or SIGTERM ends it.
    #[command(after_help = "\
Examples:
  keypadd connect host.example --peer PUBLIC-KEY -L 2222:localhost:22
  keypadd connect host.example --peer PUBLIC-KEY -L /tmp/db.sock:db.internal:5432 -D 1080
  keypadd connect host.example --peer PUBLIC-KEY -R 8080:localhost:80
  ssh -o ProxyCommand='keypadd connect host.example --peer PUBLIC-KEY -W %h:%p' user@localhost")]
    Connect(Box<ConnectArgs>),
    /// Be what a configuration file says: any mix of listening, peers and forwards
    ///
    /// One daemon for both roles. Tries to reach dialled peers for ever, also the first time. SIGHUP
    /// and `keypadd reload` apply a changed file; Ctrl-C or SIGTERM ends it.
    #[command(after_help = "\
Example:
  keypadd check --config keypadd.toml && keypadd run --config keypadd.toml

A file for both roles:
  listen = \"[::]:4433\"
  [peer.laptop]
  public-key = \"PUBLIC-KEY\"
  permit-open = [\"localhost:22\"]
  [peer.lab]
  public-key = \"PUBLIC-KEY\"
  endpoint = \"lab.example\"
  local = [\"2222:localhost:22\"]")]
    Run(ConfigArgs),
    /// Have a running `keypadd run` read its file again
    ///
    /// Applies keys, peers, permits, forwards and the pool's budget; established connections stay.
    /// Says what has changed and what waits for a restart. With a file that has errors nothing changes.
    #[command(after_help = "Example:\n  keypadd reload")]
    Reload(ReloadArgs),
    /// Show what a configuration file would do, and everything that is wrong in it
    ///
    /// Checks the key file as well. Starts nothing and changes nothing.
    #[command(after_help = "Example:\n  keypadd check --config keypadd.toml")]
    Check(ConfigArgs),
    /// Show the daemons that run on this host: peers, suite, round trip, pool
    #[command(after_help = "Example:\n  keypadd status --json")]
    Status(StatusArgs),
    /// Print a shell's completions
    #[command(after_help = "\
Examples:
  keypadd completions bash > ~/.local/share/bash-completion/completions/keypadd
  keypadd completions zsh  > ~/.zfunc/_keypadd
  keypadd completions fish > ~/.config/fish/completions/keypadd.fish")]
    Completions(CompletionsArgs),
    /// Print the manual page, or write the pages of all commands
    #[command(after_help = "\
Examples:
  keypadd man | man -l -
  keypadd man /usr/local/share/man/man1")]
    Man(ManArgs),
    /// See a tunnel work: both ends in this process, traffic, figures, a verdict
    ///
    /// Types and sends bulk data over UDP on loopback: through 3DES with a pool, through 3DES without,
    /// through AES with a pool. Takes about 20 seconds, writes no file and leaves nothing running.
    /// Ctrl-C ends it with the figures so far.
    #[command(after_help = "Example:\n  keypadd demo")]
    Demo(DemoArgs),
    /// Measure terminal-style against bulk traffic, suite by suite
    ///
    /// Starts the program keypadd-bench, found beside this one or on PATH, with the same arguments.
    #[command(after_help = "Example:\n  keypadd bench terminal --out report")]
    #[command(disable_help_flag = true)]
    Bench(BenchArgs),
}

#[derive(Debug, Args)]
pub(crate) struct KeyFileArgs {
    /// The private key's file [default: /etc/keypadd/key for root, else ~/.config/keypadd/key]
    #[arg(value_parser = path_parser())]
    pub(crate) file: Option<PathBuf>,
}

#[derive(Debug, Args)]
pub(crate) struct ServeArgs {
    /// Let in the peer with this public key; NAME stands for it in logs and metrics
    #[arg(long, env = "KEYPADD_ALLOW", value_name = "[NAME=]PUBKEY")]
    #[arg(value_delimiter = ',', allow_hyphen_values = true, value_parser = values::allowed)]
    pub(crate) allow: Vec<Allowed>,
    /// UDP address to listen on; port 0 picks a free one
    ///
    /// [::] takes IPv4 as well.
    #[arg(long, env = "KEYPADD_LISTEN", value_name = "ADDR:PORT", value_parser = values::socket)]
    #[arg(default_value_t = SocketAddr::from((Ipv6Addr::UNSPECIFIED, DEFAULT_PORT)))]
    pub(crate) listen: SocketAddr,
    /// Targets that peers may reach: HOST:PORT, HOST:*, *:PORT, CIDR:PORT, *:* or /PATH
    ///
    /// /PATH is a unix socket of this host. Names are resolved here, and the address that was compared
    /// is the one connected to. `localhost` is 127.0.0.1 and ::1.
    #[arg(long, env = "KEYPADD_PERMIT_OPEN", value_name = "PATTERN")]
    #[arg(value_delimiter = ',', value_parser = values::permit)]
    pub(crate) permit_open: Vec<Permit>,
    /// Where peers may listen here (-R): PORT, HOST:PORT, HOST:*, *:PORT, *:* or /PATH
    ///
    /// PORT alone is loopback's; to listen on every address of this host takes `*`. /PATH is a unix
    /// socket. Without any, peers listen nowhere.
    #[arg(long, env = "KEYPADD_PERMIT_LISTEN", value_name = "PATTERN")]
    #[arg(value_delimiter = ',', value_parser = values::listen_permit)]
    pub(crate) permit_listen: Vec<ListenPermit>,
    /// Let peers measure: run a service that answers `keypadd bench`, and accept what only that offers
    ///
    /// Suites and key exchanges for measurements protect little or nothing, so connections with them
    /// reach that service and nothing else.
    #[arg(long, env = "KEYPADD_PERMIT_BENCH")]
    pub(crate) permit_bench: bool,
    /// Suites to accept [default: every standard suite]
    ///
    /// Standard: aes-256-gcm, aes-128-gcm, aes-{256,128}-ctr-hmac-{sha256,sha1}.
    /// Legacy, insecure, only with --allow-legacy: {3des,des}-ctr-hmac-{sha256,sha1}.
    #[arg(long, env = "KEYPADD_SUITE", value_name = "NAME")]
    #[arg(value_delimiter = ',', value_parser = values::suite)]
    pub(crate) suite: Vec<Suite>,
    /// Key exchanges to accept: x25519, x25519mlkem768, secp384r1 [default: all three]
    #[arg(long, env = "KEYPADD_KEX", value_name = "NAME")]
    #[arg(value_delimiter = ',', value_parser = values::kex)]
    pub(crate) kex: Vec<KeyExchange>,
    #[command(flatten)]
    pub(crate) daemon: DaemonFlags,
}

#[derive(Debug, Args)]
pub(crate) struct ConnectArgs {
    /// The server, a name or an address; an IPv6 address with a port goes in brackets
    ///
    /// The port is UDP, 4433 unless given.
    #[arg(value_name = "HOST[:PORT]", value_parser = values::server)]
    pub(crate) server: ServerAddress,
    /// The server's public key, as `keypadd pubkey` prints it there
    #[arg(long, env = "KEYPADD_PEER", value_name = "PUBKEY", value_parser = values::public_key)]
    #[arg(allow_hyphen_values = true)]
    pub(crate) peer: Option<PublicKey>,
    /// Listen here and connect to HOST:HOSTPORT from the server
    ///
    /// As in ssh: [BIND:]PORT:HOST:HOSTPORT. BIND is loopback unless given, `*` is every address, and
    /// IPv6 addresses go in brackets. Port 0 picks a free one. The /PATH of a unix socket may stand
    /// for [BIND:]PORT, for HOST:HOSTPORT or for both.
    #[arg(short = 'L', long, env = "KEYPADD_LOCAL", value_name = "[BIND:]PORT:HOST:HOSTPORT")]
    #[arg(value_delimiter = ',', value_parser = values::local_forward)]
    pub(crate) local: Vec<LocalForward>,
    /// Listen on the server and connect to HOST:HOSTPORT from here
    ///
    /// As -L the other way round: BIND is the server's loopback unless given, a /PATH may stand for
    /// either end, and port 0 picks a free one, which is said when ready. The server permits it by
    /// --permit-listen. It never learns what is behind: it names this forward by a number.
    #[arg(short = 'R', long, env = "KEYPADD_REMOTE", value_name = "[BIND:]PORT:HOST:HOSTPORT")]
    #[arg(value_delimiter = ',', value_parser = values::remote_forward)]
    pub(crate) remote: Vec<RemoteForward>,
    /// Listen here as a SOCKS5 proxy and connect from the server to what programs ask for
    ///
    /// CONNECT to IPv4, IPv6 and names, which the server resolves; its --permit-open decides. BIND is
    /// loopback unless given. There is no password: whoever reaches the port may use it.
    #[arg(short = 'D', long, env = "KEYPADD_DYNAMIC", value_name = "[BIND:]PORT")]
    #[arg(value_delimiter = ',', value_parser = values::dynamic_forward)]
    pub(crate) dynamic: Vec<DynamicForward>,
    /// Connect standard input and output to HOST:PORT from the server, as an ssh ProxyCommand does
    #[arg(short = 'W', long, env = "KEYPADD_STDIO", value_name = "HOST:PORT")]
    #[arg(value_parser = values::target, conflicts_with_all = ["local", "remote", "dynamic"])]
    pub(crate) stdio: Option<Target>,
    /// How long the first connection may take, such as 10s or 1m
    #[arg(long, env = "KEYPADD_CONNECT_TIMEOUT", value_name = "DURATION", default_value = "10s")]
    #[arg(value_parser = values::duration)]
    pub(crate) connect_timeout: Duration,
    /// The suite to offer
    ///
    /// Standard: aes-256-gcm, aes-128-gcm, aes-{256,128}-ctr-hmac-{sha256,sha1}.
    /// Legacy, insecure, only with --allow-legacy: {3des,des}-ctr-hmac-{sha256,sha1}.
    #[arg(long, env = "KEYPADD_SUITE", value_name = "NAME", value_parser = values::suite)]
    #[arg(default_value_t = Suite::default())]
    pub(crate) suite: Suite,
    /// The key exchange to offer: x25519, x25519mlkem768 or secp384r1
    #[arg(long, env = "KEYPADD_KEX", value_name = "NAME", value_parser = values::kex)]
    #[arg(default_value_t = KeyExchange::default())]
    pub(crate) kex: KeyExchange,
    #[command(flatten)]
    pub(crate) daemon: DaemonFlags,
}

/// What `serve` and `connect` have in common.
#[derive(Debug, Args)]
pub(crate) struct DaemonFlags {
    /// This host's private key
    ///
    /// [default: $CREDENTIALS_DIRECTORY/key if set, else /etc/keypadd/key for root, else
    /// ~/.config/keypadd/key]
    #[arg(long, env = "KEYPADD_KEY", value_name = "FILE", help_heading = "Common")]
    #[arg(value_parser = path_parser())]
    pub(crate) key: Option<PathBuf>,
    /// Whether keystream is made ahead of need by idle CPU: auto, on, off
    ///
    /// `auto` times each suite at start and makes keystream for those that gain a tenth by it.
    #[arg(long, env = "KEYPADD_POOL", value_name = "MODE", default_value = "auto")]
    #[arg(value_parser = values::pool_mode, help_heading = "Common")]
    pub(crate) pool: PoolMode,
    /// Memory for keystream made ahead of need, at least 1MiB
    #[arg(long, env = "KEYPADD_POOL_BUDGET", value_name = "SIZE", default_value = "64MiB")]
    #[arg(value_parser = values::pool_budget, help_heading = "Common")]
    pub(crate) pool_budget: usize,
    /// How much of one core may go into making keystream ahead of need, in percent
    #[arg(long, env = "KEYPADD_MAX_FILL_CPU", value_name = "PERCENT", default_value = "100")]
    #[arg(value_parser = values::cpu_percent, help_heading = "Common")]
    pub(crate) max_fill_cpu: u8,
    /// End rather than keep that keystream in memory that may be swapped out
    #[arg(long, env = "KEYPADD_REQUIRE_LOCKED", value_parser = values::switch)]
    #[arg(help_heading = "Common")]
    pub(crate) require_locked: bool,
    /// Accept suites that are no longer secure: DES and 3DES
    #[arg(long, env = "KEYPADD_ALLOW_LEGACY", value_parser = values::switch)]
    #[arg(help_heading = "Common")]
    pub(crate) allow_legacy: bool,
    /// How DES and 3DES are computed: auto, bitslice-{64,128,256,512}, des-crate
    ///
    /// For measurements: `auto` is the fastest that this CPU has, and all give the same bytes.
    /// des-crate is the conventional way, slow and not in constant time.
    #[arg(long, env = "KEYPADD_CIPHER_BACKEND", value_name = "NAME", default_value = "auto")]
    #[arg(value_parser = values::cipher_backend, help_heading = "Common")]
    pub(crate) cipher_backend: CipherEngine,
    /// Congestion control: cubic yields as TCP does, bbr keeps its speed where packets get lost
    #[arg(long, env = "KEYPADD_CONGESTION", value_name = "NAME")]
    #[arg(default_value_t = Congestion::default(), value_parser = values::congestion)]
    #[arg(help_heading = "Common")]
    pub(crate) congestion: Congestion,
    /// Share of one core that each event loop may spend on polling before it sleeps; 0 is off
    ///
    /// For 80 us after it had something to do, a loop polls instead of sleeping: an answer that comes in
    /// that time meets a thread that is awake.
    #[arg(long, env = "KEYPADD_SPIN", value_name = "PERCENT")]
    #[arg(default_value_t = SpinShare::default(), value_parser = values::spin)]
    #[arg(help_heading = "Common")]
    pub(crate) spin: SpinShare,
    /// Event loops of a server, a thread each [default: one for each core, from 2 to 8]
    ///
    /// They share its connections. A client has two at most: one for what is typed, one for bulk data.
    #[arg(long, env = "KEYPADD_LOOPS", value_name = "NUMBER", value_parser = values::loops)]
    #[arg(help_heading = "Common")]
    pub(crate) loops: Option<usize>,
    /// Forwarded connections that a session carries at once, each way [default: 1024]
    ///
    /// Both ends have to allow them. What comes beyond waits in the listener's queue.
    #[arg(long, env = "KEYPADD_MAX_FORWARDS", value_name = "NUMBER")]
    #[arg(value_parser = values::max_forwards, help_heading = "Common")]
    pub(crate) max_forwards: Option<u32>,
    /// On SIGTERM, how long open connections may take to finish, such as 10s; 0s cuts them off
    ///
    /// Ctrl-C cuts them off, and so does a second signal.
    #[arg(long, env = "KEYPADD_DRAIN_TIMEOUT", value_name = "DURATION", default_value = "10s")]
    #[arg(value_parser = values::drain_timeout, help_heading = "Common")]
    pub(crate) drain_timeout: Duration,
    /// Serve Prometheus metrics at http://ADDR:PORT/metrics
    #[arg(long, env = "KEYPADD_METRICS", value_name = "ADDR:PORT", value_parser = values::socket)]
    #[arg(help_heading = "Common")]
    pub(crate) metrics: Option<SocketAddr>,
}

#[derive(Debug, Args)]
pub(crate) struct ConfigArgs {
    /// The configuration file
    ///
    /// [default: $CONFIGURATION_DIRECTORY/keypadd.toml if set, else /etc/keypadd/keypadd.toml for
    /// root, else ~/.config/keypadd/keypadd.toml]
    #[arg(long, env = "KEYPADD_CONFIG", value_name = "FILE", value_parser = path_parser())]
    pub(crate) config: Option<PathBuf>,
}

#[derive(Debug, Args)]
pub(crate) struct CompletionsArgs {
    /// The shell
    pub(crate) shell: CompletedShell,
}

/// The shells that completions are made for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum CompletedShell {
    Bash,
    Zsh,
    Fish,
}

#[derive(Debug, Args)]
pub(crate) struct ManArgs {
    /// Write keypadd.1 and a page for each command into this directory
    #[arg(value_name = "DIR", value_parser = path_parser())]
    pub(crate) directory: Option<PathBuf>,
}

#[derive(Debug, Args)]
pub(crate) struct ReloadArgs {
    /// Ask the daemon behind this socket [default: every `keypadd run` of this user]
    #[arg(long, env = "KEYPADD_SOCKET", value_name = "PATH")]
    #[arg(value_parser = path_parser())]
    pub(crate) socket: Option<PathBuf>,
}

#[derive(Debug, Args)]
pub(crate) struct StatusArgs {
    /// Ask the daemon behind this socket [default: every daemon of this user]
    #[arg(long, env = "KEYPADD_SOCKET", value_name = "PATH")]
    #[arg(value_parser = path_parser())]
    pub(crate) socket: Option<PathBuf>,
    /// Print JSON; with --watch a line each second
    #[arg(long, env = "KEYPADD_JSON", value_parser = values::switch)]
    pub(crate) json: bool,
    /// Show it anew every second, until Ctrl-C
    #[arg(long, env = "KEYPADD_WATCH", value_parser = values::switch)]
    pub(crate) watch: bool,
}

#[derive(Debug, Args)]
pub(crate) struct DemoArgs {
    /// Print JSON, once, at the end
    #[arg(long, env = "KEYPADD_JSON", value_parser = values::switch)]
    pub(crate) json: bool,
    /// How 3DES is computed: des-crate, auto, bitslice-{64,128,256,512}
    ///
    /// des-crate is the conventional way, a block at a time; auto the one that daemons use.
    #[arg(long, env = "KEYPADD_CIPHER_BACKEND", value_name = "NAME", default_value = "des-crate")]
    #[arg(value_parser = values::cipher_backend)]
    pub(crate) cipher_backend: CipherEngine,
}

#[derive(Debug, Args)]
pub(crate) struct BenchArgs {
    /// What keypadd-bench is told; `keypadd bench --help` shows what it takes
    #[arg(value_name = "ARGS", trailing_var_arg = true, allow_hyphen_values = true)]
    pub(crate) arguments: Vec<OsString>,
}

/// The definition behind everything, for what is made from it: completions and manual pages.
pub(crate) fn definition() -> clap::Command {
    Cli::command().mut_args(|arg| arg.hide_env_values(true))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_definition_holds_together() {
        Cli::command().debug_assert();
    }

    #[test]
    fn every_long_flag_has_the_variable_of_its_name() {
        for verb in Cli::command().get_subcommands() {
            for flag in verb.get_arguments().filter(|flag| flag.get_long().is_some()) {
                let long = flag.get_long().unwrap();
                let name = format!("KEYPADD_{}", long.to_uppercase().replace('-', "_"));
                let variable = flag.get_env().map(|name| name.to_string_lossy().into_owned());
                assert_eq!(variable, Some(name), "{} --{long}", verb.get_name());
            }
        }
    }

    #[test]
    fn every_verb_shows_an_example() {
        for verb in Cli::command().get_subcommands() {
            let help = verb.get_after_help().map(ToString::to_string).unwrap_or_default();
            let name = verb.get_name();
            assert!(help.contains(&format!("keypadd {name}")), "{name}");
        }
    }
}
