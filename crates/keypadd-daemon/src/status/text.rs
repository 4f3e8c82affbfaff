//! Formats one daemon's status as text. Names come from other hosts, so they are escaped.

use std::time::{Duration, SystemTime};

use bytesize::ByteSize;
use keypadd_cli::error::one_line;
use keypadd_tunnel::{
    ForwardStatus, HeldStatus, KeyRenewal, LimitCounts, LinkState, SessionStatus, unix_seconds,
};

use crate::status::connections::ConnectionCounts;
use crate::status::snapshot::{
    ByDirection, HoldReport, KeysReport, LinkReport, MemoryReport, NetworkReport, PacketsReport,
    SessionReport, ShareReport, Snapshot, SuiteReport, TransportReport,
};

/// The text for one daemon.
pub(crate) fn render(daemon: Snapshot) -> String {
    let mut lines = vec![
        format!(
            "{} {}, pid {}, up {}",
            daemon.verb,
            one_line(&daemon.place),
            daemon.pid,
            age(daemon.started_unix_seconds)
        ),
        format!("  key {}", one_line(&daemon.public_key)),
    ];
    lines.extend(drained(&daemon));
    lines.push(format!("  {}", one_line(&daemon.sandbox.line())));
    lines.push(transport(&daemon.transport));
    lines.push(limits(&daemon.limits));
    lines.extend(waiting(daemon.connections));
    lines.extend(memory(&daemon.memory));
    hold(&daemon.hold, &mut lines);
    if !daemon.suite_preference.is_empty() {
        lines.push(format!("  prefers {}", one_line(&daemon.suite_preference)));
    }
    pool(&daemon, &mut lines);
    // A link that is up and was never lost shows as its session only.
    let noteworthy =
        |link: &&LinkReport| link.state != LinkState::Connected || !link.reconnects.is_empty();
    lines.extend(daemon.links.iter().filter(noteworthy).map(link));
    for one in &daemon.networks {
        network(one, &mut lines);
    }
    if daemon.sessions.is_empty() {
        lines.push("  no peers connected".into());
    }
    for one in &daemon.sessions {
        session(one, &mut lines);
        if daemon.pool.mode == "on" {
            pads(&one.keys, &mut lines);
        }
        let ByDirection { send, receive } = &one.keys;
        let (send, receive) = (send.key_phase, receive.key_phase);
        lines.push(format!("    key updates: {send} send, {receive} receive"));
        lines.extend(one.session.forwards.iter().map(forward));
    }
    lines.join("\n") + "\n"
}

/// What a draining server does.
pub(crate) fn drained(daemon: &Snapshot) -> Option<String> {
    let left = daemon.drain_left_seconds.map(|left| format!("for up to {}", span(left)));
    let stays = left.unwrap_or_else(|| "until they end".into());
    let line = format!("  draining: accepts no new sessions; open connections stay {stays}");
    daemon.draining.then_some(line)
}

/// The event loops.
fn transport(transport: &TransportReport) -> String {
    let TransportReport { loops, spin_seconds, spin_ratio, datagrams_dropped } = transport;
    let share = 100.0 * spin_ratio;
    let noun = if *loops == 1 { "event loop" } else { "event loops" };
    let dropped = match datagrams_dropped {
        0 => String::new(),
        count => format!("; {count} datagrams dropped: too many of one connection"),
    };
    format!(
        "  {loops} {noun}, busy polling used {spin_seconds:.2} s of CPU, {share:.1} % of one \
         core{dropped}"
    )
}

/// Descriptors of forwards, and what limits have refused.
fn limits(limits: &LimitCounts) -> String {
    let LimitCounts { descriptors, descriptors_max, .. } = limits;
    let mut line = format!("  forwards use {descriptors} of {descriptors_max} descriptors");
    for (count, what) in [
        (limits.descriptors_refused, "forwards refused or delayed at this limit"),
        (limits.sessions_refused, "sessions refused"),
        (limits.frames_delayed, "control frames delayed"),
        (limits.log_lines_suppressed, "log lines suppressed"),
    ] {
        if count > 0 {
            line += &format!("; {count} {what}");
        }
    }
    line
}

/// Connections that wait for a free slot, if there are any.
pub(crate) fn waiting(counts: ConnectionCounts) -> Option<String> {
    let wait = match counts.waiting {
        0 => return None,
        1 => "1 connection waits".to_owned(),
        count => format!("{count} connections wait"),
    };
    Some(format!("  {wait} for a free slot (max-forwards); others may queue behind"))
}

