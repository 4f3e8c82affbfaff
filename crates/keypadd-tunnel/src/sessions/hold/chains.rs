//! Decides which connection may resume the streams of a session whose connection was lost.
//!
//! A client instance and its server have a *chain* of sessions. The server draws a token for each;
//! the next one must present it, over a connection that proves the same key, before the hold time
//! is over. A token is retired when the client confirms the next one, so that a lost answer does no
//! harm. Reads no clock.

#![allow(dead_code)]

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError, Weak},
    time::Instant,
};

use keypadd_provider::PublicKey;
use keypadd_share::Share;
use keypadd_transport::HeldStreams;
use tokio::sync::oneshot;

use crate::{
    limits::{descriptors::OF_CONNECTION, places::Places},
    sessions::{
        counts::ForwardCounts,
        hold::{HoldSettings, SessionHold, held_list::HeldListing},
    },
    wire::{HoldGrant, HoldRequest, HoldToken, Instance},
};

/// The tokens of a chain.
#[derive(Debug)]
struct Chain {
    token: HoldToken,
    /// The token that the client presented, until it confirms the new one.
    presented: Option<HoldToken>,
    epoch: u32,
    /// When the streams are given up; set while there is no session.
    expires: Option<Instant>,
    /// The same for a hold that an unconfirmed session has ended.
    expired: Option<Instant>,
}

impl Chain {
    fn new(token: HoldToken) -> Self {
        Self { token, presented: None, epoch: 0, expires: None, expired: None }
    }

    /// Continues with another session if the token is right.
    fn advance(&mut self, presented: &HoldToken, next: HoldToken, now: Instant) -> bool {
        let known = *presented == self.token || self.presented.as_ref() == Some(presented);
        let right = known && self.expires.is_none_or(|at| now < at);
        if right {
            self.expired = self.expires.take().or(self.expired);
            (self.presented, self.token) = (Some(presented.clone()), next);
            self.epoch += 1;
        }
        right
    }

    /// The client has the newest token: retires the one before.
    fn confirm(&mut self, epoch: u32) {
        if epoch == self.epoch {
            (self.presented, self.expired) = (None, None);
        }
    }

    /// Whether the client may not know of the newest session.
    fn is_unconfirmed(&self) -> bool {
        self.presented.is_some()
    }
}

/// The chain of one of a server's clients.
struct ClientChain {
    chain: Chain,
    streams: HeldStreams,
    counts: Arc<ForwardCounts>,
    places: Arc<Places>,
    away: Option<AwayState>,
}

impl ClientChain {
    /// Whether it is the chain of another client of the same key, and away.
    fn is_away_from(&self, own: &ChainKey, client: &ChainKey) -> bool {
        self.away.is_some() && own.0 == client.0 && own != client
    }

    fn holds(&self, held: Held) -> bool {
        match held {
            Held::Place => self.away.as_ref().is_some_and(|away| away.slot.is_some()),
            Held::Descriptors => self.descriptors() > 0,
        }
    }

    /// Those of its streams.
    fn descriptors(&self) -> usize {
        self.streams.names().len() * OF_CONNECTION
    }
}

/// What a chain keeps while it has no session.
pub(crate) struct AwayState {
    /// The slot that its last session had among those of its key.
    pub(crate) slot: Option<Share<PublicKey>>,
    /// Lists it in the status.
    pub(crate) _listed: HeldListing,
    /// Dropped when that is over.
    pub(crate) _over: oneshot::Sender<()>,
}

/// A client instance.
pub(crate) type ChainKey = (PublicKey, Instance);

/// The chains of a server's clients. Each key's streams share a budget.
#[derive(Default)]
pub(crate) struct Chains {
    by_client: Mutex<HashMap<ChainKey, ClientChain>>,
    /// See [`freeing`](Self::freeing).
    freeing: Mutex<HashMap<PublicKey, Weak<tokio::sync::Mutex<()>>>>,
}

impl std::fmt::Debug for Chains {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Chains").finish_non_exhaustive()
    }
}

