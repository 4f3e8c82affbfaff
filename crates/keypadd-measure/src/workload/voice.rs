//! Measures a call: packets at the pace of speech, alone and while bulk data runs on the same
//! tunnel.

use std::net::UdpSocket;
use std::sync::Arc;
use std::time::{Duration, Instant};

use keypadd_traffic::{Broken, Due, Exchange, Path, SetOnDrop, open_datagrams};
use tokio::task::spawn_blocking;

use crate::arm::Arm;
use crate::flow::{Flow, VOICE, flow};
use crate::interleave::{Runs, Turn, Workload};
use crate::results::{Section, Table};
use crate::sequence::{center, total};
use crate::statistics::mean_of_finite;
use crate::workload::bulk::{STEP_BYTES, flood, rate_mbit, streams_beside};
use crate::workload::terminal::{distributions, quantile};
use crate::workload::{Claims, Figure, Goal, Ratio, costs, ratios, samples, verdicts};

/// How long bulk data runs before the call.
const LEAD: Duration = Duration::from_millis(200);

/// A call.
#[derive(Clone, Copy, Debug)]
pub struct Voice {
    /// Duration of the call alone in each turn, and again beside bulk data.
    pub time: Duration,
    /// Streams of bulk data from here to the far end.
    pub streams: u32,
}

/// One turn.
#[derive(Clone, Debug)]
pub struct VoiceMeasured {
    alone: Flow,
    beside: Flow,
    /// Whether delays are one way, by the clock of both ends.
    has_one_clock: bool,
    /// Rate of the bulk data, Mbit/s.
    mbit: f64,
}

impl Workload for Voice {
    type Measured = VoiceMeasured;

    async fn once(&self, path: &Path, _: u32) -> Result<VoiceMeasured, Broken> {
        let (address, has_one_clock) = (path.udp_address(), path.has_one_clock());
        let opened = spawn_blocking(move || open_datagrams(address)).await;
        let socket = Arc::new(opened.map_err(|_| Broken::fault())??);
        let alone = call(Arc::clone(&socket), has_one_clock, self.time).await?;
        let (start, step) = (Instant::now(), Exchange::new(STEP_BYTES, 1));
        let beside = async {
            tokio::time::sleep(LEAD).await;
            call(socket, has_one_clock, self.time).await
        };
        let bulk = flood(path, self.streams, step, LEAD + self.time, start);
        let (beside, arrivals) = tokio::try_join!(beside, bulk)?;
        Ok(VoiceMeasured { alone, beside, has_one_clock, mbit: rate_mbit(&arrivals) })
    }

    fn offered(&self) -> Vec<Due> {
        Vec::new()
    }

    fn figures(&self) -> Vec<Figure<VoiceMeasured>> {
        vec![
            Figure {
                of: "A call beside bulk data",
                claims: Claims::Goal(Goal {
                    claim: "loses no packet",
                    name: "packets lost",
                    at_most: 0.0,
                    estimate: total,
                }),
                value: Box::new(|measured| Some(measured.beside.lost as f64)),
            },
            Figure {
                of: "A call beside bulk data",
                claims: Claims::Goal(Goal {
                    claim: "has at most 2 ms of jitter",
                    name: "mean jitter in ms",
                    at_most: 2.0,
                    estimate: center,
                }),
                // A call of which nothing arrives is no calm one.
                value: Box::new(|it| Some(it.beside.jitter_us.unwrap_or(f64::INFINITY) / 1e3)),
            },
            Figure {
                of: "A packet of a call beside bulk data",
                claims: Claims::Ratio(Ratio { name: "ratio of medians", less_is_better: true }),
                value: Box::new(median),
            },
        ]
    }

