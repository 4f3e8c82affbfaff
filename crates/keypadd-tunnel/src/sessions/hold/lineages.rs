//! Keeps the lineages of a server's clients, and what outlives their sessions: does what a
//! [step](Lineage::step) asks for, under one lock. Reads no clock.

use std::{
    collections::{BTreeMap, btree_map::Entry},
    io, mem,
    ops::RangeInclusive,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant},
};

use keypadd_provider::{Assertion, Channel, PublicKey, TokenProof};
use keypadd_share::{Budget, Share, Shares};
use keypadd_transport::HeldStreams;
use tokio::sync::oneshot;

use crate::{
    handover::{HandedLineage, HandedToken, LineageRecord},
    limits::{descriptors::OF_CONNECTION, places::Places},
    sessions::{
        counts::ForwardCounts,
        hold::{
            HoldSettings, SessionHold,
            held_list::HeldListing,
            lineage::{Effect, Event, Lineage, Presented, Tokens},
        },
    },
    wire::{HoldGrant, HoldRequest, Instance},
};

/// One run of a client.
pub(crate) type ClientKey = (PublicKey, Instance);

/// All runs of a key.
fn of_key(key: &PublicKey) -> RangeInclusive<ClientKey> {
    (*key, Instance([u8::MIN; 16]))..=(*key, Instance([u8::MAX; 16]))
}

/// What a session shares with the one that resumes it.
#[derive(Clone, Debug)]
pub(crate) struct Assets {
    pub(crate) streams: HeldStreams,
    /// Open connections of its forwards.
    pub(crate) counts: Arc<ForwardCounts>,
    /// Places for the connections that this end forwards.
    pub(crate) places: Arc<Places>,
}

/// What a lineage has while its client is away.
#[derive(Debug)]
pub(crate) struct Away {
    /// The place that its last session had among those of its key.
    pub(crate) place: Option<Share<PublicKey>>,
    /// Lists it in the status.
    pub(crate) _listed: HeldListing,
    /// Tells who waits for the client, when dropped, that this is over.
    pub(crate) _over: oneshot::Sender<()>,
}

#[derive(Debug)]
struct Kept {
    lineage: Lineage,
    assets: Assets,
    away: Option<Away>,
}

impl Kept {
    /// Whether it is away, and another one's than this client's.
    fn is_evictable(&self, own: &ClientKey, by: &ClientKey) -> bool {
        self.lineage.away_until().is_some() && own != by
    }

    fn has(&self, needed: Held) -> bool {
        match needed {
            Held::Place => self.away.as_ref().is_some_and(|away| away.place.is_some()),
            Held::Descriptors => self.descriptors() > 0,
        }
    }

    /// Which of its tokens this proves on this connection, for this run of the client.
    fn recognize(&self, given: Option<TokenProof>, channel: &Channel, run: &[u8; 16]) -> Presented {
        self.lineage.tokens().recognize(|token| {
            let is_proof = |given| channel.is_proof(&given, token, Assertion::ClientResumes, run);
            given.is_some_and(is_proof)
        })
    }

    /// Descriptors of its streams.
    fn descriptors(&self) -> usize {
        self.assets.streams.names().len() * OF_CONNECTION
    }
}

/// The lineages of a server's clients. Each key's streams share a budget.
#[derive(Debug)]
pub(crate) struct Lineages {
    /// Those of a key follow each other.
    by_client: Mutex<BTreeMap<ClientKey, Kept>>,
    /// Lets one session of each key free descriptors.
    pub(crate) freeing: Shares<PublicKey>,
    /// What the replay buffers of all peers share.
    sent: Arc<Budget>,
}

impl Default for Lineages {
    fn default() -> Self {
        Self::new(Arc::default())
    }
}

/// What the hello of a client that holds leads to.
pub(crate) struct Admitted {
    pub(crate) grant: HoldGrant,
    pub(crate) hold: SessionHold,
    /// Open connections of the lineage's forwards.
    pub(crate) counts: Arc<ForwardCounts>,
    /// Their places.
    pub(crate) places: Arc<Places>,
}