/// The memory and its shares; nothing for a daemon that does not tell.
fn memory(memory: &MemoryReport) -> Option<String> {
    let share = |share: &ShareReport| {
        let used = size(share.used_bytes);
        let most = share.max_bytes.map(|bytes| format!(" of {}", size(bytes))).unwrap_or_default();
        format!("{} {used}{most}", one_line(&share.of))
    };
    let shares: Vec<_> = memory.shares.iter().map(share).collect();
    let line = format!("  memory {}: {}", size(memory.limit_bytes), shares.join(", "));
    (!shares.is_empty()).then_some(line)
}

/// Peers that are away, and what happened to earlier held connections.
pub(crate) fn hold(hold: &HoldReport, lines: &mut Vec<String>) {
    for HeldStatus { peer, streams, kept_bytes, since_unix_seconds, .. } in &hold.peers {
        let (peer, away) = (one_line(peer), age(*since_unix_seconds));
        let kept = size(*kept_bytes as u64);
        let noun = if *streams == 1 { "connection" } else { "connections" };
        lines
            .push(format!("  {peer} has been away for {away}; {streams} {noun} held, {kept} kept"));
    }
    if hold.resumed + hold.reset > 0 {
        lines.push(format!("  held connections: {} resumed, {} reset", hold.resumed, hold.reset));
    }
}

/// What `auto` chose for a suite, and why.
fn choice(choice: &SuiteReport) -> String {
    let way = match (choice.pays, choice.in_use) {
        (true, true) => "pooled",
        (true, false) => "pooled when used",
        (false, _) => "inline",
    };
    let seals = choice.seals.iter().map(|seal| {
        let (pooled, inline) = (seal.pooled_seconds * 1e6, seal.inline_seconds * 1e6);
        format!("{pooled:.2}/{inline:.2} us at {} bytes", seal.payload_bytes)
    });
    let seals = seals.collect::<Vec<_>>().join(", ");
    format!("    {} {way}: pooled/inline {seals}", one_line(&choice.suite))
}

/// The pool and its use.
fn pool(daemon: &Snapshot, lines: &mut Vec<String>) {
    let pool = &daemon.pool;
    if pool.mode != "on" {
        let auto = if pool.auto { " (auto)" } else { "" };
        lines.push(format!("  pool off{auto}: {}", one_line(&pool.reason)));
    } else {
        let (filled, budget) = (size(pool.filled_bytes), size(pool.budget_bytes));
        let seconds = match pool.seconds_left {
            Some(seconds) => format!("{} at the current rate", lasting(seconds)),
            None => "idle".into(),
        };
        let packets = pool.packets;
        let auto = if pool.auto { " (auto)" } else { "" };
        lines.push(format!(
            "  pool on{auto}: {filled} filled of {budget}, {packets} packets, {seconds}"
        ));
        if pool.locked_bytes < pool.budget_bytes {
            let locked = locked_of(pool.locked_bytes, pool.budget_bytes);
            lines.push(format!(
                "  {locked}, the rest may be swapped out; raise `ulimit -l` or LimitMEMLOCK="
            ));
        }
        let up = unix_seconds(SystemTime::now()).saturating_sub(daemon.started_unix_seconds);
        let cpu = pool.fill_cpu_seconds;
        let share = 100.0 * cpu / up.max(1) as f64;
        // If the kernel refuses the idle scheduling class, the filler runs at the lowest priority.
        let kind = if pool.filler_idle_class { "idle" } else { "low-priority" };
        let limit = match pool.max_fill_cpu_percent {
            100.. => String::new(),
            percent => format!(", limit {percent} %"),
        };
        lines.push(format!(
            "  filler used {cpu:.2} s of {kind} CPU, {share:.1} % of one core{limit}"
        ));
    }
    // The line above covers a single suite.
    if pool.suites.len() > 1 || pool.mode == "on" {
        lines.extend(pool.suites.iter().map(choice));
    }
    let (pooled, inline) = (daemon.keystream_pool_bytes, daemon.keystream_inline_bytes);
    let (pooled, inline) = (size(pooled), size(inline));
    lines.push(format!("  keystream used: {pooled} from the pool, {inline} computed inline"));
    let ByDirection { send, receive } = &daemon.packets;
    let any = send.hit_ratio.is_some() || receive.hit_ratio.is_some();
    if any && pool.mode == "on" {
        let ratio = |packets: &PacketsReport| match packets.hit_ratio {
            Some(ratio) => format!("{:.1} %", 100.0 * ratio),
            None => "none".into(),
        };
        let (send, receive) = (ratio(send), ratio(receive));
        let dry = match daemon.pool_exhaustions {
            0 => String::new(),
            times => format!("; ran dry {times} times"),
        };
        lines.push(format!("  pool hit rate: {send} send, {receive} receive{dry}"));
    }
    let Snapshot { open_failures, replays, .. } = daemon;
    if open_failures + replays > 0 {
        lines.push(format!(
            "  dropped: {open_failures} forged or corrupted packets, {replays} replayed or late"
        ));
    }
}

