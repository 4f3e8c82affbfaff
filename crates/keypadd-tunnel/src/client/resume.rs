//! Resumes the streams of another session over a new one: claims each at the server.

use std::{future::pending, sync::Arc};

use keypadd_transport::{HeldStream, StreamName};
use tokio::task::JoinSet;
use tracing::info;

use crate::{
    forwards::open_stream::{OpenError, claim_stream},
    sessions::session::LiveSession,
    wire::{Claim, Frame},
};

/// Claims all these streams at once. If the old session was alive, first waits on `listens`, which
/// requests its remote forwards. Never returns; if dropped, streams not yet resumed are held as
/// before.
pub(super) async fn resume(
    session: &Arc<LiveSession>,
    names: Vec<StreamName>,
    listens: Option<Vec<Frame>>,
) {
    let was_lost = listens.is_none();
    for frame in listens.into_iter().flatten() {
        session.request(frame).await;
    }
    let Some(hold) = &session.hold else { return pending().await };
    let mut held = Vec::with_capacity(names.len());
    for name in names {
        // Its last connection is gone, or about to be. A stream that has ended in the meantime is
        // not claimed.
        if let Some(stream) = hold.streams.take(name).await {
            held.push(stream);
        }
    }
    // Sent even for no streams: the server then ends the others and retires the last token.
    let count = held.len();
    session.send(Frame::Claims { count: count as u32 }).await;
    let mut claims = JoinSet::new();
    for stream in held {
        let session = Arc::clone(session);
        claims.spawn(async move { claim(&session, stream).await });
    }
    let mut resumed = 0_usize;
    while let Some(claimed) = claims.join_next().await {
        resumed += usize::from(claimed.unwrap_or(false));
    }
    if count > 0 && was_lost {
        info!(peer = session.peer(), "back; held connections resumed: {resumed} of {count}");
    }
    pending().await
}

/// Claims one stream, and hands it to the connection; returns false if the server does not hold it,
/// or the connection is lost again.
async fn claim(session: &LiveSession, held: HeldStream) -> bool {
    let claim = Claim { name: held.name(), receipt: held.receipt() };
    match claim_stream(session, claim).await {
        Ok((stream, receipt)) => {
            session.limits.hold.add_resumed();
            tokio::spawn(stream.resume(held, receipt));
            true
        }
        Err(OpenError::Refused(_)) => {
            session.limits.hold.add_reset(usize::from(held.release()));
            false
        }
        // It is held as before.
        Err(OpenError::Lost) => false,
    }
}