/// What an evicted lineage leaves.
#[derive(Debug)]
pub(crate) struct Evicted {
    pub(crate) place: Option<Share<PublicKey>>,
    /// How many descriptors its streams give back.
    pub(crate) descriptors: usize,
    /// How many held streams ended.
    pub(crate) streams: usize,
}

/// What a lineage may take from others of its key while its client is away.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Held {
    /// A place among the sessions of its key.
    Place,
    Descriptors,
}

impl Lineages {
    /// None, whose replay buffers will share this budget with those of all peers.
    pub(crate) fn new(sent: Arc<Budget>) -> Self {
        Self { by_client: Mutex::default(), freeing: Shares::of_each(1), sent }
    }

    /// The place of a client that is away, for its next session.
    pub(crate) fn take_place(&self, client: &ClientKey) -> Option<Share<PublicKey>> {
        self.lineages().get_mut(client)?.away.as_mut()?.place.take()
    }

    /// Whether the hello of a client that proves this on this connection would go on with a session
    /// or with what is held.
    pub(crate) fn would_resume(
        &self,
        client: &ClientKey,
        given: Option<TokenProof>,
        channel: &Channel,
        now: Instant,
    ) -> bool {
        let lineages = self.lineages();
        let kept = lineages.get(client).filter(|kept| kept.lineage.is_resumable(now));
        kept.is_some_and(|kept| kept.recognize(given, channel, &client.1.0) != Presented::Nothing)
    }

    /// Handles a hello: goes on with the streams of a client that proves on this connection to have
    /// a good token, or begins with none. `places` are for a beginning. Returns `None` if either
    /// end holds nothing. Streams that do not go on end.
    pub(crate) fn hello(
        &self,
        client: ClientKey,
        request: Option<HoldRequest>,
        settings: &HoldSettings,
        channel: &Channel,
        places: &Arc<Places>,
        now: Instant,
    ) -> Option<Admitted> {
        let agreed = request.and_then(|it| Some((settings.agreed(it.seconds)?, it.proof)));
        let Some((time, given)) = agreed else {
            self.step(&client, Event::Disowned, None, now);
            return None;
        };
        let mut lineages = self.lineages();
        let fresh = self.fresh_assets(&lineages, &client.0, settings, places);
        let (mut proof, mut away, mut ended) = (None, None, None);
        let (token, run) = (channel.token(), &client.1.0);
        let kept = match lineages.entry(client) {
            Entry::Vacant(entry) => {
                let lineage = Lineage::new(token.clone());
                entry.insert(Kept { lineage, assets: fresh, away: None })
            }
            Entry::Occupied(entry) => {
                let kept = entry.into_mut();
                let presented = kept.recognize(given, channel, run);
                let last = kept.lineage.tokens().presented(presented).cloned();
                let hello = Event::Hello { presented, next: token.clone() };
                match kept.lineage.step(hello, now) {
                    Effect::Resume => {
                        let prove = |last| channel.proof(&last, Assertion::ServerResumes, run);
                        proof = last.map(prove);
                    }
                    _ => ended = Some(mem::replace(&mut kept.assets, fresh)),
                }
                away = kept.away.take();
                kept
            }
        };
        let epoch = kept.lineage.epoch();
        let Assets { streams, counts, places } = kept.assets.clone();
        let grant = HoldGrant { seconds: settings.seconds(), epoch, proof };
        let hold = SessionHold { streams, epoch, time };
        let admitted = Admitted { grant, hold, counts, places };
        drop(lineages);
        drop(away);
        if let Some(Assets { streams, .. }) = ended {
            streams.close();
        }
        Some(admitted)
    }

