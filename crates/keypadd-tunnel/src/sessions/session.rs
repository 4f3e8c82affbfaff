//! Runs a session: an authenticated connection after the hellos, with its control stream and its
//! status.
//!
//! Both ends run the same code. Of the keys it sees only a handle that reports a fault; the session
//! closes the connection then.

use std::{
    fmt,
    net::SocketAddr,
    sync::{Arc, Mutex, OnceLock, PoisonError, atomic::AtomicBool},
    time::{Instant, SystemTime},
};

use keypadd_provider::{ConnectionKeys, HandshakeData, KeyFault, PublicKey, SessionToken};
use keypadd_share::{Share, Underway};
use keypadd_transport::{Connection, RateCap};
use tokio::sync::{Notify, Semaphore, mpsc, watch};

use self::{bulk::BulkConnection, ending::Farewell};
use crate::{
    addresses::{forward::Listen, target::ServerAddress},
    clock::monitor::Jumps,
    limits::{
        SharedLimits,
        descriptors::{Descriptors, Holder},
        local_ports::PeerPorts,
        places::Places,
    },
    net::source::plain,
    sessions::{
        carries::{Carries, NETWORKS_MAX},
        control::Control,
        counts::{ConnectionCount, ForwardCounts, PinnedForward},
        draining::Leaving,
        hold::{
            SessionHold,
            claims::Claims,
            held_list::HeldList,
            lineages::{ClientKey, Lineages},
            room::Newcomer,
        },
        key_renewal::renew,
        lifetime::KeyLifetimes,
        proof::Proof,
        remote_forwards::RemoteForwards,
        session_end::SessionEnd,
        status::Role,
    },
    wire::{Frame, Instance, ListenCode},
};

mod bulk;
mod ending;
mod figures;

/// Control frames queued for sending, and received frames queued for handling.
pub(crate) const FRAMES_MAX: usize = 16;

/// A live session.
pub struct LiveSession {
    pub(crate) id: u64,
    label: String,
    proof: Arc<Proof>,
    /// What the peer is counted by: the same for all of its keys.
    identity: PublicKey,
    role: Role,
    instance: Instance,
    since: SystemTime,
    /// When its keys were agreed on.
    keys_since: (SystemTime, tokio::time::Instant),
    pub(crate) connection: Connection,
    /// Connections that are being opened over it.
    pub(crate) opening: Underway,
    /// Carries bulk streams; made when there is bulk data.
    bulk: OnceLock<BulkConnection>,
    /// The server accepts a bulk connection.
    pub(crate) bulk_offered: AtomicBool,
    /// Whether its network is open: a peer may have one.
    pub(crate) network: Semaphore,
    /// Queue of the control stream. Boxed: a queue has memory for 32 items from the beginning.
    outgoing: mpsc::Sender<Box<Frame>>,
    /// Limits of the daemon.
    pub(crate) limits: Arc<SharedLimits>,
    /// The peers of the daemon whose streams are held.
    pub(crate) held: HeldList,
    /// The remote forwards that a client has asked its server for.
    pub(crate) remote_forwards: RemoteForwards,
    ended_by: OnceLock<SessionEnd>,
    /// What the peer is told; set before a connection is closed, whose end closes the other.
    farewell: OnceLock<Farewell>,
    forwards: Arc<ForwardCounts>,
    /// Places for the connections that this end forwards.
    pub(crate) places: Arc<Places>,
    /// Streams that outlive its connections, if both ends hold them.
    pub(crate) hold: Option<SessionHold>,
    /// The lineages of a server's clients, this one's among them.
    lineages: Option<Arc<Lineages>>,
    rate_cap: Option<RateCap>,
    /// What the client of a server has claimed of them.
    pub(crate) claims: Claims,
    /// How long its keys serve.
    pub(crate) lifetimes: KeyLifetimes,
    /// The server has asked for new keys.
    pub(crate) renewal_wanted: Notify,
    /// How far its client has come in leaving a server that is drained.
    pub(crate) leaving: watch::Sender<Leaving>,
    /// A server's session counts among those of its key until another one has its place.
    place: Mutex<Option<Share<PublicKey>>>,
    target: Option<ServerAddress>,
}