    fn section(&self, runs: &Runs<VoiceMeasured>) -> Section {
        let arms = runs.measured();
        let has_one_clock = |turn: &Turn<VoiceMeasured>| turn.measured.has_one_clock;
        let (way, delay) = match arms.iter().flat_map(|(_, turns)| *turns).all(has_one_clock) {
            true => ("one way", "from here to the far end, by the one clock of both"),
            false => ("half of the round trip", "half of the round trip, as clocks there differ"),
        };
        let mut section = Section::of_page(
            "voice",
            include_str!("voice.md"),
            &[
                ("bytes", &VOICE.bytes),
                ("ms", &VOICE.interval.as_millis()),
                ("seconds", &self.time.as_secs_f64()),
                ("streams", &streams_beside(self.streams)),
                ("delay", &delay),
            ],
        );
        section.verdicts = verdicts(&self.figures(), runs);
        section.notes = runs.notes();
        let rates = samples(&arms, |measured| Some(measured.mbit));
        let rates = Table::of("rates", "Bulk data that arrived meanwhile", "arm", rates)
            .column("rate", "Mbit/s", |samples| mean_of_finite(samples))
            .end();
        let title = "Median delay beside bulk data over that of the base lines, round by round";
        section.tables = vec![
            table("alone", &format!("A call alone: delay {way}"), &arms, |it| &it.alone),
            table("beside", &format!("Beside bulk data: delay {way}"), &arms, |it| &it.beside),
            rates,
            ratios("ratios", title, &samples(&arms, median)),
            costs(&arms),
        ];
        let title = format!("Delay beside bulk data, {way}");
        section.plots = vec![distributions(&title, &arms, |it| &it.beside.delays)];
        section
    }
}

fn median(measured: &VoiceMeasured) -> Option<f64> {
    measured.beside.delays.quantile_us(0.5)
}

/// A call over this socket.
async fn call(socket: Arc<UdpSocket>, has_one_clock: bool, time: Duration) -> Result<Flow, Broken> {
    // Nobody may wait for its end any more.
    let stop = SetOnDrop::default();
    let is_stopped = Arc::clone(&stop.0);
    let called = spawn_blocking(move || {
        flow(&VOICE, [&socket, &socket], has_one_clock, time, &is_stopped)
            .map_err(|cause| Broken::Stopped(std::io::Error::other(cause)))
    });
    called.await.map_err(|_| Broken::fault())?
}

/// What became of the packets of each arm.
fn table(
    id: &str,
    title: &str,
    arms: &[(Arm, &[Turn<VoiceMeasured>])],
    flow: impl Fn(&VoiceMeasured) -> &Flow,
) -> Table {
    let flows = |turns: &'_ [Turn<VoiceMeasured>]| -> Vec<Flow> {
        turns.iter().map(|turn| flow(&turn.measured).clone()).collect()
    };
    let rows = arms.iter().map(|(arm, turns)| (arm, flows(turns)));
    let delays = |flows: &[Flow], wanted| {
        quantile(&flows.iter().map(|flow| &flow.delays).collect::<Vec<_>>(), wanted)
    };
    let jitter = |flows: &Vec<Flow>| {
        mean_of_finite(&flows.iter().filter_map(|flow| flow.jitter_us).collect::<Vec<f64>>())
    };
    Table::of(id, title, "arm", rows)
        .column("packets", "", |flows| flows.iter().map(|flow| flow.sent).sum::<u64>() as f64)
        .column("lost", "", |flows| flows.iter().map(|flow| flow.lost).sum::<u64>() as f64)
        .column("jitter", "µs", jitter)
        .column("p50", "µs", |flows| delays(flows, 0.5))
        .column("p99", "µs", |flows| delays(flows, 0.99))
        .column("max", "µs", |flows| {
            flows.iter().filter_map(|flow| flow.delays.max_us()).reduce(f64::max)
        })
        .end()
}

#[cfg(test)]
mod tests {
    use keypadd_keystream::{CipherEngine, MeasureSuite, Protection, Suite};
    use keypadd_traffic::{Counts, TunnelArm};

    use super::*;
    use crate::results::Outcome;

