//! Checks the host: kernel limits, UDP socket and CPU features, the clock, and running daemons.

use std::io::{BufRead, BufReader, ErrorKind};
use std::net::UdpSocket;
use std::process::{Command, Stdio};
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use bytesize::ByteSize;
use keypadd_cli::error::{Error, one_line, shown, system};
use keypadd_cli::memory::memory;
use keypadd_config::{Config, Settings};
use keypadd_transport::Offloads;
use keypadd_tunnel::{HostPorts, Permit, PortReuse, TransportSettings};
use rustix::process::{Resource, getrlimit};
use serde_json::Value;

use crate::control::runtime_directory;
use crate::control::{self, STATUS_REQUEST};
use crate::daemon::pooling::{PoolOptions, budget_cut};
use crate::verbs::status::no_answer;

use super::finding::{Finding, Findings};

/// How long another program or a daemon may take to answer.
const PATIENCE: Duration = Duration::from_secs(2);

/// Descriptors for everything but forwards: sockets, metrics, control.
const RESERVED_DESCRIPTORS: u64 = 128;

/// Segments that one send should carry; with fewer, sending costs more CPU.
const SEGMENTS_GOOD: usize = 32;

/// # Errors
/// Exit 1: standard output fails.
pub(super) fn check(config: &Config, findings: &mut Findings) -> Result<(), Error> {
    let settings = &config.settings;
    findings.add([cpu(), clock()])?;
    findings.add([buffers(), offloads()])?;
    findings.add([open_files(settings), memory_limit(settings), locked_memory(settings)])?;
    findings.add(reaches_other_hosts(config).then(|| local_ports(HostPorts::of_this_host())))?;
    let (daemons, found) = daemons();
    findings.add(found)?;
    findings.add(service())?;
    findings.add(port(settings, &daemons))
}

fn cpu() -> Finding {
    #[cfg(target_arch = "x86_64")]
    let has = [
        ("AES", std::arch::is_x86_feature_detected!("aes")),
        ("CLMUL", std::arch::is_x86_feature_detected!("pclmulqdq")),
        ("VAES", std::arch::is_x86_feature_detected!("vaes")),
        ("AVX2", std::arch::is_x86_feature_detected!("avx2")),
        ("AVX-512", std::arch::is_x86_feature_detected!("avx512f")),
    ];
    #[cfg(target_arch = "aarch64")]
    let has = [
        ("NEON", std::arch::is_aarch64_feature_detected!("neon")),
        ("AES", std::arch::is_aarch64_feature_detected!("aes")),
        ("PMULL", std::arch::is_aarch64_feature_detected!("pmull")),
    ];
    #[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
    let has: [(&str, bool); 0] = [];
    let names: Vec<_> = has.into_iter().filter_map(|(name, has)| has.then_some(name)).collect();
    let cores = thread::available_parallelism().map_or(1, usize::from);
    let names = if names.is_empty() { "no AES".into() } else { names.join(", ") };
    Finding::ok("CPU", format!("{cores} cores; {names}"))
}

/// keypadd needs the right time only for `valid-until`. But setting the clock while it runs makes
/// it replace its connections.
fn clock() -> Finding {
    const CHECK: &str = "clock";
    let asked = ["show", "--property=NTPSynchronized", "--value"];
    match output("timedatectl", &asked).as_deref() {
        Some("yes") => Finding::ok(CHECK, "synchronized"),
        Some("no") => Finding::warn(
            CHECK,
            "not synchronized: setting the clock will make connections reconnect",
            "timedatectl set-ntp true",
        ),
        _ => Finding::ok(CHECK, "not checked: there is no timedatectl"),
    }
}

fn buffers() -> Finding {
    const CHECK: &str = "UDP buffers";
    let wanted = TransportSettings::default().udp_buffer_bytes;
    let granted = ["rmem_max", "wmem_max"].map(|name| {
        let text = std::fs::read_to_string(format!("/proc/sys/net/core/{name}"));
        text.ok().and_then(|text| text.trim().parse::<usize>().ok())
    });
    match granted {
        [Some(receive), Some(send)] if receive.min(send) < wanted => Finding::warn(
            CHECK,
            format!("at most {} of {wanted} bytes: bursts may be lost", receive.min(send)),
            format!("sysctl -w net.core.rmem_max={wanted} net.core.wmem_max={wanted}, and restart"),
        ),
        [Some(_), Some(_)] => Finding::ok(CHECK, format!("{wanted} bytes")),
        _ => Finding::ok(CHECK, "not checked: net.core.rmem_max cannot be read here"),
    }
}

