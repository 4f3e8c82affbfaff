//! Owns what must not outlive this program: children and directories.
//!
//! Removes all of it once, on return, on an error and on SIGINT, SIGTERM and SIGHUP. A SIGKILL
//! leaves the directory; children die even then (`setpriv --pdeathsig`). Does not know what the
//! children are.

use std::fs::DirBuilder;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use tokio::signal::unix::{SignalKind, signal};

use crate::procstat;

/// How long a child may take to exit after SIGTERM.
const EXIT_GRACE: Duration = Duration::from_secs(3);

/// How long the main thread may take to print its report after a signal.
const REPORT_GRACE: Duration = Duration::from_secs(3);

/// The registry. Shared with the thread that waits for signals.
#[derive(Debug, Default)]
pub struct Cleanup(Mutex<State>);

#[derive(Debug, Default)]
struct State {
    children: Vec<Child>,
    directories: Vec<PathBuf>,
    done: bool,
    interrupted: Option<i32>,
}

impl Cleanup {
    /// Creates an empty registry and a thread that, when a signal arrives, says so in `program`'s
    /// name, runs the cleanup and exits. A program that handles signals itself uses the default and
    /// calls [`Self::run`].
    ///
    /// # Errors
    /// One line: the system has no thread, or no signal handler.
    pub fn start(program: &'static str) -> Result<Arc<Self>, String> {
        let cleanup = Arc::new(Self::default());
        let ours = Arc::clone(&cleanup);
        let failed = |error: std::io::Error| format!("cannot wait for signals: {error}");
        let runtime =
            tokio::runtime::Builder::new_current_thread().enable_io().build().map_err(failed)?;
        let (mut interrupt, mut terminate, mut hangup) = {
            let _inside = runtime.enter();
            let on = |kind| signal(kind).map_err(failed);
            (on(SignalKind::interrupt())?, on(SignalKind::terminate())?, on(SignalKind::hangup())?)
        };
        let wait = move || {
            let number = runtime.block_on(async {
                tokio::select! {
                    _ = interrupt.recv() => 2,
                    _ = terminate.recv() => 15,
                    _ = hangup.recv() => 1,
                }
            });
            eprintln!("{program}: signal {number}: cleaning up");
            ours.lock().interrupted = Some(number);
            ours.run();
            // The main thread has lost its tunnels: it prints complete rounds and exits.
            std::thread::sleep(REPORT_GRACE);
            std::process::exit(128 + number);
        };
        std::thread::Builder::new().name("signals".into()).spawn(wait).map_err(failed)?;
        Ok(cleanup)
    }

    /// Number of the signal that interrupted this program.
    pub fn interrupted(&self) -> Option<i32> {
        self.lock().interrupted
    }

    /// Creates a directory that nobody else may read, removed at the end.
    ///
    /// # Errors
    /// One line: why there is none.
    pub fn scratch(&self, program: &str) -> Result<PathBuf, String> {
        let name = format!("{program}-{}", std::process::id());
        let path = std::env::temp_dir().join(name);
        let made = DirBuilder::new().mode(0o700).create(&path);
        made.map_err(|error| format!("{}: {error}", path.display()))?;
        self.add_directory(&path);
        Ok(path)
    }

    /// Registers a directory, to be removed with its content at the end.
    pub fn add_directory(&self, path: &Path) {
        self.lock().directories.push(path.to_owned());
    }

    /// Starts a child in a process group of its own, so that Ctrl-C reaches this program alone.
    ///
    /// Call from the main thread: children die with the thread that started them.
    ///
    /// # Errors
    /// One line: why it does not start.
    pub fn spawn(&self, command: &mut Command) -> Result<u32, String> {
        use std::os::unix::process::CommandExt;

        let mut state = self.lock();
        if state.done {
            return Err("interrupted".into());
        }
        let child = command.stdin(Stdio::null()).process_group(0).spawn();
        let child = child
            .map_err(|error| format!("{}: {error}", command.get_program().to_string_lossy()))?;
        let id = child.id();
        state.children.push(child);
        Ok(id)
    }

    /// The exit status of a child that has ended, in words; `None` while it runs.
    pub fn ended(&self, id: u32) -> Option<String> {
        let mut state = self.lock();
        let child = state.children.iter_mut().find(|child| child.id() == id)?;
        child.try_wait().ok().flatten().map(|status| status.to_string())
    }

    /// Ends a child and its descendants and reaps it: SIGTERM, then SIGKILL after a grace period.
    pub fn end(&self, id: u32) {
        let mut state = self.lock();
        let Some(index) = state.children.iter().position(|child| child.id() == id) else { return };
        let child = state.children.swap_remove(index);
        end(child, EXIT_GRACE);
    }

    /// Ends and removes everything that is registered. Later calls do nothing.
    pub fn run(&self) {
        let mut state = self.lock();
        state.done = true;
        for child in std::mem::take(&mut state.children) {
            end(child, Duration::ZERO);
        }
        for path in std::mem::take(&mut state.directories) {
            let _ = std::fs::remove_dir_all(path);
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn end(mut child: Child, grace: Duration) {
    let family = procstat::family(child.id());
    if !grace.is_zero() {
        send(child.id(), Signal::TERM);
        let until = Instant::now() + grace;
        while Instant::now() < until && matches!(child.try_wait(), Ok(None)) {
            std::thread::sleep(Duration::from_millis(5));
        }
    }
    // Std knows whether the child has been reaped, so its ID has not been reused.
    let _ = child.kill();
    let _ = child.wait();
    for process in family.iter().filter(|process| process.id != child.id()) {
        // The start time distinguishes a descendant from a later process with the same ID.
        if procstat::read(process.id).is_some_and(|now| now.started == process.started) {
            send(process.id, Signal::KILL);
        }
    }
}

fn send(id: u32, signal: Signal) {
    if let Some(pid) = i32::try_from(id).ok().and_then(Pid::from_raw) {
        let _ = kill_process(pid, signal);
    }
}
