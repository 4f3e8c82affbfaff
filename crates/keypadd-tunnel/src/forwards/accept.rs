//! Accepts connections of a client's forwards and forwards each over its own stream.
//!
//! A connection accepted without a session waits for the next one, and is reset after a timeout. A
//! dynamic forward first reads the SOCKS request (`proxy`). UDP has flows instead (`accept/flows.rs`).

use std::{
    io,
    net::SocketAddr,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use keypadd_share::Rates;
use keypadd_transport::Stream;
use tokio::time::{Instant, sleep, timeout};
use tracing::{debug, warn};

use crate::{
    addresses::{
        forward::{Destination, Forward, ProxyHeaders},
        servers::ServerAddresses,
    },
    forwards::{
        carrier::Carrier,
        connection_log::ConnectionRecord,
        incomplete::{Incomplete, Unread},
        listener_group::{Accepted, ListenerGroup},
        open_stream::{OpenError, open_stream},
        origin::Origin,
        proxy::{self, NoTarget},
        socks::Reply,
        splice::{splice, splice_with_preface},
        tasks::ConnectionTasks,
    },
    handover::Handover,
    limits::{
        Limits,
        descriptors::{Holder, OF_CONNECTION, SetApart},
        places::{ForwardPlaces, Place, Places},
    },
    net::forwarded_socket::ForwardedSocket,
    sessions::{counts::ConnectionCount, server_link::ServerLink, session::LiveSession},
    wire::{StreamCode, StreamHeader},
};

mod flows;

/// Pause after a failed accept, most likely for lack of file descriptors.
pub(crate) const ACCEPT_RETRY: Duration = Duration::from_millis(100);

/// How long an accepted connection waits for a session.
const SESSION_TIMEOUT: Duration = Duration::from_secs(10);

/// The log line of a connection without the header that `accept-proxy` demands.
pub(crate) const NO_PROXY_HEADER: &str =
    "closed a connection that does not begin with a PROXY header; accept-proxy demands one";

/// What the accept loops of a client share.
#[derive(Clone, Debug)]
pub(crate) struct Acceptor {
    context: Context,
    /// A place is taken after accept, so an idle listener holds none; one connection of each forward waits for
    /// a place, the others in the listener's queue.
    places: Arc<Places>,
    /// Those of connections of other processes.
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
    limits: Arc<Limits>,
    /// Those of all listeners, as they share the slots.
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
        limits: Arc<Limits>,
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
                        warn!(forward = %name, max, "too many connections: new ones wait (max-forwards)");
                    }
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
                            debug!(forward = %name, ?from, %error, "closed while waiting for a slot");
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
                    let task =
                        serve(context.clone(), accepted, (Arc::clone(&forward), place), begin);
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
    fn may_log(&self, forward: &str, line: Line) -> bool {
        self.log_limit.allow((forward.into(), line), Instant::now().into_std())
    }

    /// The same for a line that the server of this session causes.
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

/// Serves one accepted connection of a forward to its end.
async fn serve(
    context: Context,
    (mut socket, mut origin): Accepted,
    (forward, mut place): (Arc<Forward>, Place),
    (headers, mut unread): (ProxyHeaders, Option<Unread>),
) {
    let name = forward.to_string();
    let mut record = ConnectionRecord::new(&context.limits);
    if headers.accept
        && let Some(unread) = unread.take()
        && let Err(error) = origin.read_header(&mut socket, unread).await
    {
        return refuse(&context, &name, (origin, &error), record);
    }
    let from = origin.source();
    record.set_forward(&name, from);
    let (header, destination) = match &*forward {
        Forward::Local(local) => {
            (StreamHeader::Destination(local.destination.clone()), local.destination.to_string())
        }
        Forward::Bench(_) => (StreamHeader::Bench, "its bench service".into()),
        Forward::Dynamic(_) => {
            let Some(unread) = unread else { return };
            return forward_proxied(&context, (socket, unread, place), from, &name, record).await;
        }
        // The server listens.
        Forward::Remote(_) => return,
    };
    record.set_target(&destination);
    match open(&context, &socket, from, (&header, &name), &mut record).await {
        Ok((stream, _count)) => {
            place.connected();
            let preface = if headers.send { origin.header(&socket) } else { Vec::new() };
            let spliced = splice_with_preface(preface, socket, stream, &mut record);
            if let Err(error) = spliced.await {
                debug!(forward = name, ?from, %error, "connection failed");
            }
        }
        Err(NoStream::Refused(code, session)) => {
            if context.server_may_log(&session, &name, Line::Refused(code)) {
                warn!(forward = name, %code, "the server could not connect to {destination}");
            }
        }
        Err(NoStream::NoSession | NoStream::ConnectionFailed) => {}
    }
}

/// Notes that a connection, which is dropped, did not begin with its PROXY header.
fn refuse(
    context: &Context,
    name: &str,
    (origin, error): (Origin, &io::Error),
    mut record: ConnectionRecord,
) {
    let from = origin.source();
    record.set_forward(name, from);
    if let Some(session) = context.link.current() {
        record.set_peer(session.peer());
    }
    record.no_proxy_header();
    debug!(forward = name, ?from, %error, "no PROXY header");
    if context.may_log(name, Line::NoProxyHeader) {
        warn!(forward = name, "{NO_PROXY_HEADER}");
    }
}

/// Forwards a connection to the target that it requests by SOCKS.
async fn forward_proxied(
    context: &Context,
    (mut socket, unread, mut place): (ForwardedSocket, Unread, Place),
    from: Option<SocketAddr>,
    name: &str,
    mut record: ConnectionRecord,
) {
    let target = match proxy::read_request(&mut socket, unread).await {
        Ok(target) => target,
        Err(no_target) => {
            match no_target {
                NoTarget::OtherProtocol(protocol)
                    if context.may_log(name, Line::OtherProtocol(protocol)) =>
                {
                    warn!(
                        forward = name,
                        "a client sent {protocol}; -D accepts SOCKS5 only (socks5h://)"
                    );
                }
                _ => debug!(forward = name, ?from, "no valid SOCKS request"),
            }
            socket.close_cleanly();
            record.no_target();
            return;
        }
    };
    record.set_target(&target.to_string());
    let header = StreamHeader::Destination(Destination::Tcp(target.clone()));
    let refusal = match open(context, &socket, from, (&header, name), &mut record).await {
        Ok((stream, _count)) => {
            place.connected();
            // If the reply cannot be sent, the splice fails as well.
            proxy::reply(&mut socket, Reply::Succeeded).await;
            if let Err(error) = splice(socket, stream, &mut record).await {
                debug!(forward = name, ?from, %error, "connection failed");
            }
            return;
        }
        Err(NoStream::ConnectionFailed) => return,
        Err(NoStream::NoSession) => Reply::GeneralFailure,
        Err(NoStream::Refused(code, _)) => {
            // Not a warning: the SOCKS client is told, and could fill the log.
            debug!(forward = name, ?from, %code, "the server could not connect to {target}");
            Reply::of(code)
        }
    };
    proxy::reply(&mut socket, refusal).await;
    socket.close_cleanly();
}

/// Why no stream was opened.
#[derive(Debug)]
enum NoStream {
    Refused(StreamCode, Arc<LiveSession>),
    NoSession,
    /// The connection to forward has failed.
    ConnectionFailed,
}

/// Opens a stream over the current session, or the next one within the timeout. Retries if the
/// session is lost meanwhile: no data of the connection has been sent yet.
async fn open(
    context: &Context,
    socket: &ForwardedSocket,
    from: Option<SocketAddr>,
    (header, name): (&StreamHeader, &str),
    record: &mut ConnectionRecord,
) -> Result<(Stream, ConnectionCount), NoStream> {
    let mut peer = None;
    let opening = async {
        loop {
            let Ok(Ok(session)) = timeout(SESSION_TIMEOUT, context.link.session()).await else {
                debug!(forward = name, ?from, "timed out waiting for a session");
                return Err(NoStream::NoSession);
            };
            let open = session.count_connection(name);
            peer = Some(session.peer().to_owned());
            match open_stream(&session, header).await {
                Ok(stream) => return Ok((stream, open)),
                Err(OpenError::Refused(code)) => return Err(NoStream::Refused(code, session)),
                Err(OpenError::Lost) => {}
            }
        }
    };
    let opened = tokio::select! {
        opened = opening => opened,
        error = socket.failed() => {
            debug!(forward = name, ?from, %error, "closed before the target answered");
            Err(NoStream::ConnectionFailed)
        }
    };
    if let Some(peer) = peer {
        record.set_peer(&peer);
    }
    match &opened {
        Ok(_) => {}
        Err(NoStream::Refused(code, _)) => record.refused(*code),
        Err(NoStream::NoSession) => record.no_session(),
        Err(NoStream::ConnectionFailed) => record.gave_up(),
    }
    opened
}
