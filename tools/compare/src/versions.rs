//! Describes the programs that are measured: the head of a report.
//!
//! Asks programs for their versions; what is not available is "unknown", never an error. Does not
//! know what is measured.

use std::fs;
use std::process::{Command, Stdio};
use std::time::SystemTime;

use keypadd_measure::results::Table;
use testbed::programs::{clear_variables, locate};
use testbed::tunnel::{Arm, Kind};

/// The arms' programs and their versions.
pub(crate) fn versions(arms: &[Arm]) -> Table {
    let rows = arms.iter().filter_map(|arm| Some((&arm.name, version(arm)?)));
    Table::of("arms", "Arms", "arm", rows).column("version", "", String::clone).end()
}

/// Its program and version; those of keypadd with their path, time of build and flags.
fn version(arm: &Arm) -> Option<String> {
    Some(match &arm.kind {
        Kind::Direct => return None,
        Kind::Socat => first_line(&["socat", "-V"], "socat version"),
        Kind::Ssh => first_line(&["ssh", "-V"], ""),
        Kind::Stunnel => first_line(&["stunnel", "-version"], "stunnel "),
        Kind::Keypadd { program, flags } => {
            let path = program.display().to_string();
            let built = fs::metadata(program).and_then(|it| it.modified());
            let built = built.map_or_else(|_| "unknown".to_owned(), date);
            let flags = if flags.is_empty() { "default flags".into() } else { flags.join(" ") };
            let version = first_line(&[&path, "--version"], "");
            format!("{version} ({path}, built {built}), {flags}")
        }
    })
}

/// The first line of a program's output that begins with these words.
fn first_line(command: &[&str], begin: &str) -> String {
    let unknown = || "unknown".to_owned();
    let [program, arguments @ ..] = command else { return unknown() };
    let mut command = Command::new(locate(program));
    clear_variables(&mut command);
    let Ok(output) = command.args(arguments).stdin(Stdio::null()).output() else {
        return unknown();
    };
    // Some print their version on standard error.
    let text = [output.stdout, output.stderr].concat();
    let text = String::from_utf8_lossy(&text);
    let line = text.lines().map(str::trim).find(|line| !line.is_empty() && line.starts_with(begin));
    line.map_or_else(unknown, str::to_owned)
}

fn date(time: SystemTime) -> String {
    humantime::format_rfc3339_seconds(time).to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn head_names_the_arms_and_survives_missing_programs() {
        let kind = Kind::keypadd("/nonexistent/keypadd".as_ref(), "--pool off");
        let arms =
            [Arm { name: "direct".into(), kind: Kind::Direct }, Arm { name: "off".into(), kind }];
        let [row] = &versions(&arms).rows[..] else { panic!("of the tunnel alone") };
        let version = "unknown (/nonexistent/keypadd, built unknown), --pool off";
        assert_eq!((&*row.label, &row.cells[..]), ("off", &[version.into()][..]));
    }
}
