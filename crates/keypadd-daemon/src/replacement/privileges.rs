//! Compares what a new process may do with what the process that it replaces was given when it
//! started. Whoever runs `keypadd reload --binary` may have more: root's shell has all
//! capabilities, and no filter of the service's.
//!
//! Knows no settings but those of the sandbox, and changes nothing.

use std::ffi::OsString;
use std::fs;
use std::io::{self, ErrorKind};

use serde::{Deserialize, Serialize};

/// What a process was given when it started, and what its own sandbox leaves of that.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) struct Privileges {
    /// Capabilities that it has (capabilities(7)).
    permitted: u64,
    /// Capabilities that executing a program may give it.
    bounding: u64,
    /// Whether executing a program gives it nothing (PR_SET_NO_NEW_PRIVS).
    no_new_privileges: bool,
    /// Whether some of its system calls are refused (seccomp(2)).
    filters_calls: bool,
    /// Where its capabilities count (user_namespaces(7)).
    user_namespace: OsString,
    /// Whether it restricts itself further.
    sandbox: bool,
    /// Whether others of its user may read its memory, and it may write core dumps.
    core_dumps: bool,
}

impl Privileges {
    /// The privileges of this process, before its sandbox, and what its settings say of that.
    ///
    /// # Errors
    /// `/proc` is not mounted.
    pub(crate) fn own(sandbox: bool, core_dumps: bool) -> io::Result<Self> {
        let status = fs::read_to_string("/proc/self/status")?;
        let namespace = fs::read_link("/proc/self/ns/user")?.into_os_string();
        let given = Self::given(&status, namespace).ok_or(ErrorKind::InvalidData)?;
        Ok(Self { sandbox, core_dumps, ..given })
    }

    /// Reads a process's status (proc_pid_status(5)).
    fn given(status: &str, user_namespace: OsString) -> Option<Self> {
        let field = |name: &str| {
            let mut lines = status.lines();
            lines.find_map(|line| Some(line.strip_prefix(name)?.strip_prefix(':')?.trim()))
        };
        let capabilities = |name| u64::from_str_radix(field(name)?, 16).ok();
        Some(Self {
            permitted: capabilities("CapPrm")?,
            bounding: capabilities("CapBnd")?,
            no_new_privileges: field("NoNewPrivs")? != "0",
            // A kernel without seccomp has no such line.
            filters_calls: field("Seccomp").is_some_and(|mode| mode != "0"),
            user_namespace,
            sandbox: false,
            core_dumps: true,
        })
    }

