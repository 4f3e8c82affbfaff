//! Writes bytes to a stream until it lacks credit.

use bytes::{Buf, Bytes};
use quinn_proto::{SendStream, WriteError};

use crate::splice::Cut;

/// What a stream has accepted.
pub(super) struct Written {
    pub(super) bytes: usize,
    /// Whether the stream lacks credit for the rest; it reports when it has some.
    pub(super) left_some: bool,
}

/// Writes up to `bytes` of what waits. The rest is written as soon as there is credit: asking now
/// registers that it waits.
pub(super) fn write_some(
    stream: &mut SendStream<'_>,
    waiting: &mut Bytes,
    bytes: usize,
) -> Result<Written, Cut> {
    if bytes >= waiting.len() {
        return write(stream, waiting);
    }
    // Sharing bytes costs an allocation; a keystroke avoids it.
    let written = write(stream, &mut waiting.slice(..bytes))?;
    waiting.advance(written.bytes);
    Ok(written)
}

/// Writes what the stream accepts of `bytes`, less than all of it without credit. Asks until the
/// stream refuses, which makes it report when there is credit again.
pub(super) fn write(stream: &mut SendStream<'_>, bytes: &mut Bytes) -> Result<Written, Cut> {
    let before = bytes.len();
    let mut chunk = [std::mem::take(bytes)];
    let outcome = loop {
        match stream.write_chunks(&mut chunk) {
            Ok(_) if !chunk[0].is_empty() => {}
            Ok(_) | Err(WriteError::Blocked) => break Ok(()),
            Err(WriteError::Stopped(code)) => break Err(Cut::Remote(code)),
            Err(WriteError::ClosedStream) => break Err(Cut::Lost),
        }
    };
    [*bytes] = chunk;
    outcome.map(|()| Written { bytes: before - bytes.len(), left_some: !bytes.is_empty() })
}