/// What a new session is made of.
pub(crate) struct NewSession<'a> {
    pub(crate) label: String,
    pub(crate) role: Role,
    pub(crate) instance: Instance,
    pub(crate) proof: Arc<Proof>,
    /// What the peer is counted by.
    pub(crate) identity: PublicKey,
    pub(crate) connection: Connection,
    /// Queue of the control stream.
    pub(crate) outgoing: mpsc::Sender<Box<Frame>>,
    pub(crate) limits: Arc<SharedLimits>,
    pub(crate) held: HeldList,
    /// Forwards listed even while they have no connection.
    pub(crate) forwards: &'a [String],
    /// Places for the connections that this end forwards.
    pub(crate) places: Arc<Places>,
    /// Open connections of a session that this one continues.
    pub(crate) counts: Arc<ForwardCounts>,
    pub(crate) hold: Option<SessionHold>,
    /// The lineages of a server's clients.
    pub(crate) lineages: Option<Arc<Lineages>>,
    pub(crate) lifetimes: KeyLifetimes,
    pub(crate) rate_cap: Option<RateCap>,
    /// The live session that it continues over another connection, with other keys.
    pub(crate) renews: Option<&'a LiveSession>,
    /// Its place among those of its key.
    pub(crate) place: Option<Share<PublicKey>>,
    /// The target of an SRV record that it was reached by.
    pub(crate) target: Option<ServerAddress>,
}

impl fmt::Debug for LiveSession {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LiveSession").field("id", &self.id).field("label", &self.label).finish()
    }
}

impl LiveSession {
    pub(crate) fn new(id: u64, new: NewSession<'_>) -> Self {
        let session = Self {
            id,
            label: new.label,
            proof: new.proof,
            identity: new.identity,
            role: new.role,
            instance: new.instance,
            since: new.renews.map_or_else(SystemTime::now, |session| session.since),
            keys_since: (SystemTime::now(), tokio::time::Instant::now()),
            connection: new.connection,
            opening: Underway::default(),
            bulk: OnceLock::new(),
            bulk_offered: AtomicBool::new(false),
            network: Semaphore::new(NETWORKS_MAX),
            outgoing: new.outgoing,
            limits: new.limits,
            held: new.held,
            remote_forwards: RemoteForwards::default(),
            ended_by: OnceLock::new(),
            farewell: OnceLock::new(),
            forwards: new.counts,
            places: new.places,
            hold: new.hold,
            lineages: new.lineages,
            claims: Claims::default(),
            lifetimes: new.lifetimes,
            rate_cap: new.rate_cap,
            renewal_wanted: Notify::new(),
            leaving: watch::Sender::default(),
            place: Mutex::new(new.place),
            target: new.target,
        };
        session.cap(&session.connection);
        if let Some(hold) = &session.hold {
            session.connection.hold(&hold.streams, hold.epoch);
        }
        session.pin_forwards(new.forwards);
        session.try_send(Frame::MaxForwards { count: session.places.max as u32 });
        session
    }

    /// What the handshake agreed on, and the handle of the connection's keys.
    pub fn handshake(&self) -> &HandshakeData {
        &self.proof.handshake
    }

    /// What its ends prove to each other to have, on later connections.
    pub(crate) fn token(&self) -> &SessionToken {
        self.proof.channel.token()
    }

    /// What it carries.
    pub(crate) fn carries(&self) -> Carries {
        Carries::of(&self.proof.handshake)
    }

    /// The peer's name, or the first characters of its key.
    pub fn peer(&self) -> &str {
        &self.label
    }

    /// The key that the peer has proved.
    pub fn key(&self) -> PublicKey {
        self.proof.key
    }

    /// The keys that the peer has proved: its bulk connection may have another one of them.
    pub(crate) fn proved_keys(&self) -> impl Iterator<Item = PublicKey> {
        [self.key()].into_iter().chain(self.bulk.get().map(|bulk| bulk.proof.key))
    }

    /// What the peer is counted by, whichever of its keys it has proved.
    pub(crate) fn identity(&self) -> PublicKey {
        self.identity
    }

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

    /// Whether to log now that no local port is left for connections to this target.
    pub(crate) fn may_log_local_ports(&self, target: &str) -> bool {
        self.limits.local_port_lines.allow_if(target.into(), Instant::now(), || self.may_log())
    }

