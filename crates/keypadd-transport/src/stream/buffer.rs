//! Buffers what a loop has received of one stream for the control task that reads it, and wakes the
//! task.

use std::{
    sync::{Mutex, MutexGuard, PoisonError},
    task::{Context, Poll, Waker},
};

use bytes::{Buf, BytesMut};

use super::{ReadError, Stopped};
use crate::{splice::Cut, to_socket::Received};

/// Bytes to buffer for a reader before the window closes.
pub(crate) const RECEIVED_BYTES: usize = 4 << 10;

/// Data that a loop has received for a control task.
#[derive(Debug, Default)]
struct StreamBufferState {
    bytes: BytesMut,
    end: Option<End>,
    stopped: Option<Stopped>,
    reader: Option<Waker>,
    watcher: Option<Waker>,
}

/// How the receiving half ended.
#[derive(Clone, Debug)]
enum End {
    Finished,
    Failed(ReadError),
}

/// What a reader has taken.
pub(super) struct Taken {
    /// 0 at the end of the stream.
    pub(super) bytes: usize,
    /// The loop passes more on once there is room.
    pub(super) was_full: bool,
}

/// Received data, shared by the loop and the handles of one stream.
#[derive(Debug, Default)]
pub(crate) struct StreamBuffer(Mutex<StreamBufferState>);

impl StreamBuffer {
    /// Bytes there is room for.
    pub(crate) fn room(&self) -> usize {
        RECEIVED_BYTES.saturating_sub(self.state().bytes.len())
    }

    pub(crate) fn push(&self, bytes: &[u8]) {
        let mut state = self.state();
        state.bytes.extend_from_slice(bytes);
        wake(&mut state.reader);
    }

    pub(crate) fn finish(&self) {
        self.end(End::Finished);
    }

    pub(crate) fn fail(&self, error: ReadError) {
        self.end(End::Failed(error));
    }

    fn end(&self, end: End) {
        let mut state = self.state();
        state.end.get_or_insert(end);
        wake(&mut state.reader);
    }

    pub(crate) fn stop(&self, stopped: Stopped) {
        let mut state = self.state();
        state.stopped.get_or_insert(stopped);
        wake(&mut state.watcher);
    }

    /// Takes the data that no reader has taken, for the socket that the stream is spliced to. Fails
    /// if either direction has ended otherwise than by finishing.
    pub(crate) fn take(&self) -> Result<Received, Cut> {
        let mut state = self.state();
        match (&state.end, state.stopped) {
            (Some(End::Failed(ReadError::Reset(code))), _) => Err(Cut::Remote(*code)),
            (_, Some(Stopped::ByPeer(code))) => Err(Cut::Remote(code)),
            (Some(End::Failed(ReadError::Lost(_))), _) | (_, Some(Stopped::Lost)) => Err(Cut::Lost),
            (end, None) => {
                let is_finished = end.is_some();
                Ok(Received { bytes: state.bytes.split().freeze(), is_finished })
            }
        }
    }

    /// Completes when the sending half has ended.
    pub(super) fn poll_stopped(&self, cx: &Context<'_>) -> Poll<Stopped> {
        let mut state = self.state();
        match state.stopped {
            Some(stopped) => Poll::Ready(stopped),
            None => {
                state.watcher = Some(cx.waker().clone());
                Poll::Pending
            }
        }
    }

    /// Takes data for a reader.
    pub(super) fn poll_take(
        &self,
        cx: &Context<'_>,
        into: &mut [u8],
    ) -> Poll<Result<Taken, ReadError>> {
        let mut state = self.state();
        let bytes = state.bytes.len().min(into.len());
        if bytes > 0 {
            let was_full = state.bytes.len() >= RECEIVED_BYTES;
            state.bytes.copy_to_slice(&mut into[..bytes]);
            return Poll::Ready(Ok(Taken { bytes, was_full }));
        }
        match &state.end {
            Some(End::Finished) => Poll::Ready(Ok(Taken { bytes: 0, was_full: false })),
            Some(End::Failed(error)) => Poll::Ready(Err(error.clone())),
            None => {
                state.reader = Some(cx.waker().clone());
                Poll::Pending
            }
        }
    }

    /// No panic can leave it half changed.
    fn state(&self) -> MutexGuard<'_, StreamBufferState> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn wake(waker: &mut Option<Waker>) {
    if let Some(waker) = waker.take() {
        waker.wake();
    }
}