    /// Lets a client's lineage take a step, which is no hello. Keeps `away` if it holds from now
    /// on. Returns its effect, and how many held streams ended.
    pub(crate) fn step(
        &self,
        client: &ClientKey,
        event: Event,
        mut away: Option<Away>,
        now: Instant,
    ) -> (Effect, usize) {
        let mut lineages = self.lineages();
        let Entry::Occupied(mut entry) = lineages.entry(*client) else {
            return (Effect::Nothing, 0);
        };
        let kept = entry.get_mut();
        let effect = kept.lineage.step(event, now);
        let (mut left, mut ended) = (None, None);
        match effect {
            Effect::Nothing | Effect::Resume | Effect::BeginAnew => {}
            Effect::Hold(_) => mem::swap(&mut kept.away, &mut away),
            Effect::End => (left, ended) = (kept.away.take(), Some(kept.assets.clone())),
            Effect::Forget => {
                let kept = entry.remove();
                (left, ended) = (kept.away, Some(kept.assets));
            }
        }
        drop(lineages);
        drop(left);
        (effect, ended.map_or(0, |ended| ended.streams.close()))
    }

    /// Whether every client is away, and no connection carries any of its streams.
    pub(crate) fn all_held(&self) -> bool {
        let is_held = |Kept { lineage, assets: Assets { streams, .. }, .. }: &Kept| {
            lineage.away_until().is_some() && streams.held() == streams.names().len()
        };
        self.lineages().values().all(|kept| kept.lineage.is_over() || is_held(kept))
    }

    /// Describes the clients that are away, for the process that takes over; they stay here as
    /// well.
    pub(crate) fn hand_over(&self, now: Instant) -> io::Result<Vec<HandedLineage>> {
        let lineages = self.lineages();
        let away = lineages.iter().filter_map(|((key, instance), kept)| {
            let Kept { lineage, assets, .. } = kept;
            let until = lineage.away_until()?;
            let Tokens { newest, former } = lineage.tokens();
            let record = LineageRecord {
                key: key.to_string(),
                instance: instance.0,
                tokens: (HandedToken(newest.clone()), former.clone().map(HandedToken)),
                epoch: lineage.epoch(),
                remaining_millis: until.saturating_duration_since(now).as_millis() as u64,
            };
            Some(assets.streams.hand_over().map(|streams| HandedLineage { record, streams }))
        });
        away.collect()
    }

    /// Continues with another process's record of a client that is away. Returns what it has so
    /// far.
    pub(crate) fn adopt(
        &self,
        client: ClientKey,
        record: &LineageRecord,
        settings: &HoldSettings,
        places: &Arc<Places>,
        away: impl FnOnce(&HeldStreams) -> Away,
        now: Instant,
    ) -> Assets {
        let (HandedToken(newest), former) = record.tokens.clone();
        let tokens = Tokens { newest, former: former.map(|HandedToken(token)| token) };
        let until = now + Duration::from_millis(record.remaining_millis);
        let lineage = Lineage::import(tokens, record.epoch, until);
        let mut lineages = self.lineages();
        let assets = self.fresh_assets(&lineages, &client.0, settings, places);
        let away = Some(away(&assets.streams));
        lineages.insert(client, Kept { lineage, assets: assets.clone(), away });
        assets
    }

    /// Evicts the client of this one's key that is away, has what is needed and would be given up
    /// first. Never the client itself, which may be about to return.
    pub(crate) fn evict(&self, client: &ClientKey, needed: Held, now: Instant) -> Option<Evicted> {
        let mut lineages = self.lineages();
        let of_key = lineages.range_mut(of_key(&client.0));
        let others = of_key.filter(|(other, kept)| kept.is_evictable(other, client));
        let having = others.map(|(_, kept)| kept).filter(|kept| kept.has(needed));
        let kept = having.min_by_key(|kept| kept.lineage.away_until())?;
        kept.lineage.step(Event::Evicted, now);
        let (descriptors, streams) = (kept.descriptors(), kept.assets.streams.clone());
        let away = kept.away.take()?;
        drop(lineages);
        Some(Evicted { place: away.place, descriptors, streams: streams.close() })
    }

    /// Descriptors of all clients that [`evict`](Self::evict) may evict for this one.
    pub(crate) fn evictable_descriptors(&self, client: &ClientKey) -> usize {
        let lineages = self.lineages();
        let others = lineages
            .range(of_key(&client.0))
            .filter(|(other, kept)| kept.is_evictable(other, client));
        others.map(|(_, kept)| kept.descriptors()).sum()
    }

