//! Plays an on-path attacker: sends packets at a given rate, reads the effect from daemon counters.

use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use serde_json::Value;
use testbed::Direction;

use crate::tunnel::Tunnel;

/// Both ends as victims: the direction that reaches each, and its verb.
pub(crate) const ENDS: [(Direction, &str); 2] =
    [(Direction::ToServer, "serve"), (Direction::ToClient, "connect")];

/// Genuine datagrams that the attacker keeps per direction: some recent enough that the one byte
/// sent still identifies their number, and some older (RFC 9000 A.3).
const COPIES: usize = 256;

/// Starts keeping copies of passing datagrams.
pub(crate) fn listen_in(tunnel: &Tunnel) {
    for (at, _) in ENDS {
        tunnel.relay.record(at, COPIES);
    }
}

/// Drops the copies.
pub(crate) fn forget(tunnel: &Tunnel) {
    for (at, _) in ENDS {
        tunnel.relay.record(at, 0);
    }
}

/// Calls `send` `rate` times a second until stopped or `most` times; returns the count.
pub(crate) fn flood(rate: f64, most: u64, stop: &AtomicBool, mut send: impl FnMut()) -> u64 {
    let began = Instant::now();
    let mut sent = 0;
    while sent < most && !stop.load(Ordering::Relaxed) {
        let due = (began.elapsed().as_secs_f64() * rate) as u64;
        // Limit the burst with which a late thread catches up.
        for _ in 0..due.min(most).saturating_sub(sent).min(rate as u64 / 50) {
            send();
            sent += 1;
        }
        thread::sleep(Duration::from_millis(1));
    }
    sent
}

/// Stops the flood when dropped, so that a failing test does not wait for it.
pub(crate) struct Until<'a>(pub(crate) &'a AtomicBool);

impl Drop for Until<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

pub(crate) fn number(figures: &Value, path: &str) -> u64 {
    figures.pointer(path).unwrap().as_u64().unwrap()
}

/// Asserts that no end opened more packets than the other sealed, whatever else it received.
pub(crate) fn must_have_opened_each_once(tunnel: &Tunnel) {
    for (from, to) in [("connect", "serve"), ("serve", "connect")] {
        // In this order, because the tunnel keeps sealing and opening.
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
