//! Lists the emulated lines that arms are compared on.

use std::fmt;
use std::num::NonZeroU64;
use std::time::Duration;

use testbed::line::LossPlace;
use testbed::{End, LineSettings};

/// Bytes of an IP packet on the path, and of a TCP segment's payload in it, with timestamps (RFC
/// 7323): what a line can deliver is its rate times their ratio.
const PACKET_BYTES: f64 = 1500.0;
const PAYLOAD_BYTES: f64 = 1448.0;

/// Start-up is cut off: at least this long, and at least this many round trips.
const START_UP_MIN: Duration = Duration::from_secs(1);
const START_UP_ROUND_TRIPS: u32 = 20;

/// Most of a line that small messages may use, and the size of their packets.
const PINGS_SHARE: f64 = 0.02;
const PING_PACKET_BYTES: f64 = 200.0;
const PING_INTERVALS: [Duration; 2] = [Duration::from_millis(5), Duration::from_millis(50)];

/// Rates of a line's directions, in Mbit/s of IP packets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LineRate {
    /// From the far host, as bulk data.
    pub down: u32,
    /// To it.
    pub up: u32,
}

impl LineRate {
    /// A line of this rate in both directions.
    pub fn both(mbit: u32) -> Self {
        Self { down: mbit, up: mbit }
    }

    /// The rate of what this end sends.
    fn from(self, end: End) -> u32 {
        match end {
            End::Near => self.up,
            End::Far => self.down,
        }
    }

    /// Whether both directions are as fast.
    pub(super) fn is_even(self) -> bool {
        self.down == self.up
    }

    /// The slower direction's.
    fn least(self) -> u32 {
        self.down.min(self.up)
    }
}

impl fmt::Display for LineRate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.is_even() {
            true => write!(f, "{}", self.down),
            false => write!(f, "{}/{}", self.down, self.up),
        }
    }
}

/// One line and its traffic.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct PathCase {
    /// Rates of both directions.
    pub mbit: LineRate,
    /// Round trip of an empty line.
    pub rtt: Duration,
    /// Packets lost at random, in percent, each direction by itself.
    pub loss_percent: f64,
    /// Where on the line they are lost.
    pub loss_place: LossPlace,
    /// Whether bulk data goes both ways at once, instead of from the far host alone.
    pub two_way: bool,
}

/// Cases by their factors.
#[derive(Clone, Debug)]
pub struct PathCases {
    /// Rates.
    pub mbits: Vec<LineRate>,
    /// Round trips.
    pub rtts: Vec<Duration>,
    /// Losses in percent.
    pub losses: Vec<f64>,
    /// Where packets are lost.
    pub loss_place: LossPlace,
    /// Adds a two-way bulk case for each one-way case.
    pub two_way: bool,
}

impl PathCases {
    /// All combinations.
    pub fn all(&self) -> Vec<PathCase> {
        let mut cases = Vec::new();
        for &mbit in &self.mbits {
            for &rtt in &self.rtts {
                for &loss_percent in &self.losses {
                    let one_way = PathCase {
                        mbit,
                        rtt,
                        loss_percent,
                        loss_place: self.loss_place,
                        two_way: false,
                    };
                    cases.push(one_way);
                    cases.extend(self.two_way.then_some(PathCase { two_way: true, ..one_way }));
                }
            }
        }
        cases
    }
}

impl PathCase {
    /// The direction in which this end sends, with its losses, or without them while connections are made.
    pub(super) fn settings(&self, from: End, lossy: bool) -> LineSettings {
        LineSettings {
            bits_per_second: NonZeroU64::new(u64::from(self.mbit.from(from)) * 1_000_000),
            delay: self.rtt / 2,
            loss: if lossy { self.loss_percent / 100.0 } else { 0.0 },
            loss_place: self.loss_place,
            ..LineSettings::default()
        }
    }