/// The result of a client's hello.
pub(crate) struct Admitted {
    pub(crate) grant: HoldGrant,
    pub(crate) hold: SessionHold,
    /// The open connections of the chain's forwards.
    pub(crate) counts: Arc<ForwardCounts>,
    /// Their places.
    pub(crate) places: Arc<Places>,
}

/// What a chain that was ended while it was away leaves.
#[derive(Debug)]
pub(crate) struct EndedAway {
    pub(crate) slot: Option<Share<PublicKey>>,
    /// How many descriptors its streams give back.
    pub(crate) descriptors: usize,
    /// How many held streams ended.
    pub(crate) streams: usize,
}

/// What a chain that is away may hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Held {
    /// A place among the sessions of its key.
    Place,
    /// Descriptors.
    Descriptors,
}

impl Chains {
    /// The slot of a client that is away, for the next session, which ends or continues its chain.
    pub(crate) fn take_slot(&self, client: &ChainKey) -> Option<Share<PublicKey>> {
        self.chains().get_mut(client)?.away.as_mut()?.slot.take()
    }

    /// Continues the chain of a client that presents the right token, or begins one. `token` is
    /// random, and `places` are those of a new chain. Returns `None` if either end holds nothing. The
    /// streams of a chain that does not continue end.
    pub(crate) fn admit(
        &self,
        client: ChainKey,
        request: Option<HoldRequest>,
        settings: &HoldSettings,
        token: HoldToken,
        places: &Arc<Places>,
        now: Instant,
    ) -> Option<Admitted> {
        let mut chains = self.chains();
        let agreed = request.and_then(|it| Some((settings.agreed(it.seconds)?, it.token)));
        let Some((time, presented)) = agreed else {
            let ended = chains.remove(&client);
            drop(chains);
            close(ended);
            return None;
        };
        let (mut ended, mut away) = (None, None);
        let next = token.clone();
        let resumed = match (chains.get_mut(&client), presented) {
            (Some(client), Some(presented)) => {
                let resumed = client.chain.advance(&presented, next, now);
                away = client.away.take().filter(|_| resumed);
                resumed
            }
            _ => false,
        };
        if !resumed {
            let streams = streams_of(&chains, &client.0, settings);
            // Never that of an earlier chain, whose last session may outlast the start of this one.
            let epoch = chains.get(&client).map_or(0, |ended| ended.chain.epoch.wrapping_add(1));
            let chain = Chain { epoch, ..Chain::new(token.clone()) };
            let (counts, places) = (Arc::default(), Arc::clone(places));
            let new = ClientChain { chain, streams, counts, places, away: None };
            ended = chains.insert(client, new);
        }
        let ClientChain { chain, streams, counts, places, .. } = chains.get(&client)?;
        let grant = HoldGrant { seconds: settings.seconds(), epoch: chain.epoch, token, resumed };
        let hold = SessionHold { streams: streams.clone(), epoch: chain.epoch, time };
        let (counts, places) = (Arc::clone(counts), Arc::clone(places));
        let admitted = Admitted { grant, hold, counts, places };
        drop(chains);
        drop(away);
        close(ended);
        Some(admitted)
    }

    /// The client of this session has received its token.
    pub(crate) fn confirm(&self, client: &ChainKey, epoch: u32) {
        if let Some(client) = self.chains().get_mut(client) {
            client.chain.confirm(epoch);
        }
    }

    /// Handles the end of a session with streams; `held` if its connection was lost. Returns until
    /// when they are held from now on; `None` if they are not: the chain has already continued, or
    /// the client ended it. The client may know nothing of a session that it has not confirmed:
    /// closing that one's connection ends nothing, and does not extend the hold.
    pub(crate) fn lost(
        &self,
        client: &ChainKey,
        hold: &SessionHold,
        held: bool,
        away: AwayState,
        now: Instant,
    ) -> Option<Instant> {
        let mut chains = self.chains();
        let ClientChain { chain, away: last, .. } = chains.get_mut(client)?;
        let unconfirmed = chain.is_unconfirmed();
        if chain.epoch != hold.epoch || !(held || unconfirmed) {
            return None;
        }
        let until = chain.expired.filter(|_| unconfirmed).unwrap_or(now + hold.time);
        chain.expires = Some(until);
        *last = Some(away);
        Some(until)
    }

