//! `keypadd status`: asks the daemons of this user for their figures and prints them. Reads only what the
//! text shows, so that it gets along with a daemon of another version.

use std::io::{self, ErrorKind, Read, Write};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use bytesize::ByteSize;
use serde::Deserialize;
use serde_json::{Value, json};

use crate::cli::StatusArgs;
use crate::control::{self, STATUS_REQUEST};
use crate::error::{Error, Exit, shown, system};
use crate::figures::unix_seconds;

/// A daemon answers within this time or is passed over.
const PATIENCE: Duration = Duration::from_secs(2);

/// No answer is longer; a daemon with a thousand sessions needs about 1 MiB.
const ANSWER_BYTES_MAX: u64 = 64 << 20;

/// Prints every daemon's figures.
///
/// # Errors
/// Exit 5: no daemon answers. Exit 1: standard output fails.
pub(crate) fn run(args: StatusArgs) -> Result<(), Error> {
    let daemons = match args.socket {
        Some(path) => {
            let answer = ask(&path).map_err(|error| {
                Error::new(Exit::Unreachable, silence(&path, &error))
                    .hint("`keypadd status` without --socket lists the daemons of this user")
            })?;
            vec![(path, Ok(answer))]
        }
        None => find()?,
    };
    let text = if args.json {
        let answers: Vec<Value> =
            daemons.into_iter().filter_map(|(_, answer)| answer.ok()).collect();
        format!("{:#}\n", json!({ "daemons": answers }))
    } else {
        let texts: Vec<String> = daemons.into_iter().map(text).collect();
        texts.join("\n")
    };
    match io::stdout().lock().write_all(text.as_bytes()) {
        Err(error) if error.kind() != ErrorKind::BrokenPipe => Err(Error::new(
            Exit::Runtime,
            format!("cannot write to standard output: {}", system(&error)),
        )),
        _ => Ok(()),
    }
}

/// A socket, and what the daemon behind it answered.
type Asked = (PathBuf, io::Result<Value>);

fn find() -> Result<Vec<Asked>, Error> {
    let none = |cause: String| {
        Error::new(Exit::Unreachable, cause)
            .hint("start `keypadd serve` or `keypadd connect` as this user, or name a --socket")
    };
    let directory = control::directory()
        .ok_or_else(|| none("no daemon found: XDG_RUNTIME_DIR is not set".into()))?;
    let sockets: Vec<PathBuf> = control::sockets(&directory);
    let asked = sockets.into_iter().map(|path| {
        let answer = ask(&path);
        (path, answer)
    });
    // Where nobody listens there is no daemon; one that is there and does not answer is worth a line.
    let gone = [ErrorKind::ConnectionRefused, ErrorKind::NotFound];
    let there =
        |(_, answer): &Asked| !answer.as_ref().is_err_and(|error| gone.contains(&error.kind()));
    let daemons: Vec<Asked> = asked.filter(there).collect();
    match daemons.first() {
        None => Err(none(format!("no daemon found in {}", shown(directory.to_string_lossy())))),
        Some((path, Err(error))) if daemons.iter().all(|(_, answer)| answer.is_err()) => {
            Err(none(silence(path, error)))
        }
        Some(_) => Ok(daemons),
    }
}

/// Why there are no figures of the daemon behind a socket.
fn silence(path: &Path, error: &io::Error) -> String {
    let path = shown(path.to_string_lossy());
    match error.kind() {
        // A full queue and a read that took too long are one error number.
        ErrorKind::WouldBlock => format!("no daemon answers at {path}: it is stopped or too busy"),
        _ => format!("no daemon answers at {path}: {}", system(error)),
    }
}

/// The text for one daemon; an answer that is not understood hides no other daemon's.
fn text((path, answer): Asked) -> String {
    let foreign = |error: serde_json::Error| {
        let path = shown(path.to_string_lossy());
        format!("the answer at {path} is not understood: {error}\n")
    };
    match answer {
        Ok(document) => render(document).unwrap_or_else(foreign),
        Err(error) => silence(&path, &error) + "\n",
    }
}

