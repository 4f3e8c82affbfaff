//! Forwards a connection that a server accepted for its client: over a stream that carries the number
//! of the forward.

use std::sync::Arc;

use keypadd_share::Rates;
use tokio::time::Instant;
use tracing::{debug, warn};

use crate::{
    addresses::forward::ProxyHeaders,
    forwards::{
        accept::NO_PROXY_HEADER,
        connection_log::ConnectionRecord,
        incomplete::Unread,
        open_listener::AcceptedSocket,
        open_stream::{OpenError, open_stream},
        splice::splice_with_preface,
        splice_error::SpliceError,
    },
    limits::{descriptors::Descriptors, places::Place},
    sessions::session::LiveSession,
    wire::{StreamCode, StreamHeader},
};

/// Limits log lines by forward number and code.
pub(crate) type RemoteLogLimit = Rates<(u16, Option<StreamCode>)>;

/// An accepted connection to forward to the client.
#[derive(Debug)]
pub(crate) struct RemoteConnection {
    pub(super) id: u16,
    pub(super) name: Arc<str>,
    pub(super) socket: AcceptedSocket,
    pub(super) headers: ProxyHeaders,
    /// If it begins with a PROXY header.
    pub(super) unread: Option<Unread>,
    pub(super) log_limit: Arc<RemoteLogLimit>,
    pub(super) place: Place,
    pub(super) _descriptors: Descriptors,
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

pub(super) fn may_log(log_limit: &RemoteLogLimit, id: u16, code: Option<StreamCode>) -> bool {
    log_limit.allow((id, code), Instant::now().into_std())
}
