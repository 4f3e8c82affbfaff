//! Owns the directory of a report: refuses an unsuitable one before the run, and writes all files
//! at each save.
//!
//! A save writes every file under a temporary name, then renames them all, so a full disk or a
//! killed run leaves the previous save intact. Replaces and removes only files of a report: by
//! name, and only in a directory whose `results.json` is from a run. Knows nothing else about the
//! files.

use std::collections::BTreeSet;
use std::fs;
use std::fs::{File, TryLockError};
use std::io;
use std::io::Write;
use std::path::{Path, PathBuf};

use thiserror::Error;

use crate::report;
use crate::results::Results;

/// Suffix of files being written.
const UNFINISHED: &str = ".unfinished";

/// Measurements of a resumable run so far.
const NOTEBOOK: &str = "measured.json";

/// A directory for a report.
#[derive(Debug)]
pub struct Output {
    directory: PathBuf,
    /// Holds the lock that keeps a second run out.
    _lock: File,
}

/// Why a directory cannot hold a report.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum OutputError {
    /// The path is a file, a socket or the like.
    #[error("{0} is not a directory")]
    NotADirectory(PathBuf),
    /// The directory contains something that no report has.
    #[error("{directory} contains files that do not belong to a report ({other})")]
    Foreign {
        /// The directory.
        directory: PathBuf,
        /// Relative path of the first foreign file.
        other: String,
    },
    /// Another run is writing its report there.
    #[error("another run writes its report to {0}")]
    InUse(PathBuf),
    /// The directory cannot be created or written.
    #[error("cannot write to {directory}: {cause}")]
    Unwritable {
        /// The directory.
        directory: PathBuf,
        /// The system's error.
        cause: io::Error,
    },
}

impl OutputError {
    /// How to fix it.
    pub fn hint(&self) -> &'static str {
        match self {
            Self::NotADirectory(_) | Self::Foreign { .. } => {
                "name a directory that is empty or does not exist"
            }
            Self::InUse(_) => "name another directory, or wait for that run to finish",
            Self::Unwritable { .. } => "name a directory that you may write to",
        }
    }
}

/// A failed save. The previous save is still intact.
#[derive(Debug, Error)]
#[error("cannot save {path}: {cause}; what was saved before is unchanged")]
pub struct SaveError {
    /// The file that could not be written.
    pub path: PathBuf,
    /// The system's error.
    pub cause: io::Error,
}

impl Output {
    /// Takes a directory for a report, creating it if needed. An earlier report in it stays until
    /// the first [`Self::save`].
    ///
    /// # Errors
    ///
    /// If it cannot be written, holds foreign files, or another run uses it.
    pub fn create(directory: &Path) -> Result<Self, OutputError> {
        Self::take(directory, false)
    }

    /// Like [`Self::create`], for a resumable run: accepts what such a run has left there.
    ///
    /// # Errors
    ///
    /// As there.
    pub fn resume(directory: &Path) -> Result<Self, OutputError> {
        Self::take(directory, true)
    }

    fn take(directory: &Path, may_have_notebook: bool) -> Result<Self, OutputError> {
        let unwritable = |cause| OutputError::Unwritable { directory: directory.to_owned(), cause };
        if fs::metadata(directory).is_ok_and(|found| !found.is_dir()) {
            return Err(OutputError::NotADirectory(directory.to_owned()));
        }
        fs::create_dir_all(directory).map_err(unwritable)?;
        let lock = File::open(directory).map_err(unwritable)?;
        match lock.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => {
                return Err(OutputError::InUse(directory.to_owned()));
            }
            // On a file system without locks nothing keeps a second run out; accept that.
            Err(TryLockError::Error(_)) => {}
        }
        if let Some(other) = foreign(directory, may_have_notebook).map_err(unwritable)? {
            return Err(OutputError::Foreign { directory: directory.to_owned(), other });
        }
        for folder in ["", report::PLOTS, report::DATA] {
            let folder = directory.join(folder);
            fs::create_dir_all(&folder).map_err(unwritable)?;
            let probe = folder.join(format!("probe{UNFINISHED}"));
            write_synced(&probe, b"can this be written?").map_err(unwritable)?;
            fs::remove_file(&probe).map_err(unwritable)?;
        }
        Ok(Self { directory: directory.to_owned(), _lock: lock })
    }

    /// Path of the report.
    pub fn directory(&self) -> &Path {
        &self.directory
    }

    /// Path of a resumable run's measurements.
    pub fn notebook(&self) -> PathBuf {
        self.directory.join(NOTEBOOK)
    }

    /// Replaces the measurements of a resumable run.
    ///
    /// # Errors
    ///
    /// If it cannot be written. The previous file is intact.
    pub fn save_notebook(&self, json: &str) -> Result<(), SaveError> {
        let path = self.notebook();
        let beside = beside(&path);
        let unfinished = Unfinished(vec![beside.clone()]);
        write_synced(&beside, json.as_bytes())
            .and_then(|()| fs::rename(&beside, &path))
            .and_then(|()| sync_directory(&self.directory))
            .map_err(|cause| SaveError { path, cause })?;
        drop(unfinished);
        Ok(())
    }

    /// The path of the page.
    pub fn page(&self) -> PathBuf {
        self.directory.join(report::PAGE)
    }

    /// Replaces the report with one of `results`. May be called at any time, as often as there is
    /// news: a killed run leaves its last save.
    ///
    /// # Errors
    ///
    /// If a file cannot be written. The report is then that of the previous save.
    pub fn save(&self, results: &Results) -> Result<(), SaveError> {
        let files = report::files(results);
        if files.iter().any(|file| file.path.starts_with(report::PAGES)) {
            let path = self.directory.join(report::PAGES);
            fs::create_dir_all(&path).map_err(|cause| SaveError { path, cause })?;
        }
        let mut unfinished = Unfinished(Vec::new());
        for file in &files {
            let path = self.directory.join(&file.path);
            let beside = beside(&path);
            unfinished.0.push(beside.clone());
            write_synced(&beside, file.contents.as_bytes())
                .map_err(|cause| SaveError { path, cause })?;
        }
        // Nothing below needs disk space.
        for file in &files {
            let path = self.directory.join(&file.path);
            fs::rename(beside(&path), &path).map_err(|cause| SaveError { path, cause })?;
        }
        unfinished.0.clear();
        let current: BTreeSet<&str> = files.iter().map(|file| file.path.as_str()).collect();
        self.remove_others(&current).map_err(|(path, cause)| SaveError { path, cause })
    }

    /// Removes plots and tables that only an earlier report had, and syncs the directories to disk.
    fn remove_others(&self, current: &BTreeSet<&str>) -> Result<(), (PathBuf, io::Error)> {
        for (folder, _) in FOLDERS {
            let path = self.directory.join(folder);
            let blame = |cause| (path.clone(), cause);
            if !path.exists() {
                continue; // no report had any of these
            }
            for name in names_in(&path).map_err(blame)? {
                if !current.contains(format!("{folder}/{name}").as_str()) && is_ours(folder, &name)
                {
                    fs::remove_file(path.join(name)).map_err(blame)?;
                }
            }
            sync_directory(&path).map_err(blame)?;
        }
        sync_directory(&self.directory).map_err(|cause| (self.directory.clone(), cause))
    }
}

