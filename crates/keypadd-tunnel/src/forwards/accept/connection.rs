//! Serves one accepted connection of a forward: finds out where it is to go, opens a stream for it,
//! and splices the two.

use std::{io, net::SocketAddr, sync::Arc, time::Duration};

use keypadd_transport::Stream;
use tokio::time::timeout;
use tracing::{debug, warn};

use super::{Context, Line, NO_PROXY_HEADER, leads_to};
use crate::{
    addresses::forward::{Destination, Forward, ProxyHeaders},
    forwards::{
        connection_log::ConnectionRecord,
        incomplete::Unread,
        listener_group::Accepted,
        open_stream::{OpenError, open_stream},
        origin::Origin,
        proxy::{self, NoTarget},
        socks::Reply,
        splice::{splice, splice_with_preface},
    },
    limits::{open_connections::ListedConnection, places::Place},
    net::forwarded_socket::ForwardedSocket,
    sessions::{counts::ConnectionCount, session::LiveSession},
    wire::{StreamCode, StreamHeader},
};

/// How long an accepted connection waits for a session.
const SESSION_TIMEOUT: Duration = Duration::from_secs(10);

/// Serves one accepted connection of a forward to its end.
pub(super) async fn serve(
    context: Context,
    (mut socket, mut origin): Accepted,
    (forward, mut place, listed): (Arc<Forward>, Place, ListedConnection),
    (headers, mut unread): (ProxyHeaders, Option<Unread>),
) {
    let name = forward.to_string();
    let mut record = ConnectionRecord::of(&context.limits, listed);
    if headers.accept
        && let Some(unread) = unread.take()
        && let Err(error) = origin.read_header(&mut socket, unread).await
    {
        return refuse(&context, &name, (origin, &error), record);
    }
    let from = origin.source();
    record.set_forward(&name, from);
    let Some((header, destination)) = leads_to(&forward) else {
        let (Forward::Dynamic(_), Some(unread)) = (&*forward, unread) else { return };
        return forward_proxied(&context, (socket, unread, place), from, &name, record).await;
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
                let way_out = match (&header, code) {
                    (StreamHeader::Destination(_), StreamCode::NotPermitted) => {
                        format!("; to permit it on the server: --permit-open {destination}")
                    }
                    _ => String::new(),
                };
                warn!(
                    forward = name,
                    %code,
                    "the server could not connect to {destination}{way_out}"
                );
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
    let opening = async {
        loop {
            let Ok(Ok(session)) = timeout(SESSION_TIMEOUT, context.link.session()).await else {
                debug!(forward = name, ?from, "timed out waiting for a session");
                return Err(NoStream::NoSession);
            };
            let open = session.count_connection(name);
            record.set_peer(session.peer());
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
    match &opened {
        Ok(_) => {}
        Err(NoStream::Refused(code, _)) => record.refused(*code),
        Err(NoStream::NoSession) => record.no_session(),
        Err(NoStream::ConnectionFailed) => record.gave_up(),
    }
    opened
}
