//! Standard output as one end of a connection (`-W`): ending it must reach the reader.
//!
//! A program such as ssh reads us through a pipe and waits for its end. tokio's own standard output
//! never closes the descriptor, so the end of the stream would not be seen until we exit, and we
//! may have much left to read.

use std::fs::File;
use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use rustix::event::{PollFd, PollFlags, Timespec};
use tokio::io::{AsyncWrite, Stdout, stdout};

/// Standard output that a shutdown closes: the pipe sees its end once everything is written.
pub(crate) struct ClosingStdout(Stdout);

impl ClosingStdout {
    pub(crate) fn new() -> Self {
        Self(stdout())
    }
}

/// Whether anybody may still read standard output: its pipe has a reader, or it is no pipe. A program
/// that has gone, as ssh has when it hangs up on its ProxyCommand, misses nothing.
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
        // The number stays taken, so that no later file becomes standard output by accident.
        let nowhere = File::options().write(true).open("/dev/null")?;
        Poll::Ready(Ok(rustix::stdio::dup2_stdout(nowhere)?))
    }
}
