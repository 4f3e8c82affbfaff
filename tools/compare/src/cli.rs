//! Parses the command line into arms and settings.
//!
//! Checks what can be checked without starting anything: names, duplicates, ranges. Does not know
//! whether programs exist or what keypadd's flags mean; the arms find out when they start.

use std::path::PathBuf;

use clap::{Parser, Subcommand};
use testbed::tunnel::{Arm, Kind};

/// Compare keypadd with ssh, stunnel and socat, side by side
///
/// Needs root: it makes two network namespaces, joins them by a veth pair and sends traffic between
/// them, and only there. Every arm runs once per round, in a shuffled order, on a tunnel of its own.
#[derive(Debug, Parser)]
#[command(name = "compare", version, max_term_width = 100)]
#[command(after_help = "\
Examples:
  compare --rounds 6 --seconds 3 --out compare.json
  compare --arms ssh,stunnel,keypadd --arm 3des='--suite 3des-ctr-hmac-sha1 --allow-legacy'
  compare --arms keypadd --arm-binary old=/tmp/keypadd-old")]
pub(crate) struct Cli {
    #[command(subcommand)]
    pub(crate) role: Option<Role>,
    /// Rounds; every arm runs once in each
    #[arg(long, default_value_t = 6, value_parser = clap::value_parser!(u32).range(1..=1000))]
    pub(crate) rounds: u32,
    /// Seconds that each bulk transfer takes
    #[arg(long, default_value_t = 3.0, value_parser = seconds)]
    pub(crate) seconds: f64,
    /// Arms to run: direct, socat, ssh, stunnel, keypadd
    #[arg(long, value_delimiter = ',', value_name = "ARM")]
    #[arg(default_value = "direct,socat,ssh,stunnel,keypadd")]
    pub(crate) arms: Vec<String>,
    /// Add an arm: keypadd with these flags at both ends, split at white space
    #[arg(long = "arm", value_name = "NAME=FLAGS")]
    pub(crate) extra: Vec<String>,
    /// Use another keypadd for the arm NAME; adds that arm unless --arm has defined it
    #[arg(long = "arm-binary", value_name = "NAME=PATH")]
    pub(crate) binaries: Vec<String>,
    /// The keypadd to measure [default: the one next to this program]
    #[arg(long, value_name = "PATH")]
    pub(crate) keypadd: Option<PathBuf>,
    /// MTU of the veth pair
    #[arg(long, default_value_t = 1500, value_parser = clap::value_parser!(u32).range(1280..=65535))]
    pub(crate) mtu: u32,
    /// Seed for the order of arms [default: random, printed]
    #[arg(long)]
    pub(crate) seed: Option<u64>,
    /// Write all rounds to this file as JSON, after every round
    #[arg(long, value_name = "FILE")]
    pub(crate) out: Option<PathBuf>,
}

/// What this program runs as inside the far namespace.
#[derive(Debug, Subcommand)]
pub(crate) enum Role {
    /// Serve test traffic (started by compare itself)
    #[command(hide = true)]
    Service {
        /// TCP port, on every IPv4 address
        port: u16,
    },
}

fn seconds(text: &str) -> Result<f64, String> {
    match text.parse::<f64>() {
        Ok(seconds) if (0.2..=600.0).contains(&seconds) => Ok(seconds),
        _ => Err("expected 0.2 to 600".into()),
    }
}

