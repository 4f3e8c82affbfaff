//! Flags of the commands that ask a running daemon.

use std::path::PathBuf;

use clap::{Args, ValueEnum};
use keypadd_cli::values::path_parser;
use keypadd_tunnel::{DynamicForward, Forward, LocalForward, RemoteForward};

use super::values::{self, Ranged};

#[derive(Debug, Args)]
pub(crate) struct ReloadArgs {
    /// Ask the daemon behind this socket [default: every `keypadd run` of this user]
    #[arg(long, env = "KEYPADD_SOCKET", value_name = "PATH")]
    #[arg(value_parser = path_parser())]
    pub(crate) socket: Option<PathBuf>,
    /// Replace a daemon that runs another program or has settings that wait for a restart; its
    /// connections stay open
    #[arg(long, env = "KEYPADD_BINARY", value_parser = values::switch)]
    pub(crate) binary: bool,
}

#[derive(Debug, Args)]
pub(crate) struct ForwardArgs {
    /// What to do
    pub(crate) action: ForwardAction,
    /// The peer, if daemons connect to several
    #[arg(value_name = "@NAME", value_parser = values::at_name)]
    pub(crate) peer: Option<String>,
    /// Listen here and connect to HOST:HOSTPORT from the server
    #[arg(short = 'L', value_name = "[BIND:]PORT:HOST:HOSTPORT")]
    #[arg(value_parser = values::local_forwards)]
    local: Vec<Ranged<LocalForward>>,
    /// Listen on the server and connect to HOST:HOSTPORT from here
    #[arg(short = 'R', value_name = "[BIND:]PORT:HOST:HOSTPORT")]
    #[arg(value_parser = values::remote_forwards)]
    remote: Vec<Ranged<RemoteForward>>,
    /// Listen here as a SOCKS5 proxy
    #[arg(short = 'D', value_name = "[BIND:]PORT", value_parser = values::dynamic_forward)]
    dynamic: Vec<DynamicForward>,
    /// Ask the daemon behind this socket [default: every daemon of this user]
    #[arg(long, env = "KEYPADD_SOCKET", value_name = "PATH")]
    #[arg(value_parser = path_parser())]
    pub(crate) socket: Option<PathBuf>,
}

/// What `keypadd forward` does.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum ForwardAction {
    List,
    Add,
    Remove,
}

impl ForwardAction {
    /// The word of a request.
    pub(crate) fn verb(self) -> &'static str {
        match self {
            Self::List => "list",
            Self::Add => "add",
            Self::Remove => "remove",
        }
    }
}

impl ForwardArgs {
    /// The forwards named.
    pub(crate) fn forwards(&self) -> Vec<Forward> {
        let local = self.local.iter().flat_map(|Ranged(all)| all).cloned().map(Forward::Local);
        let remote = self.remote.iter().flat_map(|Ranged(all)| all).cloned().map(Forward::Remote);
        let dynamic = self.dynamic.iter().cloned().map(Forward::Dynamic);
        local.chain(remote).chain(dynamic).collect()
    }
}

#[derive(Debug, Args)]
pub(crate) struct DrainArgs {
    /// Reset connections still open after this time [default: they stay until they end]
    #[arg(long = "for", env = "KEYPADD_FOR", value_name = "DURATION", conflicts_with = "off")]
    pub(crate) time: Option<String>,
    /// Accept new sessions again
    #[arg(long, env = "KEYPADD_OFF", value_parser = values::switch)]
    pub(crate) off: bool,
    /// Ask the daemon behind this socket [default: every server of this user]
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
    /// Print JSON; with --watch, one line per second
    #[arg(long, env = "KEYPADD_JSON", value_parser = values::switch)]
    pub(crate) json: bool,
    /// Refresh every second until Ctrl-C, or q
    #[arg(long, env = "KEYPADD_WATCH", value_parser = values::switch)]
    pub(crate) watch: bool,
}

#[derive(Debug, Args)]
pub(crate) struct ConnectionsArgs {
    /// Only the connections of this peer
    #[arg(value_name = "@NAME", value_parser = values::at_name)]
    pub(crate) peer: Option<String>,
    /// Ask the daemon behind this socket [default: every daemon of this user]
    #[arg(long, env = "KEYPADD_SOCKET", value_name = "PATH")]
    #[arg(value_parser = path_parser())]
    pub(crate) socket: Option<PathBuf>,
    /// Print JSON
    #[arg(long, env = "KEYPADD_JSON", value_parser = values::switch)]
    pub(crate) json: bool,
}

#[derive(Debug, Args)]
pub(crate) struct PeersArgs {
    /// Ask the daemon behind this socket [default: every daemon of this user]
    #[arg(long, env = "KEYPADD_SOCKET", value_name = "PATH")]
    #[arg(value_parser = path_parser())]
    pub(crate) socket: Option<PathBuf>,
    /// Print JSON
    #[arg(long, env = "KEYPADD_JSON", value_parser = values::switch)]
    pub(crate) json: bool,
}
