//! One daemon's figures as a person reads them. Takes from the answer what it shows; a field that an older
//! daemon does not send is left out of the text.

use std::collections::BTreeMap;
use std::time::{Duration, SystemTime};

use bytesize::ByteSize;
use keypadd_pool::HEAD_BYTES;
use keypadd_tunnel::{printable, unix_seconds};
use serde::Deserialize;
use serde_json::Value;

use crate::pooling::locked_of;

/// What the text shows of a daemon.
#[derive(Deserialize)]
struct Daemon {
    pid: u32,
    verb: String,
    place: String,
    public_key: String,
    started_unix_seconds: u64,
    transport: Option<Transport>,
    pool: Pool,
    keystream_pool_bytes: u64,
    keystream_inline_bytes: u64,
    packets: Packets,
    #[serde(default)]
    pool_exhaustions: u64,
    #[serde(default)]
    open_failures: u64,
    #[serde(default)]
    replays: u64,
    sessions: Vec<Session>,
    #[serde(default)]
    links: Vec<Link>,
}

#[derive(Deserialize)]
struct Transport {
    loops: usize,
    spin_seconds: f64,
    spin_ratio: f64,
}

#[derive(Deserialize)]
struct Pool {
    mode: String,
    reason: String,
    #[serde(default)]
    auto: bool,
    #[serde(default)]
    suites: Vec<Choice>,
    budget_bytes: u64,
    filled_bytes: u64,
    locked_bytes: Option<u64>,
    fill_cpu_seconds: f64,
    filler_idle_class: Option<bool>,
    max_fill_cpu_percent: Option<u8>,
    #[serde(default)]
    packets: u64,
    seconds_left: Option<f64>,
}

/// What was chosen for a suite.
#[derive(Deserialize)]
struct Choice {
    suite: String,
    pays: bool,
    seals: Vec<Seal>,
}

#[derive(Deserialize)]
struct Seal {
    payload_bytes: usize,
    pooled_seconds: f64,
    inline_seconds: f64,
}

#[derive(Deserialize)]
struct Packets {
    send: Ratio,
    receive: Ratio,
}

#[derive(Deserialize)]
struct Ratio {
    hit_ratio: Option<f64>,
}

#[derive(Deserialize)]
struct Session {
    peer: String,
    remote: String,
    suite: String,
    class: String,
    kex: String,
    since_unix_seconds: u64,
    rtt_seconds: f64,
    mtu_bytes: u16,
    sent_bytes: u64,
    received_bytes: u64,
    sent_packets: u64,
    lost_packets: u64,
    forwards: Vec<Forward>,
    keys: Keys,
}

#[derive(Deserialize)]
struct Forward {
    forward: String,
    open: u64,
    cause: Option<String>,
}

#[derive(Deserialize)]
struct Keys {
    send: Direction,
    receive: Direction,
}

#[derive(Deserialize)]
struct Direction {
    key_phase: u64,
    head: Level,
    body: Level,
    packets_per_second: Option<f64>,
    seconds_left: Option<f64>,
}

#[derive(Deserialize)]
struct Level {
    packets: u64,
    bytes: u64,
}

#[derive(Deserialize)]
struct Link {
    peer: String,
    endpoint: String,
    state: String,
    since_unix_seconds: u64,
    cause: Option<String>,
    retry_unix_seconds: Option<u64>,
    #[serde(default)]
    reconnects: BTreeMap<String, u64>,
}

