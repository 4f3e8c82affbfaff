//! Accepting TCP connections of a forward and carrying each over a stream of its own.
//!
//! A listener belongs to the client, not to a session: what is accepted while there is none waits
//! for the next one, and is reset when that takes too long.

use std::{io, net::SocketAddr, sync::Arc, time::Duration};

use tokio::{
    net::TcpListener,
    sync::Semaphore,
    time::{Instant, sleep, timeout},
};
use tracing::{debug, warn};

use crate::{
    carried::Carried,
    forward::{Goal, LocalForward},
    link::Link,
    notices::Notices,
    session::OpenForward,
    socket::ForwardedTcp,
    splice::{StreamPair, splice_tcp, tcp_failed},
    stream::{OpenError, open_stream},
    target::Target,
    wire::StreamCode,
};

/// Rest after a failed accept: out of file descriptors, most likely, and soon better.
const ACCEPT_REST: Duration = Duration::from_millis(100);

/// Time that an accepted connection waits for a session.
const SESSION_WAIT: Duration = Duration::from_secs(10);

/// What all accept loops of a client share.
#[derive(Clone, Debug)]
pub(crate) struct Accepting {
    entry: Entry,
    /// As many as the server takes. Taken by TCP connections that are there, so that an idle
    /// listener holds none; one connection a listener waits for a slot, more in its queue.
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
pub(crate) async fn accept_loop(
    accepting: Accepting,
    listener: TcpListener,
    forward: Arc<LocalForward>,
) {
    let Accepting { entry, slots, carried } = accepting;
    let name: Arc<str> = forward.to_string().into();
    loop {
        match listener.accept().await {
            Ok((tcp, from)) => {
                let tcp = ForwardedTcp::new(tcp);
                let slot = tokio::select! {
                    slot = Arc::clone(&slots).acquire_owned() => slot,
                    error = tcp_failed(tcp.stream()) => {
                        debug!(forward = %name, %from, %error, "gone before there was a slot");
                        continue;
                    }
                };
                let entry = entry.clone();
                let (forward, name) = (Arc::clone(&forward), Arc::clone(&name));
                carried.spawn(async move {
                    let _slot = slot;
                    carry(&entry, tcp, from, &forward, &name).await;
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

async fn carry(
    entry: &Entry,
    tcp: ForwardedTcp,
    from: SocketAddr,
    forward: &LocalForward,
    name: &str,
) {
    let Goal::Tcp(target) = &forward.goal else { return };
    let opened = tokio::select! {
        opened = open(&entry.link, target, name) => opened,
        error = tcp_failed(tcp.stream()) => {
            debug!(forward = name, %from, %error, "gone before the target answered");
            return;
        }
    };
    match opened {
        Ok((pair, _open)) => {
            if let Err(cut) = splice_tcp(tcp, pair).await {
                debug!(forward = name, %from, %cut, "forward cut");
            }
        }
        Err(NoStream::Refused(code)) => {
            if entry.may_log(name, Some(code)) {
                warn!(forward = name, %code, "the server did not connect to {target}");
            }
        }
        Err(NoStream::NoSession) => debug!(forward = name, %from, "no session in time"),
    }
}

/// Why a connection has no stream.
#[derive(Debug)]
enum NoStream {
    Refused(StreamCode),
    NoSession,
}

/// A stream over the session that lives, else over the next one if it comes in time. Nothing of the
/// connection has been sent before this returns, so a session lost meanwhile costs it nothing.
async fn open(
    link: &Link,
    target: &Target,
    name: &str,
) -> Result<(StreamPair, OpenForward), NoStream> {
    loop {
        let Ok(Ok(session)) = timeout(SESSION_WAIT, link.session()).await else {
            return Err(NoStream::NoSession);
        };
        let open = session.forward_opened(name);
        match open_stream(&session.connection, target).await {
            Ok(pair) => return Ok((pair, open)),
            Err(OpenError::Refused(code)) => return Err(NoStream::Refused(code)),
            Err(OpenError::Lost) => {}
        }
    }
}
