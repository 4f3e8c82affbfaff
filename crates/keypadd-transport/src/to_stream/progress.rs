//! The states of the direction from a socket to a stream, and the burst that it carries.
//!
//! | input   | the system reports it | room again | moved to another stream |
//! | ------- | --------------------- | ---------- | ----------------------- |
//! | ready   | ready                 | ready      | ready                   |
//! | full    | full                  | ready      | ready                   |
//! | dry     | ready                 | dry        | ready                   |
//! | drained | drained               | drained    | drained                 |
//!
//! A ready socket becomes full, dry or drained when it is read. Knows bytes and times, no sockets
//! and no streams.

use std::time::{Duration, Instant};

use crate::socket::SPARSE_BYTES;

/// Bytes in one burst that make a stream bulk, which moves it to the session's bulk connection.
/// More than can be in transit to a stopped reader: what both kernels hold for it (a first receive
/// window of up to 128 KiB; `UNSENT_BYTES` of `socket`, and the packet that exceeds it), and its
/// window on the sparse connection, 64 KiB. So a stream that nobody reads stays where its window is
/// small.
const BULK_BYTES: usize = 384 << 10;

/// Bytes in one burst that make a bulk connection worth having where it takes round trips to make:
/// most of a first flight.
const BULK_SOON_BYTES: usize = 8 << 10;

/// On longer round trips streams move when they lack credit, not only after [`BULK_BYTES`]: those
/// would take six round trips.
const BULK_LONG_PATH: Duration = Duration::from_millis(5);

/// Bytes that leak from a burst per microsecond in which the socket has nothing to read. A transfer
/// that briefly outpaces its source is still one burst, and requests that await answers never add
/// up to one.
const LEAK_BYTES_PER_US: u128 = 100;

/// What the socket has for the stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Input {
    /// The socket may have bytes, or its end.
    Ready,
    /// The socket may have bytes, but they would not fit in the replay buffer.
    Full,
    /// The socket has nothing until the system reports it.
    Dry,
    /// The socket has failed, and all that it had was read.
    Drained,
}

impl Input {
    /// The system reports that the socket can be read.
    pub(super) fn reported(&mut self) {
        if *self == Self::Dry {
            *self = Self::Ready;
        }
    }

    /// The replay buffer may have room again.
    pub(super) fn room_again(&mut self) {
        if *self == Self::Full {
            *self = Self::Ready;
        }
    }

    /// Another stream continues, with a registration that reports again whatever is ready.
    pub(super) fn moved(&mut self) {
        if *self != Self::Drained {
            *self = Self::Ready;
        }
    }
}

/// What the stream does with bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Output {
    Open,
    /// The stream takes no more until it gets credit.
    Blocked,
    /// The stream is finished; the peer has not acknowledged all of it.
    Finishing,
    /// The peer's QUIC has acknowledged it up to its end.
    Acknowledged,
}

impl Output {
    /// Whether it was not finished yet.
    pub(super) fn is_unfinished(self) -> bool {
        matches!(self, Self::Open | Self::Blocked)
    }

    /// Records that the stream was given bytes, and may have left some.
    pub(super) fn given(&mut self, left_some: bool) {
        *self = if left_some { Self::Blocked } else { Self::Open };
    }

    /// Records that the stream may have credit again.
    pub(super) fn credited(&mut self) {
        if *self == Self::Blocked {
            *self = Self::Open;
        }
    }

    /// The peer has acknowledged what was sent; returns whether that includes the end.
    pub(super) fn acknowledged(&mut self) -> bool {
        if *self == Self::Finishing {
            *self = Self::Acknowledged;
        }
        *self == Self::Acknowledged
    }
}

/// A leaky bucket of the bytes that the socket had without a pause.
#[derive(Debug, Default)]
pub(super) struct Burst {
    bytes: usize,
    /// When the socket had nothing more.
    dry_since: Option<Instant>,
}

impl Burst {
    pub(super) fn add(&mut self, bytes: usize) {
        self.bytes = (self.bytes + bytes).min(BULK_BYTES + 1);
    }

    /// The socket has nothing more.
    pub(super) fn pauses(&mut self, now: Instant) {
        self.dry_since.get_or_insert(now);
    }

    /// The socket may have more again.
    pub(super) fn goes_on(&mut self, now: Instant) {
        if let Some(since) = self.dry_since.take() {
            let leaked = now.saturating_duration_since(since).as_micros() * LEAK_BYTES_PER_US;
            let leaked = usize::try_from(leaked).unwrap_or(usize::MAX);
            self.bytes = self.bytes.saturating_sub(leaked);
        }
    }

    /// The direction has moved to another connection: still bulk, if it was, but as on its first
    /// connection it must be so for a while to move.
    pub(super) fn moved(&mut self) {
        self.bytes = self.bytes.min(SPARSE_BYTES + 1);
    }