/// The text for one answer.
///
/// # Errors
/// The answer is not a daemon's.
pub(super) fn render(document: Value) -> Result<String, serde_json::Error> {
    let daemon: Daemon = serde_json::from_value(document)?;
    let mut lines = vec![
        format!(
            "{} {}, pid {}, up {}",
            daemon.verb,
            printable(&daemon.place),
            daemon.pid,
            age(daemon.started_unix_seconds)
        ),
        format!("  key {}", printable(&daemon.public_key)),
    ];
    lines.extend(daemon.transport.as_ref().map(transport));
    pool(&daemon, &mut lines);
    // What is connected, and always was, is shown as a session alone.
    let noteworthy = |link: &&Link| link.state != "connected" || !link.reconnects.is_empty();
    lines.extend(daemon.links.iter().filter(noteworthy).map(link));
    if daemon.sessions.is_empty() {
        lines.push("  no peer is connected".into());
    }
    for one in &daemon.sessions {
        session(one, &mut lines);
        if daemon.pool.mode == "on" {
            pads(&one.keys, &mut lines);
        }
        let Keys { send, receive } = &one.keys;
        let (send, receive) = (send.key_phase, receive.key_phase);
        lines.push(format!("    rekeys: {send} to send, {receive} to receive"));
        lines.extend(one.forwards.iter().map(forward));
    }
    Ok(lines.join("\n") + "\n")
}

/// The event loops.
fn transport(Transport { loops, spin_seconds, spin_ratio }: &Transport) -> String {
    let share = 100.0 * spin_ratio;
    let noun = if *loops == 1 { "event loop" } else { "event loops" };
    format!("  {loops} {noun}, polling took {spin_seconds:.2} s of CPU, {share:.1} % of one core")
}

/// What `auto` chose for a suite, and why.
fn choice(choice: &Choice) -> String {
    let way = if choice.pays { "pooled" } else { "inline" };
    let seals = choice.seals.iter().map(|seal| {
        let (pooled, inline) = (seal.pooled_seconds * 1e6, seal.inline_seconds * 1e6);
        format!("{pooled:.2}/{inline:.2} us at {} bytes", seal.payload_bytes)
    });
    let seals = seals.collect::<Vec<_>>().join(", ");
    format!("    {} {way}: pooled/inline {seals}", printable(&choice.suite))
}

/// The pool, and what came from it.
fn pool(daemon: &Daemon, lines: &mut Vec<String>) {
    let pool = &daemon.pool;
    if pool.mode != "on" {
        let auto = if pool.auto { " (auto)" } else { "" };
        lines.push(format!("  pool off{auto}: {}", printable(&pool.reason)));
    } else {
        let (filled, budget) = (size(pool.filled_bytes), size(pool.budget_bytes));
        let seconds = match pool.seconds_left {
            Some(seconds) => format!("{} at the present rate", lasting(seconds)),
            None => "idle".into(),
        };
        let packets = pool.packets;
        let auto = if pool.auto { " (auto)" } else { "" };
        lines.push(format!(
            "  pool on{auto}: {filled} filled of {budget}, {packets} packets, {seconds}"
        ));
        if let Some(locked) = pool.locked_bytes.filter(|locked| *locked < pool.budget_bytes) {
            let locked = locked_of(locked, pool.budget_bytes);
            lines.push(format!(
                "  {locked}, the rest may be swapped out: raise LimitMEMLOCK= or `ulimit -l`"
            ));
        }
        let up = unix_seconds(SystemTime::now()).saturating_sub(daemon.started_unix_seconds);
        let cpu = pool.fill_cpu_seconds;
        let share = 100.0 * cpu / up.max(1) as f64;
        // Where the kernel refuses its class for idle CPU there is the lowest priority.
        let kind = if pool.filler_idle_class == Some(false) { "low-priority" } else { "idle" };
        let limit = match pool.max_fill_cpu_percent.filter(|percent| *percent < 100) {
            Some(percent) => format!(", at most {percent} %"),
            None => String::new(),
        };
        lines.push(format!(
            "  filling took {cpu:.2} s of {kind} CPU, {share:.1} % of one core{limit}"
        ));
    }
    // With one suite the line above has said it.
    if pool.suites.len() > 1 || pool.mode == "on" {
        lines.extend(pool.suites.iter().map(choice));
    }
    let (pooled, inline) = (daemon.keystream_pool_bytes, daemon.keystream_inline_bytes);
    let (pooled, inline) = (size(pooled), size(inline));
    lines.push(format!("  keystream used: {pooled} from the pool, {inline} made inline"));
    let Packets { send, receive } = &daemon.packets;
    let any = send.hit_ratio.is_some() || receive.hit_ratio.is_some();
    if any && pool.mode == "on" {
        let ratio = |ratio: &Ratio| match ratio.hit_ratio {
            Some(ratio) => format!("{:.1} %", 100.0 * ratio),
            None => "none".into(),
        };
        let (send, receive) = (ratio(send), ratio(receive));
        let dry = match daemon.pool_exhaustions {
            0 => String::new(),
            times => format!("; ran dry {times} times"),
        };
        lines.push(format!(
            "  packets that found their whole pad: {send} sent, {receive} received{dry}"
        ));
    }
    let Daemon { open_failures, replays, .. } = daemon;
    if open_failures + replays > 0 {
        lines.push(format!(
            "  refused: {open_failures} packets that were forged or damaged, {replays} that came twice or too late"
        ));
    }
}

