//! Binds a unix socket for this user only, and removes its file when the listener is dropped.
//!
//! A stale socket, left by a process that died, is replaced. A socket with a listener, or another
//! kind of file, is left alone and is an error.

use std::{
    fs,
    io::{self, ErrorKind},
    os::{
        fd::{AsFd, OwnedFd},
        unix::{fs::FileTypeExt, net::UnixListener as StdUnixListener},
    },
    path::Path,
    sync::{Mutex, PoisonError},
    task::{Context, Poll},
};

use rustix::{fs::Mode, process::umask};
use socket2::{Domain, SockAddr, Socket, Type};
use tokio::net::{UnixListener, UnixStream};

use crate::{
    addresses::socket_path::SocketPath,
    net::{bind::LISTEN_BACKLOG, socket_file::SocketFile},
    suspension::Suspension,
};

/// Held from the check of a file until the socket listens: in between it looks like a stale socket
/// to other forwards of this process, whose umask is another one.
static BINDING: Mutex<()> = Mutex::new(());

/// A listening unix socket; its file is removed on drop.
#[derive(Debug)]
pub(crate) struct UnixPathListener {
    listener: UnixListener,
    path: SocketPath,
    file: SocketFile,
    /// The file is another process's while this one is suspended.
    suspension: Suspension,
}

impl UnixPathListener {
    /// Binds and listens, or takes the socket of the old process. The file has mode 0700 from the
    /// start. Needs a tokio runtime.
    pub(crate) fn bind(
        path: &SocketPath,
        suspension: &Suspension,
        inherited: Option<StdUnixListener>,
    ) -> io::Result<Self> {
        let _guard = BINDING.lock().unwrap_or_else(PoisonError::into_inner);
        let file = path.as_path();
        if let Some(listener) = inherited {
            return Self::listening(listener, path, suspension);
        }
        let socket = match bound(file) {
            Err(error) if error.kind() == ErrorKind::AddrInUse => {
                remove_stale(file)?;
                bound(file)?
            }
            result => result?,
        };
        socket.listen(LISTEN_BACKLOG)?;
        Self::listening(socket.into(), path, suspension)
    }

    fn listening(
        listener: StdUnixListener,
        path: &SocketPath,
        suspension: &Suspension,
    ) -> io::Result<Self> {
        let (file, listener) = (SocketFile::at(path)?, UnixListener::from_std(listener)?);
        Ok(Self { listener, path: path.clone(), file, suspension: suspension.clone() })
    }

    /// Another descriptor of the socket.
    pub(crate) fn try_clone(&self) -> io::Result<OwnedFd> {
        self.listener.as_fd().try_clone_to_owned()
    }

    pub(crate) fn poll_accept(&self, cx: &mut Context<'_>) -> Poll<io::Result<UnixStream>> {
        self.listener.poll_accept(cx).map_ok(|(stream, _)| stream)
    }

    pub(crate) fn path(&self) -> &SocketPath {
        &self.path
    }

    pub(crate) fn file(&self) -> &SocketFile {
        &self.file
    }
}

impl Drop for UnixPathListener {
    fn drop(&mut self) {
        if !self.suspension.is_on() {
            self.file.remove();
        }
    }
}

fn bound(file: &Path) -> io::Result<Socket> {
    let socket = Socket::new(Domain::UNIX, Type::STREAM, None)?;
    socket.set_nonblocking(true)?;
    let address = SockAddr::unix(file)?;
    // Others can never connect. Meanwhile other threads create what is for this user only, too. The
    // sandbox allows no chmod.
    let before = umask(Mode::RWXG | Mode::RWXO);
    let bound = socket.bind(&address);
    umask(before);
    bound.map(|()| socket)
}

/// Removes a socket that has no listener.
fn remove_stale(file: &Path) -> io::Result<()> {
    if !fs::symlink_metadata(file)?.file_type().is_socket() {
        let cause = "the file exists and is not a socket";
        return Err(io::Error::new(ErrorKind::AlreadyExists, cause));
    }
    let socket = Socket::new(Domain::UNIX, Type::STREAM, None)?;
    // A listener with a full queue answers WouldBlock: it is alive.
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

    /// A new directory and a path in it.
    fn temporary_path() -> (tempfile::TempDir, SocketPath) {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("x.sock").to_str().unwrap().parse().unwrap();
        (directory, path)
    }

    #[tokio::test]
    async fn the_file_is_for_this_user_only_and_is_removed_with_the_listener() {
        let (_directory, path) = temporary_path();
        let listener = UnixPathListener::bind(&path, &Suspension::default(), None).unwrap();
        let mode = fs::metadata(path.as_path()).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o700);
        UnixStream::connect(path.as_path()).await.unwrap();
        std::future::poll_fn(|cx| listener.poll_accept(cx)).await.unwrap();
        drop(listener);
        assert!(!path.as_path().exists());
    }

    #[tokio::test]
    async fn a_stale_socket_is_replaced_and_a_live_one_is_not() {
        let (_directory, path) = temporary_path();
        // The file stays, as after a process that was killed.
        drop(std::os::unix::net::UnixListener::bind(path.as_path()).unwrap());
        assert!(path.as_path().exists());
        let _live = UnixPathListener::bind(&path, &Suspension::default(), None).unwrap();
        let error = UnixPathListener::bind(&path, &Suspension::default(), None).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::AddrInUse);
        UnixStream::connect(path.as_path()).await.unwrap();
    }

    #[tokio::test]
    async fn other_files_are_not_touched() {
        let (_directory, path) = temporary_path();
        fs::write(path.as_path(), "precious").unwrap();
        let error = UnixPathListener::bind(&path, &Suspension::default(), None).unwrap_err();
        assert_eq!(error.to_string(), "the file exists and is not a socket");
        assert_eq!(fs::read(path.as_path()).unwrap(), b"precious");
        fs::remove_file(path.as_path()).unwrap();

        let listener = UnixPathListener::bind(&path, &Suspension::default(), None).unwrap();
        fs::remove_file(path.as_path()).unwrap();
        fs::write(path.as_path(), "another's").unwrap();
        drop(listener);
        assert_eq!(fs::read(path.as_path()).unwrap(), b"another's");
    }
}
