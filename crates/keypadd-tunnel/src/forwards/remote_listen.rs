//! The server's end of remote forwards: one session's listeners, opened and closed as its client asks.
//!
//! What connects to a listener goes to the client over a stream that names the client's number for
//! it and nothing else; what that number stands for is the client's business. A session has a
//! bounded number of listeners, each checked against the client's permits to listen, and they go
//! with it. What they accept is handed on, to be carried as the session's other streams are.

use std::{collections::HashMap, io, net::IpAddr, sync::Arc, time::Duration};

use tokio::{
    sync::{Notify, OwnedSemaphorePermit, Semaphore, mpsc},
    task::JoinSet,
    time::{Instant, sleep, timeout},
};
use tracing::{debug, info, warn};

use crate::{
    error::BindError,
    forwards::{
        accept::ACCEPT_REST,
        listen::{Bound, Listeners, addresses_of, bind_tcp, bind_unix},
        open_stream::{OpenError, open_stream},
        reservations::{Held, Place, Published},
        splice::splice,
    },
    log_rate_limit::Notices,
    net::{forwarded_socket::Forwarded, lookup::Lookups},
    permits::{listen::ListenPermits, peers::Peers},
    sessions::session::LiveSession,
    spec::forward::Listen,
    wire::{Frame, ListenCode, StreamCode, StreamHeader},
};

/// Remote forwards of one session.
const LISTENS_MAX: usize = 64;

/// Time to resolve a name that is to be bound.
const NAME_TIME: Duration = Duration::from_secs(3);

/// One session's remote forwards.
#[derive(Clone, Debug)]
pub(crate) struct Publisher {
    pub(crate) session: Arc<LiveSession>,
    pub(crate) peers: Arc<Peers>,
    pub(crate) lookups: Lookups,
    pub(crate) published: Published,
    /// Takes what the listeners accept.
    pub(crate) accepted: mpsc::Sender<Accepted>,
    /// Connections at once through all its listeners.
    pub(crate) slots: Arc<Semaphore>,
    pub(crate) notices: Arc<Notices<(u16, Option<StreamCode>)>>,
}

/// A connection that is to be brought to the client.
#[derive(Debug)]
pub(crate) struct Accepted {
    id: u16,
    name: Arc<str>,
    socket: Forwarded,
    notices: Arc<Notices<(u16, Option<StreamCode>)>>,
    _slot: OwnedSemaphorePermit,
}

/// What a listener has bound; the sockets are closed before the addresses are free.
struct Open {
    listeners: Listeners,
    /// What the permits were asked for; none for a unix socket.
    addresses: Vec<IpAddr>,
    held: Held,
}

/// A listener that has ended.
struct Ended {
    id: u16,
    /// What no permit admitted.
    unpermitted: Option<Listen>,
}

impl Publisher {
    /// Does what the client's frames say, until it is dropped; then all listeners go.
    /// `unpermitted` is told of what no permit admits.
    pub(crate) async fn run(
        self,
        mut frames: mpsc::Receiver<Frame>,
        unpermitted: impl Fn(&Listen),
    ) {
        let mut stops: HashMap<u16, Arc<Notify>> = HashMap::new();
        let mut tasks = JoinSet::new();
        loop {
            tokio::select! {
                Some(frame) = frames.recv() => match frame {
                    Frame::Listen { id, .. } if self.session.measures_only() => {
                        self.answer(id, Err(ListenCode::NotPermitted)).await;
                    }
                    Frame::Listen { id, .. }
                        if stops.len() >= LISTENS_MAX || stops.contains_key(&id) =>
                    {
                        self.answer(id, Err(ListenCode::TooMany)).await;
                    }
                    Frame::Listen { id, listen } => {
                        let stop = Arc::new(Notify::new());
                        stops.insert(id, Arc::clone(&stop));
                        let publisher = self.clone();
                        tasks.spawn(async move { publisher.serve(id, listen, &stop).await });
                    }
                    Frame::Unlisten { id } => {
                        if let Some(stop) = stops.get(&id) {
                            stop.notify_one();
                        }
                    }
                    _ => {}
                },
                Some(done) = tasks.join_next(), if !tasks.is_empty() => match done {
                    Ok(Ended { id, unpermitted: refused }) => {
                        stops.remove(&id);
                        if let Some(listen) = refused {
                            unpermitted(&listen);
                        }
                    }
                    Err(error) => debug!(%error, "a listener failed"),
                },
                else => std::future::pending().await,
            }
        }
    }