    /// Whether the stream queues behind sparse ones.
    pub(super) fn exceeds_sparse(&self) -> bool {
        self.bytes > SPARSE_BYTES
    }

    /// Whether the stream belongs on the bulk connection.
    pub(super) fn is_bulk(&self, lacks_credit: bool, rtt: Duration) -> bool {
        self.bytes > BULK_BYTES || (lacks_credit && rtt > BULK_LONG_PATH)
    }

    /// Whether the stream may belong on the bulk connection in a few round trips.
    pub(super) fn is_bulk_soon(&self, rtt: Duration) -> bool {
        self.bytes > BULK_SOON_BYTES && rtt > BULK_LONG_PATH
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SHORT: Duration = BULK_LONG_PATH;
    const LONG: Duration = Duration::from_millis(6);

    const INPUTS: [Input; 4] = [Input::Ready, Input::Full, Input::Dry, Input::Drained];

    fn all(step: fn(&mut Input)) -> [Input; 4] {
        INPUTS.map(|mut input| {
            step(&mut input);
            input
        })
    }

    #[test]
    fn only_what_has_ended_a_pause_lets_the_socket_be_read_again() {
        use Input::{Drained, Dry, Full, Ready};
        assert_eq!(all(Input::reported), [Ready, Full, Ready, Drained]);
        assert_eq!(all(Input::room_again), [Ready, Ready, Dry, Drained]);
        assert_eq!(all(Input::moved), [Ready, Ready, Ready, Drained]);
    }

    #[test]
    fn a_stream_waits_for_credit_only_until_it_is_finished() {
        use Output::{Acknowledged, Blocked, Finishing, Open};
        let outputs = [Open, Blocked, Finishing, Acknowledged];
        let credited = outputs.map(|mut output| {
            output.credited();
            output
        });
        assert_eq!(credited, [Open, Open, Finishing, Acknowledged]);
        let acknowledged = outputs.map(|mut output| (output.acknowledged(), output));
        let whole = (true, Acknowledged);
        assert_eq!(acknowledged, [(false, Open), (false, Blocked), whole, whole]);
        assert_eq!(outputs.map(Output::is_unfinished), [true, true, false, false]);
        let mut output = Open;
        output.given(true);
        assert_eq!(output, Blocked);
        output.given(false);
        assert_eq!(output, Open);
    }

    #[test]
    fn a_burst_is_bulk_once_it_exceeds_what_a_stopped_reader_holds() {
        let mut burst = Burst::default();
        let mut add = |bytes| {
            burst.add(bytes);
            [burst.is_bulk_soon(LONG), burst.exceeds_sparse(), burst.is_bulk(false, LONG)]
        };
        assert_eq!(add(BULK_SOON_BYTES), [false; 3]);
        assert_eq!(add(1), [true, false, false]);
        assert_eq!(add(SPARSE_BYTES - BULK_SOON_BYTES - 1), [true, false, false]);
        assert_eq!(add(1), [true, true, false]);
        assert_eq!(add(BULK_BYTES - SPARSE_BYTES - 1), [true, true, false]);
        assert_eq!(add(1), [true; 3]);
        assert!(burst.is_bulk(false, SHORT) && !burst.is_bulk_soon(SHORT));
        burst.moved();
        assert!(burst.exceeds_sparse() && !burst.is_bulk(true, SHORT));
        burst.add(BULK_BYTES - SPARSE_BYTES - 1);
        assert!(!burst.is_bulk(false, LONG), "it must be so for a while again");
    }

    #[test]
    fn a_stream_without_credit_is_bulk_at_once_where_a_round_trip_is_long() {
        let burst = Burst::default();
        let is_bulk = [(true, LONG), (true, SHORT), (false, LONG)]
            .map(|(lacks_credit, rtt)| burst.is_bulk(lacks_credit, rtt));
        assert_eq!(is_bulk, [true, false, false]);
    }

    #[test]
    fn a_burst_leaks_while_the_socket_has_nothing() {
        let (start, mut burst) = (Instant::now(), Burst::default());
        let us = Duration::from_micros(1);
        burst.add(usize::MAX >> 1);
        burst.goes_on(start + 10_000 * us);
        assert!(burst.is_bulk(false, SHORT), "there was no pause");
        burst.pauses(start);
        burst.pauses(start + 1_000 * us);
        burst.goes_on(start + 1_000 * us);
        assert_eq!(burst.bytes, BULK_BYTES + 1 - 100_000, "the pause began first");
        burst.goes_on(start + 5_000 * us);
        assert_eq!(burst.bytes, BULK_BYTES + 1 - 100_000, "it has ended");
        burst.pauses(start);
        burst.goes_on(start + Duration::from_secs(9));
        assert_eq!(burst.bytes, 0);
    }
}
