//! Writes log lines to a descriptor and never waits for its reader.
//!
//! A reader may stop: a terminal after Ctrl-S, a stuck pipe. Lines that it does not take are dropped and
//! counted, so that the daemon serves on. Knows no formats but the one of its own line.

use std::{
    io::{self, Write},
    os::fd::AsFd,
    sync::{Mutex, PoisonError},
};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use tracing_subscriber::fmt::MakeWriter;

/// A pipe that is ready takes this much at once (PIPE_BUF, pipe(7)).
const PIECE_BYTES: usize = 4096;

/// Writes lines to `to`.
#[derive(Debug)]
pub(crate) struct LogOutput<F> {
    to: F,
    is_json: bool,
    /// Lines dropped since one was written. Held while writing: two writers could both find room for one.
    dropped: Mutex<u64>,
}

impl<F: AsFd> LogOutput<F> {
    pub(crate) fn new(to: F, is_json: bool) -> Self {
        Self { to, is_json, dropped: Mutex::new(0) }
    }

    /// Writes what the reader takes now; returns whether that was all.
    fn write_now(&self, line: &[u8]) -> bool {
        let takes = |piece: &[u8]| {
            let mut ready = [PollFd::new(&self.to, PollFlags::OUT)];
            poll(&mut ready, Some(&Timespec::default())).is_ok_and(|ready| ready > 0)
                && rustix::io::write(&self.to, piece).is_ok_and(|bytes| bytes == piece.len())
        };
        line.chunks(PIECE_BYTES).all(takes)
    }

    /// Says how many lines were dropped; returns whether it could.
    fn report(&self, dropped: u64) -> bool {
        let message = format!("{dropped} log lines were dropped: nothing read them");
        let line = match self.is_json {
            true => format!("{{\"level\":\"WARN\",\"message\":\"{message}\"}}\n"),
            false => format!(" WARN {message}\n"),
        };
        self.write_now(line.as_bytes())
    }
}

impl<F: AsFd> Write for &LogOutput<F> {
    /// Takes a whole line; one that cannot be written is dropped.
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        let mut dropped = self.dropped.lock().unwrap_or_else(PoisonError::into_inner);
        if *dropped > 0 && self.report(*dropped) {
            *dropped = 0;
        }
        if *dropped > 0 || !self.write_now(line) {
            *dropped += 1;
        }
        Ok(line.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl<'w, F: AsFd + 'w> MakeWriter<'w> for LogOutput<F> {
    type Writer = &'w Self;

    fn make_writer(&'w self) -> Self::Writer {
        self
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{Read, pipe};

    #[test]
    fn lines_that_nobody_reads_are_dropped_and_counted() {
        let (mut reader, writer) = pipe().unwrap();
        let output = LogOutput::new(writer, false);
        let line = [b"x".repeat(99), b"\n".to_vec()].concat();
        for _ in 0..10_000 {
            (&output).write_all(&line).unwrap();
        }
        let mut taken = vec![0; 1 << 20];
        let length = reader.read(&mut taken).unwrap();
        assert_eq!(length % line.len(), 0, "whole lines");
        (&output).write_all(b"after\n").unwrap();
        drop(output);
        let mut rest = String::new();
        reader.read_to_string(&mut rest).unwrap();
        let dropped = 10_000 - length / line.len();
        assert_eq!(
            rest,
            format!(" WARN {dropped} log lines were dropped: nothing read them\nafter\n")
        );
    }
}
