//! Restricts which files can be opened (landlock(7)): those that the daemon reads, and those that
//! name lookups, the C library and its modules read. No other file can be read or listed. Only what
//! pairing replaces can be written, and nothing can be executed.
//!
//! Creating a unix socket is restricted, connecting to one is not.

use std::path::{Path, PathBuf};

use landlock::{
    ABI, Access, AccessFs, BitFlags, CompatLevel, Compatible, LandlockStatus, PathBeneath, PathFd,
    Ruleset, RulesetAttr, RulesetCreated, RulesetCreatedAttr, RulesetError, RulesetStatus, Scope,
};
use rustix::process::geteuid;

use crate::Needs;

/// What the C library reads for a name lookup (nsswitch.conf(5), resolv.conf(5)), and for modules
/// that it loads for that.
const LOOKUP_FILES: &[&str] = &[
    "/etc/resolv.conf",
    "/etc/hosts",
    "/etc/host.conf",
    "/etc/nsswitch.conf",
    "/etc/gai.conf",
    "/etc/services",
    "/etc/protocols",
    "/etc/ld.so.cache",
    "/etc/localtime",
    "/run/systemd/resolve",
    "/run/NetworkManager",
    "/run/resolvconf",
    "/run/nscd",
    "/lib",
    "/lib32",
    "/lib64",
    "/usr/lib",
    "/usr/lib64",
    "/usr/local/lib",
    "/nix/store",
];

/// What the program reads about itself and the host: CPU time, limits, number of processors,
/// memory.
const PROCESS_FILES: &[&str] = &[
    "/proc/self",
    "/proc/meminfo",
    "/proc/stat",
    "/proc/sys/vm",
    "/proc/sys/net",
    "/sys/devices/system/cpu",
    "/sys/fs/cgroup",
    "/dev/urandom",
];

/// Directories shared by many programs. In these a daemon may read only its own file, so a file
/// that replaces it there is inaccessible.
const SHARED: &[&str] = &[
    "/",
    "/etc",
    "/home",
    "/media",
    "/mnt",
    "/opt",
    "/root",
    "/run",
    "/srv",
    "/tmp",
    "/usr",
    "/usr/local",
    "/usr/local/etc",
    "/var",
    "/var/lib",
    "/var/tmp",
];

/// The newest Landlock ABI that this file takes into account. Later ones restrict connecting to
/// unix sockets.
const CONSIDERED: ABI = ABI::V7;

/// What to allow for a file that may be replaced, as editors do: its directory, unless other
/// programs share it.
pub fn directory_or_file(file: &Path) -> PathBuf {
    let Some(directory) = file.parent().and_then(|parent| match parent.as_os_str().is_empty() {
        true => std::env::current_dir().ok(),
        false => parent.canonicalize().ok(),
    }) else {
        return file.to_owned();
    };
    let home = std::env::var_os("HOME").map(PathBuf::from);
    let holds_home = home.is_some_and(|home| home.starts_with(&directory));
    if holds_home || SHARED.iter().any(|shared| Path::new(shared) == directory) {
        return file.to_owned();
    }
    directory
}

/// Restricts the calling thread, and all that it starts.
pub(crate) fn restrict(needs: &Needs) -> Result<String, String> {
    let status = restricted(needs).map_err(|error| error.to_string())?;
    let abi = match status.landlock {
        LandlockStatus::Available { effective_abi, kernel_abi } => {
            kernel_abi.unwrap_or(effective_abi as i32)
        }
        LandlockStatus::NotEnabled => return Err("Landlock is not enabled".into()),
        _ => return Err("the kernel has no Landlock".into()),
    };
    match status.ruleset {
        RulesetStatus::NotEnforced => Err("Landlock is not enforced".into()),
        RulesetStatus::PartiallyEnforced => Ok(format!("files by Landlock {abi} (in part)")),
        _ => Ok(format!("files by Landlock {abi}")),
    }
}

fn restricted(needs: &Needs) -> Result<landlock::RestrictionStatus, RulesetError> {
    let mut ruleset = Ruleset::default()
        .set_compatibility(CompatLevel::BestEffort)
        .handle_access(AccessFs::from_all(CONSIDERED))?;
    if !is_notified_by_abstract_socket() {
        ruleset = ruleset.scope(Scope::AbstractUnixSocket)?;
    }
    let mut rules = Rules(ruleset.create()?);
    for path in LOOKUP_FILES.iter().chain(PROCESS_FILES) {
        rules = rules.read(Path::new(path))?;
    }
    // For names of functions in a backtrace.
    if let Ok(program) = std::env::current_exe() {
        rules = rules.read(&program)?;
    }
    for path in &needs.read {
        rules = rules.read(path)?;
    }
    // Programs replace resolv.conf. File modes keep others' secrets there from everyone but root.
    let is_root_later = match &needs.account {
        Some(account) => account.uid() == 0,
        None => geteuid().is_root(),
    };
    if !is_root_later {
        rules = rules.allow(Path::new("/etc"), AccessFs::ReadFile.into())?;
    }
    for directory in &needs.sockets_in {
        let access = AccessFs::MakeSock | AccessFs::RemoveFile | AccessFs::ReadDir;
        rules = rules.allow(directory, access)?;
    }
    for directory in &needs.replaces_in {
        let read = AccessFs::ReadFile | AccessFs::ReadDir;
        let write = AccessFs::MakeReg | AccessFs::WriteFile | AccessFs::RemoveFile;
        rules = rules.allow(directory, read | write)?;
    }
    if needs.core_dumps
        && let Ok(directory) = std::env::current_dir()
    {
        // The kernel writes a core dump with the process's rights (core(5)).
        let access = AccessFs::MakeReg | AccessFs::WriteFile | AccessFs::Truncate;
        rules = rules.allow(&directory, access)?;
    }
    rules = rules.allow(Path::new("/dev/null"), AccessFs::ReadFile | AccessFs::WriteFile)?;
    rules.0.restrict_self()
}

struct Rules(RulesetCreated);

impl Rules {
    /// Allows reading a file, or all files below a directory.
    fn read(self, path: &Path) -> Result<Self, RulesetError> {
        let access = match path.is_dir() {
            true => AccessFs::ReadFile | AccessFs::ReadDir,
            false => AccessFs::ReadFile.into(),
        };
        self.allow(path, access)
    }

    /// Allows this, if the path exists.
    fn allow(self, path: &Path, access: BitFlags<AccessFs>) -> Result<Self, RulesetError> {
        match PathFd::new(path) {
            Ok(opened) => Ok(Self(self.0.add_rule(PathBeneath::new(opened, access))?)),
            Err(_) => Ok(self),
        }
    }
}

/// Whether systemd listens on an abstract socket (sd_notify(3)).
fn is_notified_by_abstract_socket() -> bool {
    std::env::var_os("NOTIFY_SOCKET").is_some_and(|name| name.as_encoded_bytes().starts_with(b"@"))
}