impl Cli {
    /// The arms in the order of the command line: `--arms` first, then `--arm` and `--arm-binary`.
    ///
    /// # Errors
    /// One line: an unknown or repeated name, or a missing `=`.
    pub(crate) fn parse_arms(&self, keypadd: &std::path::Path) -> Result<Vec<Arm>, String> {
        let mut arms: Vec<Arm> = Vec::new();
        for name in &self.arms {
            let kind = match name.as_str() {
                "direct" => Kind::Direct,
                "socat" => Kind::Socat,
                "ssh" => Kind::Ssh,
                "stunnel" => Kind::Stunnel,
                "keypadd" => Kind::keypadd(keypadd, ""),
                _ => {
                    return Err(format!(
                        "--arms: unknown arm {name:?}: expected direct, socat, ssh, stunnel or keypadd"
                    ));
                }
            };
            add(&mut arms, name, kind)?;
        }
        for text in &self.extra {
            let (name, flags) = name_and_value("--arm", text, "FLAGS")?;
            add(&mut arms, name, Kind::keypadd(keypadd, flags))?;
        }
        let mut given: Vec<&str> = Vec::new();
        for text in &self.binaries {
            let (name, path) = name_and_value("--arm-binary", text, "PATH")?;
            if given.contains(&name) {
                return Err(format!("--arm-binary: {name} is given twice"));
            }
            given.push(name);
            match arms.iter_mut().find(|arm| arm.name == name).map(|arm| &mut arm.kind) {
                Some(kind @ Kind::Keypadd { .. }) => kind.use_program(path.as_ref()),
                Some(_) => return Err(format!("--arm-binary: {name} is not a keypadd arm")),
                None => add(&mut arms, name, Kind::keypadd(path.as_ref(), ""))?,
            }
        }
        Ok(arms)
    }
}

fn name_and_value<'a>(
    flag: &str,
    text: &'a str,
    value: &str,
) -> Result<(&'a str, &'a str), String> {
    match text.split_once('=') {
        Some((name, rest)) if !name.is_empty() && !name.contains(char::is_whitespace) => {
            Ok((name, rest))
        }
        _ => Err(format!("{flag}: expected NAME={value}, got {text:?}")),
    }
}

fn add(arms: &mut Vec<Arm>, name: &str, kind: Kind) -> Result<(), String> {
    if arms.iter().any(|arm| arm.name == name) {
        return Err(format!("arm {name} is given twice"));
    }
    arms.push(Arm { name: name.to_owned(), kind });
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    fn arms(arguments: &[&str]) -> Result<Vec<Arm>, String> {
        let line = std::iter::once("compare").chain(arguments.iter().copied());
        Cli::try_parse_from(line).unwrap().parse_arms(Path::new("/k"))
    }

    fn kind_of(arms: &[Arm], name: &str) -> Kind {
        arms.iter().find(|arm| arm.name == name).unwrap().kind.clone()
    }

    #[test]
    fn default_arms_are_all_five() {
        let names: Vec<String> = arms(&[]).unwrap().into_iter().map(|arm| arm.name).collect();
        assert_eq!(names, ["direct", "socat", "ssh", "stunnel", "keypadd"]);
    }

    #[test]
    fn variant_flags_are_split_at_white_space_and_keep_their_equals_signs() {
        let arms = arms(&["--arms", "ssh", "--arm", "x=--suite=a  --allow-legacy"]).unwrap();
        assert_eq!(kind_of(&arms, "x"), Kind::keypadd("/k".as_ref(), "--suite=a --allow-legacy"));
    }

    #[test]
    fn variant_binary_adds_an_arm_or_changes_a_defined_one() {
        let arms = arms(&[
            "--arms",
            "ssh",
            "--arm",
            "x=-v",
            "--arm-binary",
            "x=/o",
            "--arm-binary",
            "y=/p",
        ])
        .unwrap();
        assert_eq!(kind_of(&arms, "x"), Kind::keypadd("/o".as_ref(), "-v"));
        assert_eq!(kind_of(&arms, "y"), Kind::keypadd("/p".as_ref(), ""));
    }

    #[test]
    fn wrong_arms_are_refused() {
        for (arguments, part) in [
            (vec!["--arms", "wireguard"], "unknown arm"),
            (vec!["--arms", "ssh,ssh"], "twice"),
            (vec!["--arm", "keypadd=-v"], "twice"),
            (vec!["--arm", "nothing"], "expected NAME=FLAGS"),
            (vec!["--arm", "=-v"], "expected NAME=FLAGS"),
            (vec!["--arm-binary", "ssh=/x"], "not a keypadd arm"),
            (vec!["--arm-binary", "x=/x", "--arm-binary", "x=/y"], "twice"),
        ] {
            let error = arms(&arguments).unwrap_err();
            assert!(error.contains(part), "{error}");
        }
    }
}
