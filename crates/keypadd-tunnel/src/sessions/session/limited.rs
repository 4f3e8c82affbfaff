//! Asks the limits of the daemon what a session's peer may cause: log lines, and open files.

use std::time::Instant;

use super::LiveSession;
use crate::{
    limits::descriptors::{Descriptors, Holder},
    sessions::hold::room::Newcomer,
};

impl LiveSession {
    /// Whether the peer may cause a log line now. Every line that it can cause asks this.
    pub(crate) fn may_log(&self) -> bool {
        self.limits.log.allow(self.identity, &self.label, Instant::now())
    }

    /// Whether to log now that this target closed without a byte. Names that the peer may not log
    /// are not remembered, so that it cannot crowd out those of others.
    pub(crate) fn may_log_mute_target(&self, target: &str) -> bool {
        let target = (self.identity, target.to_owned());
        self.limits.mute_targets.allow_if(target, Instant::now(), || self.may_log())
    }

    /// Whether to log now that connections to this target use all local ports, whoever asks for them.
    pub(crate) fn may_log_local_ports(&self, target: &str) -> bool {
        self.limits.local_ports.allow_if(target.into(), Instant::now(), || self.may_log())
    }

    /// Sets descriptors aside for what the peer asks for, if its share allows. Clients of its key that
    /// are away do not keep theirs from one that is here.
    pub(crate) async fn descriptors(&self, count: usize) -> Option<Descriptors> {
        let (budget, holder) = (&self.limits.descriptors, Holder::Peer(self.identity));
        match self.descriptors_of_away(count).await {
            Some(granted) => Some(granted),
            None => budget.acquire(holder, &self.label, count),
        }
    }

    /// Sets descriptors aside for what the peer asks for, once its share allows. Clients of its key
    /// that are away do not keep theirs from one that is here.
    pub(crate) async fn descriptors_when_free(&self, count: usize) -> Descriptors {
        let (budget, holder) = (&self.limits.descriptors, Holder::Peer(self.identity));
        match self.descriptors_of_away(count).await {
            Some(granted) => granted,
            None => budget.acquire_when_free(holder, &self.label, count).await,
        }
    }

    /// Sets descriptors aside; ends clients of its key that are away if that is what it takes.
    async fn descriptors_of_away(&self, count: usize) -> Option<Descriptors> {
        match &self.lineages {
            Some(lineages) if !self.has_ended() => {
                let (client, peer) = (self.client(), self.peer());
                let (limits, held) = (&self.limits, &self.held);
                Newcomer { client, peer, lineages, limits, held }.descriptors(count).await
            }
            _ => self.limits.descriptors.shares().try_take(Holder::Peer(self.identity), count),
        }
    }
}
