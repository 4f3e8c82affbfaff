//! The control stream: frames both ways for as long as the connection lives.
//!
//! Reads in constant memory whatever the peer sends; frames of unknown types are skipped. What the
//! bytes look like is in `wire`.

use std::future::pending;

use keypadd_transport::{RecvHalf, SendHalf, Stream, WriteError};
use thiserror::Error;
use tokio::{
    io::{AsyncRead, AsyncReadExt},
    sync::mpsc,
};

use crate::wire::{FRAME_HEAD_BYTES, Frame, FrameHead, VERSION, WireError};

/// Bytes that are skipped at once.
const SKIP_BYTES: usize = 1024;

/// Both halves of the control stream.
#[derive(Debug)]
pub(crate) struct Control {
    send: SendHalf,
    recv: RecvHalf,
}

/// Why the control stream cannot go on.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum ControlError {
    /// The peer closed the control stream and left the connection open.
    #[error("the control stream ended")]
    Ended,
    /// The peer's bytes make no sense.
    #[error(transparent)]
    Wire(#[from] WireError),
    /// The first frame was not the hello.
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
        let Stream { send, recv } = stream;
        Self { send, recv }
    }

    /// Sends a frame.
    pub(crate) async fn say(&self, frame: &Frame) -> Result<(), ControlError> {
        Ok(self.send.write_all(&frame.encode()).await?)
    }

    /// The next frame of a known type. Not cancel-safe: a frame may be half read.
    pub(crate) async fn hear(&mut self) -> Result<Frame, ControlError> {
        read_frame(&mut self.recv).await
    }

    /// After the hellos: says what is to be said and passes on what is heard, until the stream
    /// ends; returns why. Who takes nothing of what is heard stops the reading, and with it the
    /// peer: frames are not piled up.
    pub(crate) async fn serve(
        self,
        mut to_say: mpsc::Receiver<Frame>,
        heard: mpsc::Sender<Frame>,
    ) -> ControlError {
        let Self { send, mut recv } = self;
        let saying = async {
            while let Some(frame) = to_say.recv().await {
                if let Err(error) = send.write_all(&frame.encode()).await {
                    return error.into();
                }
            }
            pending().await
        };
        let hearing = async {
            loop {
                match read_frame(&mut recv).await {
                    // Where nobody cares for frames any more they are skipped.
                    Ok(frame) => drop(heard.send(frame).await),
                    Err(error) => return error,
                }
            }
        };
        tokio::select! {
            error = saying => error,
            error = hearing => error,
        }
    }
}

/// Reads the peer's next frame of a known type and skips the others. Waits as long as the peer
/// does; not cancel-safe: a frame may be half read. Public so that it can be fuzzed.
pub async fn read_frame<R: AsyncRead + Unpin>(recv: &mut R) -> Result<Frame, ControlError> {
    loop {
        let mut head = [0; FRAME_HEAD_BYTES];
        read_exact(recv, &mut head).await?;
        let FrameHead { body_bytes, kind } = FrameHead::decode(head);

        let mut body = [0; Frame::BODY_BYTES_MAX];
        let kept = usize::from(body_bytes).min(body.len());
        read_exact(recv, &mut body[..kept]).await?;
        skip(recv, usize::from(body_bytes) - kept).await?;
        if let Some(frame) = Frame::decode(kind, &body[..kept])? {
            return Ok(frame);
        }
    }
}

async fn skip<R: AsyncRead + Unpin>(recv: &mut R, mut bytes: usize) -> Result<(), ControlError> {
    let mut skipped = [0; SKIP_BYTES];
    while bytes > 0 {
        let now = bytes.min(SKIP_BYTES);
        read_exact(recv, &mut skipped[..now]).await?;
        bytes -= now;
    }
    Ok(())
}

/// Whatever ends the stream early ends the control stream.
async fn read_exact<R: AsyncRead + Unpin>(
    recv: &mut R,
    bytes: &mut [u8],
) -> Result<(), ControlError> {
    recv.read_exact(bytes).await.map(drop).map_err(|_| ControlError::Ended)
}
