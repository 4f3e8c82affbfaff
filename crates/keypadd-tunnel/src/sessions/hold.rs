//! Decides which connection may go on with the streams of a session whose connection was lost.
//!
//! A run of a client and its server have a *chain* of sessions. The server draws a token for each; the
//! next one must present it, over a connection that proves the same key, before the hold time is over.
//! A token is used up when the client confirms the next one, so that an answer that is lost costs
//! nothing. Knows no sockets and no bytes of streams (`keypadd_transport::HeldStreams` has them), and
//! reads no clock.

use std::{
    collections::{HashMap, HashSet},
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    time::{Duration, Instant},
};

use keypadd_provider::PublicKey;
use keypadd_transport::{HeldStreams, ReplayBudget, StreamName};

use crate::{
    sessions::counts::ForwardCounts,
    wire::{HoldGrant, HoldRequest, HoldToken, Instance},
};

/// How streams are held.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HoldSettings {
    /// How long streams without a connection are held; zero holds none.
    pub time: Duration,
    /// Bytes that a stream may have sent and its peer not written.
    pub stream_bytes: usize,
    /// The same of all streams of a peer.
    pub peer_bytes: usize,
}

impl HoldSettings {
    /// Holds nothing.
    pub const OFF: Self =
        Self { time: Duration::ZERO, stream_bytes: 16 << 20, peer_bytes: 256 << 20 };

    pub(crate) fn seconds(&self) -> u32 {
        // A time below a second is one.
        self.time.as_millis().div_ceil(1_000).try_into().unwrap_or(u32::MAX)
    }

    fn budget(&self) -> Arc<ReplayBudget> {
        Arc::new(ReplayBudget::new(self.stream_bytes, self.peer_bytes))
    }

    /// Both ends have to hold; the shorter time counts.
    fn agreed(&self, peer_seconds: u32) -> Option<Duration> {
        let time = self.time.min(Duration::from_secs(peer_seconds.into()));
        (!time.is_zero()).then_some(time)
    }
}

/// What became of held streams since the daemon started.
#[derive(Debug, Default)]
pub(crate) struct HoldCounts {
    /// Streams that went on over another connection.
    pub(crate) resumed: AtomicU64,
    /// Streams that were held and then ended.
    pub(crate) failed: AtomicU64,
}

impl HoldCounts {
    pub(crate) fn add_resumed(&self) {
        self.resumed.fetch_add(1, Relaxed);
    }

    pub(crate) fn add_failed(&self, count: usize) {
        self.failed.fetch_add(count as u64, Relaxed);
    }
}

/// What a session has of its chain.
#[derive(Clone, Debug)]
pub(crate) struct SessionHold {
    pub(crate) streams: HeldStreams,
    /// Of this session's first connection.
    pub(crate) epoch: u32,
    /// How long both ends hold the streams.
    pub(crate) time: Duration,
}

/// The tokens of a chain.
#[derive(Debug)]
struct Chain {
    token: HoldToken,
    /// The one that the client presented, until it confirms the new one.
    presented: Option<HoldToken>,
    epoch: u32,
    /// Set while there is no session.
    expires: Option<Instant>,
}

impl Chain {
    fn new(token: HoldToken) -> Self {
        Self { token, presented: None, epoch: 0, expires: None }
    }

    /// Goes on with another session, if the token is right.
    fn advance(&mut self, presented: HoldToken, next: HoldToken, now: Instant) -> bool {
        let known = presented == self.token || Some(presented) == self.presented;
        let right = known && self.expires.is_none_or(|at| now < at);
        if right {
            (self.presented, self.token, self.expires) = (Some(presented), next, None);
            self.epoch += 1;
        }
        right
    }

    /// The client has the newest token: the one before is used up.
    fn confirm(&mut self, epoch: u32) {
        if epoch == self.epoch {
            self.presented = None;
        }
    }
}

/// The chain of a server's client.
struct ClientChain {
    chain: Chain,
    streams: HeldStreams,
    counts: Arc<ForwardCounts>,
}

type ChainKey = (PublicKey, Instance);

/// The chains of a server's clients. Each key's streams share a budget.
#[derive(Default)]
pub(crate) struct Chains {
    by_client: Mutex<HashMap<ChainKey, ClientChain>>,
}

impl std::fmt::Debug for Chains {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Chains").finish_non_exhaustive()
    }
}

/// What a client's hello came to.
pub(crate) struct Admitted {
    pub(crate) grant: HoldGrant,
    pub(crate) hold: SessionHold,
    /// The open connections of the chain's forwards.
    pub(crate) counts: Arc<ForwardCounts>,
}

impl Chains {
    /// Continues the chain of a client that presents the right token, or begins one. `token` is
    /// random. Returns `None` if an end holds nothing. Streams of a chain that does not continue end.
    pub(crate) fn admit(
        &self,
        client: ChainKey,
        request: Option<HoldRequest>,
        settings: &HoldSettings,
        token: HoldToken,
        now: Instant,
    ) -> Option<Admitted> {
        let mut chains = self.chains();
        let agreed = request.and_then(|it| Some((it, settings.agreed(it.seconds)?)));
        let Some((request, time)) = agreed else {
            let ended = chains.remove(&client);
            drop(chains);
            close(ended);
            return None;
        };
        let resumed = match (chains.get_mut(&client), request.token) {
            (Some(client), Some(presented)) => client.chain.advance(presented, token, now),
            _ => false,
        };
        let mut ended = None;
        if !resumed {
            let others = chains.iter().find(|((key, _), _)| *key == client.0);
            let streams = match others {
                Some((_, other)) => other.streams.sharing_budget(),
                None => HeldStreams::new(settings.budget()),
            };
            let chain = Chain::new(token);
            let new = ClientChain { chain, streams, counts: Arc::default() };
            ended = chains.insert(client, new);
        }
        let ClientChain { chain, streams, counts } = chains.get(&client)?;
        let grant = HoldGrant { seconds: settings.seconds(), epoch: chain.epoch, token, resumed };
        let hold = SessionHold { streams: streams.clone(), epoch: chain.epoch, time };
        let admitted = Admitted { grant, hold, counts: Arc::clone(counts) };
        drop(chains);
        close(ended);
        Some(admitted)
    }