/// Files not renamed into place yet; removed if they never are.
struct Unfinished(Vec<PathBuf>);

impl Drop for Unfinished {
    fn drop(&mut self) {
        for path in &self.0 {
            // There may be none; and the original failure is the one to report.
            let _ = fs::remove_file(path);
        }
    }
}

/// The folders of a report and their file extensions.
const FOLDERS: [(&str, &str); 3] =
    [(report::PLOTS, ".svg"), (report::DATA, ".csv"), (report::PAGES, ".html")];

/// Whether reports have files with this name; `folder` is empty for the directory itself.
fn is_ours(folder: &str, name: &str) -> bool {
    let name = name.strip_suffix(UNFINISHED).unwrap_or(name);
    match FOLDERS.iter().find(|(known, _)| *known == folder) {
        Some((_, ending)) => name.ends_with(ending) || name == "probe",
        None => matches!(name, report::PAGE | report::RESULTS | "probe"),
    }
}

/// The first path that no report has: an unknown name, something else under a known name, or known
/// names without a run's results beside them. Hours of measurements belong to a report only if it
/// is resumed.
fn foreign(directory: &Path, may_have_notebook: bool) -> io::Result<Option<String>> {
    let results = fs::read_to_string(directory.join(report::RESULTS));
    let is_report = results.is_ok_and(|results| Results::is_of_a_run(&results));
    let is_finished = |name: &str| !name.ends_with(UNFINISHED);
    let is_notebook = |name: &str| name.strip_suffix(UNFINISHED).unwrap_or(name) == NOTEBOOK;
    for name in names_in(directory)? {
        let path = directory.join(&name);
        let found = fs::symlink_metadata(&path)?;
        let folder = FOLDERS.iter().find(|(folder, _)| *folder == name);
        match folder {
            Some((folder, _)) if found.is_dir() => {
                for inner in names_in(&path)? {
                    let is_file = fs::symlink_metadata(path.join(&inner))?.is_file();
                    if !is_file || !is_ours(folder, &inner) || is_finished(&inner) && !is_report {
                        return Ok(Some(format!("{folder}/{inner}")));
                    }
                }
            }
            None if found.is_file() && is_ours("", &name) && (is_report || !is_finished(&name)) => {
            }
            None if found.is_file() && is_notebook(&name) && is_report && may_have_notebook => {}
            _ => return Ok(Some(name)),
        }
    }
    Ok(None)
}

/// Names in a directory, sorted.
fn names_in(directory: &Path) -> io::Result<BTreeSet<String>> {
    fs::read_dir(directory)?
        .map(|entry| Ok(entry?.file_name().to_string_lossy().into_owned()))
        .collect()
}

fn beside(path: &Path) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(UNFINISHED);
    name.into()
}

fn write_synced(path: &Path, contents: &[u8]) -> io::Result<()> {
    let mut file = File::create(path)?;
    file.write_all(contents)?;
    file.sync_all()
}

fn sync_directory(path: &Path) -> io::Result<()> {
    File::open(path)?.sync_all()
}

#[cfg(test)]
mod tests;
