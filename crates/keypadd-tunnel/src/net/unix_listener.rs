//! A listening unix socket and its file: there, for this user alone, for as long as somebody listens.
//!
//! A file left behind by a process that died is replaced. One that somebody listens on, or that is
//! no socket, is left alone and is an error. Knows nothing of forwards.

use std::{
    fs,
    io::{self, ErrorKind},
    os::unix::fs::{FileTypeExt, MetadataExt},
    path::Path,
    sync::{Mutex, PoisonError},
    task::{Context, Poll},
};

use rustix::fs::{Mode, fchmod};
use socket2::{Domain, SockAddr, Socket, Type};
use tokio::net::{UnixListener, UnixStream};

use crate::{net::bind::LISTEN_BACKLOG, spec::socket_path::SocketPath};

/// Held from looking at a file to listening on it, so that no other forward of this process takes
/// a socket that is bound and not listening yet for one left behind.
static BINDING: Mutex<()> = Mutex::new(());

/// A listening socket; its file goes when it is dropped.
#[derive(Debug)]
pub(crate) struct UnixEntrance {
    listener: UnixListener,
    path: SocketPath,
    /// Device and inode: the file is removed only if it is still ours.
    file: (u64, u64),
}

impl UnixEntrance {
    /// Binds and listens. The file's mode is 0600 from the start. Needs a tokio runtime.
    pub(crate) fn bind(path: &SocketPath) -> io::Result<Self> {
        let _turn = BINDING.lock().unwrap_or_else(PoisonError::into_inner);
        let file = path.as_path();
        let socket = match bound(file) {
            Err(error) if error.kind() == ErrorKind::AddrInUse => {
                remove_stale(file)?;
                bound(file)?
            }
            result => result?,
        };
        let file = fs::symlink_metadata(file)?;
        let file = (file.dev(), file.ino());
        socket.listen(LISTEN_BACKLOG)?;
        Ok(Self { listener: UnixListener::from_std(socket.into())?, path: path.clone(), file })
    }

    pub(crate) fn poll_accept(&self, cx: &mut Context<'_>) -> Poll<io::Result<UnixStream>> {
        self.listener.poll_accept(cx).map_ok(|(stream, _)| stream)
    }

    pub(crate) fn path(&self) -> &SocketPath {
        &self.path
    }
}

impl Drop for UnixEntrance {
    fn drop(&mut self) {
        let file = self.path.as_path();
        // Somebody may have put another file there: that one is theirs.
        if fs::symlink_metadata(file).is_ok_and(|now| (now.dev(), now.ino()) == self.file) {
            let _ = fs::remove_file(file);
        }
    }
}

fn bound(file: &Path) -> io::Result<Socket> {
    let socket = Socket::new(Domain::UNIX, Type::STREAM, None)?;
    socket.set_nonblocking(true)?;
    // The file takes its mode from the socket (Linux), so it is never open to others.
    fchmod(&socket, Mode::RUSR | Mode::WUSR)?;
    socket.bind(&SockAddr::unix(file)?)?;
    Ok(socket)
}

/// Removes a socket that nobody listens on.
fn remove_stale(file: &Path) -> io::Result<()> {
    if !fs::symlink_metadata(file)?.file_type().is_socket() {
        let cause = "a file of that name is there and is not a socket";
        return Err(io::Error::new(ErrorKind::AlreadyExists, cause));
    }
    let socket = Socket::new(Domain::UNIX, Type::STREAM, None)?;
    // A listener whose queue is full is alive all the same: not waited for, it says WouldBlock.
    socket.set_nonblocking(true)?;
    match socket.connect(&SockAddr::unix(file)?) {
        Err(error) if error.kind() == ErrorKind::ConnectionRefused => fs::remove_file(file),
        Err(error) if error.kind() == ErrorKind::PermissionDenied => Err(error),
        _ => Err(ErrorKind::AddrInUse.into()),
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    /// A fresh directory and a path in it.
    fn place() -> (tempfile::TempDir, SocketPath) {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("x.sock").to_str().unwrap().parse().unwrap();
        (directory, path)
    }

    #[tokio::test]
    async fn the_file_is_this_users_alone_and_goes_with_the_listener() {
        let (_directory, path) = place();
        let entrance = UnixEntrance::bind(&path).unwrap();
        let mode = fs::metadata(path.as_path()).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600);
        UnixStream::connect(path.as_path()).await.unwrap();
        std::future::poll_fn(|cx| entrance.poll_accept(cx)).await.unwrap();
        drop(entrance);
        assert!(!path.as_path().exists());
    }

    #[tokio::test]
    async fn a_socket_left_behind_is_replaced_and_a_live_one_is_not() {
        let (_directory, path) = place();
        // Dropped without a word, as by a process that was killed.
        drop(std::os::unix::net::UnixListener::bind(path.as_path()).unwrap());
        assert!(path.as_path().exists());
        let _live = UnixEntrance::bind(&path).unwrap();
        let error = UnixEntrance::bind(&path).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::AddrInUse);
        UnixStream::connect(path.as_path()).await.unwrap();
    }

    #[tokio::test]
    async fn no_other_file_is_touched() {
        let (_directory, path) = place();
        fs::write(path.as_path(), "precious").unwrap();
        let error = UnixEntrance::bind(&path).unwrap_err();
        assert_eq!(error.to_string(), "a file of that name is there and is not a socket");
        assert_eq!(fs::read(path.as_path()).unwrap(), b"precious");
        fs::remove_file(path.as_path()).unwrap();

        let entrance = UnixEntrance::bind(&path).unwrap();
        fs::remove_file(path.as_path()).unwrap();
        fs::write(path.as_path(), "another's").unwrap();
        drop(entrance);
        assert_eq!(fs::read(path.as_path()).unwrap(), b"another's");
    }
}
