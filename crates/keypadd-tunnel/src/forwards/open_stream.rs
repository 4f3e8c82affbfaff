//! Opens a stream: a client to a destination, a server to a remote forward of its client.
//!
//! The other end's part is in `answer`. Only a stream that the session admits is opened
//! (`carries`).

use std::time::Duration;

use keypadd_transport::{Receipt, Stream};
use tokio::time::timeout;

use crate::{
    forwards::splice_error::SpliceError,
    sessions::{carries::AdmittedStream, session::LiveSession},
    wire::{CONNECTED, Claim, StreamCode, StreamHeader},
};

/// Timeout for opening a stream and for the answer; longer than the other end's own timeouts.
pub(crate) const OPEN_TIMEOUT: Duration = Duration::from_secs(20);

/// Why a stream could not be opened.
#[derive(Debug)]
pub(crate) enum OpenError {
    /// The other end refused it.
    Refused(StreamCode),
    /// The connection is lost.
    Lost,
}

impl From<SpliceError> for OpenError {
    fn from(error: SpliceError) -> Self {
        match error {
            SpliceError::Remote(code) => Self::Refused(code),
            SpliceError::Local(_) | SpliceError::Lost => Self::Lost,
        }
    }
}

/// Opens a stream and waits until the other end has connected it to what the header names.
pub(crate) async fn open_stream(
    session: &LiveSession,
    header: &StreamHeader,
) -> Result<Stream, OpenError> {
    let header = session.carries().admit(header).map_err(OpenError::Refused)?;
    let opening = (session.limits.opening(), session.opening.begin());
    match timeout(OPEN_TIMEOUT, open(session, &header)).await {
        Ok(opened) => opened.map(|mut stream| {
            stream.keep_until_spliced(opening);
            stream
        }),
        Err(_) => Err(OpenError::Refused(StreamCode::TimedOut)),
    }
}

/// Claims a held stream on the connection of `session`; returns the stream, and what the other end
/// has written of it.
pub(crate) async fn claim_stream(
    session: &LiveSession,
    claim: Claim,
) -> Result<(Stream, Receipt), OpenError> {
    let header = StreamHeader::Resume(claim);
    let header = session.carries().admit(&header).map_err(OpenError::Refused)?;
    let mut stream = open(session, &header).await?;
    let mut receipt = [0; 8];
    match stream.recv.read_exact(&mut receipt).await.map_err(SpliceError::from)? {
        Some(()) => Ok((stream, Receipt::decode(u64::from_be_bytes(receipt)))),
        None => {
            stream.reset(StreamCode::BadHeader.into());
            Err(OpenError::Refused(StreamCode::BadHeader))
        }
    }
}

async fn open(
    session: &LiveSession,
    header: &AdmittedStream<&StreamHeader>,
) -> Result<Stream, OpenError> {
    answered(begin(session, header).await?).await
}

/// Opens a stream and says what it is to be connected to.
pub(crate) async fn begin(
    session: &LiveSession,
    header: &AdmittedStream<&StreamHeader>,
) -> Result<Stream, OpenError> {
    let stream = session.connection.open_bi().await.map_err(|_| OpenError::Lost)?;
    request(&stream, header).await?;
    Ok(stream)
}

/// Says what an open stream is to be connected to.
pub(crate) async fn request(
    stream: &Stream,
    header: &AdmittedStream<&StreamHeader>,
) -> Result<(), OpenError> {
    Ok(stream.send.write_all(&header.header().encode()).await.map_err(SpliceError::from)?)
}

/// Waits until the other end has connected it.
pub(crate) async fn answered(mut stream: Stream) -> Result<Stream, OpenError> {
    let mut answer = [0];
    match stream.recv.read_exact(&mut answer).await.map_err(SpliceError::from)? {
        Some(()) if answer == [CONNECTED] => Ok(stream),
        Some(()) | None => {
            stream.reset(StreamCode::BadHeader.into());
            Err(OpenError::Refused(StreamCode::BadHeader))
        }
    }
}
