//! Answering a stream that the other end opened: read its header, connect to the goal, join the two.
//!
//! A client may ask a server for any goal that its permits admit; a server may ask a client for a
//! remote forward by its number and for nothing else (invariant I10). Over a connection that is for
//! measurements alone a client is connected to the bench service and to nothing else. Whatever makes
//! no sense costs that one stream.

use std::{net::SocketAddr, sync::Arc, time::Duration};

use keypadd_transport::Stream;
use tokio::time::timeout;
use tracing::{debug, info};

use crate::{
    forwards::{
        dial::{dial, dial_address, dial_own},
        splice::splice,
    },
    net::{forwarded_socket::Forwarded, lookup::Lookups},
    permits::peers::AllowedPeer,
    sessions::session::LiveSession,
    spec::forward::{Forward, Goal, RemoteForward},
    wire::{CONNECTED, STREAM_HEAD_BYTES, StreamCode, StreamHead, StreamHeader},
};

/// Time for a new stream to say where it wants to go.
const HEADER_TIME: Duration = Duration::from_secs(10);

/// Serves a stream of a client's; gives the goal back if no permit admits it. `bench` is this end's
/// bench service.
pub(crate) async fn answer_client(
    session: Arc<LiveSession>,
    peer: Arc<AllowedPeer>,
    lookups: Lookups,
    bench: Option<SocketAddr>,
    mut stream: Stream,
) -> Option<Goal> {
    let goal = match read_header(&mut stream).await {
        Some(StreamHeader::Goal(_)) if session.measures_only() => {
            stream.reset(StreamCode::NotPermitted.into());
            return None;
        }
        Some(StreamHeader::Goal(goal)) => goal,
        Some(StreamHeader::Bench) => {
            answer_bench(&session, bench, stream).await;
            return None;
        }
        Some(StreamHeader::Remote(_)) | None => {
            stream.reset(StreamCode::BadHeader.into());
            return None;
        }
    };
    let name = goal.to_string();
    let _open = session.forward_opened(&name);
    let code = connect(&session, &name, stream, dial(&goal, &peer.permits, &lookups)).await.err();
    (code == Some(StreamCode::NotPermitted)).then_some(goal)
}

/// Joins a stream to the bench service, as a goal that is permitted would be.
async fn answer_bench(session: &Arc<LiveSession>, bench: Option<SocketAddr>, stream: Stream) {
    let Some(address) = bench else {
        stream.reset(StreamCode::NotPermitted.into());
        return;
    };
    let _open = session.forward_opened("bench");
    // A code has told the client why, and the log where it is verbose.
    let _ = connect(session, "bench", stream, dial_address(address)).await;
}

/// Serves a stream of a server's, if it names a remote forward of this session.
pub(crate) async fn answer_server(session: Arc<LiveSession>, lookups: Lookups, mut stream: Stream) {
    let Some(StreamHeader::Remote(id)) = read_header(&mut stream).await else {
        stream.reset(StreamCode::BadHeader.into());
        return;
    };
    if session.measures_only() {
        stream.reset(StreamCode::NotPermitted.into());
        return;
    }
    let Some(forward) = session.remotes.find(id) else {
        debug!(peer = session.peer(), id, "no remote forward has this number");
        stream.reset(StreamCode::Refused.into());
        return;
    };
    let name = Forward::Remote(RemoteForward::clone(&forward)).to_string();
    let _open = session.forward_opened(&name);
    let dialling = dial_own(&forward.goal, &lookups);
    if let Err(code) = connect(&session, &name, stream, dialling).await {
        info!(forward = name, %code, "not connected to {}", forward.goal);
    }
}

/// Joins a stream and the goal that `dialling` connects to; the error says why it was not reached.
async fn connect(
    session: &LiveSession,
    name: &str,
    stream: Stream,
    dialling: impl Future<Output = Result<Forwarded, StreamCode>>,
) -> Result<(), StreamCode> {
    let stopped = stream.send.stopped();
    let dialled = tokio::select! {
        dialled = dialling => dialled,
        // The other end has given up: so do we, whatever the goal would have said.
        _ = stopped => Err(StreamCode::Reset),
    };
    let socket = match dialled {
        Ok(socket) => socket,
        Err(code) => {
            debug!(peer = session.peer(), target = name, %code, "not connected");
            stream.reset(code.into());
            return Err(code);
        }
    };
    if stream.send.write_all(&[CONNECTED]).await.is_ok()
        && let Err(cut) = splice(socket, stream).await
    {
        debug!(peer = session.peer(), target = name, %cut, "forward cut");
    }
    Ok(())
}

async fn read_header(stream: &mut Stream) -> Option<StreamHeader> {
    let read = async {
        let mut head = [0; STREAM_HEAD_BYTES];
        stream.recv.read_exact(&mut head).await.ok()??;
        let head = StreamHead::decode(head).ok()?;
        let mut text = vec![0; head.text_bytes()];
        stream.recv.read_exact(&mut text).await.ok()??;
        head.header(&text).ok()
    };
    timeout(HEADER_TIME, read).await.ok()?
}
