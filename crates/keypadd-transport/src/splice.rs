//! One socket joined to one stream: every byte, the end of each direction, and resets.
//!
//! | socket                                        | stream                        |
//! | --------------------------------------------- | ----------------------------- |
//! | end of input (FIN)                            | finished                      |
//! | output shut down (FIN)                        | finished by the peer          |
//! | reset, or an error                            | RESET_STREAM and STOP_SENDING |
//! | reset                                         | RESET_STREAM or STOP_SENDING by the peer, connection lost |
//!
//! A splice ends well only when both directions have ended and the peer has acknowledged every byte.
//! Bytes are taken from the socket only when the stream may send them, and from the stream only as
//! the socket takes them, so credit goes back to the peer as TCP takes bytes. What the peer was told
//! has arrived is still delivered when the connection is gone, if the other direction had ended.

use std::{
    collections::VecDeque,
    io::{self, IoSlice},
    time::{Duration, Instant},
};

use bytes::{Buf, Bytes};
use mio::Token;
use quinn_proto::{RecvStream, SendStream, VarInt};
use thiserror::Error;
use tokio::sync::oneshot;

use crate::socket::Socket;

/// Time in which a socket must take a byte once the connection is gone. The kernel takes bytes in
/// gulps, a third of its buffer each: a slow reader needs seconds for one.
const DELIVERY_TIME: Duration = Duration::from_secs(20);

/// Bytes taken from a stream for one write, until the socket has taken so many at once.
const TAKEN_BYTES_MIN: usize = 16 << 10;

/// Bytes taken from a stream for one write, at most: about what `SLICES` packets hold.
const TAKEN_BYTES_MAX: usize = 90 << 10;

/// Slices of one write.
const SLICES: usize = 64;

/// Bytes that a socket may have to say without pause and still count as sparse.
pub(crate) const SPARSE_BYTES: usize = 16 << 10;

/// Why a splice ended before both directions were through.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum Cut {
    /// The socket failed.
    #[error(transparent)]
    Local(#[from] io::Error),
    /// The peer gave the stream up, with this code.
    #[error("the peer reset the stream: error {0}")]
    Remote(VarInt),
    /// The connection is gone.
    #[error("connection lost")]
    Lost,
}

/// How long a socket may take nothing once the connection is gone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Delivery {
    /// 20 s after each byte.
    Bounded,
    /// Without end: whoever reads may pause.
    Unbounded,
}

/// From the socket to the stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Outward {
    Open,
    /// The stream is finished; the peer has not acknowledged all of it.
    Finishing,
    Done,
}

/// From the stream to the socket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Inward {
    Open,
    /// The peer has finished; the socket has not taken all of it.
    Ending,
    Done,
}

/// Whether a stream has more to say.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Sent {
    /// This many bytes, and there may be more.
    Bytes(usize),
    /// This many bytes; the socket's next event or the stream's credit comes first.
    Dry(usize),
}

/// A socket and what is on its way between it and a stream.
pub(crate) struct Splice {
    socket: Socket,
    pub(crate) token: Token,
    delivery: Delivery,
    reply: oneshot::Sender<Result<(), Cut>>,

    outward: Outward,
    readable: bool,
    /// The socket has an end behind what is unread, which no later event announces.
    read_closed: bool,
    /// Read and not yet taken by the stream.
    unsent: Bytes,
    /// Whether the stream has to be given credit first.
    blocked: bool,
    /// Whether the driver has it in a queue.
    pub(crate) queued: bool,
    /// Bytes read since the socket last had none.
    run_bytes: usize,

    inward: Inward,
    writable: bool,
    /// Taken from the stream and not yet by the socket.
    undelivered: VecDeque<Bytes>,
    take_bytes: usize,

    /// The connection is gone; without progress the splice ends then.
    give_up_at: Option<Instant>,
}

