//! Emulates a slower CPU with a kernel CPU quota.
//!
//! Creates and removes a control group, version 1 or 2. Its threads run at full speed and then
//! stop: they are slower over times much longer than [`PERIOD`], but not within one. Needs root, or
//! a delegated group. Knows no tunnel.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};
use std::time::Duration;

/// Quota period.
pub const PERIOD: Duration = Duration::from_millis(10);

/// Attempts to empty a group before it is removed.
const TRIES: u32 = 100;

/// A control group with a quota. Dropping it restores its threads to full speed.
#[derive(Debug)]
pub struct Quota {
    group: PathBuf,
    /// The file that moves threads in; the parent's file of that name moves them out.
    threads: &'static str,
}

impl Quota {
    /// Creates one with this share of a core, 0.1 to 1, for all its threads together.
    ///
    /// # Errors
    /// In words: what is missing or not permitted.
    pub fn of_a_core(share: f64) -> Result<Self, String> {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let name = format!("kp-{}-{}", std::process::id(), NEXT.fetch_add(1, Relaxed));
        let mounts = fs::read_to_string("/proc/self/mounts").unwrap_or_default();
        let groups = fs::read_to_string("/proc/self/cgroup").unwrap_or_default();
        let (parent, is_v2) = parent(&mounts, &groups)
            .ok_or("needs control groups with the controller cpu, which are not mounted here")?;
        let threads = if is_v2 { "cgroup.threads" } else { "tasks" };
        let quota = Self { group: parent.join(name), threads };
        let micros = PERIOD.as_micros();
        let quota_us = (micros as f64 * share).round();
        let made = fs::create_dir(&quota.group).and_then(|()| match is_v2 {
            true => {
                quota.write("cgroup.type", "threaded")?;
                fs::write(parent.join("cgroup.subtree_control"), "+cpu")?;
                quota.write("cpu.max", &format!("{quota_us} {micros}"))
            }
            false => {
                quota.write("cpu.cfs_period_us", &micros.to_string())?;
                quota.write("cpu.cfs_quota_us", &quota_us.to_string())
            }
        });
        made.map_err(|error| {
            format!("needs root, for a CPU quota ({}: {error})", parent.display())
        })?;
        Ok(quota)
    }

    /// Moves the calling thread in, and the threads that it will start.
    pub fn enter(&self) -> io::Result<()> {
        self.write(self.threads, &rustix::thread::gettid().as_raw_nonzero().to_string())
    }

    fn write(&self, file: &str, text: &str) -> io::Result<()> {
        fs::write(self.group.join(file), text)
    }
}

impl Drop for Quota {
    fn drop(&mut self) {
        let Some(parent) = self.group.parent() else { return };
        // Threads may start others while being moved out.
        for _ in 0..TRIES {
            let threads = fs::read_to_string(self.group.join(self.threads)).unwrap_or_default();
            for thread in threads.lines() {
                // A thread that has ended need not be moved.
                let _ = fs::write(parent.join(self.threads), thread);
            }
            if fs::remove_dir(&self.group).is_ok() {
                return;
            }
        }
    }
}

/// The directory of this process's group in which quotas can be created, and whether it is version
/// 2: from the lists of mounts and of groups (proc(5), cgroups(7)).
fn parent(mounts: &str, groups: &str) -> Option<(PathBuf, bool)> {
    let mount = |is: &dyn Fn(&str, &str) -> bool| {
        mounts.lines().find_map(|line| {
            let mut fields = line.split(' ').skip(1);
            let (at, kind, options) = (fields.next()?, fields.next()?, fields.next()?);
            is(kind, options).then(|| PathBuf::from(at))
        })
    };
    let has_cpu = |list: &str| list.split(',').any(|it| it == "cpu");
    // `4:cpu,cpuacct:/a`, or `0::/a` in version 2.
    let group = |is: &dyn Fn(&str) -> bool| {
        groups.lines().find_map(|line| {
            let (_, rest) = line.split_once(':')?;
            let (controllers, path) = rest.split_once(':')?;
            is(controllers).then(|| path.trim_start_matches('/').to_owned())
        })
    };
    let v1 = || {
        let at = mount(&|kind, options| kind == "cgroup" && has_cpu(options))?;
        Some((join(&at, &group(&has_cpu)?), false))
    };
    let v2 = || {
        let at = mount(&|kind, _| kind == "cgroup2")?;
        Some((join(&at, &group(&str::is_empty)?), true))
    };
    v1().or_else(v2)
}

fn join(at: &Path, group: &str) -> PathBuf {
    if group.is_empty() { at.to_owned() } else { at.join(group) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_group_of_this_process_is_found_in_either_version() {
        let v1 = "tmpfs /sys/fs/cgroup tmpfs rw 0 0\n\
                  cgroup /sys/fs/cgroup/cpu,cpuacct cgroup rw,cpu,cpuacct 0 0\n\
                  cgroup2 /sys/fs/cgroup/unified cgroup2 rw 0 0\n";
        let groups = "4:memory:/m\n2:cpu,cpuacct:/a/b\n0::/c\n";
        let expected = Some((PathBuf::from("/sys/fs/cgroup/cpu,cpuacct/a/b"), false));
        assert_eq!(parent(v1, groups), expected);
        let v2 = "cgroup2 /sys/fs/cgroup cgroup2 rw,nsdelegate 0 0\n";
        let expected = Some((PathBuf::from("/sys/fs/cgroup/user.slice/x"), true));
        assert_eq!(parent(v2, "0::/user.slice/x\n"), expected);
        assert_eq!(parent(v2, "0::/\n"), Some((PathBuf::from("/sys/fs/cgroup"), true)));
        assert_eq!(parent("proc /proc proc rw 0 0\n", groups), None);
        let only_set = "cgroup /sys/fs/cgroup/cpuset cgroup rw,cpuset 0 0\n";
        assert_eq!(parent(only_set, "3:cpuset:/\n"), None);
    }
}
