//! Closes standard output at the end of a `-W` connection.
//!
//! The reader, such as ssh, waits for end of file on its pipe. tokio's standard output never closes
//! the descriptor, so without this the reader would see the end only when the process exits, after
//! standard input is done too.

use std::fs::File;
use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use rustix::event::{PollFd, PollFlags, Timespec};
use tokio::io::{AsyncWrite, Stdout, stdout};

/// Standard output that closes on shutdown, once everything is written.
pub(crate) struct ClosingStdout(Stdout);

impl ClosingStdout {
    pub(crate) fn new() -> Self {
        Self(stdout())
    }
}

/// Whether standard output may still be read: it is not a pipe, or its pipe has a reader. When ssh
/// hangs up on its ProxyCommand, it has closed the pipe.
pub(crate) fn is_read() -> bool {
    let output = rustix::stdio::stdout();
    let mut polled = [PollFd::new(&output, PollFlags::empty())];
    let gone = rustix::event::poll(&mut polled, Some(&Timespec::default())).is_ok()
        && polled[0].revents().intersects(PollFlags::ERR);
    !gone
}

impl AsyncWrite for ClosingStdout {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.0).poll_write(context, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        ready!(Pin::new(&mut self.0).poll_flush(context))?;
        // Keeps the descriptor in use, so that no later file becomes standard output.
        let nowhere = File::options().write(true).open("/dev/null")?;
        Poll::Ready(Ok(rustix::stdio::dup2_stdout(nowhere)?))
    }
}
