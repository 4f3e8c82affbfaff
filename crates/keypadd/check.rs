//! `keypadd check`: what `keypadd run` would do with a configuration file, without doing it. Touches nothing
//! but the file and the key that it names.

use std::fmt::Write as _;
use std::io::Write;

use bytesize::ByteSize;
use keypadd_config::values::{LogFormat, PoolMode};
use keypadd_config::{Config, Dialled, Peer};
use keypadd_tunnel::TransportSettings;

use crate::cli::ConfigArgs;
use crate::configfile::{self, Loaded};
use crate::error::{Error, one_line};
use crate::ready::suite_with_class;
use crate::results::print;

/// Prints what would be done; warnings go to standard error.
///
/// # Errors
/// Exit 3: the file or the key cannot be used. Exit 1: standard output fails.
pub(crate) fn run(args: ConfigArgs) -> Result<(), Error> {
    let path = configfile::place(args.config)?;
    let Loaded { config, key_path, key } = configfile::load(&path)?;
    let mut out = vec![format!("configuration {} is good", path.display())];
    out.push(format!(
        "key {}{}, public key {}",
        key_path.display(),
        default(&config, "key"),
        key.public()
    ));
    settings(&config, &mut out);
    for peer in &config.peers {
        describe(peer, &config, &mut out);
    }
    let text: String = out.iter().map(|line| one_line(line) + "\n").collect();
    for warning in &config.warnings {
        let (cause, hint) = configfile::in_file(&path, warning);
        let hint = hint.map(|hint| format!("\n  hint: {}", one_line(&hint))).unwrap_or_default();
        let _ = writeln!(std::io::stderr().lock(), "{} (warning){hint}", one_line(&cause));
    }
    print(text.as_bytes()).map(drop)
}

/// What is said of a key that the file leaves out.
fn default(config: &Config, key: &str) -> &'static str {
    if config.defaults.contains(&key) { " (default)" } else { "" }
}

fn settings(config: &Config, out: &mut Vec<String>) {
    let default = |key| default(config, key);
    match config.listen {
        Some(address) => {
            out.push(format!("listen udp {address}"));
            let suites: Vec<_> = config.suites.iter().copied().map(suite_with_class).collect();
            out.push(format!("  accept suites {}{}", suites.join(", "), default("suite")));
            out.push(format!("  accept key exchanges {}{}", list(&config.kex), default("kex")));
            if config.permit_bench {
                out.push(
                    "  permit-bench: answer measurements, accept what is there for them".into(),
                );
            }
        }
        None => out.push("listen nowhere (default)".into()),
    }
    let budget = ByteSize::b(config.pool_budget_bytes as u64).display().iec();
    out.push(match config.pool {
        PoolMode::Auto | PoolMode::On => {
            let mode = if config.pool == PoolMode::On { "on" } else { "auto" };
            format!("pool {mode}{}, {budget}{}", default("pool"), default("pool-budget"))
        }
        PoolMode::Off => "pool off".into(),
    });
    let share = config.max_fill_cpu_percent;
    out.push(format!("max-fill-cpu {share} %{}", default("max-fill-cpu")));
    let required = config.require_locked;
    out.push(format!("require-locked {required}{}", default("require-locked")));
    let engine = config.cipher_engine.asked();
    out.push(format!("cipher-backend {engine}{}", default("cipher-backend")));
    out.push(format!("congestion {}{}", config.congestion, default("congestion")));
    out.push(format!("spin {} %{}", config.spin, default("spin")));
    let loops = config.loops.unwrap_or_else(|| TransportSettings::default().loops);
    out.push(format!("loops {loops}{}", default("loops")));
    let forwards = config.max_forwards.unwrap_or_else(|| TransportSettings::default().forwards_max);
    out.push(format!("max-forwards {forwards}{}", default("max-forwards")));
    let timeout = humantime::format_duration(config.connect_timeout);
    out.push(format!("connect-timeout {timeout}{}", default("connect-timeout")));
    let drain = humantime::format_duration(config.drain_timeout);
    out.push(format!("drain-timeout {drain}{}", default("drain-timeout")));
    out.push(match config.metrics {
        Some(address) => format!("metrics http://{address}/metrics"),
        None => "metrics none (default)".into(),
    });
    let format = match config.log_format.unwrap_or(LogFormat::Text) {
        LogFormat::Text => "text",
        LogFormat::Json => "json",
    };
    let filter = config.log.as_deref().unwrap_or("info");
    out.push(format!("log {filter}{}, as {format}{}", default("log"), default("log-format")));
}

fn describe(peer: &Peer, config: &Config, out: &mut Vec<String>) {
    out.push(format!("peer {}, public key {}", peer.name, peer.key));
    if let Some(bytes) = peer.pool_budget_bytes {
        let budget = ByteSize::b(bytes as u64).display().iec();
        out.push(format!("  has {budget} of the pool at most"));
    }
    if let Some(dialled) = &peer.dialled {
        let Dialled { endpoint, suite, kex, forwards } = dialled;
        out.push(format!(
            "  is dialled at {endpoint}: suite {}, key exchange {kex}",
            suite_with_class(*suite)
        ));
        out.extend(forwards.iter().map(|forward| format!("  forward {forward}")));
        if forwards.is_empty() {
            out.push("  forwards nothing".into());
        }
    }
    if let (Some(incoming), Some(listen)) = (&peer.incoming, config.listen) {
        let mut line = format!("  may come in at udp {listen}");
        let permits =
            [("reach", list(&incoming.permit_open)), ("listen on", list(&incoming.permit_listen))];
        for (what, permits) in permits {
            let permits = if permits.is_empty() { "nothing" } else { &permits };
            let _ = write!(line, "; may {what} {permits}");
        }
        out.push(line);
    }
}

fn list<T: ToString>(values: &[T]) -> String {
    values.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ")
}
