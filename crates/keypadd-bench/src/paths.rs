//! `keypadd bench paths`: checks which arms and paths to compare, and runs the comparison.

use std::time::Duration;

use keypadd_cli::error::{Error, Exit};
use keypadd_cli::shutdown::Shutdown;
use keypadd_measure::{LossPlace, PathArms, PathCases, Paths};

use crate::cli::PathsArgs;
use crate::keeping::Keeping;

/// Default rounds, losses in percent and steady state; and those of `--quick`.
const ROUNDS: [u32; 2] = [6, 1];
const LOSSES: [&[f64]; 2] = [&[0.0, 0.5, 2.0, 10.0, 20.0], &[0.0, 2.0, 10.0]];
const TIMES: [Duration; 2] = [Duration::from_secs(8), Duration::from_secs(2)];

/// Compares arms on emulated paths.
///
/// # Errors
/// Exit 2: arms or a directory that make no sense. Exit 1: not root, a program is missing, or the
/// run ended early; measurements so far are still printed and saved.
pub(crate) async fn run(args: PathsArgs, shutdown: Shutdown) -> Result<(), Error> {
    let paths = read(&args)?;
    paths.check().map_err(|cause| Error::new(Exit::Runtime, format!("paths: {cause}")))?;
    let keeping = Keeping::begin("keypadd bench paths", &args.run.report, Vec::new())?;
    keeping.measure_blocking(shutdown, move |tell, keep, stop| paths.run(tell, keep, stop)).await
}

fn read(args: &PathsArgs) -> Result<Paths, Error> {
    let effort = usize::from(args.quick);
    let own_path = std::env::current_exe().map_err(|error| {
        Error::new(Exit::Runtime, format!("cannot find this executable: {error}"))
    })?;
    let keypadd = args.keypadd.clone().unwrap_or_else(|| own_path.with_file_name("keypadd"));
    let mut names = args.arms.clone();
    if names.is_empty() {
        names
            .extend(PathArms::NAMES.iter().take(PathArms::DEFAULTS).map(|name| (*name).to_owned()));
    }
    let arms = PathArms { names, extra: args.arm.clone() };
    let arms =
        arms.read(&keypadd).map_err(|cause| Error::new(Exit::Usage, format!("--arms: {cause}")))?;
    let losses = if args.loss.is_empty() { LOSSES[effort].to_vec() } else { args.loss.clone() };
    let cases = PathCases {
        mbits: args.line.clone(),
        rtts: args.rtt.clone(),
        losses,
        loss_place: match args.loss_after {
            true => LossPlace::AfterBottleneck,
            false => LossPlace::BeforeBottleneck,
        },
        two_way: args.two_way,
    };
    Ok(Paths {
        arms,
        cases: cases.all(),
        time: args.time.unwrap_or(TIMES[effort]),
        rounds: args.run.rounds.unwrap_or(ROUNDS[effort]),
        seed: args.run.report.seed,
    })
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;
    use crate::cli::{BenchWorkload, Cli};

    fn parse(arguments: &[&str]) -> Result<Paths, String> {
        let line = ["keypadd-bench", "paths"].iter().chain(arguments);
        let cli = Cli::try_parse_from(line).map_err(|error| error.to_string())?;
        let BenchWorkload::Paths(args) = cli.workload else {
            return Err("another workload".into());
        };
        read(&args).map_err(|error| error.to_string())
    }

    #[test]
    fn a_full_run_has_ten_cases_and_six_arms_and_a_quick_one_fewer_and_shorter() {
        let full = parse(&[]).unwrap();
        assert_eq!((full.cases.len(), full.arms.len(), full.rounds), (10, 6, 6));
        let quick = parse(&["--quick"]).unwrap();
        assert_eq!((quick.cases.len(), quick.arms.len(), quick.rounds), (6, 6, 1));
        assert!(quick.time < full.time);
    }

    #[test]
    fn lines_losses_ways_and_arms_can_be_chosen() {
        let chosen = [
            "--line",
            "100/5,2",
            "--rtt",
            "30ms",
            "--loss",
            "1.5",
            "--loss-after",
            "--two-way",
            "--arms",
            "keypadd,keypadd-3des",
            "--arm",
            "spin=--spin 0",
        ];
        let paths = parse(&chosen).unwrap();
        let names: Vec<String> = paths.cases.iter().map(ToString::to_string).collect();
        assert_eq!(names.len(), 4);
        assert_eq!(names[0], "100/5 Mbit/s, 30 ms, 1.5 % lost");
        assert_eq!(names[3], "2 Mbit/s, 30 ms, 1.5 % lost, both ways");
        let arms: Vec<&str> = paths.arms.iter().map(|arm| arm.name()).collect();
        assert_eq!(arms, ["keypadd", "keypadd-3des", "spin"]);
    }

    #[test]
    fn invalid_flag_combinations_are_refused() {
        for (arguments, part) in [
            (["--arms", "wireguard"], "expected keypadd"),
            (["--arms", "keypadd,keypadd"], "twice"),
            (["--arm", "no-flags"], "is not an arm"),
            (["--loss", "60"], "is not a loss"),
            (["--rtt", "1m"], "is too long"),
            (["--line", "0"], "is not a line's rate"),
            (["--line", "100/2/1"], "is not a line's rate"),
        ] {
            let error = parse(&arguments).unwrap_err();
            assert!(error.contains(part), "{error}");
        }
    }
}
