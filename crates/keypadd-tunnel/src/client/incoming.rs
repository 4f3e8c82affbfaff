//! Handles the frames and streams that a server sends to its client, and retries refused remote
//! forwards.

use std::sync::{Arc, atomic::Ordering};

use tokio::{
    sync::{Notify, mpsc},
    time::{Instant, interval_at},
};

use crate::{
    forwards::{answer::answer_server, tasks::ConnectionTasks},
    net::lookup::Lookups,
    sessions::{remote_forwards::RETRY_INTERVAL, session::LiveSession},
    wire::Frame,
};

/// Handles what the server sends. `bulk` is told when the bulk connection is wanted: also as soon
/// as the server accepts it, where the session before had one. Never returns.
pub(super) async fn handle_incoming(
    session: &Arc<LiveSession>,
    frames: mpsc::Receiver<Box<Frame>>,
    tasks: &ConnectionTasks,
    lookups: &Lookups,
    bulk: (&Notify, bool),
) {
    // Concurrently: a request may have to wait until answers are received.
    tokio::select! {
        () = retry_refused(session) => {}
        () = send_requests(session) => {}
        () = receive(session, frames, tasks, lookups, bulk) => {}
    }
}

async fn retry_refused(session: &LiveSession) {
    let mut interval = interval_at(Instant::now() + RETRY_INTERVAL, RETRY_INTERVAL);
    loop {
        interval.tick().await;
        session.remote_forwards.retry_refused();
    }
}

/// Sends the requests for remote forwards, at the server's pace.
async fn send_requests(session: &LiveSession) {
    loop {
        let frame = session.remote_forwards.unsent().await;
        session.request(frame).await;
        session.remote_forwards.sent();
    }
}

async fn receive(
    session: &Arc<LiveSession>,
    mut frames: mpsc::Receiver<Box<Frame>>,
    tasks: &ConnectionTasks,
    lookups: &Lookups,
    (bulk_wanted, wants_bulk): (&Notify, bool),
) {
    loop {
        tokio::select! {
            Some(frame) = frames.recv() => match *frame {
                Frame::Listening { id, outcome } => {
                    session.remote_forwards.answered(id, outcome, || session.may_log());
                }
                Frame::BulkOffer => {
                    session.bulk_offered.store(true, Ordering::Relaxed);
                    if wants_bulk {
                        bulk_wanted.notify_one();
                    }
                }
                Frame::BulkWanted => bulk_wanted.notify_one(),
                Frame::Renew => session.renewal_wanted.notify_one(),
                Frame::MaxForwards { count } => session.places.set_peer_limit(count),
                Frame::Leave { leave } => session.asked_to_leave(leave),
                // QUIC answers a ping; the others begin a connection, or come from clients.
                Frame::Ping
                | Frame::HelloClient { .. }
                | Frame::HelloBulk { .. }
                | Frame::HelloServer { .. }
                | Frame::Listen { .. }
                | Frame::Unlisten { .. }
                | Frame::Claims { .. } => {}
            },
            Ok(stream) = session.connection.accept_bi() => {
                tasks.spawn(answer_server(Arc::clone(session), lookups.clone(), stream));
            }
            // The session has ended; its supervisor reports that.
            else => std::future::pending().await,
        }
    }
}
