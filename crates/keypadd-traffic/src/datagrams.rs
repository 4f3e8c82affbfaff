//! Stamps datagrams with the times at which they leave and arrive, and answers them with both.
//!
//! A stamp comes first in a datagram; whatever follows is carried along. Times are of the clock of
//! the process that wrote them. Knows no rates and keeps no figures.

use std::io;
use std::net::{SocketAddr, UdpSocket};
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Arc, LazyLock};
use std::thread::sleep;
use std::time::{Duration, Instant};

use crate::requester::{Broken, PATIENCE};

/// How often a service looks whether it is over.
const LOOK: Duration = Duration::from_millis(250);

/// How long an answer to the first datagram is waited for, before the next is sent.
const RETRY: Duration = Duration::from_millis(100);

/// Larger than any datagram.
const BUFFER_BYTES: usize = 1 << 16;

/// The beginning of a datagram.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stamp {
    /// Tells the flow from others on the same socket.
    pub flow: u64,
    /// When it was sent, by the sender's clock.
    pub sent_ns: u64,
    /// When it arrived where it was answered, by the clock there; 0 before.
    pub arrived_ns: u64,
}

impl Stamp {
    /// Its length.
    pub const BYTES: usize = 24;

    /// The stamp of a datagram that is sent now.
    pub fn now(flow: u64) -> Self {
        Self { flow, sent_ns: clock_ns(), arrived_ns: 0 }
    }

    /// Writes it to the beginning of a datagram, which has [`BYTES`](Self::BYTES) at least.
    pub fn write(self, datagram: &mut [u8]) {
        for (to, number) in datagram.chunks_exact_mut(8).zip(self.numbers()) {
            to.copy_from_slice(&number.to_be_bytes());
        }
    }

    /// Reads it; `None` if the datagram is too short.
    pub fn read(datagram: &[u8]) -> Option<Self> {
        let mut numbers = datagram.get(..Self::BYTES)?.as_chunks().0.iter();
        let mut next = || numbers.next().map(|bytes| u64::from_be_bytes(*bytes));
        Some(Self { flow: next()?, sent_ns: next()?, arrived_ns: next()? })
    }

    fn numbers(self) -> [u64; 3] {
        [self.flow, self.sent_ns, self.arrived_ns]
    }
}

/// Nanoseconds of this process's clock, from 1 on.
pub fn clock_ns() -> u64 {
    static START: LazyLock<Instant> = LazyLock::new(Instant::now);
    u64::try_from(START.elapsed().as_nanos()).map_or(u64::MAX, |ns| ns + 1)
}

/// A socket to a service, which has answered a first datagram: that opens what is behind a forward.
/// Blocks.
///
/// # Errors
/// Nobody answers there.
pub fn open_datagrams(address: SocketAddr) -> Result<UdpSocket, Broken> {
    let open = || {
        let socket = UdpSocket::bind((address.ip(), 0))?;
        socket.connect(address)?;
        socket.set_read_timeout(Some(RETRY))?;
        let (start, flow) = (Instant::now(), fastrand::u64(..));
        let (mut datagram, mut answer) = ([0; Stamp::BYTES], [0; Stamp::BYTES]);
        while start.elapsed() < PATIENCE {
            Stamp::now(flow).write(&mut datagram);
            // What cannot be sent now may be sent later: somebody may begin to listen there.
            let _ = socket.send(&datagram);
            match socket.recv(&mut answer).map(|bytes| Stamp::read(&answer[..bytes])) {
                Ok(Some(stamp)) if stamp.flow == flow => return Ok(socket),
                // Nobody listens (ICMP), which is known at once.
                Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => sleep(RETRY),
                Ok(_) | Err(_) => {}
            }
        }
        Err(io::ErrorKind::TimedOut.into())
    };
    open().map_err(|error| Broken::Refused(address, error))
}

/// A flag that is set when this is dropped, for a thread that goes on without whoever started it.
#[derive(Debug, Default)]
pub struct SetOnDrop(pub Arc<AtomicBool>);

impl Drop for SetOnDrop {
    fn drop(&mut self) {
        self.0.store(true, Relaxed);
    }
}

/// Answers datagrams until `is_over`. Blocks, on a thread of its own: then what it stamps does not
/// wait for anything but the kernel.
pub(crate) fn answer(socket: &UdpSocket, is_over: &AtomicBool) -> io::Result<()> {
    socket.set_read_timeout(Some(LOOK))?;
    let mut buffer = vec![0; BUFFER_BYTES];
    while !is_over.load(Relaxed) {
        // Timeout, or the host of an earlier answer is gone (ICMP).
        let Ok((bytes, from)) = socket.recv_from(&mut buffer) else { continue };
        let datagram = &mut buffer[..bytes];
        // Answers get no answer; otherwise two services could answer each other forever.
        if let Some(stamp) = Stamp::read(datagram).filter(|stamp| stamp.arrived_ns == 0) {
            Stamp { arrived_ns: clock_ns(), ..stamp }.write(datagram);
            // An answer that finds no place is lost like those that find none later.
            let _ = socket.send_to(datagram, from);
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::service::Service;

    #[test]
    fn a_stamp_is_read_as_it_was_written_and_what_follows_is_left() {
        let stamp = Stamp { flow: 1, sent_ns: 1 << 40, arrived_ns: u64::MAX };
        let mut datagram = [7; 100];
        stamp.write(&mut datagram);
        assert_eq!(Stamp::read(&datagram), Some(stamp));
        assert_eq!(datagram[Stamp::BYTES..], [7; 76]);
        assert_eq!(Stamp::read(&datagram[..23]), None);
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn a_service_answers_datagrams_with_the_times_of_both_ends() {
        let service = Service::bind().await.unwrap();
        let address = service.address();
        let running = tokio::spawn(service.run());
        let answered = tokio::task::spawn_blocking(move || {
            let socket = open_datagrams(address).unwrap();
            let mut datagram = [9; 1000];
            Stamp::now(5).write(&mut datagram);
            socket.send(&datagram).unwrap();
            let mut answer = [0; 1000];
            // Others may be answers to the first.
            while Stamp::read(&answer).unwrap().flow != 5 {
                let _ = socket.recv(&mut answer);
            }
            let (sent, received) = (Stamp::read(&datagram).unwrap(), Stamp::read(&answer).unwrap());
            assert_eq!(received.sent_ns, sent.sent_ns);
            assert!((sent.sent_ns..=clock_ns()).contains(&received.arrived_ns));
            assert_eq!(answer[Stamp::BYTES..], datagram[Stamp::BYTES..]);
        });
        answered.await.unwrap();
        running.abort();
    }
}
