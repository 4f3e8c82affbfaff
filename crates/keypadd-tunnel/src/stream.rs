//! Opening a stream to a target, from the client's side.

use std::time::Duration;

use quinn::{Connection, ReadExactError};
use tokio::time::timeout;

use crate::{
    splice::{Cut, StreamPair},
    status::Role,
    target::Target,
    wire::{CONNECTED, StreamCode, encode_stream_header},
};

/// Time for a stream to be had and for the server to answer; the server gives itself less.
const OPEN_TIME: Duration = Duration::from_secs(20);

/// Why there is no stream to the target.
#[derive(Debug)]
pub(crate) enum OpenError {
    /// The server said why.
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

/// Opens a stream; it is connected to the target when this returns.
pub(crate) async fn open_stream(
    connection: &Connection,
    target: &Target,
) -> Result<StreamPair, OpenError> {
    match timeout(OPEN_TIME, open(connection, target)).await {
        Ok(opened) => opened,
        Err(_) => Err(OpenError::Refused(StreamCode::TimedOut)),
    }
}

async fn open(connection: &Connection, target: &Target) -> Result<StreamPair, OpenError> {
    let pair = connection.open_bi().await.map_err(|_| OpenError::Lost)?;
    let mut pair = StreamPair::new(connection.clone(), Role::Client, pair);
    let header = encode_stream_header(target);
    pair.send.write_all(&header).await.map_err(Cut::from)?;

    let mut answer = [0];
    match pair.recv.read_exact(&mut answer).await {
        Ok(()) if answer == [CONNECTED] => Ok(pair),
        Ok(()) | Err(ReadExactError::FinishedEarly(_)) => {
            pair.reset(StreamCode::BadHeader);
            Err(OpenError::Refused(StreamCode::BadHeader))
        }
        Err(ReadExactError::ReadError(error)) => Err(Cut::from(error).into()),
    }
}