/// A forward of a session.
pub(crate) fn forward(ForwardStatus { forward, open, cause }: &ForwardStatus) -> String {
    let forward = one_line(forward);
    match cause {
        Some(cause) => {
            format!("    forward {forward}: cannot listen on the server: {}", one_line(cause))
        }
        None => format!("    forward {forward}: {open} open"),
    }
}

/// A peer that this daemon connects to.
pub(crate) fn link(link: &LinkReport) -> String {
    let (peer, endpoint) = (one_line(&link.peer), one_line(&link.endpoint));
    let since = age(link.since_unix_seconds);
    let mut line = format!("  peer {peer} at {endpoint}: ");
    if link.state == LinkState::Connected {
        line += &format!("connected for {since}");
    } else {
        line += &format!("not connected for {since}");
        if let Some(cause) = &link.cause {
            line += &format!(": {}", one_line(cause));
        }
        line += &match link.retry_unix_seconds {
            Some(retry) => {
                let seconds = retry.saturating_sub(unix_seconds(SystemTime::now()));
                format!("; retrying in {seconds} s")
            }
            None => "; connecting".into(),
        };
        if let Some(until) = link.valid_until_unix_seconds {
            line += &format!("; valid until {}", date(until));
        }
    }
    if !link.reconnects.is_empty() {
        let reasons = link.reconnects.iter().map(|(reason, n)| format!("{} {n}", one_line(reason)));
        line += &format!("; reconnects: {}", Vec::from_iter(reasons).join(", "));
    }
    line
}

/// The networks of a peer.
fn network(network: &NetworkReport, lines: &mut Vec<String>) {
    let NetworkReport { peer, device, mtu_bytes, up, cause, peer_accepts, .. } = network;
    let state = match (up, cause) {
        (true, _) => "up".to_owned(),
        (false, Some(cause)) => one_line(cause),
        (false, None) => "down".to_owned(),
    };
    let (peer, device) = (one_line(peer), one_line(device));
    lines.push(format!("  networks of {peer} over {device}, MTU {mtu_bytes}: {state}"));
    let [sent, received] = network.packets.both().map(|(_, packets)| packets);
    let [sent_bytes, received_bytes] = network.bytes.both().map(|(_, bytes)| size(*bytes));
    lines.push(format!(
        "    packets: {sent} sent ({sent_bytes}), {received} received ({received_bytes})"
    ));
    let dropped = network.dropped.iter().filter(|(_, count)| **count > 0);
    let dropped: Vec<_> =
        dropped.map(|(reason, count)| format!("{count} {}", one_line(reason))).collect();
    if !dropped.is_empty() {
        lines.push(format!("    dropped: {}", dropped.join(", ")));
    }
    if network.fragmented_packets > 0 {
        let (fragmented, told) = (network.fragmented_packets, network.too_big_packets);
        lines.push(format!("    {fragmented} sent in fragments; {told} senders told the MTU"));
    }
    if network.marked_packets > 0 {
        lines.push(format!("    {} marked as having met congestion (ECN)", network.marked_packets));
    }
    if let Some(accepts) = peer_accepts {
        let accepts: Vec<_> = accepts.iter().map(|prefix| one_line(prefix)).collect();
        lines.push(format!("    the peer accepts packets from {}", accepts.join(", ")));
    }
}

/// A peer's address, and the target of the SRV record that led to it.
pub(crate) fn remote(session: &SessionStatus) -> String {
    match &session.target {
        Some(target) => format!("{} ({})", session.remote, one_line(target)),
        None => session.remote.to_string(),
    }
}

/// What a session carries now.
pub(crate) fn traffic(report: &SessionReport) -> Option<String> {
    if let Some(seconds) = report.silent_seconds {
        return Some(format!("silent for {}: the peer does not answer", lasting(seconds)));
    }
    let ByDirection { send, receive } = report.bytes_per_second;
    let [send, receive] = [send?, receive?].map(|bytes| size(bytes as u64));
    Some(format!("now {send}/s sent, {receive}/s received"))
}

