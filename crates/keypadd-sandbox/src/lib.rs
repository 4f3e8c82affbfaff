//! Sandboxes a daemon before strangers can reach it: core dumps, capabilities, files, TCP ports and
//! system calls.
//!
//! [`confine`] restricts the calling thread and all threads that it starts later: call it before
//! any other thread exists. [`Confined::seal`] further restricts all threads once sockets are
//! bound. What the kernel lacks is skipped and reported; nothing here kills a process. Knows no
//! settings, no tunnel and no log. Uses capabilities(7), landlock(7) and seccomp(2).

#![cfg_attr(test, allow(clippy::unwrap_used))]

mod account;
mod capabilities;
mod dumps;
mod files;
mod syscalls;
mod tcp;

use std::collections::BTreeSet;
use std::io;
use std::path::PathBuf;

pub use account::{Account, UnknownUser};
pub use capabilities::limit_capabilities;
pub use dumps::{allow_core_dumps, forbid_core_dumps};
pub use files::directory_or_file;
use rustix::process::{Resource, Rlimit, setrlimit};

/// What a daemon still needs.
#[derive(Clone, Debug, Default)]
pub struct Needs {
    /// Files to read, and directories to read files in.
    pub read: Vec<PathBuf>,
    /// Directories to create and remove unix sockets in.
    pub sockets_in: Vec<PathBuf>,
    /// Directories to create and replace files in.
    pub replaces_in: Vec<PathBuf>,
    /// Whether to give those files to another user or group.
    pub changes_owner: bool,
    /// TCP ports to connect to, besides that of DNS; `None` is any.
    pub connects_to: Option<BTreeSet<u16>>,
    /// Whether to bind ports below 1,024.
    pub low_ports: bool,
    /// The user to become.
    pub account: Option<Account>,
    /// Whether core dumps stay allowed.
    pub core_dumps: bool,
    /// Leaves capabilities, files and system calls as they are, and only switches users.
    pub unrestricted: bool,
}

/// Which restrictions are in force, and which the kernel or the caller's privileges do not allow.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Report {
    /// Restrictions in force.
    pub holds: Vec<String>,
    /// Restrictions that are not in force, with reasons.
    pub lacks: Vec<String>,
}

/// A process whose files, TCP ports and capabilities are restricted.
#[derive(Debug)]
pub struct Confined {
    account: Option<Account>,
    core_dumps: bool,
    unrestricted: bool,
    replaces: bool,
    restricts_tcp: bool,
    report: Report,
}

/// Drops capabilities and restricts files and TCP ports, for the calling thread and all that it
/// starts later.
///
/// # Errors
/// If another user is asked for and the process may not switch.
pub fn confine(needs: &Needs) -> io::Result<Confined> {
    let mut report = Report::default();
    if let Some(account) = &needs.account {
        account.check()?;
    }
    let locks_freely = raise_lock_limit();
    let mut restricts_tcp = false;
    if !needs.unrestricted {
        let kept = capabilities::kept(needs, locks_freely);
        report.note("capabilities", capabilities::drop_all_but(kept));
        report.note("no_new_privs", no_new_privs());
        report.note("files", files::restrict(needs));
        if let Some(ports) = &needs.connects_to {
            restricts_tcp = report.note("TCP ports", tcp::restrict(ports));
        }
    }
    let Needs { account, core_dumps, unrestricted, .. } = needs.clone();
    let replaces = !needs.replaces_in.is_empty();
    Ok(Confined { account, core_dumps, unrestricted, replaces, restricts_tcp, report })
}

impl Confined {
    /// Whether only the TCP ports that are needed can be connected to.
    pub fn restricts_tcp(&self) -> bool {
        self.restricts_tcp
    }

    /// Becomes the other user and filters system calls, in all threads.
    ///
    /// # Errors
    /// If the user cannot be switched.
    pub fn seal(self) -> io::Result<Report> {
        let Self { account, core_dumps, unrestricted, replaces, mut report, .. } = self;
        if let Some(account) = account {
            account.switch()?;
            report.holds.push(format!("user {}", account.name()));
            // Switching users resets it (prctl(2), PR_SET_DUMPABLE).
            if core_dumps {
                allow_core_dumps();
            }
        }
        if !unrestricted {
            report.note("system calls", syscalls::filter_all_threads(replaces));
        }
        Ok(report)
    }
}

impl Report {
    /// Records a restriction, or why it is not in force; returns whether it is.
    fn note(&mut self, what: &str, outcome: Result<String, String>) -> bool {
        let holds = outcome.is_ok();
        match outcome {
            Ok(text) => self.holds.push(text),
            Err(cause) => self.lacks.push(format!("{what} ({cause})")),
        }
        holds
    }
}

/// The process and everything it starts can gain no privileges, as through set-user-ID programs.
fn no_new_privs() -> Result<String, String> {
    rustix::thread::set_no_new_privs(true).map_err(|error| error.to_string())?;
    Ok("no new privileges".into())
}

/// Lifts the limit on locked memory if allowed, so that the capability to exceed it is not needed.
/// Returns whether there is no limit.
fn raise_lock_limit() -> bool {
    let unlimited = Rlimit { current: None, maximum: None };
    setrlimit(Resource::Memlock, unlimited).is_ok()
}
