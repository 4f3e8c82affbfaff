//! Parses the command line: which claims, which keypadd, and how many of everything.

use std::path::PathBuf;

use clap::{Parser, Subcommand, ValueEnum};

use crate::Outcome;

/// Show what keypadd does at scale and under load
///
/// Starts daemons on loopback and sends traffic there and nowhere else. Prints figures with their goals
/// and fails if one is missed.
#[derive(Debug, Parser)]
#[command(name = "scale", version, max_term_width = 100)]
#[command(after_help = "\
Examples:
  scale --keypadd target/release/keypadd
  scale --claims forwards,clients --forwards 10000 --clients 1000
  scale --claims handshakes --flood-seconds 600")]
pub(crate) struct Cli {
    #[command(subcommand)]
    pub(crate) role: Option<Role>,
    /// The keypadd to measure [default: the one next to this program]
    #[arg(long, value_name = "PATH")]
    keypadd: Option<PathBuf>,
    /// Claims to show [default: all]
    #[arg(long, value_delimiter = ',', value_name = "CLAIM")]
    claims: Vec<Claim>,
    /// Forwarded connections over one tunnel, idle
    #[arg(long, default_value_t = 10_000, value_parser = clap::value_parser!(u32).range(1..=25_000))]
    pub(crate) forwards: u32,
    /// Clients on one server, each with its own key
    #[arg(long, default_value_t = 1_000, value_parser = clap::value_parser!(u32).range(1..=16_000))]
    pub(crate) clients: u32,
    /// Seconds of each load on a gateway
    #[arg(long, default_value_t = 20.0)]
    pub(crate) gateway_seconds: f64,
    /// Stalled streams, each way
    #[arg(long, default_value_t = 1_000, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    pub(crate) stalled: u32,
    /// Of 100 stalled streams, those that are read at full speed before they stall
    #[arg(long, default_value_t = 25, value_parser = clap::value_parser!(u32).range(0..=100))]
    pub(crate) stalled_read: u32,
    /// Seconds that each bulk transfer takes
    #[arg(long, default_value_t = 3.0)]
    pub(crate) seconds: f64,
    /// Seconds of replays at each end
    #[arg(long, default_value_t = 10.0)]
    pub(crate) replay_seconds: f64,
    /// Seconds of the flood of handshakes
    #[arg(long, default_value_t = 20.0)]
    pub(crate) flood_seconds: f64,
    /// Initial packets a second in the flood
    #[arg(long, default_value_t = 10_000.0)]
    pub(crate) flood_rate: f64,
    /// Addresses that the flood comes from
    #[arg(long, default_value_t = 1_000, value_parser = clap::value_parser!(u32).range(1..=60_000))]
    pub(crate) sources: u32,
    /// Honest clients that connect during the flood
    #[arg(long, default_value_t = 50, value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) honest: u32,
}

/// The role of a copy of this program that it starts itself.
#[derive(Debug, Subcommand)]
pub(crate) enum Role {
    /// Serve test traffic (started by scale itself)
    #[command(hide = true)]
    Service,
}

/// What is shown.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Claim {
    Forwards,
    Clients,
    Gateway,
    Stalled,
    Replays,
    Handshakes,
}

impl Claim {
    /// The heading of its section.
    pub(crate) fn title(self, cli: &Cli) -> String {
        let Cli { forwards, clients, stalled, stalled_read, sources, .. } = cli;
        match self {
            Self::Forwards => format!("{forwards} idle forwards over one tunnel"),
            Self::Clients => format!("{clients} idle clients on one server"),
            Self::Gateway => format!("{clients} clients with traffic on one server"),
            Self::Stalled => format!(
                "{stalled} stalled streams each way, {stalled_read} % of them read at full speed before"
            ),
            Self::Replays => {
                format!("packets replayed as fast as one thread sends, {} s", cli.replay_seconds)
            }
            Self::Handshakes => format!(
                "handshakes begun and left from {sources} addresses, {} Initials/s, {} s",
                cli.flood_rate, cli.flood_seconds
            ),
        }
    }
}

impl Cli {
    pub(crate) fn claims(&self) -> Vec<Claim> {
        if self.claims.is_empty() { Claim::value_variants().to_vec() } else { self.claims.clone() }
    }

    /// The program to measure.
    pub(crate) fn keypadd(&self) -> Outcome<PathBuf> {
        let own = || {
            std::env::current_exe().map_err(|error| format!("cannot find this executable: {error}"))
        };
        let path = match &self.keypadd {
            Some(path) => path.clone(),
            None => own()?.with_file_name("keypadd"),
        };
        match path.is_file() {
            true => Ok(path),
            false => Err(format!("no {}: cargo build --release, or --keypadd", path.display())),
        }
    }

    /// Open files of the process with the most: four for each forward, since a daemon counts two for
    /// each and gives one peer half; one socket for each source, five descriptors for each client in
    /// this process and ten for its connections if it has traffic, two for each bulk one.
    pub(crate) fn descriptors(&self) -> u64 {
        let of_client = if self.claims().contains(&Claim::Gateway) { 15 } else { 5 };
        let of_clients = of_client * self.clients;
        let most = (4 * self.forwards).max(of_clients).max(6 * self.stalled).max(self.sources);
        u64::from(most) + 1_000
    }
}
