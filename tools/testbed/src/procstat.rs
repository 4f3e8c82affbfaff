//! Reads CPU time of processes and their descendants from `/proc/PID/stat` (proc(5)).
//!
//! Also reads the whole machine's CPU time from `/proc/stat`. Times have clock tick resolution,
//! usually 10 ms. Does not know what the processes do.

use std::fs;

/// The fields used from one `/proc/PID/stat`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Stat {
    /// Its number.
    pub id: u32,
    parent: u32,
    /// User and system time in ticks, of the process and of the children that it has reaped.
    cpu_ticks: u64,
    /// Start time in ticks since boot: with the ID, identifies a process uniquely.
    pub started: u64,
}

/// The CPU seconds that processes and their living and reaped descendants have used so far.
pub fn cpu_seconds(roots: &[u32]) -> f64 {
    let everyone = all();
    let family = roots.iter().flat_map(|root| descend(&everyone, *root));
    seconds(family.map(|it| it.cpu_ticks).sum())
}

/// The CPU seconds that the whole machine has been busy so far, on all its cores.
pub fn machine_cpu_seconds() -> f64 {
    seconds(Ticks::now().map_or(0, |ticks| ticks.programs + ticks.interrupts))
}

/// Like [`machine_cpu_seconds`], and with the time that a hypervisor has taken; `None` where the
/// kernel does not say.
pub fn machine_taken_seconds() -> Option<f64> {
    Ticks::now().map(|ticks| seconds(ticks.programs + ticks.interrupts + ticks.stolen))
}

/// The CPU seconds of programs other than this one and its descendants: neither of the kernel's
/// threads nor of its interrupts, which may work for anyone.
pub fn others_cpu_seconds() -> f64 {
    let programs = seconds(Ticks::now().map_or(0, |ticks| ticks.programs));
    programs - cpu_seconds(&[std::process::id(), KERNEL_THREADS])
}

fn seconds(ticks: u64) -> f64 {
    ticks as f64 / rustix::param::clock_ticks_per_second() as f64
}

/// The parent of the kernel's threads.
const KERNEL_THREADS: u32 = 2;

/// Ticks of all cores.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Ticks {
    /// User, nice and system time; user time already includes guests.
    programs: u64,
    /// Time of hard and soft interrupts.
    interrupts: u64,
    /// Time that a hypervisor gave to other machines.
    stolen: u64,
}

impl Ticks {
    fn now() -> Option<Self> {
        Self::parse(&fs::read_to_string("/proc/stat").ok()?)
    }

    /// Reads the first line of `/proc/stat`.
    fn parse(text: &str) -> Option<Self> {
        let line = text.lines().next()?.strip_prefix("cpu ")?;
        let ticks: Vec<u64> = line.split_whitespace().map_while(|it| it.parse().ok()).collect();
        let [user, nice, system, _idle, _wait, irq, softirq, stolen, ..] = ticks[..] else {
            return None;
        };
        Some(Self { programs: user + nice + system, interrupts: irq + softirq, stolen })
    }
}

/// A process and its living descendants.
pub fn family(root: u32) -> Vec<Stat> {
    descend(&all(), root)
}

/// One process, if it exists.
pub fn read(id: u32) -> Option<Stat> {
    parse(&fs::read_to_string(format!("/proc/{id}/stat")).ok()?)
}

fn all() -> Vec<Stat> {
    let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
    entries.filter_map(|entry| read(entry.file_name().to_str()?.parse().ok()?)).collect()
}

fn descend(everyone: &[Stat], root: u32) -> Vec<Stat> {
    let mut family: Vec<Stat> = everyone.iter().filter(|it| it.id == root).cloned().collect();
    let mut next = 0;
    while let Some(parent) = family.get(next).map(|it| it.id) {
        family.extend(everyone.iter().filter(|it| it.parent == parent).cloned());
        next += 1;
    }
    family
}

/// Parses a line of proc(5): fields are counted from the last parenthesis, because the command name
/// before it may hold anything.
fn parse(line: &str) -> Option<Stat> {
    let id = line.split_once(" (")?.0.parse().ok()?;
    let fields: Vec<&str> = line.rsplit_once(')')?.1.split_whitespace().collect();
    // Field 3 of proc(5) is the first one here.
    let field = |number: usize| fields.get(number - 3)?.parse::<u64>().ok();
    Some(Stat {
        id,
        parent: u32::try_from(field(4)?).ok()?,
        cpu_ticks: (14..=17).map(field).sum::<Option<u64>>()?,
        started: field(22)?,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const LINE: &str = "412 (sshd: a) b (c) S 7 412 412 0 -1 4194560 951 22 0 0 30 12 5 1 20 0 1 0 \
                        8123 15663104 1843 18446744073709551615";

    #[test]
    fn stat_adds_own_and_reaped_time_whatever_the_name() {
        let expected = Stat { id: 412, parent: 7, cpu_ticks: 30 + 12 + 5 + 1, started: 8123 };
        assert_eq!(parse(LINE), Some(expected));
    }

    #[test]
    fn stat_that_is_cut_short_is_nothing() {
        for line in ["", "412", "412 (x)", "412 (x) S 7 412", "x (x) S 7 1 1 1 1"] {
            assert_eq!(parse(line), None, "{line:?}");
        }
    }

    #[test]
    fn family_is_the_root_and_all_below_it() {
        let process = |id, parent| Stat { id, parent, cpu_ticks: 1, started: 0 };
        let everyone = [process(1, 0), process(4, 3), process(3, 2), process(2, 1), process(9, 1)];
        let ids: Vec<u32> = descend(&everyone, 2).iter().map(|it| it.id).collect();
        assert_eq!(ids, [2, 3, 4]);
        assert!(descend(&everyone, 77).is_empty());
    }

    #[test]
    fn machine_is_busy_with_all_but_idle_and_wait() {
        let text = "cpu  10 2 30 4000 500 6 7 8 9 0\ncpu0 1 1 1 1 1 1 1 1 1 0\n";
        let expected = Ticks { programs: 10 + 2 + 30, interrupts: 6 + 7, stolen: 8 };
        assert_eq!(Ticks::parse(text), Some(expected));
        for text in ["cpu  10 2", "cpu  1 2 x", "intr 1"] {
            assert_eq!(Ticks::parse(text), None);
        }
        assert!(machine_cpu_seconds() > 0.0);
    }

    #[test]
    fn own_cpu_time_grows_with_work() {
        let own = std::process::id();
        let before = cpu_seconds(&[own]);
        while cpu_seconds(&[own]) < before + 0.02 {
            std::hint::black_box(0);
        }
    }
}
