//! Listens on the server for the remote forwards (`-R`) of one session; to do so it receives all
//! control frames of its client after the hello.
//!
//! Opens and closes listeners as the client requests, within its listen permits and a maximum
//! number, and closes them with the session. An accepted connection goes to the client over a
//! stream that carries only the client's number for the forward; the client decides what to connect
//! to.

use std::{collections::HashMap, io, sync::Arc};

use keypadd_share::Rates;
use tokio::{
    sync::{Notify, mpsc},
    task::JoinSet,
    time::{Instant, sleep},
};
use tracing::{debug, info, warn};

use self::open::OwnListener;
use crate::{
    addresses::forward::{Listen, ProxyHeaders},
    forwards::{
        accept::{ACCEPT_RETRY, NO_PROXY_HEADER},
        connection_log::ConnectionRecord,
        flows::{FlowForward, carry},
        incomplete::{Incomplete, Unread},
        open_listener::{AcceptedSocket, OpenListener},
        open_stream::{OpenError, open_stream},
        reservations::Reservations,
        splice::splice_with_preface,
        splice_error::SpliceError,
    },
    handover::Handover,
    limits::{
        descriptors::{Descriptors, OF_CONNECTION},
        open_connections::ListedConnection,
        places::Place,
    },
    net::lookup::Lookups,
    permits::peers::Peers,
    sessions::session::LiveSession,
    wire::{Frame, ListenCode, StreamCode, StreamHeader},
};

mod open;

/// Remote forwards per session.
pub(crate) const LISTENERS_MAX: usize = 64;

/// The remote forwards of one session.
#[derive(Clone, Debug)]
pub(crate) struct RemoteListeners {
    pub(crate) session: Arc<LiveSession>,
    pub(crate) peers: Arc<Peers>,
    pub(crate) lookups: Lookups,
    pub(crate) reservations: Reservations,
    /// Receives the accepted connections. Boxed, as there is memory for 32 of them.
    pub(crate) accepted: mpsc::Sender<Box<RemoteConnection>>,
    pub(crate) incomplete: Incomplete,
    pub(crate) log_limit: Arc<RemoteLogLimit>,
    pub(crate) handover: Handover,
}

/// Limits log lines by forward number and code.
pub(crate) type RemoteLogLimit = Rates<(u16, Option<StreamCode>)>;

/// An accepted connection to forward to the client.
#[derive(Debug)]
pub(crate) struct RemoteConnection {
    id: u16,
    name: Arc<str>,
    socket: AcceptedSocket,
    headers: ProxyHeaders,
    /// If it begins with a PROXY header.
    unread: Option<Unread>,
    log_limit: Arc<RemoteLogLimit>,
    place: Place,
    listed: ListedConnection,
    _descriptors: Descriptors,
}

/// A listener that has closed.
struct ClosedListener {
    id: u16,
    /// The listen address, if no permit admits it.
    unpermitted: Option<Listen>,
}

impl RemoteListeners {
    /// Handles the client's frames until it is dropped; then all listeners close. Calls
    /// `unpermitted` with each listen address that no permit admits, and `claims` with the number
    /// of streams that the client resumes.
    pub(crate) async fn run(
        self,
        mut frames: mpsc::Receiver<Box<Frame>>,
        unpermitted: impl Fn(&Listen),
        claims: impl Fn(u32),
    ) {
        let mut stops: HashMap<u16, Arc<Notify>> = HashMap::new();
        let mut tasks = JoinSet::new();
        loop {
            tokio::select! {
                Some(frame) = frames.recv() => match *frame {
                    Frame::Listen { id, .. } if !self.session.carries().has_listeners() => {
                        self.answer(id, Err(ListenCode::NotPermitted)).await;
                    }
                    Frame::Listen { id, .. }
                        if stops.len() >= LISTENERS_MAX || stops.contains_key(&id) =>
                    {
                        self.answer(id, Err(ListenCode::TooMany)).await;
                    }
                    Frame::Listen { id, listen, headers } => {
                        let stop = Arc::new(Notify::new());
                        stops.insert(id, Arc::clone(&stop));
                        let this = self.clone();
                        tasks.spawn(async move { this.serve(id, listen, headers, &stop).await });
                    }
                    Frame::Unlisten { id } => {
                        if let Some(stop) = stops.get(&id) {
                            stop.notify_one();
                        }
                    }
                    Frame::Claims { count } => claims(count),
                    Frame::MaxForwards { count } => self.session.places.set_peer_limit(count),
                    // QUIC answers a ping; the others begin a connection, or come from servers.
                    Frame::Ping
                    | Frame::HelloClient { .. }
                    | Frame::HelloBulk { .. }
                    | Frame::HelloServer { .. }
                    | Frame::Listening { .. }
                    | Frame::BulkOffer
                    | Frame::BulkWanted
                    | Frame::Renew
                    | Frame::Leave { .. } => {}
                },
                Some(done) = tasks.join_next(), if !tasks.is_empty() => match done {
                    Ok(ClosedListener { id, unpermitted: refused }) => {
                        stops.remove(&id);
                        if let Some(listen) = refused {
                            unpermitted(&listen);
                        }
                    }
                    Err(error) => debug!(%error, "remote forward task failed"),
                },
                else => std::future::pending().await,
            }
        }
    }

