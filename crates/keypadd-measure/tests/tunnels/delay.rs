//! Measures the same tunnel with and without an added delay: results must differ by the delay.

use std::time::Duration;

use keypadd_keystream::{CipherEngine, Suite};
use keypadd_measure::{Arm, Terminal, Typing};
use keypadd_traffic::{Link, LinkSettings, TunnelArm};

use crate::measure;

/// Per direction.
const DELAY: Duration = Duration::from_millis(5);
/// Added to a keystroke and its echo, in microseconds.
const INJECTED_US: f64 = 10_000.0;
/// More than a busy machine adds to the fastest of many keystrokes.
const SLACK_US: f64 = 10_000.0;
/// Latencies are recorded with three digits.
const DIGITS: f64 = 0.999;

#[tokio::test(flavor = "multi_thread")]
async fn a_tunnel_behind_an_injected_delay_measures_that_much_more() {
    let suite = Suite::AES_256_GCM.protection();
    let tunnel = Arm::Tunnel(TunnelArm { suite, pool: false, engine: CipherEngine::default() });
    let typing = Typing::Fixed { per_second: 100.0, bytes: 64 };
    let terminal = Terminal { typing, time: Duration::from_millis(300), seed: 1 };
    // IPv6 and a connection without a tunnel are delayed alike.
    for (arm, ipv6) in [(tunnel, false), (tunnel, true), (Arm::Tcp, false)] {
        let mut quickest = Vec::new();
        for delay in [Duration::ZERO, DELAY] {
            let link = Link::new(LinkSettings { delay, ipv6, ..LinkSettings::default() });
            let runs = measure(&terminal, arm, link, 1).await;
            let rounds = runs.arms[0].1.iter().map(|turn| turn.measured.quantile_us(0.0).unwrap());
            quickest.push(rounds.fold(f64::INFINITY, f64::min));
        }
        let (direct, delayed) = (quickest[0], quickest[1]);
        assert!(delayed >= INJECTED_US * DIGITS, "{arm}: {delayed} us of at least {INJECTED_US}");
        let more = delayed - direct;
        let is_near = direct < INJECTED_US && more < INJECTED_US + SLACK_US;
        assert!(is_near, "{arm}: {direct} us, {more} us more");
    }
}
