//! Tells how much memory this process may use: the host's, or less in a container or a systemd unit
//! with `MemoryMax=`.
//!
//! Reads the limits of cgroups, version 2 (`memory.max`) and 1 (`memory.limit_in_bytes`), of the
//! process's own group and of all groups around it (cgroups(7)). Knows no settings.

use std::fs;
use std::path::{Component, Path};
use std::sync::OnceLock;

/// Where cgroups are mounted.
const MOUNT: &str = "/sys/fs/cgroup";

/// The memory that a process may use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Memory {
    /// Bytes.
    pub bytes: u64,
    /// Whether a cgroup limits it to that. What the kernel keeps for sockets counts then.
    pub is_limited: bool,
}

/// The memory that this process may use. Read once, before a sandbox closes the file system.
pub fn memory() -> Memory {
    static MEMORY: OnceLock<Memory> = OnceLock::new();
    *MEMORY.get_or_init(|| {
        let groups = fs::read_to_string("/proc/self/cgroup").unwrap_or_default();
        within(host_bytes(), limit(Path::new(MOUNT), &groups))
    })
}

/// The memory of this host, whatever a cgroup allows.
pub fn host_bytes() -> u64 {
    let info = rustix::system::sysinfo();
    // Fields of C's types, 32 bits on some machines.
    #[allow(clippy::useless_conversion)]
    u64::from(info.totalram).saturating_mul(u64::from(info.mem_unit))
}

fn within(host: u64, limit: Option<u64>) -> Memory {
    match limit {
        Some(bytes) if bytes < host => Memory { bytes, is_limited: true },
        _ => Memory { bytes: host, is_limited: false },
    }
}

/// The least limit of the groups of `/proc/self/cgroup`, whose lines are `ID:CONTROLLERS:PATH`.
fn limit(mount: &Path, groups: &str) -> Option<u64> {
    let of_line = |line: &str| {
        let (_, line) = line.split_once(':')?;
        let (controllers, path) = line.split_once(':')?;
        // Within a container the path may be the host's, and missing below the mount: then the
        // groups around it apply, up to the container's own.
        let path = Path::new(path.trim_start_matches('/'));
        let (roots, file) = match controllers {
            "" => (["", "unified"].as_slice(), "memory.max"),
            list if list.split(',').any(|name| name == "memory") => {
                (["memory"].as_slice(), "memory.limit_in_bytes")
            }
            _ => return None,
        };
        // A group outside of the container's is `/..`: none is around it here.
        let is_inside =
            |group: &&Path| group.components().all(|part| matches!(part, Component::Normal(_)));
        let groups = path.ancestors().filter(is_inside);
        let limits = groups.flat_map(|group| roots.iter().map(move |root| (root, group)));
        let limits = limits.filter_map(|(root, group)| {
            let text = fs::read_to_string(mount.join(root).join(group).join(file)).ok()?;
            // Without a limit, version 2 says `max`, and version 1 a number beyond any memory.
            text.trim().parse::<u64>().ok()
        });
        limits.min()
    };
    groups.lines().filter_map(of_line).min()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A mount with these files, and the limit that a process in these groups has.
    fn limit_with(files: &[(&str, &str)], groups: &str) -> Option<u64> {
        let mount = tempfile::tempdir().expect("a directory");
        for (file, text) in files {
            let file = mount.path().join(file);
            fs::create_dir_all(file.parent().expect("a parent")).expect("created");
            fs::write(file, text).expect("written");
        }
        limit(mount.path(), groups)
    }

    #[test]
    fn the_least_limit_of_a_group_and_those_around_it_applies() {
        let files = [
            ("system.slice/memory.max", "536870912\n"),
            ("system.slice/keypadd.service/memory.max", "max\n"),
        ];
        assert_eq!(limit_with(&files, "0::/system.slice/keypadd.service\n"), Some(512 << 20));
        assert_eq!(limit_with(&files, "0::/user.slice\n"), None);
        let files = [files[0], ("system.slice/keypadd.service/memory.max", "134217728\n")];
        assert_eq!(limit_with(&files, "0::/system.slice/keypadd.service\n"), Some(128 << 20));
    }

    #[test]
    fn a_container_that_sees_its_own_group_as_the_root_has_its_limit() {
        let files = [("memory.max", "268435456\n")];
        for path in ["/", "/docker/0123456789ab"] {
            assert_eq!(limit_with(&files, &format!("0::{path}\n")), Some(256 << 20), "{path}");
        }
    }

    #[test]
    fn limits_of_version_1_are_found_among_other_controllers() {
        let files = [
            ("memory/memory.limit_in_bytes", "9223372036854771712\n"),
            ("memory/docker/memory.limit_in_bytes", "134217728\n"),
            ("cpu/docker/memory.limit_in_bytes", "1\n"),
        ];
        let groups = "5:cpu,cpuacct:/docker\n4:memory:/docker\n1:name=systemd:/docker\n0::/\n";
        assert_eq!(limit_with(&files, groups), Some(128 << 20));
    }

    #[test]
    fn a_limit_of_version_2_counts_beside_version_1_and_the_least_of_both_applies() {
        let files = [
            ("memory/box/memory.limit_in_bytes", "268435456\n"),
            ("unified/box/memory.max", "134217728\n"),
            ("unified/memory.max", "max\n"),
        ];
        assert_eq!(limit_with(&files, "4:memory:/box\n0::/box\n"), Some(128 << 20));
        assert_eq!(limit_with(&files, "4:memory:/box\n0::/\n"), Some(256 << 20));
    }

    #[test]
    fn a_group_outside_of_the_container_has_the_limit_of_the_containers_root_alone() {
        let files = [("memory.max", "268435456\n"), ("other/memory.max", "1\n")];
        assert_eq!(limit_with(&files, "0::/../../other\n"), Some(256 << 20));
    }

    #[test]
    fn a_limit_below_the_hosts_memory_is_the_memory_and_another_changes_nothing() {
        let host = 1 << 30;
        for (limit, bytes, is_limited) in [
            (None, host, false),
            (Some(host), host, false),
            (Some(9_223_372_036_854_771_712), host, false),
            (Some(128 << 20), 128 << 20, true),
            (Some(0), 0, true),
        ] {
            assert_eq!(within(host, limit), Memory { bytes, is_limited }, "{limit:?}");
        }
    }

    #[test]
    fn what_cannot_be_read_or_understood_limits_nothing() {
        let files = [("memory.max", "lots\n"), ("memory/memory.limit_in_bytes", "-1\n")];
        for groups in ["", "0::/\n", "1:memory:/\n", "nonsense\n", "4:memory\n"] {
            assert_eq!(limit_with(&files, groups), None, "{groups:?}");
        }
        assert!(memory().bytes > 1 << 20);
    }
}