    /// The client of this session has its token.
    pub(crate) fn confirm(&self, client: &ChainKey, epoch: u32) {
        if let Some(client) = self.chains().get_mut(client) {
            client.chain.confirm(epoch);
        }
    }

    /// The connection of a session is lost: its streams are held from now on. False if there are none,
    /// or the chain has gone on already.
    pub(crate) fn lost(&self, client: &ChainKey, hold: &SessionHold, now: Instant) -> bool {
        let mut chains = self.chains();
        let Some(ClientChain { chain, streams, .. }) = chains.get_mut(client) else { return false };
        if chain.epoch != hold.epoch {
            return false;
        }
        if streams.names().is_empty() {
            chains.remove(client);
            return false;
        }
        chain.expires = Some(now + hold.time);
        true
    }

    /// Ends a chain for good, unless it has gone on with a later session. Returns how many held
    /// streams ended.
    pub(crate) fn end(&self, client: &ChainKey, epoch: u32) -> usize {
        let mut chains = self.chains();
        let current = chains.get(client).is_some_and(|client| client.chain.epoch == epoch);
        let ended = if current { chains.remove(client) } else { None };
        drop(chains);
        close(ended)
    }

    /// Ends the chains of keys that are not listed any more.
    pub(crate) fn retain(&self, listed: impl Fn(&PublicKey) -> bool) {
        let mut chains = self.chains();
        let ended: Vec<_> = chains.extract_if(|(key, _), _| !listed(key)).collect();
        drop(chains);
        for (_, chain) in ended {
            close(Some(chain));
        }
    }

    /// A panic cannot leave the map half changed.
    fn chains(&self) -> MutexGuard<'_, HashMap<ChainKey, ClientChain>> {
        self.by_client.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn close(ended: Option<ClientChain>) -> usize {
    ended.map_or(0, |ended| ended.streams.close())
}

/// The claims that a server has had in one session.
#[derive(Debug, Default)]
pub(crate) struct Claims(Mutex<ClaimsState>);

#[derive(Debug, Default)]
struct ClaimsState {
    /// How many there will be.
    expected: Option<u32>,
    answered: u32,
    claimed: HashSet<StreamName>,
}

impl Claims {
    /// The client has said how many there will be. Whether all are answered.
    pub(crate) fn expect(&self, count: u32) -> bool {
        let mut claims = self.state();
        claims.expected.get_or_insert(count);
        claims.are_answered()
    }

    /// A claim was answered; the stream goes on, if this end had it. Whether all are answered.
    pub(crate) fn answered(&self, resumed: Option<StreamName>) -> bool {
        let mut claims = self.state();
        claims.answered = claims.answered.saturating_add(1);
        claims.claimed.extend(resumed);
        claims.are_answered()
    }

    /// Whether the client has claimed this stream.
    pub(crate) fn has(&self, name: StreamName) -> bool {
        self.state().claimed.contains(&name)
    }

    fn state(&self) -> MutexGuard<'_, ClaimsState> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl ClaimsState {
    fn are_answered(&self) -> bool {
        self.expected == Some(self.answered)
    }
}

/// A client's chain.
#[derive(Debug)]
pub(crate) struct ClientHold {
    settings: HoldSettings,
    pub(crate) streams: HeldStreams,
    pub(crate) counts: Arc<ForwardCounts>,
    token: Mutex<Option<HoldToken>>,
}

impl ClientHold {
    pub(crate) fn new(settings: HoldSettings) -> Self {
        let streams = HeldStreams::new(settings.budget());
        Self { settings, streams, counts: Arc::default(), token: Mutex::default() }
    }

    /// What the next hello says.
    pub(crate) fn request(&self) -> Option<HoldRequest> {
        let token = *self.token();
        (!self.settings.time.is_zero())
            .then(|| HoldRequest { seconds: self.settings.seconds(), token })
    }

    /// The server has answered: what the session has of the chain, and the names of the streams that
    /// go on. Where the server does not hold them they end here.
    pub(crate) fn granted(
        &self,
        grant: Option<HoldGrant>,
    ) -> (Option<SessionHold>, Vec<StreamName>) {
        let agreed = grant.and_then(|it| Some((it, self.settings.agreed(it.seconds)?)));
        *self.token() = agreed.map(|(grant, _)| grant.token);
        let Some((grant, time)) = agreed else {
            self.streams.release(|_| false);
            return (None, Vec::new());
        };
        if !grant.resumed {
            self.streams.release(|_| false);
        }
        let names = if grant.resumed { self.streams.names() } else { Vec::new() };
        (Some(SessionHold { streams: self.streams.clone(), epoch: grant.epoch, time }), names)
    }

    /// The session is over for good, or was away too long. Returns how many held streams ended.
    pub(crate) fn end(&self) -> usize {
        *self.token() = None;
        self.streams.release(|_| false)
    }

    fn token(&self) -> MutexGuard<'_, Option<HoldToken>> {
        self.token.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