    /// Ends the lineages of keys that are not listed. Returns how many held streams ended.
    pub(crate) fn retain(&self, listed: impl Fn(&PublicKey) -> bool, now: Instant) -> usize {
        let clients: Vec<_> = self.lineages().keys().copied().collect();
        let unlisted = clients.iter().filter(|(key, _)| !listed(key));
        unlisted.map(|client| self.step(client, Event::Disowned, None, now).1).sum()
    }

    /// What a lineage begins with. The streams of a key share a budget.
    fn fresh_assets(
        &self,
        lineages: &BTreeMap<ClientKey, Kept>,
        key: &PublicKey,
        settings: &HoldSettings,
        places: &Arc<Places>,
    ) -> Assets {
        let streams = match lineages.range(of_key(key)).next() {
            Some((_, other)) => other.assets.streams.sharing_budget(),
            None => HeldStreams::new(settings.budget(&self.sent)),
        };
        Assets { streams, counts: Arc::default(), places: Arc::clone(places) }
    }

    /// A panic cannot leave the map half changed.
    fn lineages(&self) -> MutexGuard<'_, BTreeMap<ClientKey, Kept>> {
        self.by_client.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use keypadd_provider::{PrivateKey, SESSION_TOKEN_BYTES, SessionToken};
    use tokio::sync::oneshot::error::TryRecvError;

    use super::*;
    use crate::sessions::hold::held_list::HeldList;

    fn token(byte: u8) -> SessionToken {
        SessionToken::from_bytes(&[byte; SESSION_TOKEN_BYTES])
    }

    /// What a client asks for whose last session had a token of this number, and the connection of
    /// its next session, with the number of that one's.
    pub(crate) fn hello(
        client: &ClientKey,
        last: Option<u8>,
        next: u8,
    ) -> (Option<HoldRequest>, Channel) {
        let server = PrivateKey::generate().unwrap().public();
        let channel = Channel::new(token(next), [next; 32], client.0, server);
        let prove = |last| channel.proof(&token(last), Assertion::ClientResumes, &client.1.0);
        (Some(HoldRequest { seconds: 600, proof: last.map(prove) }), channel)
    }

    #[test]
    fn a_session_that_ends_late_does_not_end_the_lineage_that_begins_after_it() {
        let (lineages, now) = (Lineages::default(), Instant::now());
        let client = (PrivateKey::generate().unwrap().public(), Instance([1; 16]));
        let settings = HoldSettings { time: Duration::from_secs(600), ..HoldSettings::OFF };
        let say = |last, next| {
            let (request, channel) = hello(&client, last, next);
            lineages.hello(client, request, &settings, &channel, &Places::new(8), now).unwrap()
        };
        let first = say(None, 1).hold;
        // The client holds nothing, so it proves nothing.
        assert!(say(None, 2).grant.proof.is_none());
        lineages.step(&client, Event::GivenUp { epoch: first.epoch }, None, now);
        assert!(say(Some(2), 3).grant.proof.is_some());

        let last = say(None, 4).hold;
        let (_, channel) = hello(&client, None, 5);
        assert!(lineages.hello(client, None, &settings, &channel, &Places::new(8), now).is_none());
        assert!(say(Some(4), 6).grant.proof.is_none());
        lineages.step(&client, Event::GivenUp { epoch: last.epoch }, None, now);
        assert!(say(Some(6), 7).grant.proof.is_some(), "it has another epoch");
    }

    #[test]
    fn sessions_that_resume_one_another_share_places() {
        let (lineages, now) = (Lineages::default(), Instant::now());
        let client = (PrivateKey::generate().unwrap().public(), Instance([1; 16]));
        let settings = HoldSettings { time: Duration::from_secs(600), ..HoldSettings::OFF };
        let say = |last, next| {
            let ((request, channel), places) = (hello(&client, last, next), Places::new(1));
            lineages.hello(client, request, &settings, &channel, &places, now).unwrap().places
        };
        let first = say(None, 1);
        let _open = first.try_take().unwrap();
        assert!(say(Some(1), 2).try_take().is_none());
        assert!(say(None, 3).try_take().is_some());
    }

