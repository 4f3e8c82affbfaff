//! Sends and receives control frames for as long as the connection is open.
//!
//! Reads in constant memory whatever the peer sends, at a limited rate, and skips frames of unknown
//! types. The format of frames is in `wire`.

use std::{future::pending, time::Duration};

use keypadd_share::{Bucket, Rate};
use keypadd_transport::{RecvHalf, SendHalf, Stream, WriteError};
use thiserror::Error;
use tokio::{
    io::{AsyncRead, AsyncReadExt},
    sync::mpsc,
    time::{Instant, sleep},
};

use crate::{
    limits::SharedLimits,
    wire::{FRAME_HEAD_BYTES, Frame, FrameHead, VERSION, WireError},
};

/// Frames handled: enough at once for a reload that replaces all 64 remote forwards, then 20 a
/// second. More wait unread, which holds the peer back by flow control.
pub(crate) const RATE: Rate = Rate { burst: 160, interval: Duration::from_millis(50) };

/// Bytes skipped per read.
const SKIP_BYTES: usize = 1024;

/// The control stream.
#[derive(Debug)]
pub(crate) struct Control {
    send: SendHalf,
    recv: RecvHalf,
}

/// Why the control stream failed.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum ControlError {
    /// The peer closed the control stream but not the connection.
    #[error("the control stream ended")]
    Ended,
    /// The peer's bytes cannot be decoded.
    #[error(transparent)]
    Wire(#[from] WireError),
    /// The first frame was not a hello.
    #[error("the first control frame is not a hello")]
    NoHello,
    /// The peer speaks another version.
    #[error("the peer speaks version {0} of the control protocol, this end version {VERSION}")]
    Version(u8),
}

impl From<WriteError> for ControlError {
    fn from(_: WriteError) -> Self {
        Self::Ended
    }
}

impl Control {
    pub(crate) fn new(stream: Stream) -> Self {
        let Stream { send, recv, .. } = stream;
        Self { send, recv }
    }

    /// Sends a frame.
    pub(crate) async fn send(&self, frame: &Frame) -> Result<(), ControlError> {
        Ok(self.send.write_all(&frame.encode()).await?)
    }

    /// Receives the next frame of a known type. Not cancel-safe: a frame may be half read.
    pub(crate) async fn receive(&mut self) -> Result<Frame, ControlError> {
        read_frame(&mut self.recv).await
    }

    /// Sends the frames of `outgoing` and passes received frames to `incoming`, until the stream
    /// fails; returns why. While `incoming` is full, or frames come too fast, nothing is read,
    /// which holds back the peer.
    pub(crate) async fn serve(
        self,
        mut outgoing: mpsc::Receiver<Box<Frame>>,
        incoming: mpsc::Sender<Box<Frame>>,
        limits: &SharedLimits,
    ) -> ControlError {
        let Self { send, mut recv } = self;
        let sending = async {
            while let Some(frame) = outgoing.recv().await {
                if let Err(error) = send.write_all(&frame.encode()).await {
                    return error.into();
                }
            }
            pending().await
        };
        let receiving = async {
            let mut bucket = Bucket::FULL;
            loop {
                match read_any_frame(&mut recv).await {
                    // Dropped when nobody handles frames any longer.
                    Ok(Some(frame)) => drop(incoming.send(frame.into()).await),
                    Ok(None) => {}
                    Err(error) => return error,
                }
                if let Err(wait) = bucket.take(RATE, Instant::now().into_std()) {
                    limits.count_delayed_frame();
                    sleep(wait).await;
                    let _ = bucket.take(RATE, Instant::now().into_std());
                }
            }
        };
        tokio::select! {
            error = sending => error,
            error = receiving => error,
        }
    }
}

/// Reads the next frame of a known type and skips the others. No timeout. Not cancel-safe: a frame
/// may be half read. Public so that it can be fuzzed.
pub async fn read_frame<R: AsyncRead + Unpin>(recv: &mut R) -> Result<Frame, ControlError> {
    loop {
        if let Some(frame) = read_any_frame(recv).await? {
            return Ok(frame);
        }
    }
}

/// Reads the next frame; `None` if its type is unknown.
async fn read_any_frame<R: AsyncRead + Unpin>(recv: &mut R) -> Result<Option<Frame>, ControlError> {
    let Message { kind, body } = read_message(recv, Frame::BODY_BYTES_MAX).await?;
    Ok(Frame::decode(kind, &body)?)
}

/// A message: a control frame, or one of another stream in the same form.
pub(crate) struct Message {
    pub(crate) kind: u8,
    pub(crate) body: Vec<u8>,
}

/// Reads the next message; what its body has beyond `body_max` bytes is skipped. No timeout. Not
/// cancel-safe: a message may be half read.
pub(crate) async fn read_message<R: AsyncRead + Unpin>(
    recv: &mut R,
    body_max: usize,
) -> Result<Message, ControlError> {
    let mut head = [0; FRAME_HEAD_BYTES];
    read_exact(recv, &mut head).await?;
    let FrameHead { body_bytes, kind } = FrameHead::decode(head);

    // Not in the future, which each session has while it waits.
    let kept = usize::from(body_bytes).min(body_max);
    let mut body = vec![0; kept];
    read_exact(recv, &mut body).await?;
    skip(recv, usize::from(body_bytes) - kept).await?;
    Ok(Message { kind, body })
}

async fn skip<R: AsyncRead + Unpin>(recv: &mut R, mut bytes: usize) -> Result<(), ControlError> {
    let mut skipped = vec![0; bytes.min(SKIP_BYTES)];
    while bytes > 0 {
        let now = bytes.min(skipped.len());
        read_exact(recv, &mut skipped[..now]).await?;
        bytes -= now;
    }
    Ok(())
}

/// Any failure to read means that the control stream has ended.
async fn read_exact<R: AsyncRead + Unpin>(
    recv: &mut R,
    bytes: &mut [u8],
) -> Result<(), ControlError> {
    recv.read_exact(bytes).await.map(drop).map_err(|_| ControlError::Ended)
}
