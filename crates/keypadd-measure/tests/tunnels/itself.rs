//! Tests on this machine what the simulations of `sequence` show: that an arm against itself is
//! hardly ever decided.

use std::time::Duration;

use keypadd_keystream::{CipherEngine, Suite};
use keypadd_measure::{Arm, Plan, Terminal, Typing, sequence, take_turns};
use keypadd_traffic::{Link, TunnelArm};

use super::{MACHINE, settings};

/// Runs; so many that more wrong ones than [`WRONG_MAX`] come of one error in twenty in less than
/// one test of a hundred.
const RUNS: u64 = 60;
const WRONG_MAX: usize = 7;

/// Rounds of a run: two looks.
const ROUNDS: u32 = 8;

/// With nothing else running: `cargo test --release -p keypadd-measure --test tunnels -- --ignored
/// --nocapture itself`.
#[tokio::test(flavor = "multi_thread")]
#[ignore = "takes eight minutes of an idle machine"]
async fn an_arm_against_itself_is_decided_in_at_most_one_run_of_twenty() {
    let _alone = MACHINE.lock().await;
    let suite = Suite::AES_256_GCM.protection();
    let arm = Arm::Tunnel(TunnelArm { suite, pool: false, engine: CipherEngine::default() });
    let (settings, mut wrong) = (settings(Link::default()), 0);
    for seed in 1..=RUNS {
        let typing = Typing::Human { typists: 200 };
        let terminal = Terminal { typing, time: Duration::from_millis(100), seed };
        let plan = Plan { rounds: ROUNDS, time: None, seed, tell: &|_| () };
        let never = std::future::pending();
        let runs = take_turns(&terminal, &[arm, arm], &settings, plan, |_| (), never).await;
        assert_eq!(runs.ended_by, None);
        let [one, other] = [0, 1].map(|nth: usize| {
            let turns = runs.arms[nth].1.iter();
            turns.filter_map(|it| it.measured.quantile_us(0.5)).collect::<Vec<f64>>()
        });
        let ratio = sequence::ratio(&one, &other).unwrap();
        let [low, high] = ratio.interval.unwrap();
        wrong += usize::from(!(low..=high).contains(&1.0));
        println!("run {seed}: {ratio}, {wrong} wrong so far");
    }
    assert!(wrong <= WRONG_MAX, "{wrong} of {RUNS}");
}