fn offloads() -> Finding {
    const CHECK: &str = "UDP offload";
    match Offloads::of_this_host() {
        Ok(Offloads { send_segments, receive_segments }) => {
            let found = format!(
                "{send_segments} datagrams per send (GSO), {receive_segments} per receive (GRO)"
            );
            match send_segments.min(receive_segments) >= SEGMENTS_GOOD {
                true => Finding::ok(CHECK, found),
                false => Finding::warn(
                    CHECK,
                    format!("{found}: bulk data costs more CPU"),
                    "use Linux 5.0 or newer, without a sandbox that hides its socket options",
                ),
            }
        }
        Err(error) => Finding::warn(
            CHECK,
            format!("cannot open a UDP socket: {}", system(&error)),
            "allow UDP sockets",
        ),
    }
}

fn open_files(settings: &Settings) -> Finding {
    const CHECK: &str = "open files";
    let forwards = settings.max_forwards.value as u64;
    let wanted = 2 * forwards + RESERVED_DESCRIPTORS;
    match getrlimit(Resource::Nofile).maximum {
        Some(limit) if limit < wanted => Finding::warn(
            CHECK,
            format!("at most {limit}; max-forwards = {forwards} may take {wanted}"),
            "raise `ulimit -Hn`, or LimitNOFILE= in the systemd unit",
        ),
        Some(limit) => Finding::ok(CHECK, format!("at most {limit}")),
        None => Finding::ok(CHECK, "no limit"),
    }
}

fn memory_limit(settings: &Settings) -> Finding {
    const CHECK: &str = "memory";
    let bytes = memory().bytes;
    match budget_cut(settings, bytes) {
        Some(line) => {
            let hint =
                "raise the limit of the container or unit (MemoryMax=), or lower pool-budget";
            Finding::warn(CHECK, line, hint)
        }
        None => Finding::ok(CHECK, ByteSize::b(bytes).display().iec().to_string()),
    }
}

fn locked_memory(settings: &Settings) -> Finding {
    const CHECK: &str = "locked memory";
    let budget = PoolOptions::of(settings, memory().bytes).budget_bytes as u64;
    let limit = getrlimit(Resource::Memlock).maximum;
    match limit {
        Some(limit) if limit < budget && !rustix::process::geteuid().is_root() => Finding::warn(
            CHECK,
            format!("at most {limit} bytes; a pool of {budget} may be partly swapped out"),
            "raise `ulimit -Hl`, or LimitMEMLOCK= in the systemd unit, if you use the pool",
        ),
        Some(limit) => Finding::ok(CHECK, format!("at most {limit} bytes")),
        None => Finding::ok(CHECK, "no limit"),
    }
}

/// Whether peers may make this host connect to others.
fn reaches_other_hosts(config: &Config) -> bool {
    let incoming = config.peers.iter().filter_map(|peer| peer.incoming.as_ref());
    incoming.flat_map(|incoming| &incoming.permit_open).any(Permit::reaches_other_hosts)
}

fn local_ports(ports: HostPorts) -> Finding {
    const CHECK: &str = "local ports";
    let HostPorts { count, reuse } = ports;
    let kept = "a connection to another host that this host closed first keeps its port for a \
        minute";
    match reuse {
        PortReuse::Always => Finding::ok(CHECK, format!("{count} for each target")),
        PortReuse::Loopback => Finding::ok(
            CHECK,
            format!("{count} for each target; {kept}, unless net.ipv4.tcp_tw_reuse is 1"),
        ),
        PortReuse::Never => Finding::warn(
            CHECK,
            format!("{count} for each target; {kept}"),
            "sysctl -w net.ipv4.tcp_tw_reuse=1 net.ipv4.tcp_timestamps=1, and restart",
        ),
    }
}

