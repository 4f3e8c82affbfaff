//! Derives a daemon's sandbox from its settings, applies it in two steps (before threads start,
//! after sockets are bound) and reports what is in force.
//!
//! Opens the hypervisor clocks and the terminal, and reads which host this is, while files are
//! still reachable. What a reload adds beyond the sandbox (a unix socket in another directory, a
//! port below 1024, a target's port) needs a restart.

use std::collections::BTreeSet;
use std::env;
use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use keypadd_cli::error::{Error, Exit, shown, system};
use keypadd_cli::logging;
use keypadd_config::{Config, Settings};
use keypadd_sandbox::{
    Account, Confined, Needs, allow_core_dumps, confine, directory_or_file, forbid_core_dumps,
};
use keypadd_tunnel::{
    Clocks, Forward, Hypervisor, Listen, ListenPermit, ListenPermits, Permit, Permits, Protocol,
    SystemClocks,
};
use rustix::process::{getegid, geteuid};

use super::host_identity::HostIdentity;
use crate::control::runtime_directory;
use crate::replacement::privileges::Privileges;
use crate::replacement::record::{RecordFile, StartRecord};
use crate::replacement::take;
use crate::status::snapshot::SandboxReport;

/// The first port that everybody may bind (ip(7), ip_unprivileged_port_start).
const UNPRIVILEGED: u16 = 1024;

/// The sandbox of a daemon; clones share it. Without [`Confinement::start`] there is none.
#[derive(Clone, Debug, Default)]
pub(crate) struct Confinement(Arc<State>);

#[derive(Debug, Default)]
struct State {
    confined: Mutex<Option<Confined>>,
    /// Opened while all files are still accessible.
    hypervisor: Mutex<Option<Hypervisor>>,
    /// Read while all files are still accessible.
    host: OnceLock<HostIdentity>,
    /// How this process was started, for one that replaces it.
    record: Mutex<Option<RecordFile>>,
    report: OnceLock<SandboxReport>,
    switches_user: bool,
    /// The TCP ports that it may connect to; `None` is any.
    connects_to: Option<BTreeSet<u16>>,
}

/// What a daemon listens on, connects to and reads again later.
#[derive(Debug, Default)]
pub(crate) struct SandboxNeeds<'s> {
    /// The forwards of this host.
    pub(crate) forwards: Vec<&'s Forward>,
    /// What peers may connect to.
    pub(crate) open_permits: Vec<Permit>,
    /// Where peers may listen.
    pub(crate) listen_permits: Vec<ListenPermit>,
    /// Whether forwards can be added at run time: those of -R may lead to any port.
    pub(crate) adds_forwards: bool,
    /// Files that a reload reads.
    pub(crate) files: Vec<PathBuf>,
    /// Files that are created or replaced, in existing directories.
    pub(crate) replaced: Vec<PathBuf>,
}

impl Confinement {
    /// Restricts the calling thread of a daemon that can be replaced, after recording how it was
    /// started. One that replaces another may do no more than that one.
    ///
    /// # Errors
    /// As for [`start`](Self::start). Exit 1: it replaces a process that is more confined.
    pub(crate) fn start_replaceable(
        settings: &Settings,
        daemon_needs: &SandboxNeeds<'_>,
    ) -> Result<Self, Error> {
        let own = Privileges::own(settings.sandbox.value, settings.core_dumps.value);
        let recorded = take::limited(own)?.and_then(|privileges| record(settings, privileges));
        let record = recorded.unwrap_or_else(|error| {
            let cause = system(&error);
            tracing::warn!(
                "`keypadd reload --binary` will not replace this daemon: cannot record how it was \
                 started: {cause}"
            );
            None
        });
        // Removed again if the rest fails.
        let this = Self::start(settings, daemon_needs)?;
        *this.0.record.lock().unwrap_or_else(PoisonError::into_inner) = record;
        Ok(this)
    }

