//! Waits for clients that are away, while what they left is held: of lost sessions, and of another
//! process's clients.

use std::{sync::Arc, time::Duration};

use futures_util::future::BoxFuture;
use keypadd_transport::HeldStreams;
use tokio::{
    sync::oneshot,
    task::JoinSet,
    time::{Instant, sleep_until},
};
use tracing::{info, warn};

use super::ServerContext;
use crate::{
    forwards::adopt::adopt,
    handover::HandedLineage,
    limits::{descriptors::Holder, places::Places},
    sessions::{
        hold::{
            HoldSettings, SessionHold,
            lineage::{Effect, Event},
            lineages::{Assets, Away, ClientKey},
        },
        session::LiveSession,
    },
    wire::Instance,
};

/// What holds the streams of another process's client.
pub(in crate::server) type Adopted = BoxFuture<'static, ()>;

impl ServerContext {
    /// Holds the streams of a session that has ended, if they may be held, until another session
    /// resumes them or the time is over. They keep the session's place among those of its key.
    pub(super) async fn hold(&self, session: &LiveSession) {
        let place = session.take_place();
        let Some(hold) = &session.hold else { return };
        // Streams that were just opened are then spliced, and held as well.
        session.settled().await;
        let &SessionHold { ref streams, epoch, time } = hold;
        let (now, held) = (Instant::now().into_std(), streams.names().len());
        let event = match session.is_held() {
            _ if held == 0 => Event::GivenUp { epoch },
            true => Event::Lost { epoch, time },
            false => Event::Closed { epoch, time },
        };
        let (client, peer) = (session.client(), session.peer());
        let (over, is_over) = oneshot::channel();
        let away = Away { place, _listed: self.held.add(peer, streams, time), _over: over };
        let ended = match self.lineages.step(&client, event, Some(away), now) {
            (Effect::Hold(until), _) => {
                if session.may_log() {
                    let seconds = until.saturating_duration_since(now).as_secs();
                    info!(peer, held, seconds, "holding the connections of a lost session");
                }
                self.await_return(&client, epoch, until, is_over).await
            }
            (_, ended) => ended,
        };
        self.count_unreturned(&client, peer, ended);
    }

    /// Waits until a client has returned, or nobody will resume its streams: then they end. Returns
    /// how many.
    async fn await_return(
        &self,
        client: &ClientKey,
        epoch: u32,
        until: std::time::Instant,
        is_over: oneshot::Receiver<()>,
    ) -> usize {
        tokio::select! {
            () = sleep_until(until.into()) => {}
            _ = is_over => {}
            () = self.draining.stopped() => {}
        }
        let given_up = Event::GivenUp { epoch };
        self.lineages.step(client, given_up, None, Instant::now().into_std()).1
    }

    /// Counts held streams that ended as their client did not return.
    fn count_unreturned(&self, client: &ClientKey, peer: &str, ended: usize) {
        self.held.add_reset(ended);
        if ended > 0 && self.limits.log.allow(client.0, peer, Instant::now().into_std()) {
            warn!(peer, ended, "reset held connections: the client did not return");
        }
    }

    /// Goes on with a client of another process; the returned task holds its streams. `None`, which
    /// resets them, if its key is not listed any more.
    pub(in crate::server) fn adopt(self: &Arc<Self>, handed: HandedLineage) -> Option<Adopted> {
        let HandedLineage { record, streams: handed } = handed;
        let key = record.key.parse().ok()?;
        let (peer, identity) = self.peers.admitted(&key)?;
        let client = (identity, Instance(record.instance));
        let settings = HoldSettings { time: peer.hold.unwrap_or(self.hold.time), ..self.hold };
        let (over, is_over) = oneshot::channel();
        let now = Instant::now().into_std();
        let label = peer.label();
        let remaining = Duration::from_millis(record.remaining_millis);
        let away = |streams: &HeldStreams| Away {
            place: self.of_key.try_take(identity, 1),
            _listed: self.held.add(&label, streams, remaining),
            _over: over,
        };
        let places = &Places::new(self.forwards_max);
        let Assets { streams, counts, places } =
            self.lineages.adopt(client, &record, &settings, places, away, now);
        let mut splices = JoinSet::new();
        for stream in handed {
            let holder = (&*label, Holder::Peer(identity));
            let slot = stream.name().is_of_server().then(|| places.occupy());
            splices.spawn(adopt(stream, &streams, &counts, &self.limits, holder, slot));
        }
        let this = Arc::clone(self);
        Some(Box::pin(async move {
            let ended = this.await_return(&client, record.epoch, now + remaining, is_over).await;
            this.count_unreturned(&client, &label, ended);
            while splices.join_next().await.is_some() {}
        }))
    }
}