/// The daemons of this user, and findings from their status.
fn daemons() -> (Vec<Value>, Vec<Finding>) {
    const CHECK: &str = "daemon";
    let (mut documents, mut findings) = (Vec::new(), Vec::new());
    for socket in runtime_directory::all_sockets() {
        let status: Value = match control::ask(&socket, STATUS_REQUEST, PATIENCE) {
            Ok(status) => status,
            Err(error) if error.kind() == ErrorKind::ConnectionRefused => continue,
            Err(error) => {
                let socket = no_answer(&socket, &error);
                findings.push(Finding::warn(CHECK, socket, "restart it if this persists"));
                continue;
            }
        };
        let text = |value: &Value| one_line(value.as_str().unwrap_or("?"));
        let name = format!("`keypadd {}`, {}", text(&status["verb"]), text(&status["place"]));
        let links = status["links"].as_array().into_iter().flatten();
        let down: Vec<_> = links.filter(|link| link["state"] != "connected").collect();
        if down.is_empty() {
            findings.push(Finding::ok(CHECK, format!("{name} runs")));
        }
        for link in down {
            let peer = shown(link["peer"].as_str().unwrap_or_default());
            let cause = text(&link["cause"]);
            let found = format!("{name} is not connected to {peer}: {cause}");
            findings.push(Finding::warn(CHECK, found, "see the check of that peer"));
        }
        documents.push(status);
    }
    if documents.is_empty() && findings.is_empty() {
        findings.push(Finding::ok(CHECK, "none running for this user"));
    }
    (documents, findings)
}

/// What systemd reports about the service, if there is one.
fn service() -> Option<Finding> {
    const CHECK: &str = "service";
    let asked = ["show", "keypadd.service", "--property=LoadState,ActiveState,Result"];
    let said = output("systemctl", &asked)?;
    let value =
        |name: &str| said.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix('='));
    if value("LoadState") != Some("loaded") {
        return None;
    }
    let (active, result) = (value("ActiveState")?, value("Result")?);
    Some(match (active, result) {
        ("active" | "reloading", _) => Finding::ok(CHECK, "keypadd.service is active"),
        (_, "success") => Finding::ok(CHECK, format!("keypadd.service is {active}")),
        _ => Finding::warn(
            CHECK,
            format!("keypadd.service is {active}: {result}"),
            "journalctl -u keypadd -n 20",
        ),
    })
}

/// Whether the UDP port to listen on is free, or belongs to a daemon of this user.
fn port(settings: &Settings, daemons: &[Value]) -> Option<Finding> {
    const CHECK: &str = "listen";
    let address = settings.listen.as_ref()?.value;
    if daemons.iter().any(|status| status["verb"] == "run" || status["verb"] == "serve") {
        return Some(Finding::ok(CHECK, format!("udp {address}, in use by a running daemon")));
    }
    Some(match UdpSocket::bind(address) {
        Ok(_) => Finding::ok(CHECK, format!("udp {address} is free")),
        Err(error) => Finding::warn(
            CHECK,
            format!("udp {address}: {}", system(&error)),
            format!("`ss -lunp sport = :{}` shows which program uses it", address.port()),
        ),
    })
}

/// A program's output, if it exists, succeeds and finishes in time.
pub(super) fn output(program: &str, arguments: &[&str]) -> Option<String> {
    let mut child = Command::new(program)
        .args(arguments)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .ok()?;
    let stdout = child.stdout.take()?;
    let (send, receive) = mpsc::channel();
    thread::spawn(move || {
        let lines: Result<Vec<_>, _> = BufReader::new(stdout).lines().collect();
        let _ = send.send(lines);
    });
    let lines = receive.recv_timeout(PATIENCE);
    // It has closed its output, or timed out.
    let _ = child.kill();
    let _ = child.wait();
    Some(lines.ok()?.ok()?.join("\n"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_host_that_never_uses_local_ports_again_is_told_of_the_setting() {
        for (reuse, verdict, names) in [
            (PortReuse::Never, "warn", true),
            (PortReuse::Loopback, "ok", true),
            (PortReuse::Always, "ok", false),
        ] {
            let finding = local_ports(HostPorts { count: 28_232, reuse });
            let finding = serde_json::to_value(&finding).unwrap();
            assert_eq!(finding["verdict"], verdict);
            assert_eq!(finding.to_string().contains("net.ipv4.tcp_tw_reuse"), names, "{finding}");
        }
    }
}
