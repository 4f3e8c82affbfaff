//! Tells the file of a listening unix socket from another one at its path, and removes it.
//!
//! Knows no sockets.

use std::{fs, io, os::unix::fs::MetadataExt};

use serde::{Deserialize, Serialize};

use crate::addresses::socket_path::SocketPath;

/// The file of a listening unix socket: its path, device and inode. Another one at its path, by
/// another program, differs.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct SocketFile((String, u64, u64));

impl SocketFile {
    /// The file at this path.
    ///
    /// # Errors
    /// There is none, or it cannot be reached.
    pub(crate) fn at(path: &SocketPath) -> io::Result<Self> {
        let file = fs::symlink_metadata(path.as_path())?;
        Ok(Self((path.to_string(), file.dev(), file.ino())))
    }

    /// Removes the file, unless another one is there.
    pub fn remove(&self) {
        let Self((path, device, inode)) = self;
        if fs::symlink_metadata(path).is_ok_and(|now| (now.dev(), now.ino()) == (*device, *inode)) {
            let _ = fs::remove_file(path);
        }
    }
}