    /// Serves one remote forward to its end.
    async fn serve(
        &self,
        id: u16,
        listen: Listen,
        headers: ProxyHeaders,
        stop: &Notify,
    ) -> ClosedListener {
        let peer = self.session.peer();
        let served = async {
            let OwnListener { open, reservation } = &match self.take_over(id, &listen)? {
                Some(taken) => taken,
                None => self.open(id, &listen).await?,
            };
            let name: Arc<str> = format!("-R {}", with_port(&listen, open.port)).into();
            let _pinned = self.session.pin_forward(&name);
            self.answer(id, Ok(open.port)).await;
            let accepting = async {
                match &listen {
                    Listen::Udp { .. } => self.carry_flows(id, &name, &listen, open).await,
                    Listen::Tcp { .. } | Listen::Unix(_) => {
                        self.accept((id, &name), (&listen, headers), open).await
                    }
                }
            };
            tokio::select! {
                code = accepting => Err::<(), _>(code),
                () = reservation.revoked() => {
                    if !self.session.is_resumed() && self.session.may_log() {
                        info!(peer, %listen, "remote forward taken over by a newer session");
                    }
                    Err(ListenCode::InUse)
                }
            }
        };
        let outcome = tokio::select! {
            outcome = served => outcome,
            () = stop.notified() => Ok(()),
        };
        let Err(code) = outcome else {
            if self.session.may_log() {
                info!(peer, %listen, "remote forward closed");
            }
            return ClosedListener { id, unpermitted: None };
        };
        debug!(peer, %listen, %code, "remote forward failed");
        self.answer(id, Err(code)).await;
        ClosedListener { id, unpermitted: (code == ListenCode::NotPermitted).then_some(listen) }
    }

    async fn answer(&self, id: u16, outcome: Result<u16, ListenCode>) {
        self.session.send(Frame::Listening { id, outcome }).await;
    }

    /// Carries the flows of UDP sockets until a permit change forbids it; returns the code for the
    /// client.
    async fn carry_flows(
        &self,
        id: u16,
        name: &Arc<str>,
        listen: &Listen,
        open: &OpenListener,
    ) -> ListenCode {
        let Ok(sockets) = open.udp_sockets() else { return ListenCode::Failed };
        let (session, log_limit) = (Arc::clone(&self.session), Arc::clone(&self.log_limit));
        let forward = FlowForward {
            session: Arc::clone(&self.session),
            name: Arc::clone(name),
            header: StreamHeader::Remote(id),
            target: None,
            may_log: Arc::new(move |code| may_log(&log_limit, id, Some(code)) && session.may_log()),
        };
        let is_permitted = || self.permits(listen, open);
        carry(&forward, sockets, is_permitted).await;
        if is_permitted() { ListenCode::Failed } else { ListenCode::NotPermitted }
    }

