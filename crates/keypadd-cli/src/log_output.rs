//! Writes log lines to a descriptor, and waits for its reader for at most 50 ms of each second.
//!
//! A reader may stop: a terminal after Ctrl-S or behind a dead connection, a stuck pipe. Lines that
//! it does not take are dropped and counted, so that the daemon serves on. Knows no formats but the
//! one of its own line.

use std::{
    io::{self, Write},
    os::fd::{AsFd, AsRawFd, OwnedFd},
    sync::{Mutex, PoisonError},
    time::{Duration, Instant},
};

use rustix::{
    event::{PollFd, PollFlags, Timespec, poll},
    fs::{Mode, OFlags, open},
    io::{Errno, write},
    net::{SendFlags, send},
    termios::{isatty, tcgetsid},
};
use tracing_subscriber::fmt::MakeWriter;

/// A pipe that is ready takes this much at once (PIPE_BUF, pipe(7)).
const PIECE_BYTES: usize = 4096;

/// A terminal that is ready takes this much text at once, or one control character, which may
/// become several (`n_tty` and `pty` in Linux).
const TERMINAL_PIECE_BYTES: usize = 64;

/// How long a reader that is behind is waited for in each interval, in all.
const PATIENCE: Duration = Duration::from_millis(50);
const PATIENCE_INTERVAL: Duration = Duration::from_secs(1);

/// Writes lines to `to`.
#[derive(Debug)]
pub(crate) struct LogOutput<F> {
    to: F,
    is_json: bool,
    patience: Duration,
    /// Locked while writing: two writers could both find room for one.
    is_terminal: bool,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    /// Lines dropped since one was written.
    dropped: u64,
    /// Whether the first of them was written in part.
    is_torn: bool,
    /// When the interval began in which the reader was last waited for.
    interval_start: Option<Instant>,
    /// How long it was waited for in that interval.
    waited: Duration,
}

impl<F: AsFd> LogOutput<F> {
    pub(crate) fn new(to: F, is_json: bool) -> Self {
        let is_terminal = isatty(&to);
        Self { to, is_json, patience: PATIENCE, is_terminal, state: Mutex::default() }
    }

    /// Writes what the reader takes; returns how many bytes.
    fn write_now(&self, state: &mut State, line: &[u8]) -> usize {
        let mut written = 0;
        while written < line.len() {
            let rest = line.get(written..).unwrap_or_default();
            let length = if self.is_terminal { terminal_piece(rest) } else { PIECE_BYTES };
            let piece = rest.get(..length).unwrap_or(rest);
            let took = match self.has_room(Duration::ZERO) {
                true => self.write_piece(piece).unwrap_or(0),
                false => 0,
            };
            written += took;
            if took < piece.len() && !self.waits(state) {
                break;
            }
        }
        written
    }

    /// Writes to a descriptor that is ready, without waiting: a socket that is may have room for
    /// less.
    fn write_piece(&self, piece: &[u8]) -> rustix::io::Result<usize> {
        match send(&self.to, piece, SendFlags::DONTWAIT | SendFlags::NOSIGNAL) {
            Err(Errno::NOTSOCK) => write(&self.to, piece),
            sent => sent,
        }
    }

    /// Waits for a reader that is behind while patience is left; returns whether it takes more now.
    fn waits(&self, state: &mut State) -> bool {
        let now = Instant::now();
        if state.interval_start.is_none_or(|start| now - start >= PATIENCE_INTERVAL) {
            (state.interval_start, state.waited) = (Some(now), Duration::ZERO);
        }
        let left = self.patience.saturating_sub(state.waited);
        if left.is_zero() || state.dropped > 0 {
            return false;
        }
        let has_room = self.has_room(left);
        state.waited += now.elapsed();
        has_room
    }

    fn has_room(&self, within: Duration) -> bool {
        let mut ready = [PollFd::new(&self.to, PollFlags::OUT)];
        let within = Timespec::try_from(within).unwrap_or_default();
        poll(&mut ready, Some(&within)).is_ok_and(|ready| ready > 0)
    }

    /// Says how many lines were dropped; returns whether it could.
    fn report(&self, state: &mut State) -> bool {
        let message = format!("{} log lines were dropped: nothing read them", state.dropped);
        let start = if state.is_torn { "\n" } else { "" };
        let line = match self.is_json {
            true => format!("{start}{{\"level\":\"WARN\",\"message\":\"{message}\"}}\n"),
            false => format!("{start} WARN {message}\n"),
        };
        let written = self.write_now(state, line.as_bytes());
        state.is_torn |= written > 0 && written < line.len();
        written == line.len()
    }
}

