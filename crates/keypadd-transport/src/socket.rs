//! Reads, writes and closes the non-blocking sockets that streams are spliced to.
//!
//! TCP closes cleanly (FIN) or with a reset (RST). A unix socket has no reset: its reader sees an
//! ordinary end of file. Until [`Socket::close_cleanly`], dropping a TCP socket resets it, so that
//! a cut-off stream never looks complete.

use std::{
    io::{self, IoSlice},
    mem::MaybeUninit,
    net::{Shutdown, TcpStream},
    os::{
        fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd},
        unix::net::UnixStream,
    },
    time::Duration,
};

use bytes::Bytes;
use mio::{Interest, Registry, Token, unix::SourceFd};
use rustix::{
    buffer::spare_capacity,
    event::{PollFd, PollFlags, Timespec, poll},
    io::{Errno, retry_on_intr},
};
use socket2::SockRef;

/// Bytes that a socket may deliver without a pause and still count as sparse.
pub(crate) const SPARSE_BYTES: usize = 16 << 10;

/// Bytes that a TCP socket accepts beyond what it can send immediately. Without this limit the
/// kernel accepts megabytes for a stopped reader, and a thousand of those use up the host's memory
/// for TCP (tcp_mem in tcp(7)).
const UNSENT_BYTES: u32 = 64 << 10;

/// Events of a socket that is read: bytes, an end, and urgent data.
pub(crate) const READS: Interest = Interest::READABLE.add(Interest::PRIORITY);

/// A connected stream socket in non-blocking mode.
#[derive(Debug)]
pub enum Socket {
    /// TCP.
    Tcp(TcpStream),
    /// A unix stream socket.
    Unix(UnixStream),
}

impl From<TcpStream> for Socket {
    fn from(stream: TcpStream) -> Self {
        Self::Tcp(stream)
    }
}

impl From<UnixStream> for Socket {
    fn from(stream: UnixStream) -> Self {
        Self::Unix(stream)
    }
}

impl AsFd for Socket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match self {
            Self::Tcp(stream) => stream.as_fd(),
            Self::Unix(stream) => stream.as_fd(),
        }
    }
}

impl From<Socket> for OwnedFd {
    fn from(socket: Socket) -> Self {
        match socket {
            Socket::Tcp(stream) => stream.into(),
            Socket::Unix(stream) => stream.into(),
        }
    }
}

impl Socket {
    /// Makes it non-blocking, keeps urgent data in its place, and makes dropping it a reset.
    pub(crate) fn prepare(&self) -> io::Result<()> {
        let socket = SockRef::from(self);
        // A connection that is already gone reports that on use.
        let _ = socket.set_out_of_band_inline(true);
        if let Self::Tcp(_) = self {
            let _ = socket.set_linger(Some(Duration::ZERO));
            let _ = socket.set_tcp_notsent_lowat(UNSENT_BYTES);
        }
        socket.set_nonblocking(true)
    }

    /// Keeps the kernel from growing its buffers: `receive` bytes to receive, and a quarter of that
    /// to send. The kernel counts twice as much (socket(7)).
    pub fn limit_buffers(&self, receive: usize) {
        let socket = SockRef::from(self);
        // The other end already knows of this much. If it were less now, an end on loopback, whose
        // segments are half as long as the first window, would send each only when a timer expires.
        let now = socket.recv_buffer_size().unwrap_or_default() / 2;
        // A connection that is already gone reports that on use.
        let _ = socket.set_recv_buffer_size(receive.max(now));
        let _ = socket.set_send_buffer_size(receive / 4);
    }

    pub(crate) fn register(
        &self,
        registry: &Registry,
        token: Token,
        interest: Interest,
    ) -> io::Result<()> {
        registry.register(&mut SourceFd(&self.as_fd().as_raw_fd()), token, interest)
    }

    pub(crate) fn reregister(
        &self,
        registry: &Registry,
        token: Token,
        interest: Interest,
    ) -> io::Result<()> {
        registry.reregister(&mut SourceFd(&self.as_fd().as_raw_fd()), token, interest)
    }

