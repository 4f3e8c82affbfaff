//! Accepting TCP connections of a forward and carrying each over a stream of its own.

use std::{io, net::SocketAddr, sync::Arc, time::Duration};

use tokio::{
    net::TcpListener,
    sync::Semaphore,
    task::JoinSet,
    time::{Instant, sleep},
};
use tracing::{debug, warn};

use crate::{
    forward::{Goal, LocalForward},
    notices::Notices,
    session::LiveSession,
    socket::ForwardedTcp,
    splice::{splice_tcp, tcp_failed},
    stream::{OpenError, open_stream},
    wire::StreamCode,
};

/// Rest after a failed accept: out of file descriptors, most likely, and soon better.
const ACCEPT_REST: Duration = Duration::from_millis(100);

/// What all accept loops of a session share.
#[derive(Clone, Debug)]
pub(crate) struct Accepting {
    session: Arc<LiveSession>,
    /// As many as the server takes. Taken by TCP connections that are there, so that an idle
    /// listener holds none; one connection a listener waits for a slot, more in its queue.
    slots: Arc<Semaphore>,
    notices: Arc<Notices<(String, Option<StreamCode>)>>,
}

impl Accepting {
    pub(crate) fn new(session: Arc<LiveSession>, forwards_max: usize) -> Self {
        let slots = Arc::new(Semaphore::new(forwards_max.min(Semaphore::MAX_PERMITS)));
        Self { session, slots, notices: Arc::default() }
    }

    fn may_log(&self, forward: &str, code: Option<StreamCode>) -> bool {
        self.notices.admit((forward.into(), code), Instant::now().into_std())
    }
}

/// Accepts until the session has ended and what had arrived by then is delivered. Dropped before,
/// it resets all its connections.
pub(crate) async fn accept_loop(
    accepting: Accepting,
    listener: Arc<TcpListener>,
    forward: LocalForward,
) {
    let forward = Arc::new(forward);
    let name: Arc<str> = forward.to_string().into();
    let mut carried = JoinSet::new();
    let ended = accepting.session.connection.closed();
    tokio::pin!(ended);
    loop {
        let accepted = tokio::select! {
            _ = &mut ended => break,
            accepted = listener.accept() => accepted,
            Some(_) = carried.join_next(), if !carried.is_empty() => continue,
        };
        match accepted {
            Ok((tcp, from)) => {
                let tcp = ForwardedTcp::new(tcp);
                let slot = tokio::select! {
                    _ = &mut ended => break,
                    slot = Arc::clone(&accepting.slots).acquire_owned() => slot,
                    error = tcp_failed(tcp.stream()) => {
                        debug!(forward = %name, %from, %error, "gone before there was a slot");
                        continue;
                    }
                };
                let accepting = accepting.clone();
                let (forward, name) = (Arc::clone(&forward), Arc::clone(&name));
                carried.spawn(async move {
                    let _slot = slot;
                    carry(&accepting, tcp, from, &forward, &name).await;
                });
            }
            Err(error) if error.kind() == io::ErrorKind::ConnectionAborted => {}
            Err(error) => {
                if accepting.may_log(&name, None) {
                    warn!(forward = %name, %error, "cannot accept");
                }
                sleep(ACCEPT_REST).await;
            }
        }
    }
    while carried.join_next().await.is_some() {}
}

async fn carry(
    accepting: &Accepting,
    tcp: ForwardedTcp,
    from: SocketAddr,
    forward: &LocalForward,
    name: &str,
) {
    let session = &accepting.session;
    let Goal::Tcp(target) = &forward.goal else { return };
    let _open = session.forward_opened(name);
    let opened = tokio::select! {
        opened = open_stream(&session.connection, target) => opened,
        error = tcp_failed(tcp.stream()) => {
            debug!(forward = name, %from, %error, "gone before the target answered");
            return;
        }
    };
    match opened {
        Ok(pair) => {
            if let Err(cut) = splice_tcp(tcp, pair).await {
                debug!(forward = name, %from, %cut, "forward cut");
            }
        }
        Err(OpenError::Refused(code)) => {
            if accepting.may_log(name, Some(code)) {
                warn!(forward = name, %code, "the server did not connect to {target}");
            }
        }
        Err(OpenError::Lost) => debug!(forward = name, %from, "the session has ended"),
    }
}
