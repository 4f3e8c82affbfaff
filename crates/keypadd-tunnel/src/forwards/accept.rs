//! Accepts connections of a client's forwards and forwards each over its own stream.
//!
//! A connection accepted without a session waits for the next one, and is reset after a timeout. A
//! dynamic forward first reads the SOCKS request (`proxy`). UDP has flows instead
//! (`accept/flows.rs`).

use std::{
    io,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use keypadd_share::Rates;
use tokio::time::{Instant, sleep};
use tracing::{debug, warn};

use self::connection::serve;
use crate::{
    addresses::{
        forward::{Forward, Listen, ProxyHeaders},
        servers::ServerAddresses,
        target::Protocol,
    },
    forwards::{
        carrier::Carrier, incomplete::Incomplete, listener_group::ListenerGroup,
        tasks::ConnectionTasks,
    },
    handover::Handover,
    limits::{
        SharedLimits,
        descriptors::{Holder, OF_CONNECTION, SetApart},
        places::{ForwardPlaces, Places},
    },
    sessions::{server_link::ServerLink, session::LiveSession},
    wire::{StreamCode, StreamHeader},
};

mod connection;
mod flows;

/// Pause after a failed accept, most likely for lack of file descriptors.
pub(crate) const ACCEPT_RETRY: Duration = Duration::from_millis(100);

/// The log line of a connection without the header that `accept-proxy` demands.
pub(crate) const NO_PROXY_HEADER: &str =
    "closed a connection that does not begin with a PROXY header; accept-proxy requires one";

/// What the accept loops of a client share.
#[derive(Clone, Debug)]
pub(crate) struct Acceptor {
    context: Context,
    /// A connection takes a place after it is accepted, so an idle listener holds none. When none
    /// is free, one connection of each forward waits here, and the others in the listener's queue.
    places: Arc<Places>,
    /// Places of connections of other processes.
    carried: Arc<ForwardPlaces>,
    holder: Holder,
    tasks: ConnectionTasks,
    handover: Handover,
}

/// What a connection's task needs. It must not hold the set of tasks: the set would keep itself
/// alive.
#[derive(Clone, Debug)]
struct Context {
    link: ServerLink,
    headers: SharedHeaders,
    limits: Arc<SharedLimits>,
    /// Connections of all listeners without a complete request: they share the places.
    incomplete: Incomplete,
    log_limit: Arc<Rates<(String, Line)>>,
}

/// What a log line of a forward is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Line {
    AcceptFailed,
    NoSlot,
    Refused(StreamCode),
    OtherProtocol(&'static str),
    NoProxyHeader,
    NoDatagrams,
}

/// Which connections begin with a PROXY header, as set last; clones share it.
#[derive(Clone, Debug, Default)]
pub(crate) struct SharedHeaders(Arc<Mutex<ProxyHeaders>>);

impl SharedHeaders {
    pub(crate) fn get(&self) -> ProxyHeaders {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn set(&self, headers: ProxyHeaders) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = headers;
    }
}

impl Acceptor {
    pub(crate) fn new(
        (link, headers): (ServerLink, SharedHeaders),
        forwards_max: usize,
        limits: Arc<SharedLimits>,
        tasks: ConnectionTasks,
        handover: Handover,
    ) -> Self {
        let (incomplete, log_limit) = <_>::default();
        let context = Context { link, headers, limits, incomplete, log_limit };
        let places = Places::new(forwards_max);
        let carried = places.of_forward();
        Self { context, places, carried, holder: Holder::client(), tasks, handover }
    }

    /// Takes descriptors of listeners out of what forwards may use.
    pub(crate) fn set_apart(&self, count: usize) -> SetApart {
        self.context.limits.descriptors.set_apart(count)
    }

    /// Carries connections of other processes within the same limits.
    pub(crate) fn carrier(&self, server: ServerAddresses) -> Carrier {
        let Context { link, limits, .. } = &self.context;
        Carrier {
            server,
            link: link.clone(),
            limits: Arc::clone(limits),
            places: Arc::clone(&self.carried),
            holder: self.holder,
            tasks: self.tasks.clone(),
            handover: self.handover.clone(),
        }
    }

    /// The places of its connections.
    pub(crate) fn places(&self) -> Arc<Places> {
        Arc::clone(&self.places)
    }

    /// Who holds the descriptors of its connections.
    pub(crate) fn holder(&self) -> Holder {
        self.holder
    }

    /// Accepts connections until it is dropped. Their tasks go on after that.
    pub(crate) async fn run(self, listeners: Arc<ListenerGroup>, forward: Arc<Forward>) {
        let Self { context, places, carried: _, holder, tasks, handover } = self;
        let name = forward.to_string();
        let own_places = places.of_forward();
        loop {
            handover.resumed().await;
            let accepted = tokio::select! {
                biased;
                () = handover.suspended() => continue,
                accepted = listeners.accept() => accepted,
            };
            match accepted {
                Ok((socket, origin)) => {
                    if !own_places.is_free() && context.may_log(&name, Line::NoSlot) {
                        let max = places.limit();
                        warn!(forward = %name, max, "too many connections: new ones wait \
                            (max-forwards)");
                    }
                    let session = context.link.current();
                    let peer = session.as_ref().map(|session| session.peer());
                    let open = &context.limits.open_connections;
                    let listed = open.add_waiting(peer, &name, origin.source());
                    let displace = |idle| {
                        if let Some(session) = context.link.current() {
                            session.connection.displace_flow(idle);
                        }
                    };
                    let room = async {
                        let place = own_places.take(&displace).await;
                        let budget = &context.limits.descriptors;
                        (place, budget.acquire_when_free(holder, &name, OF_CONNECTION).await)
                    };
                    let (place, descriptors) = tokio::select! {
                        room = context.incomplete.make_room(room) => room,
                        error = socket.failed() => {
                            let from = origin.source();
                            debug!(forward = %name, ?from, %error, "closed while waiting for a \
                                slot");
                            continue;
                        }
                    };
                    let headers = match &*forward {
                        Forward::Local(_) => context.headers.get(),
                        _ => ProxyHeaders::default(),
                    };
                    let reads = headers.accept || matches!(&*forward, Forward::Dynamic(_));
                    let begin = (headers, reads.then(|| context.incomplete.add()));
                    let accepted = (socket, origin);
                    let placed = (Arc::clone(&forward), place, listed);
                    let task = serve(context.clone(), accepted, placed, begin);
                    tasks.spawn(async move {
                        let _descriptors = descriptors;
                        task.await;
                    });
                }
                Err(error) if error.kind() == io::ErrorKind::ConnectionAborted => {}
                Err(error) => {
                    if context.may_log(&name, Line::AcceptFailed) {
                        warn!(forward = %name, %error, "accept failed");
                    }
                    sleep(ACCEPT_RETRY).await;
                }
            }
        }
    }
}

impl Context {
    /// Whether to log a line about a forward now.
    fn may_log(&self, forward: &str, line: Line) -> bool {
        self.log_limit.allow((forward.into(), line), Instant::now().into_std())
    }

    /// Whether to log a line about a forward that the server of this session causes.
    fn server_may_log(&self, session: &LiveSession, forward: &str, line: Line) -> bool {
        let line = match line {
            // The server chooses unknown codes: they count as one.
            Line::Refused(StreamCode::Unknown(_)) => Line::Refused(StreamCode::Unknown(0)),
            line => line,
        };
        let now = Instant::now().into_std();
        self.log_limit.allow_if((forward.into(), line), now, || session.may_log())
    }
}

/// What the streams of a forward ask the server for, with its name in the log; `None` if each
/// connection says so itself, or the server listens.
fn leads_to(forward: &Forward) -> Option<(StreamHeader, String)> {
    match forward {
        Forward::Local(local) => {
            let name = local.destination.to_string();
            Some((StreamHeader::Destination(local.destination.clone()), name))
        }
        Forward::Bench(forward) => {
            let protocol = match forward.listen {
                Listen::Udp { .. } => Protocol::Udp,
                Listen::Tcp { .. } | Listen::Unix(_) => Protocol::Tcp,
            };
            Some((StreamHeader::Bench(protocol), "its bench service".into()))
        }
        Forward::Dynamic(_) | Forward::Remote(_) => None,
    }
}
