//! Defines the command line: commands, flags, their variables and help. Checks each value by
//! itself; combinations are checked by the command's own file.

mod asking;
pub(crate) mod configfile;
pub(crate) mod host_key;
pub(crate) mod named;
pub(crate) mod server_id;
mod ssh;
mod values;

use std::ffi::OsString;
use std::path::PathBuf;

use clap::{Args, CommandFactory, Parser, Subcommand, ValueEnum};
use keypadd_keystream::CipherEngine;
use keypadd_provider::PublicKey;
use keypadd_tunnel::Target;

pub(crate) use asking::{
    ConnectionsArgs, DrainArgs, ForwardAction, ForwardArgs, PeersArgs, ReloadArgs, StatusArgs,
};
pub(crate) use keypadd_cli::flags::{self, Flags};
pub(crate) use keypadd_cli::logging::LogFlags;
use keypadd_cli::values::path_parser;
pub(crate) use ssh::SshFlags;
pub(crate) use values::{Allowed, InvitationFrom, Server, checked, expires, host, invitation};

/// Forward TCP, UDP and networks through an encrypted tunnel
///
/// keypadd carries TCP, UDP and IP networks between two hosts inside one encrypted UDP connection
/// (QUIC). While the CPU is idle it fills a pool with keystream, the expensive half of encryption,
/// so that sending is an XOR and a MAC. When the pool runs dry, the same bytes are computed on the
/// spot.
#[derive(Debug, Parser)]
#[command(name = "keypadd", version, max_term_width = 100, disable_help_subcommand = true)]
#[command(after_help = "\
Two hosts in a minute:
  far host    keypadd invite laptop --permit-open localhost:22
  near host   keypadd join --name lab
  far host    keypadd run
  near host   keypadd connect @lab -L 2222:localhost:22
  near host   ssh -p 2222 localhost

`keypadd COMMAND --help` says more about a command. Every flag can also be set by an environment
variable: --pool-budget is KEYPADD_POOL_BUDGET.

