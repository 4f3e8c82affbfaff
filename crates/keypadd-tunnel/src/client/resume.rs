//! Resumes the streams of another session over a new one: claims each at the server.

use std::{future::pending, sync::Arc};

use keypadd_transport::HeldStream;
use tokio::task::JoinSet;
use tracing::info;

use crate::{
    forwards::open_stream::{OpenError, claim_stream},
    sessions::session::LiveSession,
    wire::{Claim, Frame},
};

/// Claims all streams of earlier sessions at once. `older` is the last one if it was alive; the
/// requests for its remote forwards are sent first. Never returns; if dropped, streams not yet
/// resumed are held as before.
pub(super) async fn resume(session: &Arc<LiveSession>, older: Option<Arc<LiveSession>>) {
    let was_lost = older.is_none();
    if let Some(older) = older {
        session.remote_forwards.all_sent().await;
        // Until then its connection takes on streams that were opened before.
        older.settled().await;
    }
    let Some(hold) = &session.hold else { return pending().await };
    let names = hold.streams.claim_before(hold.epoch);
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
    if count > 0 && was_lost && session.may_log() {
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
            session.held.add_resumed();
            tokio::spawn(stream.resume(held, receipt));
            true
        }
        Err(OpenError::Refused(_)) => {
            session.held.add_reset(usize::from(held.release()));
            false
        }
        // It is held as before.
        Err(OpenError::Lost) => false,
    }
}
