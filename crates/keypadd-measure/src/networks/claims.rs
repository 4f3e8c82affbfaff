//! Lists what is claimed of tunnels between networks, each a row, and judges it. Pure.
//!
//! Each is a ratio to another arm in the same round, or a figure of its own arm. A sample of that
//! arm that failed counts as the worst: nothing carried, or a cost without bounds. A round in which
//! none of the others came up says nothing.

use super::Networks;
use super::arms::{KEYPADD, KEYPADD_3DES, KEYPADD_NULL, KEYPADD_POOLED, PLAIN, VXLAN};
use super::sample::{Sample, Taken};
use crate::results::{Estimate, Outcome, Verdict};
use crate::sequence::{center, total};
use crate::verdict::Rule;

struct Claim {
    text: &'static str,
    arm: &'static str,
    of: Measure,
    over: Over,
    rule: Rule,
}

/// A figure of a sample.
#[derive(Clone, Copy)]
struct Measure {
    name: &'static str,
    /// Whether less is better.
    is_cost: bool,
    /// None if nothing arrived.
    of: fn(&Sample) -> Option<f64>,
    /// What the rounds say together.
    estimate: fn(&[f64]) -> Option<Estimate>,
}

/// What the arm's figure is divided by.
#[derive(Clone, Copy)]
enum Over {
    Arm(&'static str),
    /// The best in that round of the programs that encrypt, keypadd included.
    Encrypted,
    /// The best in that round of the programs that encrypt, without keypadd.
    Peers,
    /// Nothing.
    Itself,
}

const STREAM: Measure = Measure {
    name: "one stream down",
    is_cost: false,
    of: |it| Some(it.tcp[0].mbit),
    estimate: center,
};
const CPU: Measure = Measure {
    name: "the whole machine's CPU time a GB of one stream down",
    is_cost: true,
    of: |it| Some(it.tcp[0].machine_cpu),
    estimate: center,
};
const ECHO_ALONE: Measure = Measure {
    name: "median round trip of 100 bytes, alone",
    is_cost: true,
    of: |it| it.idle.times[1].quantile_us(0.5),
    estimate: center,
};
const ECHO_BESIDE: Measure = Measure {
    name: "99th percentile of round trips of 100 bytes beside one stream",
    is_cost: true,
    of: |it| it.beside.times[1].quantile_us(0.99),
    estimate: center,
};
const SMALL_UDP: Measure = Measure {
    name: "UDP packets of 64 bytes received a second",
    is_cost: false,
    of: |it| Some(it.udp.last()?.per_second),
    estimate: center,
};
const VOICE_LOST: Measure = Measure {
    name: "voice packets lost beside one stream",
    is_cost: true,
    of: |it| (it.voice.sent > 0).then_some(it.voice.lost as f64),
    estimate: total,
};
const VOICE_JITTER: Measure = Measure {
    name: "jitter of voice beside one stream, µs",
    is_cost: true,
    of: |it| it.voice.jitter_us,
    estimate: center,
};

const CLAIMS: [Claim; 18] = [
    Claim {
        text: "the hosts are not the limit: without a tunnel one stream is at least twice as \
               fast as through the fastest that encrypts",
        arm: PLAIN,
        of: STREAM,
        over: Over::Encrypted,
        rule: Rule::AtLeast(2.0),
    },
    Claim {
        text: "a tunnel without cryptography is faster than every one with it",
        arm: VXLAN,
        of: STREAM,
        over: Over::Encrypted,
        rule: Rule::AtLeast(1.0),
    },
    faster("OpenVPN is faster with AES than with 3DES", "openvpn", 1.0, "openvpn-3des"),
    faster("strongSwan is faster with AES than with 3DES", "strongswan", 1.0, "strongswan-3des"),
    faster("keypadd carries at least 3.5 times what boringtun does", KEYPADD, 3.5, "boringtun"),
    faster("keypadd carries at least 4 times what OpenVPN does", KEYPADD, 4.0, "openvpn"),
    faster("keypadd carries at least 4 times what strongSwan does", KEYPADD, 4.0, "strongswan"),
    faster("keypadd carries at least 4 times what quincy does", KEYPADD, 4.0, "quincy"),
    faster(
        "with 3DES keypadd carries at least 5 times what OpenVPN does",
        KEYPADD_3DES,
        5.0,
        "openvpn-3des",
    ),
    faster(
        "with 3DES keypadd carries at least 5 times what strongSwan does",
        KEYPADD_3DES,
        5.0,
        "strongswan-3des",
    ),
    Claim {
        text: "keypadd takes at most a quarter of boringtun's CPU time",
        arm: KEYPADD,
        of: CPU,
        over: Over::Arm("boringtun"),
        rule: Rule::AtMost(0.25),
    },
    Claim {
        text: "alone, an echo takes at most 0.8 of what the promptest other program takes",
        arm: KEYPADD,
        of: ECHO_ALONE,
        over: Over::Peers,
        rule: Rule::AtMost(0.8),
    },
    Claim {
        text: "alone, an echo with pads from the pool takes as long as one without cryptography",
        arm: KEYPADD_POOLED,
        of: ECHO_ALONE,
        over: Over::Arm(KEYPADD_NULL),
        rule: Rule::AtMost(1.02),
    },
    Claim {
        text: "beside a stream, an echo takes at most half of what the promptest other program \
               takes",
        arm: KEYPADD,
        of: ECHO_BESIDE,
        over: Over::Peers,
        rule: Rule::AtMost(0.5),
    },
    Claim {
        text: "keypadd carries as many small packets as every other program",
        arm: KEYPADD,
        of: SMALL_UDP,
        over: Over::Peers,
        rule: Rule::AtLeast(1.0),
    },
    Claim {
        text: "beside a stream through keypadd, voice loses nothing",
        arm: KEYPADD,
        of: VOICE_LOST,
        over: Over::Itself,
        rule: Rule::AtMost(0.0),
    },
    Claim {
        text: "beside a stream through keypadd, the jitter of voice is at most 2 ms",
        arm: KEYPADD,
        of: VOICE_JITTER,
        over: Over::Itself,
        rule: Rule::AtMost(2000.0),
    },
    Claim {
        text: "beside a stream through keypadd with 3DES, the jitter of voice is at most 2 ms",
        arm: KEYPADD_3DES,
        of: VOICE_JITTER,
        over: Over::Itself,
        rule: Rule::AtMost(2000.0),
    },
];

const fn faster(text: &'static str, arm: &'static str, times: f64, over: &'static str) -> Claim {
    Claim { text, arm, of: STREAM, over: Over::Arm(over), rule: Rule::AtLeast(times) }
}

/// The verdicts on claims all of whose arms were asked for.
pub(super) fn judge(networks: &Networks, taken: &[Taken]) -> Vec<Verdict> {
    CLAIMS.iter().filter_map(|claim| claim.judge(networks, taken)).collect()
}

impl Claim {
    fn judge(&self, networks: &Networks, taken: &[Taken]) -> Option<Verdict> {
        let is_there = |is_one: &dyn Fn(usize) -> bool| (0..networks.arms.len()).any(is_one);
        let arm = |arm: usize| networks.arms[arm].name == self.arm;
        let base = |arm: usize| self.over.is_of(networks, arm);
        let has_base = matches!(self.over, Over::Itself) || is_there(&base);
        (is_there(&arm) && has_base).then_some(())?;
        let values: Vec<f64> = (0..networks.rounds)
            .filter_map(|round| {
                let figure = self.of.best(taken, round, &arm)?.unwrap_or_else(|| self.of.worst());
                match self.over {
                    Over::Itself => Some(figure),
                    _ => Some(figure / self.of.best(taken, round, &base)??),
                }
            })
            .collect();
        let figure = match self.over {
            Over::Itself => self.of.name.to_owned(),
            Over::Arm(_) => format!("ratio of {} to the other arm's in its round", self.of.name),
            Over::Encrypted | Over::Peers => {
                format!("ratio of {} to the best of the others' in its round", self.of.name)
            }
        };
        let estimate = (self.of.estimate)(&values);
        let mut verdict = self.rule.judge(self.text, &figure, estimate.as_ref());
        if values.is_empty() {
            verdict.outcome = Outcome::NotRun;
        }
        Some(verdict)
    }
}

impl Measure {
    /// The best of a round's samples of these arms: `None` if there are no such samples,
    /// `Some(None)` if all have failed.
    fn best(
        self,
        taken: &[Taken],
        round: u32,
        is_of: &dyn Fn(usize) -> bool,
    ) -> Option<Option<f64>> {
        let better = if self.is_cost { f64::min } else { f64::max };
        let of_round = taken.iter().filter(|it| it.round == round && is_of(it.arm));
        let mut figures = of_round.map(|it| it.sample.as_ref().ok().and_then(self.of)).peekable();
        figures.peek()?;
        Some(figures.flatten().reduce(better))
    }