/// A forward of a session.
fn forward(Forward { forward, open, cause }: &Forward) -> String {
    let forward = printable(forward);
    match cause {
        Some(cause) => {
            format!("    forward {forward}: the other end does not listen: {}", printable(cause))
        }
        None => format!("    forward {forward}: {open} open"),
    }
}

/// A peer that is dialled.
fn link(link: &Link) -> String {
    let (peer, endpoint) = (printable(&link.peer), printable(&link.endpoint));
    let since = age(link.since_unix_seconds);
    let mut line = format!("  peer {peer} at {endpoint}: ");
    if link.state == "connected" {
        line += &format!("connected for {since}");
    } else {
        line += &format!("not connected for {since}");
        if let Some(cause) = &link.cause {
            line += &format!(": {}", printable(cause));
        }
        line += &match link.retry_unix_seconds {
            Some(retry) => {
                let seconds = retry.saturating_sub(unix_seconds(SystemTime::now()));
                format!("; next try in {seconds} s")
            }
            None => "; trying".into(),
        };
    }
    let Link { reconnects, .. } = link;
    if !reconnects.is_empty() {
        let reasons = reconnects.iter().map(|(reason, n)| format!("{} {n}", printable(reason)));
        line += &format!("; reconnects: {}", Vec::from_iter(reasons).join(", "));
    }
    line
}

fn session(session: &Session, lines: &mut Vec<String>) {
    let class = if session.class == "legacy" { "insecure (legacy)" } else { "(standard)" };
    lines.push(format!(
        "  peer {} at {}, up {}",
        printable(&session.peer),
        session.remote,
        age(session.since_unix_seconds)
    ));
    lines.push(format!("    suite {} {class}, key exchange {}", session.suite, session.kex));
    let Session { sent_packets, lost_packets, .. } = session;
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

/// The pads of a session in both directions.
fn pads(Keys { send, receive }: &Keys, lines: &mut Vec<String>) {
    for (direction, keys) in [("send", send), ("receive", receive)] {
        let Direction { head, body, .. } = keys;
        let seconds = match (keys.seconds_left, keys.packets_per_second) {
            (Some(seconds), Some(rate)) => format!("{} at {rate:.0} packets/s", lasting(seconds)),
            _ => "idle".into(),
        };
        let (bytes, head, body) = (size(head.bytes + body.bytes), head.packets, body.packets);
        lines.push(format!(
            "    pads to {direction}: {bytes}, the first {HEAD_BYTES} bytes of {head} packets and the \
             rest of {body}, {seconds}"
        ));
    }
}

fn size(bytes: u64) -> impl std::fmt::Display {
    ByteSize::b(bytes).display().iec()
}

/// How long pads last: fine where it is short.
fn lasting(seconds: f64) -> String {
    match seconds {
        seconds if seconds < 10.0 => format!("{seconds:.1} s"),
        seconds => format!("{seconds:.0} s"),
    }
}

/// Time since then, to the second.
fn age(unix: u64) -> String {
    let seconds = unix_seconds(SystemTime::now()).saturating_sub(unix);
    humantime::format_duration(Duration::from_secs(seconds)).to_string()
}