fn session(report: &SessionReport, lines: &mut Vec<String>) {
    let SessionReport { session, has_other_key, valid_until_unix_seconds, class, .. } = report;
    let class = match class.as_str() {
        "standard" => "(standard)".to_owned(),
        class => format!("insecure ({class})"),
    };
    lines.push(format!(
        "  peer {} at {}, up {}",
        one_line(&session.peer),
        remote(session),
        age(session.since_unix_seconds)
    ));
    lines.extend(traffic(report).map(|traffic| format!("    {traffic}")));
    if *has_other_key {
        lines.push(format!("    key {}, one of several", one_line(&session.public_key)));
    }
    if let Some(until) = valid_until_unix_seconds {
        lines.push(format!("    valid until {}", date(*until)));
    }
    lines.push(format!("    suite {} {class}, key exchange {}", session.suite, session.kex));
    let renewal = match session.key_renewal {
        KeyRenewal::On => "renewed after key-lifetime",
        KeyRenewal::Off => "not renewed (key-lifetime is 0)",
        KeyRenewal::NeedsHold => "not renewed (one end has hold = 0)",
    };
    lines.push(format!("    keys are {} old, {renewal}", age(session.keys_since_unix_seconds)));
    let SessionStatus { sent_packets, lost_packets, .. } = session;
    lines.push(format!(
        "    round trip {:.2} ms, packets up to {} bytes, {lost_packets} of {sent_packets} lost \
         ({:.2} %), {} sent, {} received",
        session.rtt_seconds * 1e3,
        session.mtu_bytes,
        100.0 * *lost_packets as f64 / (*sent_packets).max(1) as f64,
        size(session.sent_bytes),
        size(session.received_bytes)
    ));
}

/// The pool of a session in both directions.
fn pads(keys: &ByDirection<KeysReport>, lines: &mut Vec<String>) {
    for (direction, keys) in keys.both() {
        let KeysReport { head, body, .. } = keys;
        let seconds = match (keys.seconds_left, keys.packets_per_second) {
            (Some(seconds), Some(rate)) => format!("{} at {rate:.0} packets/s", lasting(seconds)),
            _ => "idle".into(),
        };
        let (bytes, head, body) = (size(head.bytes + body.bytes), head.packets, body.packets);
        lines.push(format!(
            "    {direction} pool: {bytes} ({head} heads, {body} bodies), {seconds}"
        ));
    }
}

pub(crate) fn size(bytes: u64) -> impl std::fmt::Display {
    ByteSize::b(bytes).display().iec()
}

/// A time in UTC, if it can be shown.
pub(crate) fn date(unix: u64) -> String {
    // The last second of the year 9999, which the format ends with.
    const LAST: u64 = 253_402_300_799;
    let time = SystemTime::UNIX_EPOCH + Duration::from_secs(unix.min(LAST));
    humantime::format_rfc3339_seconds(time).to_string()
}

/// Seconds, with a decimal if below ten.
fn lasting(seconds: f64) -> String {
    match seconds {
        seconds if seconds < 10.0 => format!("{seconds:.1} s"),
        seconds => format!("{seconds:.0} s"),
    }
}

/// Time since then, in whole seconds.
pub(crate) fn age(unix: u64) -> String {
    span(unix_seconds(SystemTime::now()).saturating_sub(unix))
}

/// A time in whole seconds.
fn span(seconds: u64) -> String {
    humantime::format_duration(Duration::from_secs(seconds)).to_string()
}

/// `locked 8 of 64 MiB`.
pub(crate) fn locked_of(locked_bytes: u64, budget_bytes: u64) -> String {
    let mib = |bytes: u64| format!("{:.1}", bytes as f64 / (1 << 20) as f64);
    let whole = |text: String| text.strip_suffix(".0").map(str::to_owned).unwrap_or(text);
    format!("locked {} of {} MiB", whole(mib(locked_bytes)), whole(mib(budget_bytes)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn locked_memory_is_printed_in_whole_mib_if_exact() {
        assert_eq!(locked_of(8 << 20, 64 << 20), "locked 8 of 64 MiB");
        assert_eq!(locked_of(0, 1 << 20), "locked 0 of 1 MiB");
        assert_eq!(locked_of(7 * 512 * 1024, 64 << 20), "locked 3.5 of 64 MiB");
    }
}