    fn worst(self) -> f64 {
        if self.is_cost { f64::INFINITY } else { 0.0 }
    }
}

impl Over {
    fn is_of(self, networks: &Networks, arm: usize) -> bool {
        let arm = networks.arms[arm];
        match self {
            Self::Arm(name) => arm.name == name,
            Self::Encrypted => !arm.is_clear,
            Self::Peers => !arm.is_clear && !arm.name.starts_with(KEYPADD),
            Self::Itself => false,
        }
    }
}

#[cfg(test)]
pub(super) mod tests {
    use std::time::Duration;

    use super::super::NetworkArm;
    use super::super::load::PACES;
    use super::super::sample::{STREAMS, Tcp};
    use super::*;
    use crate::flow::Flow;
    use crate::pings::Pings;

    pub(in super::super) fn networks(names: [&str; 4]) -> Networks {
        let arms = NetworkArm::read(&names.map(str::to_owned)).unwrap();
        Networks { arms, time: Duration::from_secs(2), rounds: 6, seed: 1 }
    }

    /// With a CPU time of one second a gigabit a second.
    fn sample(mbit: f64) -> Sample {
        let machine_cpu = mbit / 1000.0;
        let tcp =
            Tcp { mbit, machine_cpu, gateway_cpu: Some(0.5), sent_again: 7.0, reordered: 0.0 };
        Sample {
            tcp: vec![tcp; STREAMS.len()],
            idle: Pings::default(),
            beside: Pings::default(),
            voice: Flow::default(),
            udp: vec![Flow::default(); PACES.len()],
            others_percent: 0.0,
        }
    }

