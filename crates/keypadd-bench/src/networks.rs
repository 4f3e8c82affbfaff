//! `keypadd bench networks`: checks which arms to compare, and runs the comparison.

use keypadd_cli::error::{Error, Exit};
use keypadd_cli::shutdown::Shutdown;
use keypadd_measure::{NetworkArm, Networks};

use crate::cli::NetworksArgs;
use crate::keeping::Keeping;

/// Default rounds.
const ROUNDS: u32 = 6;

/// Compares tunnels between two gateways.
///
/// # Errors
/// Exit 2: arms or a directory that make no sense. Exit 1: not root, or the run ended early;
/// measurements so far are still printed and saved.
pub(crate) async fn run(args: NetworksArgs, shutdown: Shutdown) -> Result<(), Error> {
    let arms = NetworkArm::read(&args.arms)
        .map_err(|cause| Error::new(Exit::Usage, format!("--arms: {cause}")))?;
    let networks = Networks {
        arms,
        time: args.time,
        rounds: args.run.rounds.unwrap_or(ROUNDS),
        seed: args.run.report.seed,
    };
    networks.check().map_err(|cause| Error::new(Exit::Runtime, format!("networks: {cause}")))?;
    let keeping = Keeping::begin("keypadd bench networks", &args.run.report, Vec::new())?;
    keeping.measure_blocking(shutdown, move |tell, keep, stop| networks.run(tell, keep, stop)).await
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;
    use crate::cli::Cli;

    #[test]
    fn help_names_every_arm() {
        let command = Cli::command();
        let networks = command.find_subcommand("networks").unwrap();
        let arms = networks.get_arguments().find(|it| it.get_id() == "arms").unwrap();
        let help = arms.get_help().unwrap().to_string();
        let named: Vec<&str> = help.split([' ', ',', '\n', '[']).collect();
        for arm in NetworkArm::read(&[]).unwrap() {
            assert!(named.contains(&arm.name), "{}: {help}", arm.name);
        }
    }
}
