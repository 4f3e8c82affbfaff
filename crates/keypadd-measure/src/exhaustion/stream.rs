//! Sends data on one connection at a given rate until told to stop, and counts what has arrived:
//! the receiver acknowledges step by step.
//!
//! Open loop: data is sent as soon as it is due, and time lost to a slow path is made up for. Knows
//! only a TCP address.

use std::io::{self, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::num::NonZeroU64;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

use keypadd_traffic::{Broken, Exchange, HEADER_BYTES, PATIENCE, PatternBytes, STEP_BYTES};

/// Data per acknowledgment: about 45 full packets, so that the partial last one hardly counts.
const STEP: Exchange = Exchange::new(64 << 10, 1);

/// Maximum steps in transit: more than any window holds.
const UNDERWAY: usize = 4096;

/// Interval between checks of arrivals.
const LOOK_EVERY: Duration = Duration::from_millis(2);

/// A connection to a service.
#[derive(Debug)]
pub(crate) struct Stream {
    stream: TcpStream,
    requests: PatternBytes,
    answers: PatternBytes,
    sent_bytes: u64,
}

impl Stream {
    pub(crate) fn open(address: SocketAddr) -> Result<Self, Broken> {
        let refused = |error| Broken::Refused(address, error);
        let stream = TcpStream::connect_timeout(&address, PATIENCE).map_err(refused)?;
        stream.set_nodelay(true).map_err(refused)?;
        stream.set_read_timeout(Some(PATIENCE)).map_err(refused)?;
        Ok(Self {
            stream,
            requests: PatternBytes::default(),
            answers: PatternBytes::default(),
            sent_bytes: 0,
        })
    }

    /// Bytes sent in total; all have arrived when [`Self::offer`] returns without an error.
    pub(crate) fn sent_bytes(&self) -> u64 {
        self.sent_bytes
    }

    /// Offers this many bytes per second (no limit, if infinite) until `go_on`, which is given the
    /// bytes that have arrived, returns false. Returns once everything sent has arrived.
    pub(crate) fn offer(
        &mut self,
        bytes_per_second: f64,
        mut go_on: impl FnMut(Duration, u64) -> bool,
    ) -> Result<(), Broken> {
        let Self { stream, requests, answers, sent_bytes } = self;
        let (stop, arrived) = (AtomicBool::new(false), AtomicU64::new(0));
        let start = Instant::now();
        thread::scope(|scope| {
            let (underway, sent) = mpsc::sync_channel(UNDERWAY);
            scope.spawn(|| {
                // If this fails, the reader reports why.
                let _ = send(stream, requests, bytes_per_second, start, &stop, underway);
            });
            let reading = scope.spawn(|| {
                for () in sent {
                    acknowledged(stream, answers).inspect_err(|_| {
                        stop.store(true, Relaxed);
                        let _ = stream.shutdown(Shutdown::Both);
                    })?;
                    arrived.fetch_add(STEP.request_bytes(), Relaxed);
                    *sent_bytes += STEP.request_bytes();
                }
                Ok(())
            });
            while !reading.is_finished() {
                if !stop.load(Relaxed) && !go_on(start.elapsed(), arrived.load(Relaxed)) {
                    stop.store(true, Relaxed);
                }
                thread::sleep(LOOK_EVERY);
            }
            reading.join().unwrap_or_else(|_| Err(Broken::fault()))
        })
    }
}

fn send(
    mut stream: &TcpStream,
    pattern: &mut PatternBytes,
    bytes_per_second: f64,
    start: Instant,
    stop: &AtomicBool,
    underway: mpsc::SyncSender<()>,
) -> io::Result<()> {
    // Wake up on time, not up to 50 us late.
    let _ = rustix::thread::set_current_timer_slack(NonZeroU64::new(1));
    let gap = STEP.request_bytes() as f64 / bytes_per_second;
    for step in 0_u64.. {
        let due = start + Duration::from_secs_f64(gap * step as f64);
        thread::sleep(due.saturating_duration_since(Instant::now()));
        if stop.load(Relaxed) || underway.send(()).is_err() {
            break;
        }
        stream.write_all(&STEP.header())?;
        let mut left = STEP.request_bytes() - HEADER_BYTES as u64;
        while left > 0 {
            let bytes = pattern.next(left.min(STEP_BYTES as u64));
            stream.write_all(bytes)?;
            left -= bytes.len() as u64;
        }
    }
    Ok(())
}

fn acknowledged(mut stream: &TcpStream, answers: &mut PatternBytes) -> Result<(), Broken> {
    let mut answer = [0];
    match stream.read_exact(&mut answer) {
        Ok(()) if answers.matches_next(&answer) => Ok(()),
        Ok(()) => Err(Broken::Altered),
        Err(error) => Err(Broken::Stopped(error)),
    }
}

#[cfg(test)]
mod tests {
    use keypadd_traffic::Service;

    use super::*;

    #[tokio::test(flavor = "multi_thread")]
    async fn what_is_offered_arrives_and_is_told() {
        let service = Service::bind().await.unwrap();
        let address = service.address();
        let serving = tokio::spawn(service.run());
        let (told, last) = tokio::task::spawn_blocking(move || {
            let mut stream = Stream::open(address).unwrap();
            let mut told = Vec::new();
            for _ in 0..2 {
                let enough = 40 * STEP.request_bytes();
                stream
                    .offer(1e9, |_, arrived| {
                        told.push(arrived);
                        arrived < enough
                    })
                    .unwrap();
            }
            (told.clone(), *told.last().unwrap())
        })
        .await
        .unwrap();
        assert!(last >= 40 * STEP.request_bytes() && told.len() > 2, "{told:?}");
        serving.abort();
    }

    #[test]
    fn a_peer_that_goes_is_an_error_and_not_a_wait() {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let gone = thread::spawn(move || drop(listener.accept().unwrap()));
        let mut stream = Stream::open(address).unwrap();
        gone.join().unwrap();
        assert!(matches!(stream.offer(1e6, |_, _| true), Err(Broken::Stopped(_))));
    }
}
