//! Starts the processes of a tunnel, waits until they are ready, and ends them.

use std::path::PathBuf;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::{Duration, Instant};

use crate::cleanup::Cleanup;
use crate::procstat;
use crate::programs::{create_log, log_tail};

/// Timeout of each step of bringing a tunnel up.
const START_TIMEOUT: Duration = Duration::from_secs(20);
/// Retry interval.
const RETRY: Duration = Duration::from_millis(20);

/// Processes that belong together. Dropping them ends them, the last one first.
#[derive(Debug)]
pub struct Processes {
    cleanup: Arc<Cleanup>,
    all: Vec<Process>,
}

#[derive(Debug)]
struct Process {
    id: u32,
    name: String,
    log: PathBuf,
}

impl Processes {
    /// None yet.
    pub fn new(cleanup: &Arc<Cleanup>) -> Self {
        Self { cleanup: Arc::clone(cleanup), all: Vec::new() }
    }

    /// Starts one more, which writes to a log.
    ///
    /// # Errors
    /// One line: why it does not start.
    pub fn start(
        &mut self,
        name: String,
        log: PathBuf,
        command: &mut Command,
    ) -> Result<(), String> {
        let [file, copy] = create_log(&log)?;
        let id = self.cleanup.spawn(command.stdout(file).stderr(copy))?;
        self.all.push(Process { id, name, log });
        Ok(())
    }

    /// CPU seconds of all so far; `None` without processes.
    pub fn cpu_seconds(&self) -> Option<f64> {
        let ids: Vec<u32> = self.all.iter().map(|process| process.id).collect();
        (!ids.is_empty()).then(|| procstat::cpu_seconds(&ids))
    }

    /// Describes the process that has ended, if one has.
    pub fn failure(&self) -> Option<String> {
        self.all.iter().find_map(|process| {
            let status = self.cleanup.ended(process.id)?;
            Some(format!("{} has ended ({status})", process.name))
        })
    }

    /// The last lines of each process's log, indented.
    pub fn log_tails(&self) -> String {
        self.all.iter().map(|process| log_tail(&process.name, &process.log)).collect()
    }

    /// Retries until it succeeds, a process ends, time is up or a stop is asked for.
    ///
    /// # Errors
    /// Which of them it was.
    pub fn wait(
        &self,
        what: &str,
        stop: &AtomicBool,
        attempt: impl Fn() -> bool,
    ) -> Result<(), String> {
        let until = Instant::now() + START_TIMEOUT;
        while !attempt() {
            if let Some(failure) = self.failure() {
                return Err(failure);
            }
            if Instant::now() > until {
                return Err(format!("{what} after {} s", START_TIMEOUT.as_secs()));
            }
            if stop.load(Relaxed) {
                return Err("interrupted".into());
            }
            std::thread::sleep(RETRY);
        }
        Ok(())
    }
}

impl Drop for Processes {
    fn drop(&mut self) {
        for process in self.all.iter().rev() {
            self.cleanup.end(process.id);
        }
    }
}