    /// What a process with these privileges may keep of them if it replaces one with `old`.
    ///
    /// # Errors
    /// The process has more than `old`, and cannot give that up.
    pub(crate) fn limited_to(self, old: &Self) -> Result<Self, Excess> {
        let given = [
            (
                self.is_capable() && self.user_namespace != old.user_namespace,
                "it is in another user namespace",
            ),
            (self.bounding & !old.bounding != 0, "it may gain more capabilities"),
            (old.no_new_privileges && !self.no_new_privileges, "it may gain privileges"),
            (old.filters_calls && !self.filters_calls, "its system calls are not filtered"),
        ];
        let set = [
            (old.sandbox && !self.sandbox, "its sandbox is off"),
            (self.core_dumps && !old.core_dumps, "it may dump core"),
        ];
        let first = |among: &[(bool, &'static str)]| {
            among.iter().find_map(|&(exceeds, what)| exceeds.then_some(what))
        };
        match (first(&given), first(&set)) {
            (Some(what), _) => Err(Excess::Given(what)),
            (None, Some(what)) => Err(Excess::Set(what)),
            (None, None) => Ok(Self { permitted: self.permitted & old.permitted, ..self }),
        }
    }

    /// Whether the process has capabilities, or may gain some. Without any, no user namespace lets
    /// it do more than another does; systemd makes one for each process of a service that has
    /// `PrivateUsers=`, also for the one that reloads it.
    fn is_capable(&self) -> bool {
        self.permitted != 0 || self.bounding != 0 && !self.no_new_privileges
    }

    /// Capabilities that the process has.
    pub(crate) fn permitted(&self) -> u64 {
        self.permitted
    }
}

/// What a new process may do and the one that it would replace may not.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Excess {
    /// Whoever started the new process has given it that.
    Given(&'static str),
    /// Its settings say so.
    Set(&'static str),
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A service of a hardened unit.
    const SERVICE: &str = "Name:\tkeypadd\nCapInh:\t0000000000000000\nCapPrm:\t0000000000000400\n\
        CapEff:\t0000000000000400\nCapBnd:\t0000000000000400\nCapAmb:\t0000000000000400\n\
        NoNewPrivs:\t1\nSeccomp:\t2\nSeccomp_filters:\t14\n";

    /// A shell of root.
    const SHELL: &str = "Name:\tbash\nCapPrm:\t000001ffffffffff\nCapBnd:\t000001ffffffffff\n\
        NoNewPrivs:\t0\nSeccomp:\t0\nSeccomp_filters:\t0\n";

    fn privileges(status: &str) -> Privileges {
        let given = Privileges::given(status, "user:[1]".into()).unwrap();
        Privileges { sandbox: true, core_dumps: false, ..given }
    }

    #[test]
    fn what_a_process_was_given_is_read_from_its_status() {
        let service = Privileges {
            permitted: 1 << 10,
            bounding: 1 << 10,
            no_new_privileges: true,
            filters_calls: true,
            user_namespace: "user:[1]".into(),
            sandbox: true,
            core_dumps: false,
        };
        assert_eq!(privileges(SERVICE), service);
        assert_eq!(Privileges::given("CapPrm:\t0\n", "user:[1]".into()), None);
        let own = Privileges::own(true, false).unwrap();
        assert_eq!(own.clone().limited_to(&own), Ok(own));
    }

    #[test]
    fn a_new_process_may_never_do_what_the_one_that_it_replaces_may_not() {
        let (service, shell) = (privileges(SERVICE), privileges(SHELL));
        let changed = |change: fn(&mut Privileges)| {
            let mut changed = service.clone();
            change(&mut changed);
            changed
        };
        for (new, expected) in [
            (shell.clone(), Excess::Given("it may gain more capabilities")),
            (
                changed(|new| new.user_namespace = "user:[2]".into()),
                Excess::Given("it is in another user namespace"),
            ),
            (changed(|new| new.no_new_privileges = false), Excess::Given("it may gain privileges")),
            (
                changed(|new| new.filters_calls = false),
                Excess::Given("its system calls are not filtered"),
            ),
            (changed(|new| new.sandbox = false), Excess::Set("its sandbox is off")),
            (changed(|new| new.core_dumps = true), Excess::Set("it may dump core")),
        ] {
            assert_eq!(new.limited_to(&service), Err(expected));
        }
        // It may always have less.
        assert_eq!(changed(|new| new.permitted = 0).limited_to(&service).unwrap().permitted, 0);
        let open = Privileges { sandbox: false, core_dumps: true, ..shell.clone() };
        assert_eq!(shell.clone().limited_to(&open), Ok(shell));
    }

    #[test]
    fn a_process_without_capabilities_may_be_in_any_user_namespace() {
        let old = Privileges { permitted: 0, bounding: 0, ..privileges(SERVICE) };
        let new = Privileges { user_namespace: "user:[2]".into(), ..old.clone() };
        assert_eq!(new.clone().limited_to(&old), Ok(new.clone()));
        // It may not gain them there, either.
        let [old, new] = [old, new].map(|it| Privileges { bounding: 1, ..it });
        assert_eq!(new.clone().limited_to(&old), Ok(new.clone()));
        let [old, new] = [old, new].map(|it| Privileges { no_new_privileges: false, ..it });
        let expected = Excess::Given("it is in another user namespace");
        assert_eq!(new.limited_to(&old), Err(expected));
    }

    #[test]
    fn a_new_process_gives_up_the_capabilities_that_the_old_one_does_not_have() {
        let [old, new] =
            [0b0110, 0b1010].map(|permitted| Privileges { permitted, ..privileges(SHELL) });
        assert_eq!(new.limited_to(&old).unwrap().permitted(), 0b0010);
    }
}