    #[test]
    fn all_is_held_once_every_client_is_away() {
        let (lineages, now) = (Lineages::default(), Instant::now());
        let key = PrivateKey::generate().unwrap().public();
        let settings = HoldSettings { time: Duration::from_secs(600), ..HoldSettings::OFF };
        let [one, other] = [1, 2].map(|instance| (key, Instance([instance; 16])));
        let say = |client| {
            let (request, channel) = hello(&client, None, 1);
            lineages.hello(client, request, &settings, &channel, &Places::new(8), now).unwrap().hold
        };
        let lose = |client, SessionHold { epoch, time, .. }| {
            lineages.step(&client, Event::Lost { epoch, time }, None, now);
        };
        assert!(lineages.all_held());
        let holds = [one, other].map(say);
        assert!(!lineages.all_held());
        let [first, second] = holds;
        lose(one, first);
        assert!(!lineages.all_held(), "the other one is here");
        lose(other, second);
        assert!(lineages.all_held());
        assert_eq!(lineages.retain(|_| false, now), 0, "there were no streams to end");
    }

    #[test]
    fn a_key_evicts_its_own_clients_only_and_the_one_that_is_away_longest_first() {
        let (lineages, limit) = (Lineages::default(), Shares::of_each(2));
        let (list, start) = (HeldList::default(), Instant::now());
        let at = |seconds| start + Duration::from_secs(seconds);
        let [key, other] = [(); 2].map(|()| PrivateKey::generate().unwrap().public());
        let settings = HoldSettings { time: Duration::from_secs(600), ..HoldSettings::OFF };
        let say = |client, last, next| {
            let (request, channel) = hello(&client, last, next);
            lineages.hello(client, request, &settings, &channel, &Places::new(8), at(20)).unwrap()
        };
        let lose = |client: ClientKey, byte, seconds| {
            let SessionHold { streams, epoch, time } = say(client, None, byte).hold;
            let (over, is_over) = oneshot::channel();
            let place = limit.try_take(client.0, 1);
            let away = Away { place, _listed: list.add("peer", &streams, time), _over: over };
            let lost = Event::Lost { epoch, time };
            let (effect, _) = lineages.step(&client, lost, Some(away), at(seconds));
            assert_eq!(effect, Effect::Hold(at(seconds) + time));
            (epoch, is_over)
        };
        let [late, early, foreign] =
            [(key, 1), (key, 2), (other, 3)].map(|(key, instance)| (key, Instance([instance; 16])));
        let (_, mut late_is_over) = lose(late, 1, 10);
        let (epoch, mut early_is_over) = lose(early, 2, 5);
        let (_, mut foreign_is_over) = lose(foreign, 3, 0);
        let newcomer = (key, Instance([4; 16]));
        let live = say(newcomer, None, 4);
        let evict = || lineages.evict(&newcomer, Held::Place, at(20));

        let over = |it: &mut oneshot::Receiver<()>| it.try_recv() == Err(TryRecvError::Closed);
        assert!(limit.try_take(key, 1).is_none());
        assert!(evict().unwrap().place.is_some());
        assert!(over(&mut early_is_over) && !over(&mut late_is_over), "the earlier one");
        let next = say(early, Some(2), 5);
        assert!(next.grant.proof.is_none(), "its token is of no use any more");
        // Its holder notices late, and does not end what has begun since.
        lineages.step(&early, Event::GivenUp { epoch }, None, at(20));
        assert!(say(early, Some(5), 6).grant.proof.is_some());

        assert!(evict().is_some());
        assert!(evict().is_none(), "what is left is alive or another key's");
        assert!(over(&mut late_is_over) && !over(&mut foreign_is_over));
        assert!(say(foreign, Some(3), 7).grant.proof.is_some());
        drop(live);
    }
}
