//! Tells this host from others that may have its private key: other machines, and containers and
//! network namespaces of this one.
//!
//! A daemon that is restarted here, or replaced, finds what its predecessor found. A container that
//! is made anew does not: its network namespace is another one.

use std::fmt;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

/// The ID that an installation of the operating system keeps (machine-id(5)).
const MACHINE_ID: &str = "etc/machine-id";

/// The kernel's own ID, which it draws when it starts (random(4)).
const BOOT_ID: &str = "proc/sys/kernel/random/boot_id";

/// This process's network namespace, whose inode is its number (namespaces(7)).
const NETWORK_NAMESPACE: &str = "proc/self/ns/net";

/// Length of an identity.
const BYTES: usize = 1 + 16 + 8;

/// What tells a host from others, as bytes to derive keys from. [`fmt::Debug`] shows nothing of it:
/// machine IDs are confidential (machine-id(5)).
pub(crate) struct HostIdentity([u8; BYTES]);

/// Where an identity comes from: its first byte.
#[derive(Clone, Copy)]
enum Source {
    Machine = 1,
    Boot = 2,
    Drawn = 3,
}

impl HostIdentity {
    /// Reads it. To be called while all files are accessible.
    pub(crate) fn read() -> Self {
        Self::read_in(Path::new("/"))
    }

    /// Reads it in this root directory. If the files do not tell, draws one, so that no other host
    /// has it; then a restarted daemon has another one, too.
    fn read_in(root: &Path) -> Self {
        let namespace = fs::metadata(root.join(NETWORK_NAMESPACE)).map(|found| found.ino());
        let id = |file, source| Some((read_id(&root.join(file))?, source));
        let machine = || id(MACHINE_ID, Source::Machine).or_else(|| id(BOOT_ID, Source::Boot));
        match namespace.ok().zip(machine()) {
            Some((namespace, (machine, source))) => Self::of(source, machine, namespace),
            None => Self::of(Source::Drawn, drawn(), 0),
        }
    }

    fn of(source: Source, machine: u128, namespace: u64) -> Self {
        let mut bytes = [0; BYTES];
        bytes[0] = source as u8;
        bytes[1..17].copy_from_slice(&machine.to_be_bytes());
        bytes[17..].copy_from_slice(&namespace.to_be_bytes());
        Self(bytes)
    }

    pub(crate) fn as_bytes(&self) -> &[u8] {
        &self.0
    }
}

impl fmt::Debug for HostIdentity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("HostIdentity").finish_non_exhaustive()
    }
}

/// Reads an ID of 32 hexadecimal digits, with or without hyphens. An image may have an empty file,
/// or one that says `uninitialized`.
fn read_id(path: &Path) -> Option<u128> {
    let text = fs::read_to_string(path).ok()?;
    let digits: String = text.trim().chars().filter(|digit| *digit != '-').collect();
    let is_id = digits.len() == 32 && digits.bytes().all(|digit| digit.is_ascii_hexdigit());
    is_id.then(|| u128::from_str_radix(&digits, 16).ok()).flatten().filter(|id| *id != 0)
}

/// A random ID.
fn drawn() -> u128 {
    let mut bytes = [0; 16];
    getrandom::fill(&mut bytes).expect("getrandom(2) waits for the kernel to have randomness");
    u128::from_be_bytes(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    const ONE: &str = "0123456789abcdef0123456789abcdef\n";
    const OTHER: &str = "f123456789abcdef0123456789abcdef\n";
    const BOOT: &str = "01234567-89ab-cdef-0123-456789abcdef\n";

    /// A root directory with these files, and a namespace.
    fn host(files: &[(&str, &str)]) -> tempfile::TempDir {
        let root = tempfile::tempdir().unwrap();
        for (file, text) in files.iter().chain(&[(NETWORK_NAMESPACE, "")]) {
            let path = root.path().join(file);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        }
        root
    }

    fn identity(root: &tempfile::TempDir) -> [u8; BYTES] {
        HostIdentity::read_in(root.path()).0
    }

    /// Puts the root's namespace in the place of another one.
    fn enter(root: &tempfile::TempDir) {
        let (path, new) = (root.path().join(NETWORK_NAMESPACE), root.path().join("new"));
        fs::write(&new, "").unwrap();
        fs::rename(new, path).unwrap();
    }

    #[test]
    fn a_restart_finds_the_same_identity_and_another_namespace_another_one() {
        for files in [&[(MACHINE_ID, ONE), (BOOT_ID, BOOT)][..], &[(BOOT_ID, BOOT)]] {
            let root = host(files);
            let before = identity(&root);
            assert_eq!(identity(&root), before);
            enter(&root);
            assert_ne!(identity(&root), before);
        }
    }

    #[test]
    fn the_machine_counts_and_its_boot_only_where_the_machine_has_no_id() {
        let root = host(&[(MACHINE_ID, ONE), (BOOT_ID, BOOT)]);
        let before = identity(&root);
        fs::write(root.path().join(BOOT_ID), OTHER).unwrap();
        assert_eq!(identity(&root), before);
        fs::write(root.path().join(MACHINE_ID), OTHER).unwrap();
        assert_ne!(identity(&root), before);
        for none in ["", "uninitialized\n", "+123456789abcdef0123456789abcdef\n"] {
            fs::write(root.path().join(MACHINE_ID), none).unwrap();
            fs::write(root.path().join(BOOT_ID), BOOT).unwrap();
            let booted = identity(&root);
            fs::write(root.path().join(BOOT_ID), OTHER).unwrap();
            assert_ne!(identity(&root), booted, "{none}");
        }
    }

    #[test]
    fn hosts_that_cannot_be_told_apart_have_no_identity_in_common() {
        let (root, without) = (host(&[]), tempfile::tempdir().unwrap());
        assert_ne!(identity(&root), identity(&root));
        assert_ne!(identity(&without), identity(&without));
    }

    #[test]
    fn this_host_has_an_identity_that_stays() {
        assert_eq!(HostIdentity::read().0, HostIdentity::read().0);
    }

    #[test]
    fn debug_shows_no_machine_id() {
        let shown = format!("{:?}", HostIdentity::read());
        assert_eq!(shown, "HostIdentity { .. }");
    }
}
