//! What a client does for its server while a session lives: hears its answers, takes its streams, and asks
//! again for what it has refused.

use std::sync::Arc;

use tokio::{
    sync::{Notify, mpsc},
    time::{Instant, interval_at},
};

use crate::{
    forwards::{answer::answer_server, tasks::Carried},
    net::lookup::Lookups,
    sessions::{remote_forwards::ASK_AGAIN, session::LiveSession},
    wire::Frame,
};

/// Attends to the server, for as long as it is polled.
pub(super) async fn attend(
    session: &Arc<LiveSession>,
    frames: mpsc::Receiver<Frame>,
    carried: &Carried,
    lookups: &Lookups,
    bulk_wanted: &Notify,
) {
    // Side by side: what is asked may have to wait until what was answered is heard.
    tokio::select! {
        () = ask_again(session) => {}
        () = hear(session, frames, carried, lookups, bulk_wanted) => {}
    }
}

async fn ask_again(session: &LiveSession) {
    let mut again = interval_at(Instant::now() + ASK_AGAIN, ASK_AGAIN);
    loop {
        again.tick().await;
        for frame in session.remotes.ask_again() {
            session.ask(frame).await;
        }
    }
}

async fn hear(
    session: &Arc<LiveSession>,
    mut frames: mpsc::Receiver<Frame>,
    carried: &Carried,
    lookups: &Lookups,
    bulk_wanted: &Notify,
) {
    loop {
        tokio::select! {
            Some(frame) = frames.recv() => match frame {
                Frame::Listening { id, outcome } => session.remotes.heard(id, outcome),
                Frame::BulkOffer { token } => drop(session.token.set(token)),
                Frame::BulkWanted => bulk_wanted.notify_one(),
                _ => {}
            },
            Ok(stream) = session.connection.accept_bi() => {
                carried.spawn(answer_server(Arc::clone(session), lookups.clone(), stream));
            }
            // The session is over, which its supervisor says.
            else => std::future::pending().await,
        }
    }
}
