//! Opening a stream: a client to a goal of the server's side, a server to one of its client's remote
//! forwards. The other end's part is in `answer`. Over a connection that is for measurements alone only
//! streams to the bench service are opened.

use std::time::Duration;

use keypadd_transport::Stream;
use tokio::time::timeout;

use crate::{
    forwards::splice::Cut,
    sessions::session::LiveSession,
    wire::{CONNECTED, StreamCode, StreamHeader},
};

/// Time for a stream to be had and for the other end to answer; that gives itself less.
const OPEN_TIME: Duration = Duration::from_secs(20);

/// Why there is no stream.
#[derive(Debug)]
pub(crate) enum OpenError {
    /// The other end said why.
    Refused(StreamCode),
    /// The connection is gone.
    Lost,
}

impl From<Cut> for OpenError {
    fn from(cut: Cut) -> Self {
        match cut {
            Cut::Remote(code) => Self::Refused(code),
            Cut::Local(_) | Cut::Lost => Self::Lost,
        }
    }
}

/// Opens a stream; it is connected to what the header names when this returns.
pub(crate) async fn open_stream(
    session: &LiveSession,
    header: &StreamHeader,
) -> Result<Stream, OpenError> {
    if session.measures_only() && *header != StreamHeader::Bench {
        return Err(OpenError::Refused(StreamCode::NotPermitted));
    }
    match timeout(OPEN_TIME, open(session, header)).await {
        Ok(opened) => opened,
        Err(_) => Err(OpenError::Refused(StreamCode::TimedOut)),
    }
}

async fn open(session: &LiveSession, header: &StreamHeader) -> Result<Stream, OpenError> {
    let mut stream = session.connection.open_bi().await.map_err(|_| OpenError::Lost)?;
    stream.send.write_all(&header.encode()).await.map_err(Cut::from)?;

    let mut answer = [0];
    match stream.recv.read_exact(&mut answer).await.map_err(Cut::from)? {
        Some(()) if answer == [CONNECTED] => Ok(stream),
        Some(()) | None => {
            stream.reset(StreamCode::BadHeader.into());
            Err(OpenError::Refused(StreamCode::BadHeader))
        }
    }
}
