//! Holds the streams of sessions whose connection was lost, until another connection resumes them.
//!
//! The server keeps a [lineage] for each run of a client and decides by a token which connection
//! may resume; this file has what both ends share, and the client's end. Knows no sockets and no
//! bytes of streams: `keypadd_transport::HeldStreams` has them.

use std::{
    mem,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use keypadd_provider::{Assertion, Channel, SessionToken};
use keypadd_share::Budget;
use keypadd_transport::{HeldStreams, ReplayBudget};

use crate::{
    handover::HandedToken,
    sessions::counts::ForwardCounts,
    wire::{HoldGrant, HoldRequest, Instance},
};

pub(crate) mod claims;
pub(crate) mod held_list;
pub(crate) mod lineage;
pub(crate) mod lineages;
#[cfg(test)]
mod model;
pub(crate) mod resume_rate;
pub(crate) mod room;

/// How streams are held.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HoldSettings {
    /// How long streams without a connection are held; zero holds none.
    pub time: Duration,
    /// Most bytes of a stream that were sent and not yet written by the peer.
    pub stream_bytes: usize,
    /// Most bytes of all streams of a peer that were sent and not yet written by it.
    pub peer_bytes: usize,
}

impl HoldSettings {
    /// Holds nothing.
    pub const OFF: Self =
        Self { time: Duration::ZERO, stream_bytes: 64 << 20, peer_bytes: 256 << 20 };

    fn seconds(&self) -> u32 {
        // A time below a second counts as one.
        self.time.as_millis().div_ceil(1_000).try_into().unwrap_or(u32::MAX)
    }

    /// The memory of a peer's streams, out of what those of all peers share.
    fn budget(&self, all: &Arc<Budget>) -> Arc<ReplayBudget> {
        Arc::new(ReplayBudget::new(self.stream_bytes, self.peer_bytes, Arc::clone(all)))
    }

    /// Both ends must hold; the shorter time counts.
    fn agreed(&self, peer_seconds: u32) -> Option<Duration> {
        let time = self.time.min(Duration::from_secs(peer_seconds.into()));
        (!time.is_zero()).then_some(time)
    }
}

/// A session's part of its lineage.
#[derive(Clone, Debug)]
pub(crate) struct SessionHold {
    pub(crate) streams: HeldStreams,
    /// Epoch of this session's first connection.
    pub(crate) epoch: u32,
    /// How long both ends hold the streams.
    pub(crate) time: Duration,
}

/// A client's end of its lineage.
#[derive(Debug)]
pub(crate) struct ClientHold {
    settings: HoldSettings,
    /// Open connections of the client's forwards.
    pub(crate) counts: Arc<ForwardCounts>,
    lineage: Mutex<ClientLineage>,
}

/// What a client has of its current lineage.
#[derive(Debug)]
struct ClientLineage {
    streams: HeldStreams,
    /// The token of its last session.
    token: Option<SessionToken>,
}

/// What a server grants a client, which has verified what the server says that it resumes.
#[derive(Debug)]
pub(crate) struct Granted {
    grant: HoldGrant,
    token: SessionToken,
}

/// The server says that it goes on with a session, and does not prove to have its token.
#[derive(Debug)]
pub(crate) struct Unproved;

impl Granted {
    /// The server's answer on this connection to a client whose last session had the token `last`.
    pub(crate) fn verified(
        grant: HoldGrant,
        channel: &Channel,
        instance: Instance,
        last: Option<&SessionToken>,
    ) -> Result<Self, Unproved> {
        if let Some(proof) = &grant.proof {
            let last = last.ok_or(Unproved)?;
            if !channel.is_proof(proof, last, Assertion::ServerResumes, &instance.0) {
                return Err(Unproved);
            }
        }
        Ok(Self { grant, token: channel.token().clone() })
    }

    /// Whether the server goes on with the streams of the last session.
    pub(crate) fn is_resumed(&self) -> bool {
        self.grant.proof.is_some()
    }
}

impl ClientHold {
    /// Nothing yet; its replay buffers will share `sent` with those of all peers.
    pub(crate) fn new(settings: HoldSettings, sent: &Arc<Budget>) -> Self {
        let streams = HeldStreams::new(settings.budget(sent));
        let lineage = Mutex::new(ClientLineage { streams, token: None });
        Self { settings, counts: Arc::default(), lineage }
    }

    /// Nothing yet, for another lineage of the same client: its replay buffers share their memory.
    pub(crate) fn beside(&self) -> Self {
        let streams = self.lineage().streams.sharing_budget();
        let lineage = Mutex::new(ClientLineage { streams, token: None });
        Self { settings: self.settings, counts: Arc::default(), lineage }
    }

    /// The streams of the current lineage.
    pub(crate) fn streams(&self) -> HeldStreams {
        self.lineage().streams.clone()
    }

    /// The token of the last session, if it held.
    pub(crate) fn token(&self) -> Option<SessionToken> {
        self.lineage().token.clone()
    }

    /// The hold request for a hello on this connection, which proves to have the last session's
    /// token.
    pub(crate) fn request(
        &self,
        channel: &Channel,
        instance: Instance,
        last: Option<&SessionToken>,
    ) -> Option<HoldRequest> {
        let proof = last.map(|last| channel.proof(last, Assertion::ClientResumes, &instance.0));
        (!self.settings.time.is_zero())
            .then(|| HoldRequest { seconds: self.settings.seconds(), proof })
    }

    /// Handles the server's answer; returns the session's part of the lineage, and how many streams
    /// end because the server does not hold them. Another lineage begins then: a session of the old
    /// one may still be open, with streams of the same names.
    pub(crate) fn granted(&self, granted: Option<Granted>) -> (Option<SessionHold>, usize) {
        let agreed = granted.and_then(|it| Some((self.settings.agreed(it.grant.seconds)?, it)));
        let resumed = agreed.as_ref().is_some_and(|(_, granted)| granted.is_resumed());
        let mut lineage = self.lineage();
        let ended = (!resumed).then(|| {
            let fresh = lineage.streams.sharing_budget();
            mem::replace(&mut lineage.streams, fresh)
        });
        let streams = lineage.streams.clone();
        let (token, hold) = agreed
            .map(|(time, Granted { grant, token })| {
                (token, SessionHold { streams, epoch: grant.epoch, time })
            })
            .unzip();
        lineage.token = token;
        drop(lineage);
        let count = ended.map_or(0, |ended| {
            let count = ended.names().len();
            ended.close();
            count
        });
        (hold, count)
    }

    /// The token of the next hello, for the process that takes over.
    pub(crate) fn hand_over(&self) -> Option<HandedToken> {
        self.token().map(HandedToken)
    }

    /// Continues the lineage of another process.
    pub(crate) fn adopt(&self, token: Option<HandedToken>) {
        self.lineage().token = token.map(|HandedToken(token)| token);
    }

    /// The session is over for good, or was away too long. Returns how many held streams ended.
    pub(crate) fn end(&self) -> usize {
        let streams = {
            let mut lineage = self.lineage();
            lineage.token = None;
            lineage.streams.clone()
        };
        streams.release(|_| false)
    }

    /// Token and streams are replaced as a whole.
    fn lineage(&self) -> MutexGuard<'_, ClientLineage> {
        self.lineage.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
