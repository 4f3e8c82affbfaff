//! Listens on the server for the remote forwards (`-R`) of one session.
//!
//! Opens and closes listeners as the client requests, within its listen permits and a maximum
//! number, and closes them with the session. An accepted connection goes to the client over a
//! stream that carries only the client's number for the forward; the client decides what to connect
//! to.

use std::{
    collections::HashMap, io, net::IpAddr, os::unix::net::UnixListener, sync::Arc, time::Duration,
};

use keypadd_share::Rates;
use tokio::{
    sync::{Notify, mpsc},
    task::JoinSet,
    time::{Instant, sleep, timeout},
};
use tracing::{debug, info, warn};

use crate::{
    addresses::{
        forward::{Listen, ProxyHeaders},
        target::Protocol,
    },
    error::BindError,
    forwards::{
        accept::{ACCEPT_RETRY, NO_PROXY_HEADER},
        connection_log::ConnectionRecord,
        flows::{FlowForward, carry},
        incomplete::{Incomplete, Unread},
        listen::{addresses_of, bind_tcp, bind_udp, bind_unix},
        listener_group::Bound,
        open_listener::{AcceptedSocket, OpenListener},
        open_stream::{OpenError, open_stream},
        reservations::{Reservation, Reservations},
        spare_sockets::SpareSockets,
        splice::splice_with_preface,
        splice_error::SpliceError,
    },
    handover::{Handover, RemoteBound, RemoteRecord, SocketFile},
    limits::{
        descriptors::{Descriptors, OF_CONNECTION, OF_UDP_SOCKET, OF_WAITING},
        places::Place,
    },
    net::lookup::Lookups,
    permits::{listen::ListenPermits, peers::Peers},
    sessions::session::LiveSession,
    wire::{Frame, Instance, ListenCode, StreamCode, StreamHeader},
};

/// Remote forwards per session.
pub(crate) const LISTENERS_MAX: usize = 64;

/// Addresses that one remote forward may bind: each is compared with all that are reserved.
const ADDRESSES_MAX: usize = 8;

/// Timeout for resolving a name to bind.
const NAME_TIMEOUT: Duration = Duration::from_secs(3);

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
    _descriptors: Descriptors,
}

/// What this session listens on. Fields drop in order: the sockets are closed before the reservation is
/// released.
struct OwnListener {
    open: Arc<OpenListener>,
    reservation: Reservation,
}

/// A listener that has closed.
struct ClosedListener {
    id: u16,
    /// The listen address, if no permit admits it.
    unpermitted: Option<Listen>,
}