impl<F: AsFd> Write for &LogOutput<F> {
    /// Takes a whole line; one that cannot be written is dropped.
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        if state.dropped > 0 && self.report(&mut state) {
            (state.dropped, state.is_torn) = (0, false);
        }
        if state.dropped == 0 {
            let written = self.write_now(&mut state, line);
            if written == line.len() {
                return Ok(written);
            }
            state.is_torn = written > 0;
        }
        state.dropped += 1;
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

/// How much of this a terminal that is ready takes at once.
fn terminal_piece(rest: &[u8]) -> usize {
    let text = rest.iter().position(u8::is_ascii_control).unwrap_or(rest.len());
    text.clamp(1, TERMINAL_PIECE_BYTES)
}

/// Opens a terminal again, without waiting for its reader: one that is ready takes as little as one
/// byte. Others share the description that it has; this one is our own.
pub(crate) fn without_waiting(terminal: impl AsFd) -> rustix::io::Result<OwnedFd> {
    let path = format!("/proc/self/fd/{}", terminal.as_fd().as_raw_fd());
    let flags = OFlags::WRONLY | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
    open(path, flags, Mode::empty()).or_else(|error| match tcgetsid(&terminal) {
        // Another user's, as after su(1), that controls this process: then anyone may open it by
        // this name.
        Ok(_) => open("/dev/tty", flags, Mode::empty()),
        Err(_) => Err(error),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::{
        io::{Read, pipe},
        os::unix::net::UnixStream,
        sync::mpsc::channel,
        thread,
    };

    use rustix::net::sockopt::set_socket_send_buffer_size;
    use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};

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
        (&output).write_all(b"after\n").unwrap();
        drop(output);
        let mut rest = String::new();
        reader.read_to_string(&mut rest).unwrap();
        let dropped = 10_000 - length / line.len();
        let torn = if length % line.len() > 0 { "\n" } else { "" };
        let report = format!("{torn} WARN {dropped} log lines were dropped: nothing read them\n");
        assert_eq!(rest, format!("{report}after\n"));
    }

    #[test]
    fn a_reader_that_is_only_late_gets_everything() {
        let (mut reader, writer) = pipe().unwrap();
        let reading = thread::spawn(move || {
            thread::sleep(Duration::from_millis(10));
            let mut taken = Vec::new();
            reader.read_to_end(&mut taken).unwrap();
            taken.len()
        });
        let mut output = LogOutput::new(writer, false);
        output.patience = Duration::from_secs(60);
        // More than a pipe holds, at once.
        (0..1_000).for_each(|_| (&output).write_all(&[b'x'; 100]).unwrap());
        drop(output);
        assert_eq!(reading.join().unwrap(), 100_000);
    }

    #[test]
    fn a_socket_that_nobody_reads_makes_nobody_wait_for_a_long_line() {
        let (_reader, writer) = UnixStream::pair().unwrap();
        set_socket_send_buffer_size(&writer, 0).unwrap();
        let output = LogOutput::new(writer, false);
        let (done, is_done) = channel();
        thread::spawn(move || {
            // After a short one it is still ready, and has room for half of a long one.
            (&output).write_all(b"x\n").unwrap();
            (&output).write_all(&[b'x'; PIECE_BYTES]).unwrap();
            done.send(output.state.lock().unwrap().dropped).unwrap();
        });
        assert_eq!(is_done.recv_timeout(Duration::from_secs(30)).expect("it waits"), 1);
    }

    /// Writes more to a terminal that nobody reads than it takes, through this description of it.
    fn write_too_much(description: impl Fn(OwnedFd) -> OwnedFd) {
        let controller = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY).unwrap();
        grantpt(&controller).unwrap();
        unlockpt(&controller).unwrap();
        let name = ptsname(&controller, Vec::new()).unwrap();
        let terminal = open(name, OFlags::RDWR | OFlags::NOCTTY, Mode::empty()).unwrap();
        let output = LogOutput::new(description(terminal), false);
        let (done, is_done) = channel();
        thread::spawn(move || {
            for length in 0..3_000 {
                (&output).write_all(&[vec![b'x'; length % 200], vec![b'\n']].concat()).unwrap();
            }
            done.send(output.state.lock().unwrap().dropped).unwrap();
        });
        assert!(is_done.recv_timeout(Duration::from_secs(30)).expect("it waits") > 0);
    }

    #[test]
    fn a_terminal_that_nobody_reads_makes_nobody_wait() {
        write_too_much(|terminal| without_waiting(terminal).unwrap());
    }

    #[test]
    fn a_terminal_that_cannot_be_opened_again_makes_nobody_wait_either() {
        write_too_much(|terminal| terminal);
    }
}