fn ask(path: &Path) -> io::Result<Value> {
    let mut stream = control::connect(path)?;
    stream.set_read_timeout(Some(PATIENCE))?;
    stream.set_write_timeout(Some(PATIENCE))?;
    stream.write_all(format!("{STATUS_REQUEST}\n").as_bytes())?;
    let mut answer = Vec::new();
    stream.take(ANSWER_BYTES_MAX).read_to_end(&mut answer)?;
    Ok(serde_json::from_slice(&answer)?)
}

/// What the text shows of a daemon.
#[derive(Deserialize)]
struct Daemon {
    pid: u32,
    verb: String,
    place: String,
    public_key: String,
    started_unix_seconds: u64,
    pool: Pool,
    keystream_pool_bytes: u64,
    keystream_inline_bytes: u64,
    sessions: Vec<Session>,
}

#[derive(Deserialize)]
struct Pool {
    mode: String,
    reason: String,
    budget_bytes: u64,
    filled_bytes: u64,
    fill_cpu_seconds: f64,
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
}

#[derive(Deserialize)]
struct Keys {
    send: Levels,
    receive: Levels,
}

#[derive(Deserialize)]
struct Levels {
    head: Level,
    body: Level,
}

#[derive(Deserialize)]
struct Level {
    packets: u64,
}

fn render(document: Value) -> Result<String, serde_json::Error> {
    let daemon: Daemon = serde_json::from_value(document)?;
    let size = |bytes| ByteSize::b(bytes).display().iec();
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
    let pool = daemon.pool;
    lines.push(match pool.mode.as_str() {
        "on" => format!(
            "  pool on: {} filled of {}, {:.2} s of idle CPU spent",
            size(pool.filled_bytes),
            size(pool.budget_bytes),
            pool.fill_cpu_seconds
        ),
        _ => format!("  pool off: {}", printable(&pool.reason)),
    });
    lines.push(format!(
        "  keystream used: {} from the pool, {} made inline",
        size(daemon.keystream_pool_bytes),
        size(daemon.keystream_inline_bytes)
    ));
    if daemon.sessions.is_empty() {
        lines.push("  no peer is connected".into());
    }
    for session in &daemon.sessions {
        render_session(session, &mut lines);
    }
    Ok(lines.join("\n") + "\n")
}

fn render_session(session: &Session, lines: &mut Vec<String>) {
    let size = |bytes| ByteSize::b(bytes).display().iec();
    let class = if session.class == "legacy" { "insecure (legacy)" } else { "(standard)" };
    lines.push(format!(
        "  peer {} at {}, up {}",
        printable(&session.peer),
        session.remote,
        age(session.since_unix_seconds)
    ));
    lines.push(format!("    suite {} {class}, key exchange {}", session.suite, session.kex));
    lines.push(format!(
        "    round trip {:.2} ms, packets up to {} bytes, {} of {} lost, {} sent, {} received",
        session.rtt_seconds * 1e3,
        session.mtu_bytes,
        session.lost_packets,
        session.sent_packets,
        size(session.sent_bytes),
        size(session.received_bytes)
    ));
    let Keys { send, receive } = &session.keys;
    lines.push(format!(
        "    pads at hand: {} short and {} full packets to send, {} and {} to receive",
        send.head.packets, send.body.packets, receive.head.packets, receive.body.packets
    ));
    for Forward { forward, open } in &session.forwards {
        lines.push(format!("    forward {}: {open} open", printable(forward)));
    }
}

/// Time since then, to the second.
fn age(unix: u64) -> String {
    let seconds = unix_seconds(SystemTime::now()).saturating_sub(unix);
    humantime::format_duration(Duration::from_secs(seconds)).to_string()
}

/// Names come from other hosts: no control characters to the terminal.
fn printable(text: &str) -> String {
    text.chars().map(|c| if c.is_control() { '?' } else { c }).collect()
}