    /// Accepts connections until a permit change forbids it; returns the code for the client.
    async fn accept(
        &self,
        (id, name): (u16, &Arc<str>),
        (listen, headers): (&Listen, ProxyHeaders),
        open: &OpenListener,
    ) -> ListenCode {
        let places = self.session.places.of_forward();
        loop {
            self.handover.resumed().await;
            let accepted = tokio::select! {
                biased;
                () = self.handover.suspended() => continue,
                accepted = open.accept(&self.session) => accepted,
            };
            let socket = match accepted {
                Ok(accepted) => accepted,
                Err(error) if error.kind() == io::ErrorKind::ConnectionAborted => continue,
                Err(error) => {
                    if may_log(&self.log_limit, id, None) && self.session.may_log() {
                        warn!(peer = self.session.peer(), forward = %name, %error, "accept failed");
                    }
                    sleep(ACCEPT_RETRY).await;
                    continue;
                }
            };
            if !self.permits(listen, open) {
                return ListenCode::NotPermitted;
            }
            let (open, peer) = (&self.session.limits.open_connections, self.session.peer());
            let listed = open.add_waiting(Some(peer), name, socket.source());
            let room = async {
                let displace = |idle| self.session.connection.displace_flow(idle);
                let place = places.take(&displace).await;
                (place, self.session.descriptors_when_free(OF_CONNECTION).await)
            };
            let (place, descriptors) = tokio::select! {
                room = self.incomplete.make_room(room) => room,
                error = socket.failed() => {
                    debug!(forward = %name, %error, "closed while waiting for a slot");
                    continue;
                }
            };
            let connection = RemoteConnection {
                id,
                name: Arc::clone(name),
                socket,
                headers,
                unread: headers.accept.then(|| self.incomplete.add()),
                log_limit: Arc::clone(&self.log_limit),
                place,
                listed,
                _descriptors: descriptors,
            };
            // Fails if the session has just ended: then it is dropped.
            let _ = self.accepted.send(connection.into()).await;
        }
    }
}

impl RemoteConnection {
    /// Forwards the connection to the client, to its end.
    pub(crate) async fn forward(self, session: Arc<LiveSession>) {
        let Self { id, name, mut socket, headers, unread, log_limit, .. } = self;
        let (mut place, _descriptors) = (self.place, self._descriptors);
        let (name, peer) = (&*name, session.peer());
        let _count = session.count_connection(name);
        let mut record = ConnectionRecord::of(&session.limits, self.listed);
        record.set_peer(peer);
        if let Some(unread) = unread
            && let Err(error) = socket.read_header(unread).await
        {
            let from = socket.source();
            record.set_forward(name, from);
            record.no_proxy_header();
            debug!(peer, forward = name, ?from, %error, "no PROXY header");
            if may_log(&log_limit, id, Some(StreamCode::BadHeader)) && session.may_log() {
                warn!(peer, forward = name, "{NO_PROXY_HEADER}");
            }
            drop(socket.into_accepted());
            return;
        }
        record.set_forward(name, socket.source());
        let header = StreamHeader::Remote(id);
        let opened = tokio::select! {
            opened = open_stream(&session, &header) => opened,
            error = socket.failed() => {
                debug!(peer, forward = name, %error, "closed before the client answered");
                record.gave_up();
                drop(socket.into_accepted());
                return;
            }
        };
        match opened {
            Ok(stream) => {
                place.connected();
                let Some((socket, origin)) = socket.into_accepted() else { return };
                let preface = if headers.send { origin.header(&socket) } else { Vec::new() };
                let spliced = splice_with_preface(preface, socket, stream, &mut record);
                if let Err(error) = spliced.await {
                    debug!(peer, forward = name, %error, "connection failed");
                }
            }
            Err(OpenError::Refused(code)) => {
                record.refused(code);
                drop(socket.into_accepted());
                if may_log(&log_limit, id, Some(code)) && session.may_log() {
                    warn!(peer, forward = name, %code, "the client could not connect");
                }
            }
            // The next session forwards it, where there is one.
            Err(OpenError::Lost) => {
                record.ended(&Err(SpliceError::Lost));
                debug!(peer, forward = name, "the session has ended");
            }
        }
    }
}

fn may_log(log_limit: &RemoteLogLimit, id: u16, code: Option<StreamCode>) -> bool {
    log_limit.allow((id, code), Instant::now().into_std())
}

/// The listen address with the bound port.
fn with_port(listen: &Listen, port: u16) -> Listen {
    match listen {
        Listen::Tcp { bind, .. } => Listen::Tcp { bind: bind.clone(), port },
        Listen::Udp { bind, .. } => Listen::Udp { bind: bind.clone(), port },
        Listen::Unix(path) => Listen::Unix(path.clone()),
    }
}