    /// One listener from its permit to its end.
    async fn serve(&self, id: u16, listen: Listen, stop: &Notify) -> Ended {
        let peer = self.session.peer();
        let served = async {
            let open = self.open(&listen).await?;
            let bound: Vec<_> = open.listeners.bound().iter().map(Bound::to_string).collect();
            info!(peer, listen = bound.join(", "), "remote forward up");
            let name: Arc<str> = format!("-R {}", with_port(&listen, open.listeners.port())).into();
            let _listed = self.session.forward_stands(&name);
            self.answer(id, Ok(open.listeners.port())).await;
            tokio::select! {
                code = self.accept(id, &name, &listen, &open) => Err::<(), _>(code),
                () = open.held.taken() => {
                    info!(peer, %listen, "remote forward goes to another session of this key");
                    Err(ListenCode::InUse)
                }
            }
        };
        let ended = tokio::select! {
            ended = served => ended,
            () = stop.notified() => Ok(()),
        };
        let Err(code) = ended else {
            info!(peer, %listen, "remote forward down");
            return Ended { id, unpermitted: None };
        };
        debug!(peer, %listen, %code, "no remote forward");
        self.answer(id, Err(code)).await;
        Ended { id, unpermitted: (code == ListenCode::NotPermitted).then_some(listen) }
    }

    async fn answer(&self, id: u16, outcome: Result<u16, ListenCode>) {
        self.session.say(Frame::Listening { id, outcome }).await;
    }

    /// Binds what was asked for, as far as it is permitted.
    async fn open(&self, listen: &Listen) -> Result<Open, ListenCode> {
        let peer = self.peers.find(&self.session.key()).ok_or(ListenCode::NotPermitted)?;
        let permits = &peer.listen_permits;
        let (bind, port) = match listen {
            Listen::Tcp { bind, port } => (bind, *port),
            Listen::Unix(path) => {
                if !permits.admits_socket(path) {
                    return Err(ListenCode::NotPermitted);
                }
                let places = vec![Place::Unix(path.clone())];
                let held = self.published.hold(&self.session, places).await?;
                let listeners = bind_unix(path).map_err(|error| code_of(&error))?;
                return Ok(Open { listeners, addresses: Vec::new(), held });
            }
        };
        // What no permit can admit is not worth a question to DNS.
        if !permits.may_admit_port(port) {
            return Err(ListenCode::NotPermitted);
        }
        let found = timeout(NAME_TIME, addresses_of(bind, port, &self.lookups)).await;
        let mut addresses = found.ok().and_then(Result::ok).ok_or(ListenCode::NoAddress)?;
        addresses.retain(|&address| permits.admits(bind, address, port));
        if addresses.is_empty() {
            return Err(ListenCode::NotPermitted);
        }
        let bind = || bind_tcp(&addresses, port).map_err(|error| code_of(&error));
        if port != 0 {
            let places = addresses.iter().map(|&ip| Place::Tcp((ip, port).into())).collect();
            let held = self.published.hold(&self.session, places).await?;
            return Ok(Open { listeners: bind()?, addresses, held });
        }
        // Any free port: nobody holds it, and which it is shows when it is bound.
        let listeners = bind()?;
        let places = listeners.bound().into_iter().filter_map(|bound| match bound {
            Bound::Tcp(address) => Some(Place::Tcp(address)),
            Bound::Unix(_) => None,
        });
        let held = self.published.hold(&self.session, places.collect()).await?;
        Ok(Open { listeners, addresses, held })
    }

