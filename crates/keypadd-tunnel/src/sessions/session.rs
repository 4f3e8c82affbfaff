//! Runs a session: an authenticated connection after the hellos, with its control stream and its status.
//!
//! The same on both ends. Of the keys it sees only a handle that reports a fault; the session
//! closes the connection then.

use std::{
    fmt,
    net::SocketAddr,
    sync::{Arc, Mutex, OnceLock, PoisonError},
    time::{Duration, Instant, SystemTime},
};

use keypadd_provider::{ConnectionKeys, HandshakeData, KeyFault, PublicKey};
use keypadd_share::{Share, Underway};
use keypadd_transport::{Connection, VarInt};
use tokio::{
    sync::{Notify, mpsc},
    time::timeout,
};

use crate::{
    addresses::forward::{Listen, ProxyHeaders},
    addresses::target::ServerAddress,
    clock::{monitor::Jumps, unix_seconds},
    limits::{
        Limits,
        descriptors::{Descriptors, Holder},
        places::Places,
    },
    net::source::plain,
    sessions::{
        carries::Carries,
        control::Control,
        counts::{ConnectionCount, ForwardCounts, PinnedForward},
        hold::{SessionHold, chains::Chains, claims::Claims, held_list::HeldList, room::Newcomer},
        key_renewal::renew,
        lifetime::KeyLifetimes,
        proof::Proof,
        remote_forwards::RemoteForwards,
        session_end::{SessionEnd, holds},
        status::{ForwardStatus, KeyRenewal, Role, SessionStatus},
    },
    wire::{CloseCode, Features, Frame, Instance, ListenCode, SessionToken},
};

/// Control frames queued for sending, and received frames queued for handling.
pub(crate) const FRAMES_MAX: usize = 16;

/// A local program that has an answer and does not use it in time loses its connection.
const SPLICE_TIMEOUT: Duration = Duration::from_millis(500);

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
    /// Ties a bulk connection to this session: drawn by the server and sent to the client.
    pub(crate) token: OnceLock<SessionToken>,
    /// Queue of the control stream. Boxed: a queue has memory for 32 items from the beginning.
    outgoing: mpsc::Sender<Box<Frame>>,
    /// Limits of the daemon.
    pub(crate) limits: Arc<Limits>,
    /// The peers of the daemon whose streams are held.
    pub(crate) held: HeldList,
    /// What the server can do.
    features: Features,
    /// The remote forwards that a client has asked its server for.
    pub(crate) remote_forwards: RemoteForwards,
    ended_by: OnceLock<SessionEnd>,
    /// What the peer is told; set before either connection is closed, as the end of one closes the other.
    farewell: OnceLock<(CloseCode, String)>,
    forwards: Arc<ForwardCounts>,
    /// Places for the connections that this end forwards.
    pub(crate) places: Arc<Places>,
    /// Streams that outlive its connections, if both ends hold them.
    pub(crate) hold: Option<SessionHold>,
    /// The chains of a server's clients, this one's among them.
    chains: Option<Arc<Chains>>,
    /// What the client of a server has claimed of them.
    pub(crate) claims: Claims,
    /// How long its keys serve.
    pub(crate) lifetimes: KeyLifetimes,
    /// The server has asked for new keys.
    pub(crate) renewal_wanted: Notify,
    /// A server's session counts among those of its key until another one has its place.
    place: Mutex<Option<Share<PublicKey>>>,
    target: Option<ServerAddress>,
}

/// What a new session is made of.
pub(crate) struct NewSession<'a> {
    pub(crate) label: String,
    pub(crate) role: Role,
    pub(crate) instance: Instance,
    /// What the server can do.
    pub(crate) features: Features,
    pub(crate) proof: Arc<Proof>,
    /// What the peer is counted by.
    pub(crate) identity: PublicKey,
    pub(crate) connection: Connection,
    /// Queue of the control stream.
    pub(crate) outgoing: mpsc::Sender<Box<Frame>>,
    pub(crate) limits: Arc<Limits>,
    pub(crate) held: HeldList,
    /// Forwards listed even while they have no connection.
    pub(crate) forwards: &'a [String],
    /// Places for the connections that this end forwards.
    pub(crate) places: Arc<Places>,
    /// Open connections of a session that this one continues.
    pub(crate) counts: Arc<ForwardCounts>,
    pub(crate) hold: Option<SessionHold>,
    /// The chains of a server's clients.
    pub(crate) chains: Option<Arc<Chains>>,
    pub(crate) lifetimes: KeyLifetimes,
    /// The live session that it continues over another connection, with other keys.
    pub(crate) renews: Option<&'a LiveSession>,
    /// Its place among those of its key.
    pub(crate) place: Option<Share<PublicKey>>,
    /// The target of an SRV record that it was reached by.
    pub(crate) target: Option<ServerAddress>,
}

