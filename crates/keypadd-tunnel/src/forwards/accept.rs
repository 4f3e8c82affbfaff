//! Accepting connections of a forward and carrying each over a stream of its own.
//!
//! A listener belongs to the client, not to a session: what is accepted while there is none waits
//! for the next one, and is reset when that takes too long. A dynamic forward first asks each
//! connection where it wants to go (`proxy`).

use std::{io, net::SocketAddr, sync::Arc, time::Duration};

use keypadd_transport::Stream;
use tokio::{
    sync::Semaphore,
    time::{Instant, sleep, timeout},
};
use tracing::{debug, warn};

use crate::{
    forwards::{
        listen::Listeners,
        open_stream::{OpenError, open_stream},
        proxy,
        socks::Reply,
        splice::splice,
        tasks::Carried,
    },
    log_rate_limit::Notices,
    net::forwarded_socket::Forwarded,
    sessions::{server_link::Link, session::OpenForward},
    spec::forward::{Forward, Goal},
    wire::{StreamCode, StreamHeader},
};

/// Rest after a failed accept: out of file descriptors, most likely, and soon better.
pub(crate) const ACCEPT_REST: Duration = Duration::from_millis(100);

/// Time that an accepted connection waits for a session.
const SESSION_WAIT: Duration = Duration::from_secs(10);

/// What all accept loops of a client share.
#[derive(Clone, Debug)]
pub(crate) struct Accepting {
    entry: Entry,
    /// As many as the server takes. Taken by connections that are there, so that an idle listener
    /// holds none; one connection a forward waits for a slot, more in its queue.
    slots: Arc<Semaphore>,
    carried: Carried,
}

/// What a connection needs once it is accepted. It holds neither slots nor the set that it is in:
/// a task that held its own set would keep it from ever being dropped.
#[derive(Clone, Debug)]
struct Entry {
    link: Link,
    notices: Arc<Notices<(String, Option<StreamCode>)>>,
}

impl Accepting {
    pub(crate) fn new(link: Link, forwards_max: usize, carried: Carried) -> Self {
        let slots = Arc::new(Semaphore::new(forwards_max.min(Semaphore::MAX_PERMITS)));
        Self { entry: Entry { link, notices: Arc::default() }, slots, carried }
    }
}

impl Entry {
    fn may_log(&self, forward: &str, code: Option<StreamCode>) -> bool {
        self.notices.admit((forward.into(), code), Instant::now().into_std())
    }
}

/// Accepts until it is dropped. What it has accepted is the client's.
pub(crate) async fn accept_loop(accepting: Accepting, listeners: Listeners, forward: Arc<Forward>) {
    let Accepting { entry, slots, carried } = accepting;
    let name: Arc<str> = forward.to_string().into();
    loop {
        match listeners.accept().await {
            Ok((socket, from)) => {
                let slot = tokio::select! {
                    slot = Arc::clone(&slots).acquire_owned() => slot,
                    error = socket.failed() => {
                        debug!(forward = %name, ?from, %error, "gone before there was a slot");
                        continue;
                    }
                };
                let entry = entry.clone();
                let (forward, name) = (Arc::clone(&forward), Arc::clone(&name));
                carried.spawn(async move {
                    let _slot = slot;
                    match &*forward {
                        Forward::Local(local) => {
                            let header = StreamHeader::Goal(local.goal.clone());
                            let goal = local.goal.to_string();
                            carry(&entry, socket, from, (&header, &goal), &name).await;
                        }
                        Forward::Bench(_) => {
                            let goal = (&StreamHeader::Bench, "its bench service");
                            carry(&entry, socket, from, goal, &name).await;
                        }
                        Forward::Dynamic(_) => carry_asked(&entry, socket, from, &name).await,
                        // Its listeners are the server's.
                        Forward::Remote(_) => {}
                    }
                });
            }
            Err(error) if error.kind() == io::ErrorKind::ConnectionAborted => {}
            Err(error) => {
                if entry.may_log(&name, None) {
                    warn!(forward = %name, %error, "cannot accept");
                }
                sleep(ACCEPT_REST).await;
            }
        }
    }
}

/// Carries a connection to a goal that is known, by its header and its name.
async fn carry(
    entry: &Entry,
    socket: Forwarded,
    from: Option<SocketAddr>,
    (header, goal): (&StreamHeader, &str),
    name: &str,
) {
    match open(entry, &socket, from, header, name).await {
        Ok((stream, _open)) => {
            if let Err(cut) = splice(socket, stream).await {
                debug!(forward = name, ?from, %cut, "forward cut");
            }
        }
        Err(NoStream::Refused(code)) => {
            if entry.may_log(name, Some(code)) {
                warn!(forward = name, %code, "the server did not connect to {goal}");
            }
        }
        Err(NoStream::NoSession | NoStream::Gone) => {}
    }
}

/// Carries a connection to the target that it asks for.
async fn carry_asked(entry: &Entry, mut socket: Forwarded, from: Option<SocketAddr>, name: &str) {
    let Some(target) = proxy::ask(&mut socket).await else {
        debug!(forward = name, ?from, "no request that could be met");
        socket.close_cleanly();
        return;
    };
    let header = StreamHeader::Goal(Goal::Tcp(target.clone()));
    let refusal = match open(entry, &socket, from, &header, name).await {
        Ok((stream, _open)) => {
            // An answer that cannot be sent shows again when the connection is used.
            proxy::answer(&mut socket, Reply::Succeeded).await;
            if let Err(cut) = splice(socket, stream).await {
                debug!(forward = name, ?from, %cut, "forward cut");
            }
            return;
        }
        Err(NoStream::Gone) => return,
        Err(NoStream::NoSession) => Reply::GeneralFailure,
        Err(NoStream::Refused(code)) => {
            // The program that asked is told: a log line for each target would be its words.
            debug!(forward = name, ?from, %code, "the server did not connect to {target}");
            Reply::of(code)
        }
    };
    proxy::answer(&mut socket, refusal).await;
    socket.close_cleanly();
}

/// Why a connection has no stream.
#[derive(Debug)]
enum NoStream {
    Refused(StreamCode),
    NoSession,
    /// The connection itself has failed.
    Gone,
}

/// A stream over the session that lives, else over the next one if it comes in time. Nothing of the
/// connection has been sent before this returns, so a session lost meanwhile costs it nothing.
async fn open(
    entry: &Entry,
    socket: &Forwarded,
    from: Option<SocketAddr>,
    header: &StreamHeader,
    name: &str,
) -> Result<(Stream, OpenForward), NoStream> {
    let opening = async {
        loop {
            let Ok(Ok(session)) = timeout(SESSION_WAIT, entry.link.session()).await else {
                debug!(forward = name, ?from, "no session in time");
                return Err(NoStream::NoSession);
            };
            let open = session.forward_opened(name);
            match open_stream(&session, header).await {
                Ok(stream) => return Ok((stream, open)),
                Err(OpenError::Refused(code)) => return Err(NoStream::Refused(code)),
                Err(OpenError::Lost) => {}
            }
        }
    };
    tokio::select! {
        opened = opening => opened,
        error = socket.failed() => {
            debug!(forward = name, ?from, %error, "gone before the target answered");
            Err(NoStream::Gone)
        }
    }
}