impl RemoteListeners {
    /// Handles the client's frames until it is dropped; then all listeners close. Calls
    /// `unpermitted` with each listen address that no permit admits, and `claims` with the number of
    /// streams that the client resumes.
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
                    _ => {}
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
            tokio::select! {
                code = self.accept_all((id, &name), (&listen, headers), open) => Err::<(), _>(code),
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

    /// Takes over the sockets of the session that this one goes on with, if they are still permitted.
    fn take_over(&self, id: u16, listen: &Listen) -> Result<Option<OwnListener>, ListenCode> {
        let Some((open, reservation)) = self.reservations.take_over(&self.session, id, listen)
        else {
            return Ok(None);
        };
        let (own, peer) = (OwnListener { open, reservation }, self.peers.find(&self.session.key()));
        match peer.is_some_and(|peer| admits(&peer.listen_permits, listen, &own.open.addresses)) {
            true => Ok(Some(own)),
            false => Err(ListenCode::NotPermitted),
        }
    }

    /// Reserves and binds the permitted addresses of a listen address.
    async fn open(&self, id: u16, listen: &Listen) -> Result<OwnListener, ListenCode> {
        let opened = |listeners, addresses, descriptors, reservation: Reservation| {
            let open = OpenListener::new(listeners, addresses, descriptors);
            reservation.bound(id, listen, &open);
            if self.session.may_log() {
                let bound: Vec<_> = open.bound.iter().map(Bound::to_string).collect();
                let peer = self.session.peer();
                info!(peer, listen = bound.join(", "), "remote forward opened");
            }
            OwnListener { open, reservation }
        };
        let peer = self.peers.find(&self.session.key()).ok_or(ListenCode::NotPermitted)?;
        let permits = &peer.listen_permits;
        let descriptors = async |sockets| {
            let count = descriptors_of(listen, sockets);
            self.session.descriptors(count).await.ok_or(ListenCode::OpenFiles)
        };
        let inherited = |bound| {
            let (key, Instance(instance)) =
                (self.session.identity().to_string(), self.session.instance());
            self.handover.take_remote(&RemoteRecord { key, instance, number: id, bound })
        };
        let (protocol, bind, port) = match listen {
            Listen::Tcp { bind, port } => (Protocol::Tcp, bind, *port),
            Listen::Udp { .. } if !self.session.connection.carries_datagrams() => {
                return Err(ListenCode::NoDatagrams);
            }
            Listen::Udp { bind, port } => (Protocol::Udp, bind, *port),
            Listen::Unix(path) => {
                if !permits.admits_socket(path) {
                    return Err(ListenCode::NotPermitted);
                }
                let descriptors = descriptors(1).await?;
                let places = vec![Bound::Unix(path.clone())];
                let reservation = self.reservations.reserve(&self.session, places).await?;
                let file = SocketFile::at(path).ok();
                let inherited = file.and_then(|file| inherited(RemoteBound::Unix(file)));
                let bound = bind_unix(path, &self.handover, inherited.map(UnixListener::from));
                let listeners = bound.map_err(|error| code_of(&error))?;
                return Ok(opened(listeners, Vec::new(), descriptors, reservation));
            }
        };
        // Without a lookup, if no permit covers the port.
        if !permits.may_admit_port(protocol, port) {
            return Err(ListenCode::NotPermitted);
        }
        let found = timeout(NAME_TIMEOUT, addresses_of(bind, port, &self.lookups)).await;
        let found = found.ok().and_then(Result::ok).ok_or(ListenCode::NoAddress)?;
        let admits = |address| permits.admits(protocol, bind, address, port);
        let addresses = permitted(found, admits)?;
        let descriptors = descriptors(addresses.len()).await?;
        let inherited =
            |address| inherited(RemoteBound::Tcp(address)).map(std::net::TcpListener::from);
        let bind = async || {
            let mut none = SpareSockets::default();
            let bound = match protocol {
                Protocol::Tcp => bind_tcp(&addresses, port, &inherited, &mut none),
                Protocol::Udp => bind_udp(&addresses, port, &|_| None, &mut none).await,
            };
            bound.map_err(|error| code_of(&error))
        };
        let place = |address| match protocol {
            Protocol::Tcp => Bound::Tcp(address),
            Protocol::Udp => Bound::Udp(address),
        };
        if port != 0 {
            let places = addresses.iter().map(|&ip| place((ip, port).into())).collect();
            let reservation = self.reservations.reserve(&self.session, places).await?;
            let listeners = bind().await?;
            return Ok(opened(listeners, addresses, descriptors, reservation));
        }
        // Any free port: it is known once bound, and nobody can have reserved it.
        let listeners = bind().await?;
        let reservation = self.reservations.reserve(&self.session, listeners.bound()).await?;
        Ok(opened(listeners, addresses, descriptors, reservation))
    }

    /// Carries what comes to the sockets until a permit change forbids it; returns the code for the client.
    async fn accept_all(
        &self,
        (id, name): (u16, &Arc<str>),
        (listen, headers): (&Listen, ProxyHeaders),
        open: &OpenListener,
    ) -> ListenCode {
        match listen {
            Listen::Udp { .. } => self.carry_flows(id, name, listen, open).await,
            Listen::Tcp { .. } | Listen::Unix(_) => {
                self.accept((id, name), (listen, headers), open).await
            }
        }
    }

    /// Carries the flows of UDP sockets.
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
        let is_permitted = || {
            let peer = self.peers.find(&self.session.key());
            peer.is_some_and(|peer| admits(&peer.listen_permits, listen, &open.addresses))
        };
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
            let peer = self.peers.find(&self.session.key());
            if !peer.is_some_and(|peer| admits(&peer.listen_permits, listen, &open.addresses)) {
                return ListenCode::NotPermitted;
            }
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
        let Self { id, name, mut socket, headers, unread, log_limit, mut place, _descriptors } =
            self;
        let (name, peer) = (&*name, session.peer());
        let _count = session.count_connection(name);
        let mut record = ConnectionRecord::new(&session.limits);
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

/// Those of a listen address that are permitted, if they are not too many.
fn permitted(
    mut addresses: Vec<IpAddr>,
    admits: impl Fn(IpAddr) -> bool,
) -> Result<Vec<IpAddr>, ListenCode> {
    addresses.retain(|&address| admits(address));
    match addresses.len() {
        0 => Err(ListenCode::NotPermitted),
        1..=ADDRESSES_MAX => Ok(addresses),
        _ => Err(ListenCode::Failed),
    }
}

/// Descriptors of a remote forward with so many sockets.
fn descriptors_of(listen: &Listen, sockets: usize) -> usize {
    match listen {
        Listen::Udp { .. } => sockets * OF_UDP_SOCKET,
        Listen::Tcp { .. } | Listen::Unix(_) => sockets + OF_WAITING,
    }
}

/// The listen address with the bound port.
fn with_port(listen: &Listen, port: u16) -> Listen {
    match listen {
        Listen::Tcp { bind, .. } => Listen::Tcp { bind: bind.clone(), port },
        Listen::Udp { bind, .. } => Listen::Udp { bind: bind.clone(), port },
        Listen::Unix(path) => Listen::Unix(path.clone()),
    }
}

/// Whether the bound addresses are still permitted.
fn admits(permits: &ListenPermits, listen: &Listen, addresses: &[IpAddr]) -> bool {
    let all = |protocol, bind, port| {
        addresses.iter().all(|&address| permits.admits(protocol, bind, address, port))
    };
    match listen {
        Listen::Unix(path) => permits.admits_socket(path),
        Listen::Tcp { bind, port } => all(Protocol::Tcp, bind, *port),
        Listen::Udp { bind, port } => all(Protocol::Udp, bind, *port),
    }
}

/// The code that tells the client why bind failed.
fn code_of(error: &BindError) -> ListenCode {
    match error.source.kind() {
        io::ErrorKind::AddrInUse | io::ErrorKind::AlreadyExists => ListenCode::InUse,
        io::ErrorKind::PermissionDenied => ListenCode::Denied,
        io::ErrorKind::AddrNotAvailable | io::ErrorKind::NotFound => ListenCode::NoAddress,
        _ => ListenCode::Failed,
    }
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use super::*;
    use crate::addresses::forward::Bind;

    #[test]
    fn a_remote_forward_binds_the_permitted_addresses_of_a_name_but_not_very_many() {
        let addresses: Vec<IpAddr> = (1..20_u32).map(|nth| Ipv4Addr::from(nth).into()).collect();
        let first = |count: usize| {
            let admitted = &addresses[..count];
            permitted(addresses.clone(), |address| admitted.contains(&address))
        };
        assert_eq!(first(0), Err(ListenCode::NotPermitted));
        assert_eq!(first(ADDRESSES_MAX).as_deref(), Ok(&addresses[..ADDRESSES_MAX]));
        assert_eq!(first(ADDRESSES_MAX + 1), Err(ListenCode::Failed));
    }

    #[test]
    fn each_address_of_a_remote_forward_costs_its_sockets_descriptors() {
        let costs = |listen: Listen| [1, 2, 64].map(|sockets| descriptors_of(&listen, sockets));
        let (bind, port) = (Bind::Host("many.example".parse().unwrap()), 80);
        assert_eq!(costs(Listen::Tcp { bind: bind.clone(), port }), [2, 3, 65]);
        assert_eq!(costs(Listen::Udp { bind, port }), [2, 4, 128]);
    }
}