Exit codes: 0 success, 1 runtime error, 2 invalid command line, 3 invalid configuration or key file,
4 one end rejected the other, 5 the other end does not answer, 6 a local address cannot be bound.")]
pub(crate) struct Cli {
    #[command(subcommand)]
    pub(crate) verb: Verb,
    #[command(flatten)]
    pub(crate) log: LogFlags,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Verb {
    /// Generate this host's key and print its public half
    ///
    /// Writes the private key to FILE, readable by you only; never overwrites a file. Prints only
    /// the public key on standard output.
    #[command(after_help = "Example:\n  keypadd keygen")]
    Keygen(KeyFileArgs),
    /// Print the public half of a key file
    #[command(after_help = "Example:\n  keypadd pubkey /etc/keypadd/key")]
    Pubkey(KeyFileArgs),
    /// Pair with another host: print an invitation for `keypadd join` there, and wait for it
    ///
    /// The invitation works once, within ten minutes; whoever has it can join. Once the other host
    /// has joined, this host's configuration file lists it as NAME, with these permits, and a
    /// running `keypadd run` has reloaded the file. If the file's UDP port is in use, as by that
    /// daemon, pairing uses another one, which firewalls must allow too. Creates the key and the
    /// file if there are none.
    #[command(after_help = "\
Examples:
  keypadd invite laptop --permit-open localhost:22
  ssh far keypadd invite laptop --permit-open localhost:22 | keypadd join")]
    Invite(Box<InviteArgs>),
    /// Pair with the host where `keypadd invite` printed this invitation
    ///
    /// Both hosts learn each other's key. This host's configuration file then lists the other host,
    /// for `keypadd connect @NAME` and `keypadd run`. Creates the key and the file if there are
    /// none.
    #[command(after_help = "\
Examples:
  keypadd join
  keypadd join --name lab < invitation.txt")]
    Join(Box<JoinArgs>),
    /// Accept allowed peers and connect them to permitted targets
    ///
    /// When ready, prints the command to run on the other host on standard error. Stop it with
    /// Ctrl-C or SIGTERM.
    #[command(after_help = "\
Examples:
  keypadd serve --allow laptop=PUBLIC-KEY --permit-open localhost:22,10.0.0.0/8:5432
  keypadd serve --allow laptop=PUBLIC-KEY --permit-listen 8080")]
    Serve(Box<ServeArgs>),
    /// Connect to a server and forward ports, or standard input and output, through it
    ///
    /// Binds its listeners, connects, then reports that it is ready on standard error. Stop it with
    /// Ctrl-C or SIGTERM.
    #[command(after_help = "\
Examples:
  keypadd connect host.example --peer PUBLIC-KEY -L 2222:localhost:22
  keypadd connect host.example --peer PUBLIC-KEY -L /tmp/db.sock:db.internal:5432 -D 1080
  keypadd connect host.example --peer PUBLIC-KEY -R 8080:localhost:80
  ssh -o ProxyCommand='keypadd connect host.example --peer PUBLIC-KEY -W %h:%p' user@localhost
  ssh -o ProxyCommand='keypadd connect @lab -W %h:%p' user@localhost")]
    Connect(Box<ConnectArgs>),
    /// Run as server, client or both from a configuration file
    ///
    /// Retries connections to peers forever, even the first ones. SIGHUP and `keypadd reload` apply
    /// a changed file. Stop it with Ctrl-C or SIGTERM.
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
    /// Make a running `keypadd run` reload its file
    ///
    /// Applies changed keys, peers, permits, forwards and pool settings without closing
    /// connections. Prints what changed and what needs a restart. A file with errors changes
    /// nothing. With --binary, as after an upgrade, a new process of this program takes over from
    /// the daemon.
    #[command(after_help = "Examples:\n  keypadd reload\n  keypadd reload --binary")]
    Reload(ReloadArgs),
    /// List, add or remove forwards of a running daemon
    ///
    /// Works for `keypadd run`, and for `keypadd connect` with forwards. Open connections of a
    /// removed forward stay. Changes last until the daemon exits. A reload restores the file's
    /// forwards and keeps added ones, except where the file now uses their listen address. A -R
    /// that the server refuses is not added. If it does not answer in time, the daemon's log and
    /// `keypadd status` show whether it listens.
    #[command(after_help = "\
Examples:
  keypadd forward list
  keypadd forward add @lab -L 5432:db.internal:5432
  keypadd forward remove @lab -L 5432:db.internal:5432")]
    Forward(ForwardArgs),
    /// Stop a running server from accepting new sessions
    ///
    /// Clients open new connections at another server if they know one, and otherwise here as
    /// before. Open connections stay until they end. /readyz returns 503. Lasts until --off or a
    /// restart.
    #[command(after_help = "\
Examples:
  keypadd drain --for 10m
  keypadd drain --off")]
    Drain(DrainArgs),
    /// Check a configuration file and print what it sets
    ///
    /// Reports every error at once, including those in the key file. Starts and changes nothing.
    #[command(after_help = "Example:\n  keypadd check --config keypadd.toml")]
    Check(ConfigArgs),
    /// Check this host, its files and the path to each peer, and suggest fixes
    ///
    /// Looks at limits, UDP buffers, CPU, clock, keys and files, daemons and the service, and what
    /// networks need, measures whether a pool pays off here, and connects to each peer in the file,
    /// or only to @NAME. Changes nothing.
    #[command(after_help = "\
Exits with 1 if a check failed; a warning means that something works less well.

Examples:
  keypadd doctor
  keypadd doctor @lab")]
    Doctor(DoctorArgs),
    /// Show the daemons running on this host: peers, suite, round trip, pool
    #[command(after_help = "\
Exits with 5 if no daemon answers or a daemon is not connected to one of its peers.

Example:
  keypadd status --json")]
    Status(StatusArgs),
    /// List the forwarded connections: peer, target, age, bytes, state
    ///
    /// A connection is open; held while its peer is away; connecting, while it waits for a session
    /// or its target; or waiting for a free slot (max-forwards). Lists at most 1,000 connections of
    /// each daemon, those that have carried the most bytes.
    #[command(after_help = "\
Exits with 5 if no daemon answers.

Examples:
  keypadd connections
  keypadd connections @lab --json")]
    Connections(ConnectionsArgs),
    /// List the daemons' peers: keys, file, permits, and whether they are connected
    #[command(after_help = "\
Exits with 5 if no daemon answers.

Example:
  keypadd peers --json")]
    Peers(PeersArgs),
    /// Print shell completions
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
    /// Show what a tunnel is for: an outage, keystrokes beside a download, the pool
    ///
    /// Runs both ends of tunnels in this process, and plain TCP beside them, over a slow line that
    /// this process emulates. Takes about 20 seconds, needs no root, writes no files and leaves
    /// nothing running. Fails if a byte was wrong, whatever the verdicts. Ctrl-C stops it after the
    /// parts that are complete.
    #[command(after_help = "Examples:\n  keypadd demo\n  keypadd demo --pool")]
    Demo(DemoArgs),
    /// Benchmark suites with and without a pool
    ///
    /// Starts the program keypadd-bench, found next to this one or on PATH, with the same
    /// arguments.
    #[command(after_help = "Example:\n  keypadd bench terminal --out report")]
    #[command(disable_help_flag = true)]
    Bench(BenchArgs),
}

#[derive(Debug, Args)]
pub(crate) struct KeyFileArgs {
    /// The private key file [default: /etc/keypadd/key for root, else ~/.config/keypadd/key]
    #[arg(value_parser = path_parser())]
    pub(crate) file: Option<PathBuf>,
}

// Values that only `invite` and `join` have are checked there: clap's code for a value is compiled
// for each type.
#[derive(Debug, Args)]
pub(crate) struct InviteArgs {
    /// Name for the other host, in the configuration file, logs and metrics
    pub(crate) name: String,
    /// This host's name or address, for the other one [default: the source address of its packets]
    #[arg(long, env = "KEYPADD_HOST", value_name = "HOST")]
    pub(crate) host: Option<String>,
    /// UDP address to pair at [default: the configuration file's, else any port if that is in use]
    #[arg(long, env = "KEYPADD_LISTEN", value_name = "ADDR:PORT")]
    pub(crate) listen: Option<String>,
    /// How long the invitation is valid, at most 10m
    #[arg(long, env = "KEYPADD_EXPIRES", value_name = "DURATION", default_value = "10m")]
    pub(crate) expires: String,
    /// The configuration file [default: as `keypadd run` finds it]
    #[arg(long, env = "KEYPADD_CONFIG", value_name = "FILE", value_parser = path_parser())]
    pub(crate) config: Option<PathBuf>,
    #[command(flatten)]
    pub(crate) flags: Flags<flags::Invite>,
}

#[derive(Debug, Args)]
pub(crate) struct JoinArgs {
    /// The invitation; - or none reads it from standard input, where other users cannot see it
    #[arg(value_parser = values::invitation_or_stdin)]
    pub(crate) invitation: Option<InvitationFrom>,
    /// Name for the other host [default: the name it gives]
    #[arg(long, env = "KEYPADD_NAME", value_name = "NAME")]
    pub(crate) name: Option<String>,
    /// The configuration file [default: as `keypadd run` finds it]
    #[arg(long, env = "KEYPADD_CONFIG", value_name = "FILE", value_parser = path_parser())]
    pub(crate) config: Option<PathBuf>,
    #[command(flatten)]
    pub(crate) flags: Flags<flags::Join>,
}

#[derive(Debug, Args)]
pub(crate) struct ServeArgs {
    /// Accept the peer with this public key; NAME identifies it in logs and metrics
    #[arg(long, env = "KEYPADD_ALLOW", value_name = "[NAME=]PUBKEY")]
    #[arg(value_delimiter = ',', allow_hyphen_values = true, value_parser = values::allowed)]
    pub(crate) allow: Vec<Allowed>,
    #[command(flatten)]
    pub(crate) flags: Flags<flags::Serve>,
}

#[derive(Debug, Args)]
pub(crate) struct ConnectArgs {
    /// The server's name or address, or a peer of the configuration file
    ///
    /// The default UDP port is 4433; an IPv6 address with a port goes in brackets. Several hosts
    /// with this key, in order of preference, are separated by commas. A name such as
    /// _keypadd._udp.example.com, without a port, is looked up as SRV. @NAME takes endpoint, keys,
    /// suite and key exchange from the file; flags win.
    #[arg(value_name = "HOST[:PORT]|@NAME", value_parser = values::server_or_name)]
    pub(crate) server: Server,
    /// The configuration file in which to look up @NAME [default: as `keypadd run` finds it]
    #[arg(long, env = "KEYPADD_CONFIG", value_name = "FILE", value_parser = path_parser())]
    pub(crate) config: Option<PathBuf>,
    #[command(flatten)]
    pub(crate) ssh: SshFlags,
    /// The server's public key, as `keypadd pubkey` prints it there
    #[arg(long, env = "KEYPADD_PEER", value_name = "PUBKEY", value_parser = values::public_key)]
    #[arg(allow_hyphen_values = true)]
    pub(crate) peer: Option<PublicKey>,
    /// Connect standard input and output to HOST:PORT from the server, as an ssh ProxyCommand
    ///
    /// With @NAME, a running `keypadd run` or `keypadd connect` of this user that is connected to
    /// that peer carries it, so ssh sessions share one tunnel. -W makes its own tunnel if there is
    /// none, if its suite or key exchange would not be offered here, or with other tunnel flags
    /// such as --hold.
    #[arg(short = 'W', long, env = "KEYPADD_STDIO", value_name = "HOST:PORT")]
    #[arg(value_parser = values::target, conflicts_with_all = ["local", "remote", "dynamic"])]
    pub(crate) stdio: Option<Target>,
    #[command(flatten)]
    pub(crate) flags: Flags<flags::Connect>,
}

#[derive(Debug, Args)]
pub(crate) struct ConfigArgs {
    /// The configuration file
    ///
    /// [default: $CONFIGURATION_DIRECTORY/keypadd.toml if set, else /etc/keypadd/keypadd.toml for
    /// root, else ~/.config/keypadd/config.toml]
    #[arg(long, env = "KEYPADD_CONFIG", value_name = "FILE", value_parser = path_parser())]
    pub(crate) config: Option<PathBuf>,
}

#[derive(Debug, Args)]
pub(crate) struct DoctorArgs {
    /// Check only the path to this peer of the configuration file
    #[arg(value_name = "@NAME", value_parser = values::at_name)]
    pub(crate) peer: Option<String>,
    /// The configuration file [default: as `keypadd run` finds it]
    #[arg(long, env = "KEYPADD_CONFIG", value_name = "FILE", value_parser = path_parser())]
    pub(crate) config: Option<PathBuf>,
    /// Print JSON at the end
    #[arg(long, env = "KEYPADD_JSON", value_parser = values::switch)]
    pub(crate) json: bool,
}

#[derive(Debug, Args)]
pub(crate) struct CompletionsArgs {
    /// The shell
    pub(crate) shell: CompletedShell,
}

/// Shells with completions.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum CompletedShell {
    Bash,
    Zsh,
    Fish,
    /// The peers of the configuration file, which the scripts ask for
    #[value(hide = true)]
    Peers,
}