    /// The local ports that the peer may use.
    pub(crate) fn local_ports(&self) -> PeerPorts<'_> {
        PeerPorts { ports: &self.limits.local_ports, peer: self.identity }
    }

    /// Sets descriptors aside for what the peer asks for, if its share allows. Clients of its key
    /// that are away do not keep theirs from one that is here.
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

    /// The run of the client that this session belongs to, by what the peer is counted by.
    pub(crate) fn client(&self) -> ClientKey {
        (self.identity, self.instance)
    }

    /// The run of the client that this session belongs to.
    pub fn instance(&self) -> Instance {
        self.instance
    }

    /// Whether the session has ended.
    pub fn has_ended(&self) -> bool {
        self.connection.close_reason().is_some()
    }

    /// The peer's current address.
    pub fn remote(&self) -> SocketAddr {
        plain(self.connection.remote_address())
    }

    /// Its connection, and that of its bulk streams if there is one.
    pub(crate) fn connections(&self) -> impl Iterator<Item = &Connection> {
        [&self.connection].into_iter().chain(self.bulk.get().map(|bulk| &bulk.connection))
    }

    /// Whether it has a connection for bulk streams.
    pub(crate) fn has_bulk(&self) -> bool {
        self.bulk.get().is_some()
    }

    /// Its place among those of its key, for the session that continues or replaces it.
    pub(crate) fn take_place(&self) -> Option<Share<PublicKey>> {
        self.place.lock().unwrap_or_else(PoisonError::into_inner).take()
    }

    /// The key handles of the session's connections.
    pub fn keys(&self) -> impl Iterator<Item = &ConnectionKeys> {
        let bulk = self.bulk.get().map(|bulk| &bulk.proof.handshake.keys);
        [&self.proof.handshake.keys].into_iter().chain(bulk)
    }

    /// Queues a frame for the control stream; waits while the queue is full.
    pub(crate) async fn send(&self, frame: Frame) {
        // Fails when the session has ended, and then nobody needs the frame.
        let _ = self.outgoing.send(frame.into()).await;
    }

    /// Queues a frame for the control stream unless the queue is full.
    pub(crate) fn try_send(&self, frame: Frame) {
        let _ = self.outgoing.try_send(frame.into());
    }

    /// Sends a frame about a remote forward to the server. A `Listen` that the server cannot serve
    /// is answered here instead: any of them on a session for measurements, and one for UDP if the
    /// server does not carry UDP, since it might end the session over it.
    pub(crate) async fn request(&self, frame: Frame) {
        let Frame::Listen { id, listen, .. } = &frame else { return self.send(frame).await };
        let refusal = if !self.carries().has_listeners() {
            ListenCode::NotPermitted
        } else if matches!(listen, Listen::Udp { .. }) && !self.connection.carries_datagrams() {
            ListenCode::NoDatagrams
        } else {
            return self.send(frame).await;
        };
        self.remote_forwards.answered(*id, Err(refusal), || self.may_log());
    }

    /// Supervises the connection until it ends. Closes it on a key fault, a clock jump or a control
    /// stream error; its streams fail by themselves then.
    ///
    /// Sends the frames of `outgoing`, and passes on received frames to `incoming`.
    pub(crate) async fn supervise(
        &self,
        control: Control,
        outgoing: mpsc::Receiver<Box<Frame>>,
        incoming: mpsc::Sender<Box<Frame>>,
        mut jumps: Jumps,
    ) -> SessionEnd {
        tokio::select! {
            biased;
            fault = watch_keys(&self.connection, &self.proof) => self.end(SessionEnd::Key(fault)),
            jump = jumps.next() => self.end(SessionEnd::Clock(jump)),
            _ = self.connection.closed() => {}
            error = control.serve(outgoing, incoming, &self.limits) => if !self.has_ended() {
                self.end(SessionEnd::Control(error));
            },
        }
        self.ended().await
    }

    /// Sets which forwards are listed even while they have no connection.
    pub(crate) fn pin_forwards(&self, names: &[String]) {
        self.forwards.pin_all(names);
    }

    /// Lists `forward` even while it has no connection, until the guard is dropped.
    pub(crate) fn pin_forward(&self, forward: &str) -> PinnedForward {
        self.forwards.pin(forward)
    }

    /// Counts a connection of `forward` until the guard is dropped.
    pub(crate) fn count_connection(&self, forward: &str) -> ConnectionCount {
        self.forwards.count(forward)
    }
}

/// Renews a connection's keys when they are due; returns when they must no longer be used.
async fn watch_keys(connection: &Connection, proof: &Proof) -> KeyFault {
    let keys = &proof.handshake.keys;
    let renewal = keys.renewal(keys.age_max(), Instant::now());
    tokio::select! {
        biased;
        fault = keys.fault() => fault,
        fault = renew(connection, renewal) => fault,
    }
}
