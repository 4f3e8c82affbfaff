//! Describes the machine and the programs that are measured: the head of a report.
//!
//! Asks programs for their versions; what is not available is "unknown", never an error. Does not
//! know what is measured.

use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::SystemTime;

use serde::Serialize;
use testbed::programs::{clear_variables, locate};
use testbed::tunnel::{Arm, Kind};

/// The head of a report.
#[derive(Debug, Serialize)]
pub(crate) struct Host {
    date: String,
    kernel: String,
    cpu: String,
    cores: usize,
    /// Load averages at the start, as in proc_loadavg(5).
    load: String,
    /// Arm or program, and its version.
    versions: Vec<(String, String)>,
}

impl Host {
    /// Inspects this machine and asks the arms' programs for their versions.
    pub(crate) fn describe(arms: &[Arm]) -> Self {
        let cpu = file("/proc/cpuinfo");
        let model = cpu.lines().find(|line| line.starts_with("model name"));
        let model = model.and_then(|line| line.split_once(':')).map(|(_, name)| name.trim());
        let load = file("/proc/loadavg");
        Self {
            date: date(SystemTime::now()),
            kernel: file("/proc/sys/kernel/osrelease").trim().to_owned(),
            cpu: model.unwrap_or("unknown").to_owned(),
            cores: std::thread::available_parallelism().map_or(0, usize::from),
            load: load.split(' ').take(3).collect::<Vec<_>>().join(" "),
            versions: arms.iter().filter_map(version).collect(),
        }
    }

    /// The head as text.
    pub(crate) fn text(&self) -> String {
        let Self { date, kernel, cpu, cores, load, versions } = self;
        let mut text = format!("{date}, Linux {kernel}, {cores} x {cpu}, load {load}\n");
        for (name, version) in versions {
            text += &format!("{name}: {version}\n");
        }
        text
    }
}

/// An arm's program and version; keypadd arms with their path, time of build and flags.
fn version(arm: &Arm) -> Option<(String, String)> {
    let words = match &arm.kind {
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
    };
    Some((arm.name.clone(), words))
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

fn file(path: impl AsRef<Path>) -> String {
    fs::read_to_string(path).unwrap_or_default()
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
        let text = Host::describe(&arms).text();
        assert!(text.ends_with("off: unknown (/nonexistent/keypadd, built unknown), --pool off\n"));
        assert!(!text.contains("direct:"));
    }
}