#[derive(Debug, Args)]
pub(crate) struct ManArgs {
    /// Write keypadd.1 and a page for each command to this directory
    #[arg(value_name = "DIR", value_parser = path_parser())]
    pub(crate) directory: Option<PathBuf>,
}

#[derive(Debug, Args)]
pub(crate) struct DemoArgs {
    /// Print JSON at the end
    #[arg(long, env = "KEYPADD_JSON", value_parser = values::switch)]
    pub(crate) json: bool,
    /// Measure the pool instead: 3DES with one, 3DES without, AES with one, over loopback
    #[arg(long)]
    pub(crate) pool: bool,
    /// With --pool, the implementation of 3DES: des-crate, auto, bitslice-{64,128,256,512}
    ///
    /// des-crate is a conventional implementation, one block at a time; auto is what daemons use.
    #[arg(long, env = "KEYPADD_CIPHER_BACKEND", value_name = "NAME", default_value = "des-crate")]
    #[arg(value_parser = values::cipher_backend)]
    pub(crate) cipher_backend: CipherEngine,
}

#[derive(Debug, Args)]
pub(crate) struct BenchArgs {
    /// Arguments for keypadd-bench; `keypadd bench --help` lists them
    #[arg(value_name = "ARGS", trailing_var_arg = true, allow_hyphen_values = true)]
    pub(crate) arguments: Vec<OsString>,
}

/// The definition from which completions and manual pages are generated.
pub(crate) fn definition() -> clap::Command {
    Cli::command().mut_args(|arg| arg.hide_env_values(true))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_flag_has_the_variable_of_its_name_and_every_verb_an_example() {
        Cli::command().debug_assert();
        // `KEYPADD_POOL` says what daemons do, and is not to change what the demo shows.
        let known = ["demo --pool has no variable KEYPADD_POOL"];
        assert_eq!(keypadd_cli::inconsistencies(&Cli::command(), "keypadd"), known);
    }
}