    /// Six rounds of these rates of the arms; none where a sample failed.
    pub(in super::super) fn taken(rates: [Option<f64>; 4]) -> Vec<Taken> {
        let rounds = (0..6).flat_map(|round| {
            rates.into_iter().enumerate().map(move |(arm, rate)| Taken {
                case: 0,
                arm,
                round,
                sample: rate.map(sample).ok_or_else(|| "it did not come up".into()),
            })
        });
        rounds.collect()
    }

    fn outcomes(names: [&str; 4], rates: [Option<f64>; 4]) -> Vec<Outcome> {
        judge(&networks(names), &taken(rates)).iter().map(|it| it.outcome).collect()
    }

    #[test]
    fn only_claims_whose_arms_were_asked_for_are_judged_by_the_fastest_of_each_round() {
        let outcomes = |rates| outcomes(["plain", "boringtun", "openvpn", "openvpn-3des"], rates);
        let rates = [9000.0, 1000.0, 900.0, 100.0].map(Some);
        assert_eq!(outcomes(rates), [Outcome::Holds; 2]);
        let rates = [1500.0, 1000.0, 100.0, 900.0].map(Some);
        assert_eq!(outcomes(rates), [Outcome::DoesNotHold; 2]);
        // One that failed is no rival, and not ahead of one.
        let rates = [Some(9000.0), None, Some(900.0), None];
        assert_eq!(outcomes(rates), [Outcome::Holds, Outcome::NotRun]);
        let rates = [Some(9000.0), None, None, Some(100.0)];
        assert_eq!(outcomes(rates), [Outcome::Holds, Outcome::DoesNotHold]);
    }

    /// The outcome of the claim of this text on keypadd's CPU time, beside boringtun's.
    fn outcome_of_cpu(keypadd: Option<f64>, boringtun: Option<f64>) -> Outcome {
        let networks = networks(["keypadd", "boringtun", "plain", "vxlan"]);
        let rates = [keypadd, boringtun, Some(9000.0), Some(8000.0)];
        let verdicts = judge(&networks, &taken(rates));
        verdicts.iter().find(|it| it.claim.contains("CPU time")).unwrap().outcome
    }

    #[test]
    fn a_cost_is_judged_by_the_least_and_a_failure_costs_without_bounds() {
        assert_eq!(outcome_of_cpu(Some(200.0), Some(1000.0)), Outcome::Holds);
        assert_eq!(outcome_of_cpu(Some(300.0), Some(1000.0)), Outcome::DoesNotHold);
        assert_eq!(outcome_of_cpu(None, Some(1000.0)), Outcome::DoesNotHold);
        assert_eq!(outcome_of_cpu(Some(200.0), None), Outcome::NotRun);
        assert_eq!(outcome_of_cpu(None, None), Outcome::NotRun);
    }

    #[test]
    fn keypadd_is_no_peer_of_itself_and_voice_that_never_arrived_is_no_calm_voice() {
        let networks = networks(["keypadd", "keypadd-3des", "boringtun", "plain"]);
        let mut taken = taken([Some(5000.0), Some(900.0), Some(1000.0), Some(9000.0)]);
        for it in &mut taken {
            let per_second = [800.0, 900.0, 700.0, 1000.0][it.arm];
            let sample = it.sample.as_mut().unwrap();
            sample.udp.last_mut().unwrap().per_second = per_second;
        }
        let outcome = |taken: &[Taken], words: &str| {
            let verdicts = judge(&networks, taken);
            verdicts.iter().find(|it| it.claim.contains(words)).unwrap().outcome
        };
        assert_eq!(outcome(&taken, "small packets"), Outcome::Holds);
        assert_eq!(outcome(&taken, "through keypadd, the jitter"), Outcome::DoesNotHold);
        assert_eq!(outcome(&taken, "voice loses nothing"), Outcome::DoesNotHold);
        assert_eq!(outcome(&taken, "fastest that encrypts"), Outcome::DoesNotHold);
        // One lost packet in one round of all is one too many.
        for it in &mut taken {
            let lost = u64::from(it.round == 5 && it.arm == 0);
            it.sample.as_mut().unwrap().voice = Flow { sent: 100, lost, ..Flow::default() };
        }
        assert_eq!(outcome(&taken, "voice loses nothing"), Outcome::DoesNotHold);
        taken.retain(|it| it.round < 5);
        assert_eq!(outcome(&taken, "voice loses nothing"), Outcome::CannotTell, "too few rounds");
    }

    #[test]
    fn nothing_measured_is_no_verdict() {
        let networks = networks(["plain", "vxlan", "keypadd", "boringtun"]);
        assert!(judge(&networks, &[]).iter().all(|it| it.outcome == Outcome::NotRun));
    }
}
