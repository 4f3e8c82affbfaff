//! Plays an on-path attacker: sends packets at a given rate and reads the effect from the daemons' counters.

use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use serde_json::Value;
use testbed::Direction;

use crate::tunnel::Tunnel;

/// Both ends, as victims: how to reach them, and their verbs.
pub(crate) const ENDS: [(Direction, &str); 2] =
    [(Direction::ToServer, "serve"), (Direction::ToClient, "connect")];

/// Genuine datagrams that the attacker keeps of each direction: some whose number is still known by
/// the one byte that is sent of it, and some that are older (RFC 9000 A.3).
const COPIES: usize = 256;

/// Begins to keep copies of what passes.
pub(crate) fn listen_in(tunnel: &Tunnel) {
    for (at, _) in ENDS {
        tunnel.relay.record(at, COPIES);
    }
}

/// Forgets them.
pub(crate) fn forget(tunnel: &Tunnel) {
    for (at, _) in ENDS {
        tunnel.relay.record(at, 0);
    }
}

/// Calls `send` `rate` times a second, until told to stop or `most` times; how often.
pub(crate) fn flood(rate: f64, most: u64, stop: &AtomicBool, mut send: impl FnMut()) -> u64 {
    let began = Instant::now();
    let mut sent = 0;
    while sent < most && !stop.load(Ordering::Relaxed) {
        let due = (began.elapsed().as_secs_f64() * rate) as u64;
        // A thread that was late does not catch up at any speed.
        for _ in 0..due.min(most).saturating_sub(sent).min(rate as u64 / 50) {
            send();
            sent += 1;
        }
        thread::sleep(Duration::from_millis(1));
    }
    sent
}

/// Stops the flood when dropped, so that a failing test does not wait for its end.
pub(crate) struct Until<'a>(pub(crate) &'a AtomicBool);

impl Drop for Until<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

pub(crate) fn number(figures: &Value, path: &str) -> u64 {
    figures.pointer(path).unwrap().as_u64().unwrap()
}

/// No end opened more packets than the other sealed, whatever else it was given.
pub(crate) fn must_have_opened_each_once(tunnel: &Tunnel) {
    for (from, to) in [("connect", "serve"), ("serve", "connect")] {
        // In this order, because the tunnel goes on sealing and opening.
        let opened = packets(tunnel, to, "receive");
        let sealed = packets(tunnel, from, "send");
        assert!(opened <= sealed, "{to} opened {opened} of {sealed} packets");
    }
}

/// Packets sealed or opened by a daemon.
fn packets(tunnel: &Tunnel, verb: &str, direction: &str) -> u64 {
    let packets = &tunnel.figures(verb)["packets"][direction];
    ["hit", "partial", "miss"].iter().map(|pad| packets[pad].as_u64().unwrap()).sum()
}
