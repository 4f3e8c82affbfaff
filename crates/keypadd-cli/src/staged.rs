//! Creates or replaces a file atomically: writes a temporary file next to it, syncs it, then
//! renames it. After a full disk, a crash or an early exit the old file is still there. Knows
//! nothing about the content.

use std::fs::{self, File, OpenOptions, Permissions};
use std::io::{self, ErrorKind, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt, PermissionsExt, fchown};
use std::path::{Path, PathBuf};
use std::process;

/// Temporary names to try: a killed process may have left earlier ones.
const NAMES_MAX: u32 = 16;

/// The part of a mode that is not the type of the file.
const PERMISSIONS: u32 = 0o7777;

/// A temporary file with the new content; dropping it removes it.
#[derive(Debug)]
pub struct Staged {
    temporary: PathBuf,
    place: PathBuf,
    /// Whether it replaces an existing file.
    replaces: bool,
}

impl Staged {
    /// Stages a file that must not exist yet, with this mode.
    ///
    /// # Errors
    /// The file cannot be written; no temporary file is left.
    pub fn create(place: &Path, content: &[u8], mode: u32) -> io::Result<Self> {
        let (staged, mut file) = Self::open(place, false, mode)?;
        file.write_all(content)?;
        file.sync_all()?;
        Ok(staged)
    }

    /// Stages a replacement for the file at this path, or at the end of a symbolic link there, with
    /// the same owner and mode.
    ///
    /// # Errors
    /// As for [`create`](Self::create), or this user cannot give the file its owner.
    pub fn replace(place: &Path, content: &[u8]) -> io::Result<Self> {
        let place = fs::canonicalize(place)?;
        let old = fs::metadata(&place)?;
        let (staged, mut file) = Self::open(&place, true, old.mode() & PERMISSIONS)?;
        let new = file.metadata()?;
        if (new.uid(), new.gid()) != (old.uid(), old.gid()) {
            fchown(&file, Some(old.uid()), Some(old.gid()))?;
        }
        file.write_all(content)?;
        file.sync_all()?;
        Ok(staged)
    }

    /// Creates the empty file with this mode. Where the sandbox allows no chmod, the umask has to
    /// allow the mode.
    fn open(place: &Path, replaces: bool, mode: u32) -> io::Result<(Self, File)> {
        let name = place.file_name().ok_or(ErrorKind::InvalidInput)?.to_string_lossy();
        let mut last = ErrorKind::AlreadyExists.into();
        for nth in 0..NAMES_MAX {
            let temporary = place.with_file_name(format!(".{name}.{}.{nth}", process::id()));
            match OpenOptions::new().write(true).create_new(true).mode(mode).open(&temporary) {
                Ok(file) => {
                    let staged = Self { temporary, place: place.to_owned(), replaces };
                    if file.metadata()?.mode() & PERMISSIONS != mode {
                        file.set_permissions(Permissions::from_mode(mode))?;
                    }
                    return Ok((staged, file));
                }
                Err(error) => last = error,
            }
            if last.kind() != ErrorKind::AlreadyExists {
                break;
            }
        }
        Err(last)
    }

    /// Moves it into place in one step.
    ///
    /// # Errors
    /// `AlreadyExists` if a file has appeared there since [`create`](Self::create); that file
    /// stays.
    pub fn commit(self) -> io::Result<()> {
        match self.replaces {
            true => fs::rename(&self.temporary, &self.place)?,
            // Unlike a rename, a link never replaces a file.
            false => fs::hard_link(&self.temporary, &self.place)?,
        }
        // The file is in place; this only makes the rename survive a power failure.
        let directory = self.place.parent().filter(|directory| !directory.as_os_str().is_empty());
        if let Ok(directory) = File::open(directory.unwrap_or_else(|| Path::new("."))) {
            let _ = directory.sync_all();
        }
        Ok(())
    }
}

impl Drop for Staged {
    fn drop(&mut self) {
        // After a rename there is nothing left to remove.
        let _ = fs::remove_file(&self.temporary);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A directory for one test.
    struct Directory(PathBuf);

    impl Directory {
        fn new(name: &str) -> Self {
            let path =
                std::env::temp_dir().join(format!("keypadd-staged-{name}-{}", process::id()));
            fs::create_dir(&path).unwrap();
            Self(path)
        }

        fn names(&self) -> usize {
            fs::read_dir(&self.0).unwrap().count()
        }
    }

    impl Drop for Directory {
        fn drop(&mut self) {
            let _ = fs::remove_dir_all(&self.0);
        }
    }

    #[test]
    fn a_file_appears_whole_or_not_at_all() {
        let directory = Directory::new("whole");
        let place = directory.0.join("a");
        drop(Staged::create(&place, b"one", 0o640).unwrap());
        assert_eq!(directory.names(), 0);
        Staged::create(&place, b"one", 0o640).unwrap().commit().unwrap();
        assert_eq!(fs::metadata(&place).unwrap().permissions().mode() & 0o777, 0o640);
        drop(Staged::replace(&place, b"two").unwrap());
        assert_eq!(fs::read(&place).unwrap(), b"one");
        Staged::replace(&place, b"two").unwrap().commit().unwrap();
        assert_eq!(fs::read(&place).unwrap(), b"two");
        assert_eq!(fs::metadata(&place).unwrap().permissions().mode() & 0o777, 0o640);
        assert_eq!(directory.names(), 1);
    }

    #[test]
    fn a_file_created_meanwhile_is_not_replaced_and_a_link_stays_a_link() {
        let directory = Directory::new("meanwhile");
        let (place, link) = (directory.0.join("a"), directory.0.join("b"));
        let staged = Staged::create(&place, b"ours", 0o600).unwrap();
        fs::write(&place, b"theirs").unwrap();
        assert_eq!(staged.commit().unwrap_err().kind(), ErrorKind::AlreadyExists);
        std::os::unix::fs::symlink(&place, &link).unwrap();
        Staged::replace(&link, b"new").unwrap().commit().unwrap();
        assert_eq!(fs::read(&place).unwrap(), b"new");
        assert!(fs::symlink_metadata(&link).unwrap().is_symlink());
        assert_eq!(directory.names(), 2);
    }
}