    /// Whether every client is away, and no connection carries any of its streams.
    pub(crate) fn all_held(&self) -> bool {
        let held = |streams: &HeldStreams| streams.held() == streams.names().len();
        self.chains().values().all(|client| client.away.is_some() && held(&client.streams))
    }

    /// Ends the chain of this client's key that is away, holds what is needed and would be given up
    /// first; nobody resumes it any more. Never the client's own, which may be about to continue.
    pub(crate) fn end_away(
        &self,
        client: &ChainKey,
        held: Held,
        now: Instant,
    ) -> Option<EndedAway> {
        let mut chains = self.chains();
        let others = chains.iter_mut().filter(|(other, it)| it.is_away_from(other, client));
        let holding = others.map(|(_, chain)| chain).filter(|chain| chain.holds(held));
        let chain = holding.min_by_key(|chain| chain.chain.expires)?;
        // Whoever holds it removes it once it is over: until then its epochs must not be used again.
        chain.chain.expires = Some(now);
        let (away, streams) = (chain.away.take()?, chain.streams.clone());
        let descriptors = chain.descriptors();
        drop(chains);
        let AwayState { slot, .. } = away;
        Some(EndedAway { slot, descriptors, streams: streams.close() })
    }

    /// Descriptors of all chains that [`end_away`](Self::end_away) may end for this client.
    pub(crate) fn descriptors_of_away(&self, client: &ChainKey) -> usize {
        let chains = self.chains();
        let others = chains.iter().filter(|(other, it)| it.is_away_from(other, client));
        others.map(|(_, chain)| chain.descriptors()).sum()
    }

    /// Locked while a session of this key frees descriptors.
    pub(crate) fn freeing(&self, key: PublicKey) -> Arc<tokio::sync::Mutex<()>> {
        let mut freeing = self.freeing.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(lock) = freeing.get(&key).and_then(Weak::upgrade) {
            return lock;
        }
        freeing.retain(|_, lock| lock.strong_count() > 0);
        let lock = Arc::default();
        freeing.insert(key, Arc::downgrade(&lock));
        lock
    }

    /// Ends a chain for good, unless a later session has continued it. Returns how many held
    /// streams ended.
    pub(crate) fn end(&self, client: &ChainKey, epoch: u32) -> usize {
        let mut chains = self.chains();
        let current = chains.get(client).is_some_and(|client| client.chain.epoch == epoch);
        let ended = if current { chains.remove(client) } else { None };
        drop(chains);
        close(ended)
    }

    /// Ends the chains of keys that are no longer listed. Returns how many held streams ended.
    pub(crate) fn retain(&self, listed: impl Fn(&PublicKey) -> bool) -> usize {
        let mut chains = self.chains();
        let ended: Vec<_> = chains.extract_if(|(key, _), _| !listed(key)).collect();
        drop(chains);
        ended.into_iter().map(|(_, chain)| close(Some(chain))).sum()
    }

    /// A panic cannot leave the map half changed.
    fn chains(&self) -> MutexGuard<'_, HashMap<ChainKey, ClientChain>> {
        self.by_client.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A new set without streams; those of a key share a budget.
fn streams_of(
    chains: &HashMap<ChainKey, ClientChain>,
    key: &PublicKey,
    settings: &HoldSettings,
) -> HeldStreams {
    match chains.iter().find(|((other, _), _)| other == key) {
        Some((_, other)) => other.streams.sharing_budget(),
        None => HeldStreams::new(settings.budget()),
    }
}

fn close(ended: Option<ClientChain>) -> usize {
    ended.map_or(0, |ended| ended.streams.close())
}