    /// Restricts the calling thread, before any other starts, as far as binding sockets still
    /// allows.
    ///
    /// # Errors
    /// Exit 3: there is no such user, or this process may not become it.
    pub(crate) fn start(
        settings: &Settings,
        daemon_needs: &SandboxNeeds<'_>,
    ) -> Result<Self, Error> {
        logging::never_wait();
        match settings.core_dumps.value {
            true => allow_core_dumps(),
            false => forbid_core_dumps(),
        }
        let account = match &settings.user {
            Some(user) => Some(Account::find(&user.value).map_err(|error| {
                Error::new(Exit::Config, format!("user: {}: {error}", shown(&user.value)))
                    .hint("create it, as with `useradd --system`, or name another")
            })?),
            None => None,
        };
        let needs = Needs {
            // The bench service's port is not known yet.
            connects_to: if settings.permit_bench.value {
                None
            } else {
                daemon_needs.connects_to()
            },
            low_ports: daemon_needs.needs_low_ports(settings),
            sockets_in: daemon_needs.socket_directories(),
            replaces_in: daemon_needs
                .replaced
                .iter()
                .filter_map(|file| real_directory(file))
                .collect(),
            changes_owner: daemon_needs.replaced.iter().any(|file| has_other_owner(file)),
            read: daemon_needs.files.iter().map(|file| directory_or_file(file)).collect(),
            core_dumps: settings.core_dumps.value,
            account,
            unrestricted: !settings.sandbox.value,
        };
        let switches_user = needs.account.is_some();
        let hypervisor = Mutex::new(Some(Hypervisor::open()));
        let record = Mutex::default();
        let host = OnceLock::from(HostIdentity::read());
        let confined = confine(&needs).map_err(|error| {
            Error::new(Exit::Config, format!("user: {}", system(&error)))
                .hint("start keypadd as root, or leave `user` out")
        })?;
        let connects_to = needs.connects_to.filter(|_| confined.restricts_tcp());
        let confined = Mutex::new(Some(confined));
        let report = OnceLock::new();
        Ok(Self(Arc::new(State {
            confined,
            hypervisor,
            host,
            record,
            report,
            switches_user,
            connects_to,
        })))
    }

    /// The clocks to watch. The first daemon that asks gets the hypervisor's; all others, and
    /// daemons without a sandbox, get the system's.
    pub(crate) fn clocks(&self) -> Arc<dyn Clocks> {
        let mut hypervisor = self.0.hypervisor.lock().unwrap_or_else(PoisonError::into_inner);
        match hypervisor.take() {
            Some(hypervisor) => Arc::new(hypervisor.clocks()),
            None => Arc::new(SystemClocks),
        }
    }

    /// The record of how this process was started, which is removed when it is dropped.
    pub(crate) fn take_record(&self) -> Option<RecordFile> {
        self.0.record.lock().unwrap_or_else(PoisonError::into_inner).take()
    }

    /// What tells this host from others.
    pub(crate) fn host(&self) -> &HostIdentity {
        self.0.host.get_or_init(HostIdentity::read)
    }

    /// Completes the sandbox in all threads, once all sockets are bound.
    ///
    /// # Errors
    /// Exit 1: the user cannot be switched.
    pub(crate) fn seal(&self) -> Result<(), Error> {
        let confined = self.0.confined.lock().unwrap_or_else(PoisonError::into_inner).take();
        let Some(confined) = confined else { return Ok(()) };
        let report = confined.seal().map_err(|error| {
            Error::new(Exit::Runtime, format!("cannot switch users: {}", system(&error)))
        })?;
        let report = SandboxReport { holds: report.holds, lacks: report.lacks };
        let _ = self.0.report.set(report);
        Ok(())
    }

    /// Logs the restrictions in force once the daemon is ready.
    pub(crate) fn log(&self) {
        tracing::info!("{}", self.report().line());
    }

    /// Which restrictions are in force and which are not.
    pub(crate) fn report(&self) -> SandboxReport {
        self.0.report.get().cloned().unwrap_or_default()
    }

    /// Whether the sandbox lets the daemon connect to everything these permits name.
    pub(crate) fn admits(&self, daemon_needs: &SandboxNeeds<'_>) -> bool {
        match (&self.0.connects_to, daemon_needs.connects_to()) {
            (None, _) => true,
            (Some(_), None) => false,
            (Some(allowed), Some(needed)) => needed.is_subset(allowed),
        }
    }

    /// Whether the daemon switches to another user, who may be unable to read the key again.
    pub(crate) fn switches_user(&self) -> bool {
        self.0.switches_user
    }
}

