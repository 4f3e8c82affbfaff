//! Describes the machine of a run, as far as results depend on it.
//!
//! Reads `/proc` and `/sys`, and omits what it does not find there. Records neither host nor user
//! names, nor anything that identifies one machine among others of its kind.

use std::fs;
use std::path::Path;

use keypadd_keystream::CipherBackend;
use keypadd_keystream::cpu_features;
use serde::{Deserialize, Serialize};

/// One machine.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Machine {
    /// The CPU's model name; empty where the kernel does not report it.
    pub cpu: String,
    /// `x86_64`, `aarch64`.
    pub architecture: String,
    /// Logical CPUs online.
    pub cores_online: usize,
    /// Cores available to this process.
    pub cores_allowed: usize,
    /// CPU seconds per second that a control group allows; `None` without a limit.
    pub cpu_quota: Option<f64>,
    /// Whether two logical CPUs may share a core.
    pub smt: Option<bool>,
    /// The frequency governor: `performance`.
    pub governor: Option<String>,
    /// The largest cache of a core, in bytes.
    pub last_level_cache_bytes: Option<u64>,
    /// CPU features that speed up ciphers and MACs.
    pub cpu_features: Vec<String>,
    /// What `--cipher-backend auto` selects here, for DES and 3DES and for AES.
    pub cipher_backend: String,
    /// All backends available here.
    pub cipher_backends: Vec<String>,
    /// `Linux 6.12.9`.
    pub kernel: String,
    /// In bytes.
    pub memory_bytes: u64,
    /// The hypervisor, as far as known; `None` if there is no sign of one.
    pub virtualized: Option<String>,
    /// Load averages over the 1, 5 and 15 minutes before the run.
    pub load_at_start: Option<[f64; 3]>,
}

impl Machine {
    /// This machine, now.
    pub fn read() -> Self {
        Self::read_in(Path::new("/"))
    }

    /// In one line: the CPU, its cores, the kernel, the load.
    pub fn summary(&self) -> String {
        let mut parts = vec![self.cpu_and_cores()];
        parts.push(format!("ciphers by {}", self.cipher_backend));
        parts.extend((!self.kernel.is_empty()).then(|| self.kernel.clone()));
        parts.extend(self.virtualized.as_ref().map(|by| format!("virtual ({by})")));
        parts.extend(self.load_at_start.map(|[load, ..]| format!("load {load} at the start")));
        parts.join("; ")
    }

    /// `A CPU, 2 of 8 logical cores`.
    pub fn cpu_and_cores(&self) -> String {
        let cpu = if self.cpu.is_empty() { &self.architecture } else { &self.cpu };
        let cores = if self.cores_allowed == self.cores_online {
            format!("{}", self.cores_online)
        } else {
            format!("{} of {}", self.cores_allowed, self.cores_online)
        };
        let quota =
            self.cpu_quota.map_or_else(String::new, |quota| format!(", limited to {quota}"));
        let noun = if self.cores_online == 1 { "core" } else { "cores" };
        format!("{cpu}, {cores} logical {noun}{quota}")
    }

