//! Tells how much memory this process may use: the host's, or less in a container or a systemd unit
//! with `MemoryMax=`.
//!
//! Reads the limits of cgroups, version 2 (`memory.max`) and 1 (`memory.limit_in_bytes`), of the
//! process's own group and of all groups around it (cgroups(7)). Knows no settings.

use std::fs;
use std::path::Path;
use std::sync::OnceLock;

/// Where cgroups are mounted.
const MOUNT: &str = "/sys/fs/cgroup";

/// Bytes of memory that this process may use. Read once, before a sandbox closes the file system.
pub fn memory_bytes() -> u64 {
    static BYTES: OnceLock<u64> = OnceLock::new();
    *BYTES.get_or_init(|| {
        let groups = fs::read_to_string("/proc/self/cgroup").unwrap_or_default();
        host_bytes().min(limit(Path::new(MOUNT), &groups).unwrap_or(u64::MAX))
    })
}

fn host_bytes() -> u64 {
    let info = rustix::system::sysinfo();
    // Fields of C's types, 32 bits on some machines.
    #[allow(clippy::useless_conversion)]
    u64::from(info.totalram).saturating_mul(u64::from(info.mem_unit))
}

/// The least limit of the groups of `/proc/self/cgroup`, whose lines are `ID:CONTROLLERS:PATH`.
fn limit(mount: &Path, groups: &str) -> Option<u64> {
    let of_line = |line: &str| {
        let (_, line) = line.split_once(':')?;
        let (controllers, path) = line.split_once(':')?;
        // Within a container the path may be the host's, and missing below the mount: then the
        // groups around it apply, up to the container's own.
        let path = Path::new(path.trim_start_matches('/'));
        let (root, file) = match controllers {
            "" => (mount.to_owned(), "memory.max"),
            list if list.split(',').any(|name| name == "memory") => {
                (mount.join("memory"), "memory.limit_in_bytes")
            }
            _ => return None,
        };
        let limits = path.ancestors().filter_map(|group| {
            let text = fs::read_to_string(root.join(group).join(file)).ok()?;
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
    fn what_cannot_be_read_or_understood_limits_nothing() {
        let files = [("memory.max", "lots\n")];
        for groups in ["", "0::/\n", "nonsense\n", "4:memory\n"] {
            assert_eq!(limit_with(&files, groups), None, "{groups:?}");
        }
        assert!(memory_bytes() > 1 << 20);
    }
}