    /// The most payload that a line can deliver from this end, Mbit/s: full TCP segments and nothing else. Loss
    /// after the bottleneck reduces it.
    pub(super) fn deliverable_mbit(&self, from: End) -> f64 {
        let passes = match self.loss_place {
            LossPlace::BeforeBottleneck => 1.0,
            LossPlace::AfterBottleneck => 1.0 - self.loss_percent / 100.0,
        };
        f64::from(self.mbit.from(from)) * PAYLOAD_BYTES / PACKET_BYTES * passes
    }

    /// How long the line takes to send a full packet in each direction, in milliseconds.
    pub(super) fn two_packets_ms(&self) -> f64 {
        let packet_ms = |mbit| PACKET_BYTES * 8.0 / (f64::from(mbit) * 1e3);
        packet_ms(self.mbit.down) + packet_ms(self.mbit.up)
    }

    /// How much is cut off as start-up.
    pub(super) fn start_up(&self) -> Duration {
        START_UP_MIN.max(START_UP_ROUND_TRIPS * self.rtt)
    }

    /// How often a small message is due.
    pub(super) fn ping_interval(&self) -> Duration {
        let per_second =
            PINGS_SHARE * f64::from(self.mbit.least()) * 1e6 / (PING_PACKET_BYTES * 8.0);
        let [shortest, longest] = PING_INTERVALS;
        Duration::from_secs_f64(1.0 / per_second).clamp(shortest, longest)
    }

    /// The line and its round trip, without losses: `300 Mbit/s, 20 ms`.
    pub(super) fn line(&self) -> String {
        format!("{} Mbit/s, {} ms", self.mbit, self.rtt.as_millis())
    }

    /// The losses and the ways: `2 % lost, both ways`.
    pub(super) fn column(&self) -> String {
        let ways = if self.two_way { ", both ways" } else { "" };
        format!("{} % lost{ways}", self.loss_percent)
    }
}

impl fmt::Display for PathCase {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}, {}", self.line(), self.column())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn case(mbit: u32, loss_percent: f64, loss_place: LossPlace) -> PathCase {
        let mbit = LineRate::both(mbit);
        PathCase { mbit, rtt: Duration::from_millis(150), loss_percent, loss_place, two_way: false }
    }

    #[test]
    fn loss_after_the_bottleneck_takes_its_share_of_what_a_line_can_deliver() {
        let deliverable = |place| case(300, 10.0, place).deliverable_mbit(End::Far);
        assert!((deliverable(LossPlace::BeforeBottleneck) - 289.6).abs() < 0.01);
        assert!((deliverable(LossPlace::AfterBottleneck) - 260.64).abs() < 0.01);
    }

    #[test]
    fn a_line_delivers_in_each_direction_what_that_one_carries() {
        let mbit = LineRate { down: 300, up: 3 };
        let case = PathCase { mbit, ..case(300, 0.0, LossPlace::default()) };
        let [down, up] = [End::Far, End::Near].map(|end| case.deliverable_mbit(end));
        assert!((down / up - 100.0).abs() < 1e-9, "{down} {up}");
    }

    #[test]
    fn small_messages_stay_small_on_slow_lines_and_start_up_is_counted_in_round_trips() {
        let at = |mbit| case(mbit, 0.0, LossPlace::default());
        assert_eq!([300, 20, 2].map(|mbit| at(mbit).ping_interval().as_millis()), [5, 5, 40]);
        assert_eq!(at(300).start_up(), Duration::from_secs(3));
        assert!((at(2).two_packets_ms() - 12.0).abs() < 1e-9);
    }

    #[test]
    fn cases_are_all_combinations() {
        let cases = PathCases {
            mbits: vec![LineRate { down: 300, up: 6 }, LineRate::both(20)],
            rtts: vec![Duration::from_millis(20)],
            losses: vec![0.0, 10.0],
            loss_place: LossPlace::default(),
            two_way: true,
        };
        let names: Vec<String> = cases.all().iter().map(ToString::to_string).collect();
        assert_eq!(names.len(), 8);
        assert_eq!(names[0], "300/6 Mbit/s, 20 ms, 0 % lost");
        assert_eq!(names[7], "20 Mbit/s, 20 ms, 10 % lost, both ways");
    }
}
