//! Writes known bytes into one end of a forwarded connection and compares them at the other.

use std::io::{ErrorKind, Read, Write};
use std::net::Shutdown;
use std::os::unix::net::UnixStream;
use std::time::Duration;

use fastrand::Rng;

use crate::schedule::Style;
use crate::traffic::fill;

/// Maximum bytes per write: enough to count as bulk.
const BULK_BYTES: usize = 110 << 10;
/// Maximum bytes written ahead of the other program's reads.
const AHEAD_BYTES: u64 = 128 << 10;

/// Write interval of an idle program, in a run that only waits for time.
const PATIENCE: Duration = Duration::from_millis(100);

/// One program.
pub(super) struct Program {
    socket: UnixStream,
    style: Style,
    rng: Rng,
    /// Seeds of the bytes that it writes, and of those that it reads.
    seeds: [u64; 2],
    pub(super) wake_at: Option<Duration>,
    pub(super) written: u64,
    pub(super) received: u64,
    pub(super) has_ended: bool,
    pub(super) wrong: Option<String>,
}

impl Program {
    /// Two programs, and the tunnel ends' sockets connected to them.
    pub(super) fn pair(
        styles: [Style; 2],
        now: Duration,
        rng: &mut Rng,
    ) -> ([Self; 2], [UnixStream; 2]) {
        let seeds = [rng.u64(..), rng.u64(..)];
        let [client, server] = [0, 1].map(|end| {
            let (socket, tunnel) = UnixStream::pair().expect("descriptors");
            socket.set_nonblocking(true).expect("a socket");
            let program = Self {
                socket,
                style: styles[end],
                rng: rng.fork(),
                seeds: [seeds[end], seeds[1 - end]],
                wake_at: Some(now),
                written: 0,
                received: 0,
                has_ended: false,
                wrong: None,
            };
            (program, tunnel)
        });
        ([client.0, server.0], [client.1, server.1])
    }

    /// Writes what the socket accepts of a small or large chunk; returns when to be called next.
    /// The other program has read the first `read` bytes. With `idles`, an occasional small write
    /// is enough.
    pub(super) fn write(&mut self, now: Duration, read: u64, idles: bool) {
        let bulk = match self.style {
            _ if idles => false,
            Style::Terminal => false,
            Style::Bulk => true,
            Style::Mixed => self.rng.bool(),
        };
        let (bytes, pause_micros) = match bulk {
            true => (self.rng.usize(1_000..BULK_BYTES), self.rng.u64(10_000..100_000)),
            false => (self.rng.usize(1..120), self.rng.u64(50..4_000)),
        };
        let pause = Duration::from_micros(pause_micros);
        self.wake_at = Some(now + if idles { PATIENCE } else { pause });
        if self.written - read > AHEAD_BYTES {
            return;
        }
        let mut data = vec![0; bytes];
        fill(self.seeds[0], self.written, &mut data);
        match self.socket.write(&data) {
            Ok(written) => self.written += written as u64,
            Err(error) if error.kind() == ErrorKind::WouldBlock => {}
            Err(error) => self.wrong = Some(format!("a write failed: {error}")),
        }
    }

    /// Ends its stream.
    pub(super) fn finish(&mut self) {
        self.wake_at = None;
        self.socket.shutdown(Shutdown::Write).expect("a socket");
    }

    /// Reads and compares what has arrived; returns whether there was any.
    pub(super) fn read(&mut self) -> bool {
        let (before, mut buffer) = (self.received, vec![0; BULK_BYTES]);
        while !self.has_ended {
            match self.socket.read(&mut buffer) {
                Ok(0) => self.has_ended = true,
                Ok(read) => {
                    let mut expected = vec![0; read];
                    fill(self.seeds[1], self.received, &mut expected);
                    if buffer[..read] != expected {
                        let at = self.received;
                        self.wrong.get_or_insert_with(|| format!("a stream differs at {at}"));
                    }
                    self.received += read as u64;
                }
                Err(error) if error.kind() == ErrorKind::WouldBlock => break,
                Err(error) => {
                    self.wrong = Some(format!("a read failed: {error}"));
                    break;
                }
            }
        }
        self.received > before
    }
}
