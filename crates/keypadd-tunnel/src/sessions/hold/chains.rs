//! Decides which connection may resume the streams of a session whose connection was lost.
//!
//! A client instance and its server have a *chain* of sessions. The server draws a token for each;
//! the next one must present it, over a connection that proves the same key, before the hold time
//! is over. A token is retired when the client confirms the next one, so that a lost answer does no
//! harm. Reads no clock.

use std::{
    collections::HashMap,
    io,
    sync::{Arc, Mutex, MutexGuard, PoisonError, Weak},
    time::{Duration, Instant},
};

use keypadd_provider::PublicKey;
use keypadd_share::Share;
use keypadd_transport::HeldStreams;
use tokio::sync::oneshot;

use crate::{
    handover::{ChainRecord, HandedChain, Secret},
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

/// A chain taken over from another process.
pub(crate) struct AdoptedChain {
    pub(crate) streams: HeldStreams,
    pub(crate) counts: Arc<ForwardCounts>,
    /// When the streams are given up.
    pub(crate) expires: Instant,
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

    /// Describes the clients that are away, for the process that takes over; they stay here as
    /// well.
    pub(crate) fn hand_over(&self, now: Instant) -> io::Result<Vec<HandedChain>> {
        let millis = |at: Instant| at.saturating_duration_since(now).as_millis() as u64;
        let chains = self.chains();
        let away = chains.iter().filter_map(|((key, instance), client)| {
            let ClientChain { chain, streams, .. } = client;
            let record = ChainRecord {
                key: key.to_string(),
                instance: instance.0,
                tokens: (
                    Secret(chain.token.0),
                    chain.presented.as_ref().map(|token| Secret(token.0)),
                ),
                epoch: chain.epoch,
                remaining_millis: millis(chain.expires?),
                unconfirmed_millis: chain.expired.map(millis),
            };
            Some(streams.hand_over().map(|streams| HandedChain { record, streams }))
        });
        away.collect()
    }

    /// Continues with another process's record of a client that is away.
    pub(crate) fn adopt(
        &self,
        client: ChainKey,
        record: &ChainRecord,
        settings: &HoldSettings,
        places: &Arc<Places>,
        away: impl FnOnce(&HeldStreams) -> AwayState,
        now: Instant,
    ) -> AdoptedChain {
        let at = |millis: u64| now + Duration::from_millis(millis);
        let (Secret(token), presented) = &record.tokens;
        let expires = at(record.remaining_millis);
        let chain = Chain {
            token: HoldToken(*token),
            presented: presented.as_ref().map(|Secret(token)| HoldToken(*token)),
            epoch: record.epoch,
            expires: Some(expires),
            expired: record.unconfirmed_millis.map(at),
        };
        let mut chains = self.chains();
        let streams = streams_of(&chains, &client.0, settings);
        let counts = Arc::<ForwardCounts>::default();
        let adopted =
            AdoptedChain { streams: streams.clone(), counts: Arc::clone(&counts), expires };
        let away = Some(away(&streams));
        let places = Arc::clone(places);
        chains.insert(client, ClientChain { chain, streams, counts, places, away });
        adopted
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

#[cfg(test)]
mod tests {
    use keypadd_provider::PrivateKey;
    use keypadd_share::Shares;
    use tokio::sync::oneshot::error::TryRecvError;

    use super::*;
    use crate::sessions::hold::held_list::HeldList;

    fn token(byte: u8) -> HoldToken {
        HoldToken([byte; 16])
    }

    #[test]
    fn a_token_is_good_until_the_client_confirms_the_next_and_never_again() {
        let (mut chain, now) = (Chain::new(token(1)), Instant::now());
        assert!(!chain.advance(&token(9), token(2), now), "nobody drew it");
        assert!(chain.advance(&token(1), token(2), now));
        assert!(chain.advance(&token(1), token(3), now), "the answer was lost");
        assert!(!chain.advance(&token(2), token(4), now), "nobody has heard of it since");
        chain.confirm(1);
        assert!(chain.is_unconfirmed(), "that was an earlier session");
        chain.confirm(2);
        assert!(!chain.advance(&token(1), token(4), now), "it is used up");
        assert!(chain.advance(&token(3), token(4), now));
    }

    #[test]
    fn a_token_is_good_for_the_hold_time_and_attempts_prolong_nothing() {
        let (mut chain, now) = (Chain::new(token(1)), Instant::now());
        let until = now + Duration::from_secs(600);
        chain.expires = Some(until);
        assert!(chain.advance(&token(1), token(2), until - Duration::from_secs(1)));
        assert_eq!((chain.expires, chain.expired), (None, Some(until)));
        chain.expires = Some(until);
        assert!(!chain.advance(&token(1), token(3), until));
        assert!(!chain.advance(&token(2), token(3), until));
    }

    #[test]
    fn a_session_that_ends_late_does_not_end_the_chain_that_follows_its_own() {
        let (chains, now) = (Chains::default(), Instant::now());
        let client = (PrivateKey::generate().unwrap().public(), Instance([1; 16]));
        let settings = HoldSettings { time: Duration::from_secs(600), ..HoldSettings::OFF };
        let admit = |presented: Option<HoldToken>, next| {
            let request = HoldRequest { seconds: 600, token: presented };
            chains.admit(client, Some(request), &settings, next, &Places::new(8), now).unwrap()
        };
        let first = admit(None, token(1)).hold;
        // The client holds nothing, so it presents no token.
        assert!(!admit(None, token(2)).grant.resumed);
        chains.end(&client, first.epoch);
        assert!(admit(Some(token(2)), token(3)).grant.resumed);
    }

    #[test]
    fn sessions_that_resume_one_another_share_places() {
        let (chains, now) = (Chains::default(), Instant::now());
        let client = (PrivateKey::generate().unwrap().public(), Instance([1; 16]));
        let settings = HoldSettings { time: Duration::from_secs(600), ..HoldSettings::OFF };
        let admit = |presented: Option<HoldToken>, next| {
            let request = HoldRequest { seconds: 600, token: presented };
            let places = Places::new(1);
            chains.admit(client, Some(request), &settings, next, &places, now).unwrap().places
        };
        let first = admit(None, token(1));
        let _open = first.try_take().unwrap();
        assert!(admit(Some(token(1)), token(2)).try_take().is_none());
        assert!(admit(None, token(3)).try_take().is_some());
    }

    #[test]
    fn a_key_ends_its_own_chains_only_and_the_one_that_is_away_longest_first() {
        let (chains, limit, list) = (Chains::default(), Shares::of_each(2), HeldList::default());
        let start = Instant::now();
        let at = |seconds| start + Duration::from_secs(seconds);
        let [key, other] = [(); 2].map(|()| PrivateKey::generate().unwrap().public());
        let settings = HoldSettings { time: Duration::from_secs(600), ..HoldSettings::OFF };
        let admit = |client, presented: Option<HoldToken>, next| {
            let request = HoldRequest { seconds: 600, token: presented };
            chains.admit(client, Some(request), &settings, next, &Places::new(8), at(20)).unwrap()
        };
        let lose = |client: ChainKey, byte, seconds| {
            let Admitted { hold, .. } = admit(client, None, token(byte));
            let listed = list.add("peer", &hold.streams, hold.time);
            let (over, is_over) = oneshot::channel();
            let slot = limit.try_take(client.0, 1);
            let away = AwayState { slot, _listed: listed, _over: over };
            chains.lost(&client, &hold, true, away, at(seconds)).unwrap();
            (hold, is_over)
        };
        let [late, early, foreign] =
            [(key, 1), (key, 2), (other, 3)].map(|(key, instance)| (key, Instance([instance; 16])));
        let (_late, mut late_is_over) = lose(late, 1, 10);
        let (hold, mut early_is_over) = lose(early, 2, 5);
        let (_foreign, mut foreign_is_over) = lose(foreign, 3, 0);
        let newcomer = (key, Instance([4; 16]));
        let live = admit(newcomer, None, token(4));
        let end_away = || chains.end_away(&newcomer, Held::Place, at(20));

        let over = |it: &mut oneshot::Receiver<()>| it.try_recv() == Err(TryRecvError::Closed);
        assert!(limit.try_take(key, 1).is_none());
        assert!(end_away().unwrap().slot.is_some());
        assert!(over(&mut early_is_over) && !over(&mut late_is_over), "the earlier one");
        let next = admit(early, Some(token(2)), token(5));
        assert!(!next.grant.resumed, "its token is of no use any more");
        // Its holder notices late, and does not end what has begun since.
        chains.end(&early, hold.epoch);
        assert!(admit(early, Some(token(5)), token(6)).grant.resumed);

        assert!(end_away().is_some());
        assert!(end_away().is_none(), "what is left is alive or another key's");
        assert!(over(&mut late_is_over) && !over(&mut foreign_is_over));
        assert!(admit(foreign, Some(token(3)), token(7)).grant.resumed);
        drop(live);
    }
}