/// Records how this process was started. Does not if it has no control socket, or if its sandbox
/// would let it change the record: whoever may write core dumps in a directory may write anything.
fn record(settings: &Settings, own: Privileges) -> io::Result<Option<RecordFile>> {
    let directory =
        runtime_directory::own().filter(|path| runtime_directory::prepare(path).is_ok());
    let Some(directory) = directory else { return Ok(None) };
    let is_where_it_dumps = settings.core_dumps.value
        && settings.sandbox.value
        && directory.canonicalize()?.starts_with(env::current_dir()?);
    if is_where_it_dumps { Ok(None) } else { StartRecord::own(own).write(&directory).map(Some) }
}

/// The directory of a file, following symbolic links.
fn real_directory(file: &Path) -> Option<PathBuf> {
    let file = file.canonicalize().unwrap_or_else(|_| file.to_owned());
    Some(file.parent()?.to_owned())
}

/// Whether a file's owner or group differs from those of files that this process creates.
fn has_other_owner(file: &Path) -> bool {
    let own = (geteuid().as_raw(), getegid().as_raw());
    fs::metadata(file).is_ok_and(|metadata| (metadata.uid(), metadata.gid()) != own)
}

impl SandboxReport {
    /// The report as one line.
    pub(crate) fn line(&self) -> String {
        let Self { holds, lacks } = self;
        let missing = match lacks.is_empty() {
            true => String::new(),
            false => format!("; missing: {}", lacks.join(", ")),
        };
        match holds.is_empty() {
            true => format!("sandbox off{missing}"),
            false => format!("sandbox: {}{missing}", holds.join(", ")),
        }
    }
}

impl<'s> SandboxNeeds<'s> {
    /// What the server and clients of a configuration file need, except for files.
    pub(crate) fn of(config: &'s Config) -> Self {
        let outgoing = || config.peers.iter().filter_map(|peer| peer.outgoing.as_ref());
        let incoming = || config.peers.iter().filter_map(|peer| peer.incoming.as_ref());
        Self {
            forwards: outgoing().flat_map(|outgoing| &outgoing.forwards).collect(),
            adds_forwards: outgoing().next().is_some(),
            open_permits: incoming().flat_map(|peer| peer.permit_open.clone()).collect(),
            listen_permits: incoming().flat_map(|peer| peer.permit_listen.clone()).collect(),
            ..Self::default()
        }
    }

    /// The TCP ports that this host connects to for its peers; `None` if any.
    fn connects_to(&self) -> Option<BTreeSet<u16>> {
        if self.adds_forwards { None } else { Permits::new(self.open_permits.clone()).ports() }
    }

    /// The listeners of this host's forwards.
    fn listeners(&self) -> impl Iterator<Item = Listen> {
        self.forwards.iter().filter_map(|forward| forward.listens_here())
    }

    fn needs_low_ports(&self, settings: &Settings) -> bool {
        let is_low = |port: u16| (1..UNPRIVILEGED).contains(&port);
        let addresses = [&settings.listen, &settings.metrics].into_iter().flatten();
        let permits = ListenPermits::new(self.listen_permits.clone());
        addresses.map(|address| address.value.port()).any(is_low)
            || self.listeners().any(|listen| match listen {
                Listen::Tcp { port, .. } | Listen::Udp { port, .. } => is_low(port),
                Listen::Unix(_) => false,
            })
            || (1..UNPRIVILEGED).any(|port| {
                [Protocol::Tcp, Protocol::Udp].iter().any(|of| permits.may_admit_port(*of, port))
            })
    }

    /// Where unix sockets are made: for forwards, and for `keypadd status`.
    fn socket_directories(&self) -> Vec<PathBuf> {
        let forwards = self.listeners().filter_map(|listen| match listen {
            Listen::Unix(path) => Some(path.as_path().to_owned()),
            Listen::Tcp { .. } | Listen::Udp { .. } => None,
        });
        let permits = self.listen_permits.iter().filter_map(ListenPermit::unix_path);
        let sockets = forwards.chain(permits.map(|path| path.as_path().to_owned()));
        let directories = sockets.filter_map(|path| Some(path.parent()?.to_owned()));
        let control =
            runtime_directory::own().filter(|path| runtime_directory::prepare(path).is_ok());
        directories.chain(control).collect()
    }
}