    const VOICE: Voice = Voice { time: Duration::from_secs(3), streams: 1 };

    fn tunnel(suite: impl Into<Protection>) -> Arm {
        let engine = CipherEngine::default();
        Arm::Tunnel(TunnelArm { suite: suite.into(), pool: false, engine })
    }

    /// Rounds of a call beside bulk data that loses so many packets and has so much jitter.
    fn turns(rounds: &[(u64, f64)], has_one_clock: bool) -> Vec<Turn<VoiceMeasured>> {
        let turn = |&(lost, jitter_us): &(u64, f64)| {
            let mut alone = Flow { sent: 150, ..Flow::default() };
            alone.delays.record(Duration::from_micros(100));
            let beside = Flow { lost, jitter_us: Some(jitter_us), ..alone.clone() };
            Turn {
                measured: VoiceMeasured { alone, beside, has_one_clock, mbit: 1000.0 },
                counts: Counts::default(),
                filler_cpu: Duration::ZERO,
                cpu: Duration::ZERO,
                time: Duration::from_secs(6),
                was_full: true,
            }
        };
        rounds.iter().map(turn).collect()
    }

    fn section(arms: Vec<(Arm, Vec<Turn<VoiceMeasured>>)>) -> Section {
        VOICE.section(&Runs { arms, repeated: 0, disturbed: 0, ended_by: None })
    }

    /// The outcomes of what is claimed of loss, and of jitter.
    fn outcomes(rounds: &[(u64, f64)]) -> [Outcome; 2] {
        let section = section(vec![(tunnel(Suite::AES_256_GCM), turns(rounds, true))]);
        let [lost, jitter] = &section.verdicts[..] else { panic!("{:?}", section.verdicts) };
        [lost.outcome, jitter.outcome]
    }

    #[test]
    fn contrary_figures_give_the_contrary_verdict() {
        use Outcome::{CannotTell, DoesNotHold, Holds};
        assert_eq!(outcomes(&[(0, 50.0); 6]), [Holds, Holds]);
        assert_eq!(outcomes(&[(2, 2_500.0); 6]), [DoesNotHold, DoesNotHold]);
        let half = [[(0, 1_000.0); 3], [(0, 3_000.0); 3]].concat();
        assert_eq!(outcomes(&half), [Holds, CannotTell]);
        assert_eq!(outcomes(&[(0, 50.0); 5]), [CannotTell; 2], "too few rounds");
    }

    #[test]
    fn one_lost_packet_in_many_rounds_is_one_too_many() {
        let mut rounds = vec![(0, 50.0); 30];
        rounds[29].0 = 1;
        assert_eq!(outcomes(&rounds), [Outcome::DoesNotHold, Outcome::Holds]);
    }

    #[test]
    fn only_what_encrypts_is_judged_and_every_arm_has_a_row() {
        let rounds = || turns(&[(1, 3_000.0); 6], true);
        let null = tunnel(MeasureSuite::NULL_HMAC_SHA1);
        let section = section(vec![(Arm::Tcp, rounds()), (null, rounds())]);
        assert!(section.verdicts.is_empty(), "{:?}", section.verdicts);
        let beside = section.tables.iter().find(|table| table.id == "beside").unwrap();
        let figures = |nth: usize| beside.rows.iter().map(move |row| row.cells[nth].figure());
        assert!(figures(0).all(|sent| sent.is_some_and(|sent| sent.value == 900.0)));
        assert!(figures(1).all(|lost| lost.is_some_and(|lost| lost.value == 6.0)));
    }

    #[test]
    fn a_delay_that_is_not_one_way_says_so() {
        let title = |has_one_clock| {
            let turns = turns(&[(0, 50.0); 6], has_one_clock);
            section(vec![(tunnel(Suite::AES_256_GCM), turns)]).tables[1].title.clone()
        };
        assert!(title(true).ends_with("delay one way"));
        assert!(title(false).ends_with("delay half of the round trip"));
    }
}