impl Splice {
    pub(crate) fn new(
        socket: Socket,
        token: Token,
        delivery: Delivery,
        reply: oneshot::Sender<Result<(), Cut>>,
        (received, finished): (Bytes, bool),
    ) -> Self {
        Self {
            socket,
            token,
            delivery,
            reply,
            outward: Outward::Open,
            readable: true,
            read_closed: false,
            unsent: Bytes::new(),
            blocked: false,
            queued: false,
            run_bytes: 0,
            inward: if finished { Inward::Ending } else { Inward::Open },
            writable: true,
            undelivered: if received.is_empty() { VecDeque::new() } else { [received].into() },
            take_bytes: TAKEN_BYTES_MIN,
            give_up_at: None,
        }
    }

    /// What the system says of the socket.
    pub(crate) fn on_ready(&mut self, event: &mio::event::Event) -> Result<(), Cut> {
        self.readable |= event.is_readable();
        self.writable |= event.is_writable();
        self.read_closed |= event.is_read_closed();
        match event.is_error().then(|| self.socket.take_error()).flatten() {
            Some(error) => Err(error.into()),
            None => Ok(()),
        }
    }

    /// Whether the socket has become writable for bytes that wait.
    pub(crate) fn waits_to_write(&self) -> bool {
        self.writable && !self.undelivered.is_empty()
    }

    /// The stream may have credit again.
    pub(crate) fn unblock(&mut self) {
        self.blocked = false;
    }

    /// Whether there may be something to send.
    pub(crate) fn may_send(&self) -> bool {
        self.outward == Outward::Open && !self.blocked && (self.readable || !self.unsent.is_empty())
    }

    /// Whether it has been sending without pause.
    pub(crate) fn is_bulk(&self) -> bool {
        self.run_bytes > SPARSE_BYTES
    }

    /// Reads up to `bytes` from the socket and gives them to the stream.
    pub(crate) fn send(&mut self, stream: &mut SendStream<'_>, bytes: usize) -> Result<Sent, Cut> {
        if self.unsent.is_empty() {
            match self.socket.read(bytes) {
                Ok(read) if read.is_empty() => {
                    self.outward = Outward::Finishing;
                    // A stream that was stopped meanwhile is cut by the event that says so.
                    let _ = stream.finish();
                    return Ok(Sent::Dry(0));
                }
                Ok(read) => {
                    self.run_bytes += read.len();
                    if read.len() < bytes && !self.read_closed {
                        // A stream socket that gives less than was asked for is empty (epoll(7)).
                        self.ran_dry();
                    }
                    self.unsent = slim(read);
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    self.ran_dry();
                    return Ok(Sent::Dry(0));
                }
                Err(error) => return Err(error.into()),
            }
        }
        let mut chunk = [std::mem::take(&mut self.unsent)];
        let before = chunk[0].len();
        match stream.write_chunks(&mut chunk) {
            Ok(_) => {}
            Err(quinn_proto::WriteError::Blocked) => self.blocked = true,
            Err(quinn_proto::WriteError::Stopped(code)) => return Err(Cut::Remote(code)),
            Err(quinn_proto::WriteError::ClosedStream) => return Err(Cut::Lost),
        }
        let [rest] = chunk;
        let sent = before - rest.len();
        // What is left is written at once when there is credit: asking now notes that it waits.
        self.unsent = rest;
        Ok(if self.may_send() { Sent::Bytes(sent) } else { Sent::Dry(sent) })
    }

    fn ran_dry(&mut self) {
        (self.readable, self.run_bytes) = (false, 0);
    }

    /// The peer has acknowledged the stream up to its end.
    pub(crate) fn acknowledged(&mut self) {
        if self.outward == Outward::Finishing {
            self.outward = Outward::Done;
        }
    }

    /// Moves bytes from the stream to the socket, as far as both allow.
    pub(crate) fn deliver(&mut self, mut stream: RecvStream<'_>, now: Instant) -> Result<(), Cut> {
        while self.inward != Inward::Done {
            if !self.flush(now)? {
                return Ok(());
            }
            if self.inward == Inward::Ending {
                self.socket.shutdown()?;
                self.inward = Inward::Done;
                return Ok(());
            }
            match take(&mut stream, self.take_bytes, &mut self.undelivered) {
                Ok(Taken::Some) => {}
                Ok(Taken::None) => return self.lost_all(),
                Ok(Taken::End) => self.inward = Inward::Ending,
                Err(code) => return Err(Cut::Remote(code)),
            }
        }
        Ok(())
    }

