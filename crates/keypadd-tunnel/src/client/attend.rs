//! What a client does for its server while a session lives: hears its answers and takes its streams.

use std::sync::Arc;

use tokio::sync::mpsc;

use crate::{
    answer::answer_server, carried::Carried, lookup::Lookups, session::LiveSession,
    splice::StreamPair, status::Role, wire::Frame,
};

/// Hears the server, for as long as it is polled.
pub(super) async fn attend(
    session: &Arc<LiveSession>,
    mut frames: mpsc::Receiver<Frame>,
    carried: &Carried,
    lookups: &Lookups,
) {
    loop {
        tokio::select! {
            Some(frame) = frames.recv() => {
                if let Frame::Listening { id, outcome } = frame {
                    session.remotes.heard(id, outcome);
                }
            }
            Ok(pair) = session.connection.accept_bi() => {
                let pair = StreamPair::new(session.connection.clone(), Role::Client, pair);
                carried.spawn(answer_server(Arc::clone(session), lookups.clone(), pair));
            }
            // The session is over, which its supervisor says.
            else => std::future::pending().await,
        }
    }
}
