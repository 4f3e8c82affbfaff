//! Stores measured parts in the report directory, so that a stopped or killed run resumes with the
//! first missing part.
//!
//! Refuses a directory whose results have another seed, effort, program or machine. Results are
//! opaque JSON here.

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use keypadd_measure::machine::Machine;
use keypadd_measure::output::Output;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use sha2::{Digest, Sha256};

use super::lab::Missed;
use super::{Effort, Paper};

/// Settings that must be the same in all parts of a run.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Head {
    seed: u64,
    effort: Effort,
    program: String,
    machine: String,
}

/// The file.
#[derive(Debug, Serialize, Deserialize)]
struct Kept {
    #[serde(flatten)]
    head: Head,
    /// When the first part started (RFC 3339, UTC).
    started: String,
    /// Results by part name.
    parts: BTreeMap<String, Value>,
}

/// The records and their file.
#[derive(Debug)]
pub struct Notebook<'a> {
    output: Option<&'a Output>,
    kept: Mutex<Kept>,
    missed: Mutex<BTreeMap<String, Missed>>,
    fault: Mutex<Option<String>>,
}

/// A directory with results of another run.
#[derive(Debug, thiserror::Error)]
pub enum OtherRun {
    /// What differs; such results must not be mixed.
    #[error("{directory} holds a run with {theirs}, and this one has {ours}")]
    Differs {
        /// The directory.
        directory: String,
        /// The recorded setting: `seed 1`, `--quick`.
        theirs: String,
        /// This run's setting.
        ours: String,
    },
    /// The file cannot be read.
    #[error("{file} cannot be read: {cause}")]
    Unreadable {
        /// The file.
        file: String,
        /// The cause.
        cause: String,
    },
}

impl<'a> Notebook<'a> {
    /// Opens the records in a directory, empty if there are none.
    ///
    /// # Errors
    /// The directory holds results of another run.
    pub fn open(
        output: Option<&'a Output>,
        effort: Effort,
        seed: u64,
        machine: &Machine,
    ) -> Result<Self, OtherRun> {
        let head = Head { seed, effort, program: program(), machine: machine.cpu_and_cores() };
        let kept = match output {
            Some(output) => read(output, &head)?,
            None => None,
        };
        let new =
            || Kept { head, started: keypadd_measure::results::now(), parts: BTreeMap::new() };
        Ok(Self {
            output,
            kept: Mutex::new(kept.unwrap_or_else(new)),
            missed: Mutex::default(),
            fault: Mutex::default(),
        })
    }

    /// When the first part started (RFC 3339, UTC), in whichever run.
    pub fn started(&self) -> String {
        lock(&self.kept).started.clone()
    }

    /// Number of recorded parts.
    pub fn len(&self) -> usize {
        lock(&self.kept).parts.len()
    }

    /// Whether nothing is recorded.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    pub(super) fn has_any_of(&self, paper: Paper) -> bool {
        let head = format!("{paper}: ");
        lock(&self.kept).parts.keys().any(|name| name.starts_with(&head))
    }

    /// The results of a part, if recorded and readable.
    pub(super) fn read<T: DeserializeOwned>(&self, name: &str) -> Option<T> {
        let value = lock(&self.kept).parts.get(name)?.clone();
        serde_json::from_value(value).ok()
    }

    pub(super) fn record<T: Serialize>(&self, name: &str, figures: &T) {
        let mut kept = lock(&self.kept);
        let recorded = serde_json::to_value(figures).map_err(|error| error.to_string());
        let saved = recorded.and_then(|figures| {
            kept.parts.insert(name.to_owned(), figures);
            let Some(output) = self.output else { return Ok(()) };
            let json = serde_json::to_string(&*kept).map_err(|error| error.to_string())?;
            output.save_notebook(&json).map_err(|error| error.to_string())
        });
        if let Err(fault) = saved {
            lock(&self.fault).get_or_insert(fault);
        }
    }

    pub(super) fn record_missed(&self, name: &str, missed: &Missed) {
        lock(&self.missed).insert(name.to_owned(), missed.clone());
    }

    pub(super) fn why_missed(&self, name: &str) -> Missed {
        lock(&self.missed).get(name).cloned().unwrap_or(Missed::NotReached)
    }

    /// Why recording has failed; `None` if it works.
    pub(super) fn fault(&self) -> Option<String> {
        lock(&self.fault).clone()
    }
}

/// Identifies this program: its version does not distinguish two builds.
fn program() -> String {
    let version = env!("CARGO_PKG_VERSION");
    let program = std::env::current_exe().and_then(std::fs::read);
    let Ok(digest) = program.map(Sha256::digest) else { return format!("version {version}") };
    let build = u32::from_be_bytes([digest[0], digest[1], digest[2], digest[3]]);
    format!("version {version}, build {build:08x}")
}

/// A poisoned lock is still consistent: each change is one insertion.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

fn read(output: &Output, ours: &Head) -> Result<Option<Kept>, OtherRun> {
    let unreadable = |cause: String| OtherRun::Unreadable {
        file: output.notebook().display().to_string(),
        cause,
    };
    let text = match std::fs::read_to_string(output.notebook()) {
        Ok(text) => text,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(unreadable(error.to_string())),
    };
    let kept: Kept = serde_json::from_str(&text).map_err(|error| unreadable(error.to_string()))?;
    let theirs = &kept.head;
    let differ = |theirs: String, ours: String| {
        let directory = output.directory().display().to_string();
        Err(OtherRun::Differs { directory, theirs, ours })
    };
    if theirs.effort != ours.effort {
        return differ(format!("{} effort", theirs.effort), format!("{} effort", ours.effort));
    }
    if theirs.seed != ours.seed {
        return differ(format!("seed {}", theirs.seed), format!("seed {}", ours.seed));
    }
    if theirs.program != ours.program {
        return differ(theirs.program.clone(), ours.program.clone());
    }
    if theirs.machine != ours.machine {
        return differ(format!("a {}", theirs.machine), format!("a {}", ours.machine));
    }
    Ok(Some(kept))
}
