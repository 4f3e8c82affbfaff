//! Carries the flows of a client's UDP forwards over the current session.
//!
//! Without a session, datagrams wait in the kernel's buffer; those that do not fit are lost. On the
//! next session each source gets a new flow.

use std::{future::poll_fn, sync::Arc, task::Poll};

use tokio::{net::UdpSocket as AsyncSocket, time::sleep};
use tracing::warn;

use super::{ACCEPT_RETRY, Acceptor, Line, leads_to};
use crate::{
    addresses::forward::Forward,
    forwards::{
        flows::{FlowForward, carry},
        listener_group::ListenerGroup,
    },
    sessions::{draining::Leaving, server_link::LinkClosed, session::LiveSession},
    wire::StreamCode,
};

impl Acceptor {
    /// Carries the flows of a UDP forward until it is dropped.
    pub(crate) async fn run_udp(self, listeners: Arc<ListenerGroup>, forward: Arc<Forward>) {
        let name: Arc<str> = forward.to_string().into();
        let Some((header, destination)) = leads_to(&forward) else { return };
        let target: Arc<str> = destination.into();
        loop {
            self.handover.resumed().await;
            let attempt = async {
                let Ok(session) = self.next_session(&listeners).await else {
                    // The client is shutting down.
                    return std::future::pending().await;
                };
                if !session.connection.carries_datagrams() {
                    if self.context.server_may_log(&session, &name, Line::NoDatagrams) {
                        warn!(forward = %name, "the server does not forward UDP");
                    }
                    tokio::select! {
                        _ = session.connection.closed() => {}
                        () = session.until(Leaving::Done) => {}
                    }
                    return;
                }
                let (context, server) = (self.context.clone(), Arc::clone(&session));
                let named = Arc::clone(&name);
                let forward = FlowForward {
                    session,
                    name: Arc::clone(&name),
                    header: header.clone(),
                    target: Some(Arc::clone(&target)),
                    may_log: Arc::new(move |code: StreamCode| {
                        context.server_may_log(&server, &named, Line::Refused(code))
                    }),
                };
                if let Ok(sockets) = listeners.udp_sockets() {
                    // A session that is left goes on with open connections, not with flows.
                    tokio::select! {
                        () = carry(&forward, sockets, || true) => {}
                        () = forward.session.until(Leaving::Done) => return,
                    }
                }
                if !forward.session.has_ended() {
                    // Most likely out of file descriptors.
                    sleep(ACCEPT_RETRY).await;
                }
            };
            tokio::select! {
                biased;
                () = self.handover.suspended() => {}
                () = attempt => {}
            }
        }
    }

    /// Waits for a session; speeds up reconnecting once something has arrived.
    async fn next_session(
        &self,
        listeners: &ListenerGroup,
    ) -> Result<Arc<LiveSession>, LinkClosed> {
        let link = &self.context.link;
        let sockets = listeners.udp_sockets().unwrap_or_default().into_iter();
        let sockets: Vec<_> = sockets
            .filter_map(|(one, lease)| Some((AsyncSocket::from_std(one).ok()?, lease)))
            .collect();
        let wanted = async {
            poll_fn(|cx| match sockets.iter().any(|(one, _)| one.poll_recv_ready(cx).is_ready()) {
                true => Poll::Ready(()),
                false => Poll::Pending,
            })
            .await;
            link.session().await
        };
        tokio::select! {
            biased;
            session = link.session_without_waiter() => session,
            session = wanted => session,
        }
    }
}
