//! Draws what `status --watch` shows on a terminal: of each daemon what changes, in lines that
//! break between words, and no more of them than fit.

use std::io::{self, Read};
use std::thread;

use console::Term;
use keypadd_cli::error::one_line;
use keypadd_tunnel::LinkState;
use rustix::process::getpgrp;
use rustix::termios::{
    LocalModes, OptionalActions, SpecialCodeIndex, Termios, tcgetattr, tcgetpgrp, tcsetattr,
};
use tokio::sync::oneshot;

use super::{DaemonAnswer, text};
use crate::status::snapshot::{SessionReport, Snapshot};
use crate::status::text::{age, drained, forward, hold, link, remote, traffic, waiting};

/// Moves the cursor home and clears the screen (ECMA-48, CUP and ED).
const HOME: &str = "\x1b[H\x1b[J";

/// The last line.
const FOOT: &str = "q quits; `keypadd connections` lists connections";

/// Passes keys on as they are typed, and does not show them, until it is dropped.
pub(super) struct Keys(Termios);

impl Keys {
    /// `None` if standard input is no terminal, or one whose keys are another job's for now: the
    /// kernel stops who takes them.
    pub(super) fn read() -> Option<Self> {
        let before = tcgetattr(io::stdin()).ok().filter(|_| has_keys())?;
        let mut modes = before.clone();
        modes.local_modes -= LocalModes::ICANON | LocalModes::ECHO;
        modes.special_codes[SpecialCodeIndex::VMIN] = 1;
        modes.special_codes[SpecialCodeIndex::VTIME] = 0;
        tcsetattr(io::stdin(), OptionalActions::Now, &modes).ok()?;
        Some(Self(before))
    }

    /// Receives once q has been typed. The thread that reads ends with the process.
    pub(super) fn quit(&self) -> oneshot::Receiver<()> {
        let (typed, quit) = oneshot::channel();
        thread::spawn(move || {
            let mut keys = io::stdin().lock().bytes().map_while(Result::ok);
            if keys.any(|key| matches!(key, b'q' | b'Q')) {
                let _ = typed.send(());
            }
        });
        quit
    }
}

impl Drop for Keys {
    fn drop(&mut self) {
        if has_keys() {
            let _ = tcsetattr(io::stdin(), OptionalActions::Now, &self.0);
        }
    }
}

/// Whether the terminal's keys are this job's: it does not run in the background.
fn has_keys() -> bool {
    tcgetpgrp(io::stdin()).map_or(true, |foreground| foreground == getpgrp())
}

/// A frame for a terminal of this size.
pub(super) fn frame(daemons: Vec<DaemonAnswer>) -> String {
    let (rows, columns) = Term::stdout().size();
    let texts = daemons.into_iter().map(|answer| text(answer, changing));
    let text = texts.collect::<Vec<_>>().join("\n");
    format!("{HOME}{}", fitted(&text, rows.into(), columns.into()))
}

/// What changes of a daemon.
fn changing(daemon: Snapshot) -> String {
    let (verb, place) = (one_line(&daemon.verb), one_line(&daemon.place));
    let up = age(daemon.started_unix_seconds);
    let mut lines = vec![format!("{verb} {place}, pid {}, up {up}", daemon.pid)];
    lines.extend(drained(&daemon));
    let down = daemon.links.iter().filter(|link| link.state != LinkState::Connected);
    lines.extend(down.map(link));
    if daemon.sessions.is_empty() {
        lines.push("  no peers connected".into());
    }
    for report in &daemon.sessions {
        let SessionReport { session, .. } = report;
        let lost = 100.0 * session.lost_packets as f64 / session.sent_packets.max(1) as f64;
        lines.push(format!(
            "  peer {} at {}, up {}, round trip {:.2} ms, {lost:.2} % lost",
            one_line(&session.peer),
            remote(session),
            age(session.since_unix_seconds),
            session.rtt_seconds * 1e3
        ));
        lines.extend(traffic(report).map(|traffic| format!("    {traffic}")));
        lines.extend(session.forwards.iter().map(forward));
    }
    hold(&daemon.hold, &mut lines);
    lines.extend(waiting(daemon.connections));
    lines.join("\n") + "\n"
}

/// The lines, broken between words to the width, as many as fit above the last line.
fn fitted(text: &str, rows: usize, columns: usize) -> String {
    let lines: Vec<String> = text.lines().flat_map(|line| wrapped(line, columns)).collect();
    let room = rows.saturating_sub(1).max(1);
    let (shown, foot) = match lines.len().checked_sub(room) {
        Some(more @ 1..) => (room, format!("{more} more lines do not fit; {FOOT}")),
        _ => (lines.len(), FOOT.to_owned()),
    };
    let foot = wrapped(&foot, columns).swap_remove(0);
    format!("{}\n{foot}", lines[..shown].join("\n"))
}

/// A line as lines of at most this width; the later ones are indented further. Only a word that is
/// longer is broken.
fn wrapped(line: &str, columns: usize) -> Vec<String> {
    let columns = columns.max(8);
    let indent = line.chars().take_while(|c| *c == ' ').count().min(columns / 4);
    let mut lines = vec![" ".repeat(indent)];
    let mut is_begun = false;
    for word in line.split(' ').filter(|word| !word.is_empty()) {
        let mut word: Vec<char> = word.chars().collect();
        loop {
            let last = lines.last_mut().expect("it has a first line");
            let length = last.chars().count() + usize::from(is_begun);
            if length + word.len() <= columns {
                if is_begun {
                    last.push(' ');
                }
                last.extend(&word);
                is_begun = true;
                break;
            }
            if !is_begun {
                let rest = word.split_off(columns - length);
                last.extend(&word);
                word = rest;
            }
            lines.push(" ".repeat(indent + 2));
            is_begun = false;
        }
    }
    lines
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_break_between_words_and_fill_the_width() {
        let line = "    forward -L 2222:localhost:22: cannot listen on the server: not permitted";
        let lines = wrapped(line, 40);
        assert_eq!(
            lines,
            [
                "    forward -L 2222:localhost:22: cannot",
                "      listen on the server: not",
                "      permitted"
            ]
        );
        let words = |text: &str| text.split_whitespace().map(str::to_owned).collect::<Vec<_>>();
        assert_eq!(words(&lines.join("\n")), words(line));
        assert!(wrapped(&"x".repeat(99), 40).iter().all(|line| line.chars().count() <= 40));
        assert_eq!(wrapped("", 40), [""]);
    }

    #[test]
    fn a_frame_has_no_more_lines_than_the_terminal() {
        let text = (1..=50).map(|nth| format!("line {nth}\n")).collect::<String>();
        let frame = fitted(&text, 24, 80);
        assert_eq!(frame.lines().count(), 24);
        assert!(frame.ends_with(&format!("\n27 more lines do not fit; {FOOT}")), "{frame}");
        assert_eq!(fitted("one\n", 24, 80), format!("one\n{FOOT}"));
        for (rows, columns) in [(1, 1), (2, 9), (24, 80)] {
            assert!(fitted(&text, rows, columns).lines().count() <= rows.max(2));
        }
    }
}