/// The connection that carries a session's bulk streams.
struct BulkConnection {
    connection: Connection,
    proof: Arc<Proof>,
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
            token: OnceLock::new(),
            outgoing: new.outgoing,
            limits: new.limits,
            held: new.held,
            features: new.features,
            remote_forwards: RemoteForwards::default(),
            ended_by: OnceLock::new(),
            farewell: OnceLock::new(),
            forwards: new.counts,
            places: new.places,
            hold: new.hold,
            chains: new.chains,
            claims: Claims::default(),
            lifetimes: new.lifetimes,
            renewal_wanted: Notify::new(),
            place: Mutex::new(new.place),
            target: new.target,
        };
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

    /// Whether to log now that connections to this target use all local ports, whoever asks for them.
    pub(crate) fn may_log_local_ports(&self, target: &str) -> bool {
        self.limits.local_ports.allow_if(target.into(), Instant::now(), || self.may_log())
    }

    /// Sets descriptors aside for what the peer asks for, if its share allows. Clients of its key that are
    /// away do not keep theirs from one that is here.
    pub(crate) async fn descriptors(&self, count: usize) -> Option<Descriptors> {
        let (budget, holder) = (&self.limits.descriptors, Holder::Peer(self.identity));
        match self.descriptors_of_away(count).await {
            Some(granted) => Some(granted),
            None => budget.acquire(holder, &self.label, count),
        }
    }

    /// The same, but waits until the peer's share allows it.
    pub(crate) async fn descriptors_when_free(&self, count: usize) -> Descriptors {
        let (budget, holder) = (&self.limits.descriptors, Holder::Peer(self.identity));
        match self.descriptors_of_away(count).await {
            Some(granted) => granted,
            None => budget.acquire_when_free(holder, &self.label, count).await,
        }
    }

    /// Sets descriptors aside; ends clients of its key that are away if that is what it takes.
    async fn descriptors_of_away(&self, count: usize) -> Option<Descriptors> {
        match &self.chains {
            Some(chains) if !self.has_ended() => {
                let client = (self.identity, self.instance);
                let (peer, limits, held) = (&self.label, &self.limits, &self.held);
                Newcomer { client, peer, chains, limits, held }.descriptors(count).await
            }
            _ => self.limits.descriptors.shares().try_take(Holder::Peer(self.identity), count),
        }
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

    /// The status of the session, with both of its connections.
    pub fn status(&self) -> SessionStatus {
        let mut stats = self.connection.stats();
        if let Some(bulk) = self.bulk.get() {
            let more = bulk.connection.stats();
            // The connection that sends full-size packets notices first that the path MTU has
            // shrunk.
            stats.path.current_mtu = stats.path.current_mtu.min(more.path.current_mtu);
            stats.path.cwnd += more.path.cwnd;
            stats.path.sent_packets += more.path.sent_packets;
            stats.path.lost_packets += more.path.lost_packets;
            stats.udp_rx.datagrams += more.udp_rx.datagrams;
            stats.udp_rx.bytes += more.udp_rx.bytes;
            stats.udp_tx.bytes += more.udp_tx.bytes;
        }
        let refused = self.remote_forwards.refused();
        let forwards = self.forwards.list();
        SessionStatus {
            id: self.id,
            peer: self.label.clone(),
            public_key: self.proof.key.to_string(),
            role: self.role,
            remote: self.remote(),
            target: self.target.as_ref().map(ToString::to_string),
            suite: self.proof.handshake.suite.to_string(),
            kex: self.proof.handshake.kex.to_string(),
            since_unix_seconds: unix_seconds(self.since),
            keys_since_unix_seconds: unix_seconds(self.keys_since.0),
            key_renewal: self.key_renewal(),
            rtt_seconds: stats.path.rtt.as_secs_f64(),
            mtu_bytes: stats.path.current_mtu,
            congestion_window_bytes: stats.path.cwnd,
            sent_packets: stats.path.sent_packets,
            received_datagrams: stats.udp_rx.datagrams,
            lost_packets: stats.path.lost_packets,
            sent_bytes: stats.udp_tx.bytes,
            received_bytes: stats.udp_rx.bytes,
            forwards: forwards
                .iter()
                .map(|(forward, open)| ForwardStatus {
                    forward: forward.clone(),
                    open: *open,
                    cause: refused.get(forward).map(ToString::to_string),
                })
                .collect(),
        }
    }

    /// Whether a new handshake replaces its keys in time.
    fn key_renewal(&self) -> KeyRenewal {
        match (self.lifetimes.get(), &self.hold) {
            (lifetime, _) if !lifetime.is_limited() => KeyRenewal::Off,
            (_, None) => KeyRenewal::NeedsHold,
            (_, Some(_)) => KeyRenewal::On,
        }
    }

    /// Waits until its keys have served for so many thousandths of their lifetime.
    pub(crate) async fn keys_served(&self, permille: u32) {
        self.lifetimes.over(self.keys_since.1, || self.carried_bytes(), permille).await;
    }

    /// UDP payload bytes that its connections have sent and received.
    fn carried_bytes(&self) -> u64 {
        let bulk = self.bulk.get().map(|bulk| &bulk.connection);
        let stats = [&self.connection].into_iter().chain(bulk).map(Connection::stats);
        stats.map(|stats| stats.udp_tx.bytes + stats.udp_rx.bytes).sum()
    }

    /// How often the peer has acknowledged something new.
    pub(crate) fn received_acks(&self) -> u64 {
        let bulk = self.bulk.get().map(|bulk| &bulk.connection);
        let connections = [&self.connection].into_iter().chain(bulk);
        connections.map(Connection::acks).sum()
    }

    /// Open connections of all its forwards, without UDP flows.
    pub(crate) fn open_connections(&self) -> u64 {
        self.forwards.connections()
    }

    /// Whether it has a connection for bulk streams.
    pub(crate) fn has_bulk(&self) -> bool {
        self.bulk.get().is_some()
    }

    /// Whether another session of the same run goes on with its streams.
    pub(crate) fn is_resumed(&self) -> bool {
        matches!(self.ended_by.get(), Some(SessionEnd::Resumed))
    }

    /// Whether its listeners stay open for the session that goes on with its streams.
    pub(crate) fn leaves_listeners(&self) -> bool {
        // Its bulk connection may have been closed first, which then closed this one.
        let closed = self.connection.close_reason().map(SessionEnd::Connection);
        let mut ends = self.ended_by.get().into_iter().chain(&closed);
        self.hold.is_some() && ends.any(SessionEnd::leaves_listeners)
    }

    /// Its place among those of its key, for the session that continues or replaces it.
    pub(crate) fn take_place(&self) -> Option<Share<PublicKey>> {
        self.place.lock().unwrap_or_else(PoisonError::into_inner).take()
    }

    /// Waits for the end of the session; returns the reason.
    pub(crate) async fn ended(&self) -> SessionEnd {
        let error = self.connection.closed().await;
        self.ended_by.get().cloned().unwrap_or(SessionEnd::Connection(error))
    }

    /// Waits, after its end, until what the peer has answered is held as well.
    pub(crate) async fn settled(&self) {
        self.connection.closed().await;
        // Whoever waits for an answer gives up now, and whoever has one is about to use it.
        let _ = timeout(SPLICE_TIMEOUT, self.opening.none()).await;
        self.connection.settled().await;
    }

    /// Ends the session and tells the peer why. Does nothing if it has ended already.
    pub(crate) fn end(&self, cause: SessionEnd) {
        let cause = self.ended_by.get_or_init(|| cause);
        let code = match cause.holds() && self.hold.is_some() {
            true => CloseCode::Hold,
            false => cause.code(),
        };
        self.close(code, &cause.to_string());
    }

    /// Whether its streams are held: it has ended, and another connection may resume them.
    pub(crate) fn is_held(&self) -> bool {
        let said = self.farewell.get().map(|(code, _)| *code);
        let lost = || self.connection.close_reason().is_some_and(|error| holds(&error));
        self.hold.is_some() && (said == Some(CloseCode::Hold) || lost())
    }

    /// Closes the connections with a code and a reason that are sent to the peer.
    pub(crate) fn close(&self, code: CloseCode, reason: &str) {
        let (code, reason) = self.farewell.get_or_init(|| {
            // One connection may be lost, while the other can still tell the peer.
            let code = if self.is_held() { CloseCode::Hold } else { code };
            (code, reason.to_owned())
        });
        let code = VarInt::from_u32(code.value());
        self.connection.close(code, reason.as_bytes());
        if let Some(bulk) = self.bulk.get() {
            bulk.connection.close(code, reason.as_bytes());
        }
    }

    /// Closes a connection that only the peer may have attached: with the session's code, or so that its streams
    /// are held.
    pub(crate) fn close_unattached(&self, bulk: &Connection) {
        let said = self.farewell.get().map(|(code, _)| *code);
        let other = if self.hold.is_some() { CloseCode::Hold } else { CloseCode::Shutdown };
        bulk.close(VarInt::from_u32(said.unwrap_or(other).value()), b"");
    }

    /// The key handles of the session's connections.
    pub fn keys(&self) -> impl Iterator<Item = &ConnectionKeys> {
        let bulk = self.bulk.get().map(|bulk| &bulk.proof.handshake.keys);
        [&self.proof.handshake.keys].into_iter().chain(bulk)
    }

    /// Attaches the connection that carries the session's bulk streams, which the same peer has proved
    /// to be its own, maybe by another of its keys. Returns false if there is one already, or if its
    /// packet protection differs.
    pub(crate) fn attach_bulk(&self, connection: &Connection, proof: &Arc<Proof>) -> bool {
        let (ours, theirs) = (&self.proof, proof);
        let same = ours.handshake.suite == theirs.handshake.suite
            && ours.handshake.kex == theirs.handshake.kex;
        let bulk = BulkConnection { connection: connection.clone(), proof: Arc::clone(proof) };
        let attached = same && self.bulk.set(bulk).is_ok();
        if attached {
            self.connection.attach_bulk(connection);
            if self.has_ended() {
                self.close(CloseCode::Shutdown, "the session has ended");
            }
        }
        attached
    }

    /// Supervises the bulk connection until it or the session ends; either one ends the other.
    pub(crate) async fn supervise_bulk(&self) {
        let Some(BulkConnection { connection, proof }) = self.bulk.get() else { return };
        tokio::select! {
            biased;
            fault = watch_keys(connection, proof) => self.end(SessionEnd::Key(fault)),
            _ = self.connection.closed() => {}
            error = connection.closed() => self.end(SessionEnd::Connection(error)),
        }
        self.close(CloseCode::Shutdown, "");
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

    /// Sends a frame about a remote forward to the server. A `Listen` that it may not or cannot serve is
    /// not sent, but answered here: on a session for measurements, for PROXY headers if it is too old, and for
    /// UDP if it does not carry it, when it might end the session over it.
    pub(crate) async fn request(&self, frame: Frame) {
        match frame {
            Frame::Listen { id, .. } if !self.carries().has_listeners() => {
                let refused = Err(ListenCode::NotPermitted);
                self.remote_forwards.answered(id, refused, || self.may_log());
            }
            Frame::Listen { id, headers, .. }
                if headers != ProxyHeaders::default() && !self.features.proxy_headers =>
            {
                let refused = Err(ListenCode::NoProxyHeaders);
                self.remote_forwards.answered(id, refused, || self.may_log());
            }
            Frame::Listen { id, listen: Listen::Udp { .. }, .. }
                if !self.connection.carries_datagrams() =>
            {
                let refused = Err(ListenCode::NoDatagrams);
                self.remote_forwards.answered(id, refused, || self.may_log());
            }
            frame => self.send(frame).await,
        }
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

    /// All claims of the client are answered: ends what this end holds and the client does not.
    pub(crate) fn release_unclaimed(&self) {
        let Some(hold) = &self.hold else { return };
        let reset = hold.streams.release_before(hold.epoch, |name| self.claims.has(name));
        self.held.add_reset(reset);
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