    pub(crate) fn deregister(&self, registry: &Registry) -> io::Result<()> {
        registry.deregister(&mut SourceFd(&self.as_fd().as_raw_fd()))
    }

    /// A duplicate descriptor of the same socket, for another loop.
    pub(crate) fn try_clone(&self) -> io::Result<Self> {
        Ok(match self {
            Self::Tcp(stream) => Self::Tcp(stream.try_clone()?),
            Self::Unix(stream) => Self::Unix(stream.try_clone()?),
        })
    }

    /// Reads up to `bytes`; an empty result is the end. The result keeps at most twice its length
    /// in memory.
    pub(crate) fn read(&self, bytes: usize) -> io::Result<Bytes> {
        if bytes <= SPARSE_BYTES {
            return self.read_few(bytes);
        }
        let mut buffer = Vec::with_capacity(bytes);
        retry_on_intr(|| rustix::io::read(self, spare_capacity(&mut buffer)))?;
        match buffer.len() < buffer.capacity() / 2 {
            true => Ok(Bytes::copy_from_slice(&buffer)),
            false => Ok(buffer.into()),
        }
    }

    /// Reads a sparse stream: few bytes, but the number is not known in advance.
    fn read_few(&self, bytes: usize) -> io::Result<Bytes> {
        loop {
            let mut buffer = [const { MaybeUninit::uninit() }; SPARSE_BYTES];
            match rustix::io::read(self, &mut buffer[..bytes]) {
                Ok((read, _)) => return Ok(Bytes::copy_from_slice(read)),
                Err(Errno::INTR) => {}
                Err(error) => return Err(error.into()),
            }
        }
    }

    pub(crate) fn write(&self, slices: &[IoSlice<'_>]) -> io::Result<usize> {
        match retry_on_intr(|| rustix::io::writev(self, slices))? {
            0 => Err(io::ErrorKind::WriteZero.into()),
            written => Ok(written),
        }
    }

    /// Shuts down its output.
    pub(crate) fn shutdown(&self) -> io::Result<()> {
        SockRef::from(self).shutdown(Shutdown::Write)
    }

    pub(crate) fn is_unix(&self) -> bool {
        matches!(self, Self::Unix(_))
    }

    /// Whether TCP has ended both ways, as after a reset. A unix socket has no reset.
    pub(crate) fn is_hung_up(&self) -> bool {
        let Self::Tcp(stream) = self else { return false };
        let mut asked = [PollFd::new(stream, PollFlags::empty())];
        let answered = poll(&mut asked, Some(&Timespec { tv_sec: 0, tv_nsec: 0 }));
        answered.is_ok() && asked[0].revents().contains(PollFlags::HUP)
    }

    /// Its pending error, if any.
    pub(crate) fn take_error(&self) -> Option<io::Error> {
        SockRef::from(self).take_error().unwrap_or_else(Some)
    }

    /// Makes dropping it a clean close: the kernel still delivers what was written.
    pub(crate) fn close_cleanly(&self) {
        if let Self::Tcp(stream) = self {
            let _ = SockRef::from(stream).set_linger(None);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::net::{Ipv4Addr, TcpListener};

    use super::*;

    #[test]
    fn limited_buffers_are_never_cut_below_what_the_other_end_knows_of() {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let connect = || TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let counted = |socket: &Socket| SockRef::from(socket).recv_buffer_size().unwrap();
        let sockets = [(); 2].map(|()| Socket::from(connect()));
        let first = counted(&sockets[0]);
        sockets[0].limit_buffers(4 << 10);
        assert_eq!(counted(&sockets[0]), first);
        assert!(SockRef::from(&sockets[0]).send_buffer_size().unwrap() < 16 << 10);
        sockets[1].limit_buffers(100 << 10);
        assert!(counted(&sockets[1]) >= (200 << 10).min(first));
        assert_eq!(SockRef::from(&sockets[1]).send_buffer_size().unwrap(), 50 << 10);
    }
}