    /// Where the connection is gone nothing comes after what has been delivered.
    fn lost_all(&self) -> Result<(), Cut> {
        match self.give_up_at {
            Some(_) => Err(Cut::Lost),
            None => Ok(()),
        }
    }

    /// Writes what was taken; whether nothing is left of it.
    fn flush(&mut self, now: Instant) -> Result<bool, Cut> {
        while !self.undelivered.is_empty() {
            if !self.writable {
                return Ok(false);
            }
            let mut slices = [IoSlice::new(&[]); SLICES];
            let mut offered = 0;
            let count = self.undelivered.len().min(SLICES);
            for (slice, bytes) in slices.iter_mut().zip(&self.undelivered) {
                *slice = IoSlice::new(bytes);
                offered += bytes.len();
            }
            match self.socket.write(&slices[..count]) {
                Ok(written) => {
                    self.written(written);
                    if written == offered {
                        self.take_bytes = (self.take_bytes * 2).min(TAKEN_BYTES_MAX);
                    } else {
                        self.take_bytes = TAKEN_BYTES_MIN;
                    }
                    if let Some(at) = &mut self.give_up_at {
                        *at = now + DELIVERY_TIME;
                    }
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => self.writable = false,
                Err(error) => return Err(error.into()),
            }
        }
        Ok(true)
    }

    fn written(&mut self, mut bytes: usize) {
        while let Some(first) = self.undelivered.front_mut() {
            if first.len() > bytes {
                first.advance(bytes);
                return;
            }
            bytes -= first.len();
            self.undelivered.pop_front();
        }
    }

    /// The connection is gone. Where this end has said all it had to say (`complete`: and an
    /// acknowledgement is not needed), what has arrived is still delivered.
    pub(crate) fn connection_lost(&mut self, complete: bool, now: Instant) -> Result<(), Cut> {
        if complete {
            self.acknowledged();
        }
        if self.outward != Outward::Done {
            return Err(Cut::Lost);
        }
        self.give_up_at = Some(now + DELIVERY_TIME);
        Ok(())
    }

    /// When the socket must have taken a byte.
    pub(crate) fn deadline(&self) -> Option<Instant> {
        match self.delivery {
            Delivery::Bounded => self.give_up_at,
            Delivery::Unbounded => None,
        }
    }

    /// Whether both directions are through.
    pub(crate) fn is_complete(&self) -> bool {
        self.outward == Outward::Done && self.inward == Inward::Done
    }

    /// Ends the splice and says how it went. The socket is reset unless all is well.
    pub(crate) fn end(self, outcome: Result<(), Cut>) {
        if outcome.is_ok() {
            self.socket.close_cleanly();
        }
        // Nobody waits for it where the task was dropped.
        let _ = self.reply.send(outcome);
    }
}

/// Keeps no large buffer for few bytes.
fn slim(read: Vec<u8>) -> Bytes {
    match read.len() < read.capacity() / 2 {
        true => Bytes::copy_from_slice(&read),
        false => read.into(),
    }
}

enum Taken {
    Some,
    None,
    End,
}

/// Takes up to `bytes` from the stream; the error is the peer's code.
fn take(
    stream: &mut RecvStream<'_>,
    bytes: usize,
    into: &mut VecDeque<Bytes>,
) -> Result<Taken, VarInt> {
    // A stream that is closed has been stopped here, or read to its end.
    let Ok(mut chunks) = stream.read(true) else { return Ok(Taken::End) };
    let mut taken = 0;
    while taken < bytes && into.len() < SLICES {
        match chunks.next(bytes - taken) {
            Ok(Some(chunk)) => {
                taken += chunk.bytes.len();
                into.push_back(chunk.bytes);
            }
            Ok(None) if taken == 0 => return Ok(Taken::End),
            Err(quinn_proto::ReadError::Reset(code)) if taken == 0 => return Err(code),
            Ok(None) | Err(_) => break,
        }
    }
    Ok(if taken == 0 { Taken::None } else { Taken::Some })
}