    /// Accepts until the permits have changed so that it may not.
    async fn accept(&self, id: u16, name: &Arc<str>, listen: &Listen, open: &Open) -> ListenCode {
        loop {
            let socket = match open.listeners.accept().await {
                Ok((socket, _)) => socket,
                Err(error) if error.kind() == io::ErrorKind::ConnectionAborted => continue,
                Err(error) => {
                    if may_log(&self.notices, id, None) {
                        warn!(peer = self.session.peer(), forward = %name, %error, "cannot accept");
                    }
                    sleep(ACCEPT_REST).await;
                    continue;
                }
            };
            let peer = self.peers.find(&self.session.key());
            if !peer.is_some_and(|peer| admits(&peer.listen_permits, listen, &open.addresses)) {
                return ListenCode::NotPermitted;
            }
            let slot = tokio::select! {
                slot = Arc::clone(&self.slots).acquire_owned() => slot,
                error = socket.failed() => {
                    debug!(forward = %name, %error, "gone before there was a slot");
                    continue;
                }
            };
            let Ok(slot) = slot else { continue };
            let (name, notices) = (Arc::clone(name), Arc::clone(&self.notices));
            // Nobody takes it where the session has just ended: dropped, it is reset.
            let _ = self.accepted.send(Accepted { id, name, socket, notices, _slot: slot }).await;
        }
    }
}

impl Accepted {
    /// Brings it to the client and carries it to its end.
    pub(crate) async fn carry(self, session: Arc<LiveSession>) {
        let Self { id, name, socket, notices, _slot } = self;
        let (name, peer) = (&*name, session.peer());
        let _open = session.forward_opened(name);
        let header = StreamHeader::Remote(id);
        let opened = tokio::select! {
            opened = open_stream(&session, &header) => opened,
            error = socket.failed() => {
                debug!(peer, forward = name, %error, "gone before the client answered");
                return;
            }
        };
        match opened {
            Ok(stream) => {
                if let Err(cut) = splice(socket, stream).await {
                    debug!(peer, forward = name, %cut, "forward cut");
                }
            }
            Err(OpenError::Refused(code)) => {
                if may_log(&notices, id, Some(code)) {
                    warn!(peer, forward = name, %code, "the client did not connect");
                }
            }
            Err(OpenError::Lost) => debug!(peer, forward = name, "the session has ended"),
        }
    }
}

fn may_log(
    notices: &Notices<(u16, Option<StreamCode>)>,
    id: u16,
    code: Option<StreamCode>,
) -> bool {
    notices.admit((id, code), Instant::now().into_std())
}

/// What was asked for, with the port that has been bound.
fn with_port(listen: &Listen, port: u16) -> Listen {
    match listen {
        Listen::Tcp { bind, .. } => Listen::Tcp { bind: bind.clone(), port },
        Listen::Unix(path) => Listen::Unix(path.clone()),
    }
}

/// Whether what is bound may still be.
fn admits(permits: &ListenPermits, listen: &Listen, addresses: &[IpAddr]) -> bool {
    match listen {
        Listen::Unix(path) => permits.admits_socket(path),
        Listen::Tcp { bind, port } => {
            addresses.iter().all(|&address| permits.admits(bind, address, *port))
        }
    }
}

/// What the client is told of a bind that failed.
fn code_of(error: &BindError) -> ListenCode {
    match error.source.kind() {
        io::ErrorKind::AddrInUse | io::ErrorKind::AlreadyExists => ListenCode::InUse,
        io::ErrorKind::PermissionDenied => ListenCode::Denied,
        io::ErrorKind::AddrNotAvailable | io::ErrorKind::NotFound => ListenCode::NoAddress,
        _ => ListenCode::Failed,
    }
}