    /// All facts by name, in the order a reader asks for them.
    pub fn facts(&self) -> Vec<(&'static str, String)> {
        let known = |name: &'static str, text: Option<String>| {
            text.filter(|text| !text.is_empty()).map(|text| (name, text))
        };
        let bytes = |bytes: u64| format!("{:.1} GiB", bytes as f64 / f64::from(1 << 30));
        let cache = |bytes: u64| format!("{:.1} MiB", bytes as f64 / f64::from(1 << 20));
        let facts = [
            known("CPU", Some(self.cpu_and_cores())),
            known("Architecture", Some(self.architecture.clone())),
            known("CPU features", Some(self.cpu_features.join(", "))),
            known("Ciphers by", Some(self.cipher_backend.clone())),
            known("Backends here", Some(self.cipher_backends.join(", "))),
            known(
                "Two threads a core",
                self.smt.map(|smt| (if smt { "yes" } else { "no" }).to_owned()),
            ),
            known("Clock governor", self.governor.clone()),
            known("Last-level cache", self.last_level_cache_bytes.map(cache)),
            known("Memory", Some(bytes(self.memory_bytes))),
            known("Kernel", Some(self.kernel.clone())),
            known("Virtualized", self.virtualized.clone()),
            known(
                "Load at the start",
                self.load_at_start.map(|load| load.map(|load| load.to_string()).join(", ")),
            ),
        ];
        facts.into_iter().flatten().collect()
    }

    /// The machine whose `proc` and `sys` are below `root`; ciphers are always this process's.
    fn read_in(root: &Path) -> Self {
        let text = |path: &str| {
            let text = fs::read_to_string(root.join(path)).ok()?;
            let text = text.trim().to_owned();
            (!text.is_empty()).then_some(text)
        };
        let cpuinfo = text("proc/cpuinfo").unwrap_or_default();
        let status = text("proc/self/status").unwrap_or_default();
        let cpu = "sys/devices/system/cpu";
        let online = text(&format!("{cpu}/online")).map(|list| listed(&list));
        let allowed = field(&status, "Cpus_allowed_list").map(listed);
        let cores = || field_count(&cpuinfo, "processor");
        Self {
            cpu: ["model name", "Model", "Processor"]
                .iter()
                .find_map(|name| field(&cpuinfo, name))
                .unwrap_or_default()
                .to_owned(),
            architecture: std::env::consts::ARCH.to_owned(),
            cores_online: online.unwrap_or_else(cores),
            cores_allowed: allowed.unwrap_or_else(cores),
            cpu_quota: text("sys/fs/cgroup/cpu.max").and_then(|quota| quota_of(&quota)),
            smt: text(&format!("{cpu}/smt/active")).map(|active| active == "1"),
            governor: text(&format!("{cpu}/cpu0/cpufreq/scaling_governor")),
            last_level_cache_bytes: (0..=4)
                .filter_map(|index| text(&format!("{cpu}/cpu0/cache/index{index}/size")))
                .filter_map(|size| bytes_of(&size))
                .max(),
            cpu_features: cpu_features().into_iter().map(str::to_owned).collect(),
            cipher_backend: backend(),
            cipher_backends: CipherBackend::ALL
                .into_iter()
                .filter(|backend| backend.is_available())
                .map(|backend| backend.name().to_owned())
                .collect(),
            kernel: text("proc/sys/kernel/osrelease")
                .map_or_else(String::new, |release| format!("Linux {}", version_of(&release))),
            memory_bytes: text("proc/meminfo")
                .and_then(|info| bytes_of(field(&info, "MemTotal")?))
                .unwrap_or_default(),
            virtualized: virtualized(
                text("sys/class/dmi/id/sys_vendor").as_deref(),
                text("sys/hypervisor/type").as_deref(),
                &cpuinfo,
            ),
            load_at_start: text("proc/loadavg").and_then(|load| {
                let mut figures = load.split(' ').map(|figure| figure.parse().ok());
                Some([figures.next()??, figures.next()??, figures.next()??])
            }),
        }
    }
}

/// The value of the first line `name : value`.
fn field<'a>(text: &'a str, name: &str) -> Option<&'a str> {
    text.lines().find_map(|line| {
        let (key, value) = line.split_once(':')?;
        (key.trim() == name && !value.trim().is_empty()).then(|| value.trim())
    })
}

/// Number of lines `name : ...`.
fn field_count(text: &str, name: &str) -> usize {
    let names = text.lines().filter_map(|line| line.split_once(':'));
    names.filter(|(key, _)| key.trim() == name).count()
}

/// Number of values in a list such as `0-3,6`.
fn listed(list: &str) -> usize {
    list.split(',')
        .filter_map(|range| {
            let (first, last) = range.split_once('-').unwrap_or((range, range));
            let (first, last): (usize, usize) =
                (first.trim().parse().ok()?, last.trim().parse().ok()?);
            last.checked_sub(first)?.checked_add(1)
        })
        .sum()
}

/// Parses `cpu.max`: "quota period" in microseconds, or `max` for none.
fn quota_of(text: &str) -> Option<f64> {
    let (quota, period) = text.split_once(' ')?;
    let (quota, period): (f64, f64) = (quota.parse().ok()?, period.parse().ok()?);
    (period > 0.0).then_some(quota / period)
}

/// `32768K` or `16384 kB`.
fn bytes_of(text: &str) -> Option<u64> {
    let digits = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    let (number, unit) = text.split_at(digits);
    let unit = match unit.trim() {
        "" => 1,
        "K" | "kB" => 1 << 10,
        "M" => 1 << 20,
        _ => return None,
    };
    number.parse::<u64>().ok()?.checked_mul(unit)
}

/// The numbers of `6.12.9-1-somebody`: the rest may name who built it.
fn version_of(release: &str) -> &str {
    let end = release.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(release.len());
    release[..end].trim_end_matches('.')
}

