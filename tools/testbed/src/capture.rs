//! Looks for bytes in the frames of a link: whether something crosses it in the clear.
//!
//! A packet socket (packet(7)) sees the frames of every device of its namespace; the link's own
//! Ethernet address tells which are its. Needs root. Knows no protocol above Ethernet.

use std::io::Read;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use socket2::{Domain, Protocol, Socket, Type};

use crate::namespace::Namespace;

/// An Ethernet address.
pub type LinkAddress = [u8; 6];

/// All protocols: `ETH_P_ALL` of `linux/if_ether.h`.
const ALL_PROTOCOLS: u16 = 3;

/// More than the longest frame: of segmentation offload, 64 KiB and headers.
const FRAME_BYTES: usize = 66 << 10;

/// A capture that has seen no frame for this long has seen all that were sent.
const QUIET: Duration = Duration::from_millis(20);

/// A capture in progress.
#[derive(Debug)]
pub struct Capture {
    is_over: Arc<AtomicBool>,
    thread: JoinHandle<Seen>,
}

/// What a capture has seen.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Seen {
    /// Frames of the link.
    pub frames: u64,
    /// Those of them that hold the bytes.
    pub marked: u64,
}

impl Capture {
    /// Captures the frames to and from this address, and looks for `mark` in them.
    ///
    /// # Errors
    /// One line: there is no packet socket, or no thread.
    pub fn start(
        namespace: &Namespace,
        address: LinkAddress,
        mark: Vec<u8>,
    ) -> Result<Self, String> {
        let protocol = Protocol::from(i32::from(ALL_PROTOCOLS.to_be()));
        let open = || {
            let socket = Socket::new(Domain::PACKET, Type::RAW, Some(protocol))?;
            socket.set_read_timeout(Some(QUIET)).map(|()| socket)
        };
        let failed = |error| format!("capture: {error}");
        let socket = namespace.inside(|| open().map_err(failed))?;
        let is_over = Arc::new(AtomicBool::new(false));
        let ended = Arc::clone(&is_over);
        let watch = move || watch(socket, address, &mark, &ended);
        let thread = thread::Builder::new().name("capture".into()).spawn(watch).map_err(failed)?;
        Ok(Self { is_over, thread })
    }

    /// Ends when what was sent has been seen.
    pub fn end(self) -> Seen {
        self.is_over.store(true, Relaxed);
        self.thread.join().unwrap_or_default()
    }
}

fn watch(mut socket: Socket, address: LinkAddress, mark: &[u8], is_over: &AtomicBool) -> Seen {
    let (mut seen, mut buffer) = (Seen::default(), vec![0; FRAME_BYTES]);
    loop {
        match socket.read(&mut buffer) {
            Ok(len) => seen.count(&buffer[..len], address, mark),
            Err(_) if is_over.load(Relaxed) => return seen,
            Err(_) => {}
        }
    }
}

impl Seen {
    /// Counts a frame if it is the link's: the destination comes first, then the source.
    fn count(&mut self, frame: &[u8], address: LinkAddress, mark: &[u8]) {
        let ends = frame.get(..12).unwrap_or_default().chunks(6);
        if ends.into_iter().any(|end| end == address) {
            self.frames += 1;
            self.marked += u64::from(frame.windows(mark.len()).any(|window| window == mark));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_links_own_frames_count_and_those_with_the_mark_twice() {
        let (ours, other) = ([2, 0, 0, 0, 0, 1], [2, 0, 0, 0, 0, 2]);
        let frame = |to: LinkAddress, from: LinkAddress, rest: &[u8]| [&to, &from, rest].concat();
        let mut seen = Seen::default();
        for frame in [
            frame(ours, other, b"..mark.."),
            frame(other, ours, b"..nark.."),
            frame(other, other, b"..mark.."),
            b"mark".to_vec(),
        ] {
            seen.count(&frame, ours, b"mark");
        }
        assert_eq!(seen, Seen { frames: 2, marked: 1 });
    }
}
