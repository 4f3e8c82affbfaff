//! `keypadd check`: prints what a configuration file sets. Opens only the file and the key that it
//! names, and compares peers' networks with those that this host is in.

use std::io::Write;
use std::net::SocketAddr;
use std::time::SystemTime;

use bytesize::ByteSize;
use humantime::format_rfc3339_seconds;
use keypadd_cli::error::{Error, one_line};
use keypadd_cli::memory::memory;
use keypadd_cli::results::print;
use keypadd_config::values::RouteMode;
use keypadd_config::{Networks, Outgoing, Peer, Settings, Shown};
use keypadd_tunnel::{ProxyHeaders, ServerId, TransportSettings};

use crate::command_line::ConfigArgs;
use crate::command_line::configfile::{self, Loaded};
use crate::command_line::host_key::HostKey;
use crate::command_line::server_id::{AWS_SERVER_ID, server_id};
use crate::daemon::networks::{OVERLAP_HINT, overlaps};
use crate::daemon::pooling::budget_cut;
use crate::daemon::ready::suite_with_class;

/// Prints the settings and peers; warnings go to standard error.
///
/// # Errors
/// Exit 3: the file or the key cannot be used. Exit 2: as for [`server_id`]. Exit 1: standard
/// output fails.
pub(crate) fn run(args: ConfigArgs) -> Result<(), Error> {
    let path = configfile::place(args.config)?;
    let Loaded { config, key: HostKey { key, path: key_path } } = configfile::load(&path, None)?;
    let mut out = vec![format!("configuration {} is valid", path.display())];
    out.push(format!(
        "key {}{}, public key {}",
        key_path.display(),
        if config.settings.key.is_default() { " (default)" } else { "" },
        key.public()
    ));
    settings(&config.settings, server_id(&config.settings)?, &mut out);
    let listen = config.settings.listen.as_ref().map(|listen| listen.value);
    for peer in &config.peers {
        describe(peer, listen, &mut out);
    }
    let text: String = out.iter().map(|line| one_line(line) + "\n").collect();
    let expiring = config.expiry_warnings(SystemTime::now());
    for warning in config.warnings.iter().chain(&expiring) {
        let (cause, hint) = configfile::in_file(&path, warning);
        let hint = hint.map(|hint| format!("\n  hint: {}", one_line(&hint))).unwrap_or_default();
        let _ = writeln!(std::io::stderr().lock(), "{} (warning){hint}", one_line(&cause));
    }
    if let Some(line) = budget_cut(&config.settings, memory().bytes) {
        let _ = writeln!(std::io::stderr().lock(), "{line} (warning)");
    }
    for line in overlaps(&config) {
        let _ = writeln!(std::io::stderr().lock(), "{line} (warning)\n  hint: {OVERLAP_HINT}");
    }
    print(text.as_bytes()).map(drop)
}

/// The global settings, one line each; those that only a server has, below `listen`.
fn settings(settings: &Settings, server_id: Option<ServerId>, out: &mut Vec<String>) {
    let suites: Vec<_> = settings.suites().into_iter().map(suite_with_class).collect();
    for (key, setting) in settings.entries() {
        let default = if setting.is_default() { " (default)" } else { "" };
        match key.name {
            // Printed with the public key, and with the peers.
            "key" | "permit-open" | "permit-listen" => {}
            "listen" => match &settings.listen {
                Some(address) => out.push(format!("listen udp {}", address.value)),
                None => out.push("listen none (default)".into()),
            },
            "server-id" | "suite" | "kex" | "permit-bench" if settings.listen.is_none() => {}
            "server-id" => out.extend(server_id.map(|ServerId(octets)| {
                let id = format!("{:#018x}", u64::from_be_bytes(octets));
                let of_environment = setting.is_default().then(|| format!(" ({AWS_SERVER_ID})"));
                format!("  server-id {id}{}", of_environment.unwrap_or_default())
            })),
            "suite" => out.push(format!("  suites {}{default}", suites.join(", "))),
            "kex" => {
                let names = list(&settings.key_exchanges());
                out.push(format!("  key exchanges {names}{default}"));
            }
            "permit-bench" => {
                out.push(format!("  permit-bench {}{default}", settings.permit_bench.value));
            }
            "loops" if setting.is_default() => {
                out.push(format!("loops {} (default)", TransportSettings::default().loops));
            }
            name => {
                let value = setting.shown().unwrap_or_else(|| key.unset.replace('`', ""));
                out.push(format!("{name} {value}{default}"));
            }
        }
    }
}

fn describe(peer: &Peer, listen: Option<SocketAddr>, out: &mut Vec<String>) {
    let keys: Vec<_> = peer.keys.iter().map(ToString::to_string).collect();
    out.push(format!("peer {}, public key {}", peer.name, keys.join(" or ")));
    if let Some(until) = peer.valid_until {
        out.push(format!("  valid until {}", format_rfc3339_seconds(until)));
    }
    if let Some(bytes) = peer.pool_budget_bytes {
        let budget = ByteSize::b(bytes as u64).display().iec();
        out.push(format!("  pool-budget {budget}"));
    }
    if let Some(networks) = &peer.networks {
        let Networks { prefixes, permits, device, addresses, mtu, routes } = networks;
        let permits = if permits.is_empty() { "none".to_owned() } else { list(permits) };
        out.push(format!("  networks {}: permit-networks {permits}", list(prefixes)));
        let mtu = mtu.map(|mtu| format!(", MTU {mtu}")).unwrap_or_default();
        let addresses = match addresses.is_empty() {
            true => String::new(),
            false => format!(", addresses {}", list(addresses)),
        };
        let routes = if *routes == RouteMode::Install { ", routes installed" } else { "" };
        out.push(format!("  device {device}{mtu}{addresses}{routes}"));
    }
    if let Some(rate) = peer.max_rate {
        out.push(format!("  max-rate {}/s", ByteSize::b(rate).display().iec()));
    }
    if let Some(outgoing) = &peer.outgoing {
        let Outgoing { endpoint, suites, kex, forwards, proxy_headers } = outgoing;
        let suites: Vec<_> = suites.iter().copied().map(suite_with_class).collect();
        let suite = suites.join(" or ");
        out.push(format!("  connect to {endpoint}: suite {suite}, key exchange {kex}"));
        out.extend(forwards.iter().map(|forward| format!("  forward {forward}")));
        if forwards.is_empty() && peer.networks.is_none() {
            out.push("  no forwards".into());
        }
        let ProxyHeaders { send, accept } = *proxy_headers;
        let on = [("send-proxy", send), ("accept-proxy", accept)].into_iter();
        out.extend(on.filter(|(_, on)| *on).map(|(name, _)| format!("  {name}")));
    }
    if let (Some(incoming), Some(listen)) = (&peer.incoming, listen) {
        let [open, listen_on] = [list(&incoming.permit_open), list(&incoming.permit_listen)]
            .map(|permits| if permits.is_empty() { "none".to_owned() } else { permits });
        out.push(format!(
            "  accept on udp {listen}: permit-open {open}; permit-listen {listen_on}"
        ));
    }
}

fn list<T: ToString>(values: &[T]) -> String {
    values.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ")
}