fn backend() -> String {
    let chosen = CipherBackend::Auto.chosen().name();
    if cpu_features().contains(&"aes") {
        format!("{chosen} (DES, 3DES), AES instructions")
    } else {
        chosen.to_owned()
    }
}

/// Vendors of virtual machines by their own names; a physical machine's vendor is not recorded.
const VIRTUAL_MAKERS: [&str; 10] = [
    "QEMU",
    "KVM",
    "VMware",
    "Xen",
    "innotek",
    "Parallels",
    "Microsoft",
    "Amazon",
    "Google",
    "DigitalOcean",
];

/// The hypervisor, if anything reveals one: the CPU flag, which not every architecture has, or Xen.
fn virtualized(maker: Option<&str>, hypervisor: Option<&str>, cpuinfo: &str) -> Option<String> {
    if let Some(hypervisor) = hypervisor {
        return Some(hypervisor.to_owned());
    }
    let flagged = field(cpuinfo, "flags")?.split(' ').any(|flag| flag == "hypervisor");
    let maker = maker.filter(|maker| VIRTUAL_MAKERS.iter().any(|known| maker.contains(known)));
    flagged.then(|| maker.map_or_else(|| "by an unnamed hypervisor".to_owned(), str::to_owned))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_machine_has_cores_memory_and_a_backend() {
        let machine = Machine::read();
        assert!(machine.cores_online >= machine.cores_allowed && machine.cores_allowed > 0);
        assert!(machine.memory_bytes > 0);
        assert!(machine.cipher_backends.contains(&"des-crate".to_owned()));
        assert!(machine.kernel.starts_with("Linux "));
    }

    #[test]
    fn a_machine_without_descriptions_is_still_read() {
        let empty = tempfile::tempdir().unwrap();
        let machine = Machine::read_in(empty.path());
        assert_eq!((machine.cpu.as_str(), machine.cores_online), ("", 0));
        assert_eq!(machine.load_at_start, None);
    }

    #[test]
    fn a_machine_is_read_from_its_files() {
        let root = tempfile::tempdir().unwrap();
        let files = [
            (
                "proc/cpuinfo",
                "processor : 0\nmodel name\t: A CPU @ 2 GHz\nflags : fpu hypervisor\n",
            ),
            ("proc/self/status", "Name:\tx\nCpus_allowed_list:\t0-1,4\n"),
            ("proc/meminfo", "MemTotal:       1024 kB\nMemFree: 1 kB\n"),
            ("proc/loadavg", "0.50 1.25 2.00 1/100 4242\n"),
            ("proc/sys/kernel/osrelease", "6.1.0-built-by-somebody\n"),
            ("sys/devices/system/cpu/online", "0-7\n"),
            ("sys/devices/system/cpu/smt/active", "1\n"),
            ("sys/devices/system/cpu/cpu0/cache/index0/size", "32K\n"),
            ("sys/devices/system/cpu/cpu0/cache/index3/size", "32768K\n"),
            ("sys/fs/cgroup/cpu.max", "150000 100000\n"),
            ("sys/class/dmi/id/sys_vendor", "QEMU\n"),
        ];
        for (path, text) in files {
            let path = root.path().join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        }
        let machine = Machine::read_in(root.path());
        assert_eq!(machine.cpu, "A CPU @ 2 GHz");
        assert_eq!((machine.cores_online, machine.cores_allowed), (8, 3));
        assert_eq!((machine.smt, machine.cpu_quota), (Some(true), Some(1.5)));
        assert_eq!(machine.last_level_cache_bytes, Some(32 << 20));
        assert_eq!(machine.memory_bytes, 1 << 20);
        assert_eq!(machine.kernel, "Linux 6.1.0");
        assert_eq!(machine.virtualized.as_deref(), Some("QEMU"));
        assert_eq!(machine.load_at_start, Some([0.5, 1.25, 2.0]));
    }

    #[test]
    fn an_unknown_vendor_of_a_virtual_machine_is_not_named() {
        let flags = "flags : fpu hypervisor";
        assert_eq!(virtualized(Some("Somebody Ltd"), None, "flags : fpu"), None);
        let said = virtualized(Some("Somebody Ltd"), None, flags).unwrap();
        assert!(!said.contains("Somebody"));
    }

    #[test]
    fn an_absent_quota_reads_as_none() {
        assert_eq!(quota_of("max 100000"), None);
        assert_eq!(quota_of("50000 0"), None);
    }
}
