//! Answers a stream that the other end opened: reads the header, connects, and splices the two.
//!
//! A client may request any destination that its permits admit; a server may only request a remote
//! forward of its client, by number (invariant I10). What a session for measurements may reach,
//! `sessions/carries.rs` says. A malformed header resets its own stream only.

use std::{
    convert::Infallible,
    future::pending,
    net::{IpAddr, SocketAddr},
    sync::Arc,
    time::Duration,
};

use keypadd_transport::Stream;
use tokio::time::timeout;
use tracing::{debug, info};

use crate::{
    addresses::{
        forward::{Destination, Forward, RemoteForward},
        target::Protocol,
    },
    forwards::{
        answer_flow::carry_flow,
        connection_log::ConnectionRecord,
        dial::{
            DialError, DialedStream, dial, dial_address, dial_address_udp, dial_own,
            dial_own_target, dial_target,
        },
        network,
        request::{Connected, Request},
        splice::splice_after,
    },
    limits::descriptors::OF_CONNECTION,
    net::lookup::Lookups,
    networks::Network,
    permits::peers::Peers,
    sessions::{carries::AdmittedStream, draining::Draining, session::LiveSession},
    wire::{CONNECTED, Claim, STREAM_HEAD_BYTES, StreamCode, StreamHead, StreamHeader},
};

/// Timeout for the header of a new stream.
const HEADER_TIMEOUT: Duration = Duration::from_secs(10);

/// A destination that no permit admits.
#[derive(Debug)]
pub(crate) struct Unpermitted {
    pub(crate) destination: Destination,
    /// Its address, if that leads inward.
    pub(crate) inward: Option<IpAddr>,
}

/// Serves a stream of a client, which is one of these peers. Returns the destination if no permit
/// admits it. `bench` is the address of this end's bench service; `draining` says whether the
/// server shuts down.
pub(crate) async fn answer_client(
    session: Arc<LiveSession>,
    peers: Arc<Peers>,
    lookups: Lookups,
    bench: Option<SocketAddr>,
    draining: Draining,
    mut stream: Stream,
) -> Option<Unpermitted> {
    let of_client = |header: &StreamHeader| !matches!(header, StreamHeader::Remote(_));
    let destination = match admitted(&session, Some(&peers), &mut stream, of_client).await {
        Ok(StreamHeader::Destination(destination)) => destination,
        Ok(StreamHeader::Bench(protocol)) => {
            answer_bench(&session, bench, protocol, stream).await;
            return None;
        }
        Ok(StreamHeader::Resume(claim)) => {
            answer_claim(&session, claim, stream).await;
            return None;
        }
        Ok(StreamHeader::Network) => {
            let network = network_of(&session, &peers);
            tokio::select! {
                () = network::answer(&session, network, stream) => {}
                // Other streams may finish, but this one never does.
                () = draining.stopped() => {}
            }
            return None;
        }
        Ok(StreamHeader::Remote(_)) => return None,
        Err(code) => {
            stream.reset(code.into());
            return None;
        }
    };
    // Permits may have changed while the header came. A session whose key is no longer listed is
    // being closed.
    let peer = peers.find(&session.key())?;
    let name = destination.to_string();
    let mut inward = None;
    let mut note = |error: DialError| {
        inward = error.inward;
        error.code
    };
    let mut record = ConnectionRecord::new(&session.limits);
    record.set_target(&name);
    let request = Request { session: &session, name: &name, stream, record };
    let (permits, lookups, ports) = (&peer.permits, &lookups, session.local_ports());
    let code = match &destination {
        Destination::Udp(target) => {
            let dialing =
                async { dial_target(target, permits, lookups, ports).await.map_err(&mut note) };
            carry_flow(request, dialing).await.err()
        }
        Destination::Tcp(_) | Destination::Unix(_) => {
            let dialing =
                async { dial(&destination, permits, lookups, ports).await.map_err(&mut note) };
            connect(request, dialing).await.err()
        }
    };
    (code == Some(StreamCode::NotPermitted)).then_some(Unpermitted { destination, inward })
}

/// Serves the streams that a client opens on its bulk connection, one at a time: its network's
/// alone. Never returns.
pub(crate) async fn answer_on_bulk(session: &LiveSession, peers: &Peers) -> Infallible {
    let is_network = |header: &StreamHeader| matches!(header, StreamHeader::Network);
    let Some(bulk) = session.bulk() else { return pending().await };
    while let Ok(mut stream) = bulk.accept_bi().await {
        match admitted(session, Some(peers), &mut stream, is_network).await {
            Ok(_) => {
                let network = network_of(session, peers);
                network::answer_on_bulk(session, bulk, network, stream).await;
            }
            Err(code) => stream.reset(code.into()),
        }
    }
    // Whoever supervises the connection sees its end.
    pending().await
}

/// The network behind a client.
fn network_of(session: &LiveSession, peers: &Peers) -> Option<Arc<Network>> {
    peers.find(&session.key()).and_then(|peer| peer.network.clone())
}

/// Goes on with a stream that this end holds, and the client too; returns when the connection has
/// it no more. When all claims are answered, ends the streams that the client does not have.
async fn answer_claim(session: &LiveSession, claim: Claim, stream: Stream) {
    let Claim { name, receipt } = claim;
    let Some(hold) = session.hold.as_ref().filter(|hold| name.epoch < hold.epoch) else {
        stream.reset(StreamCode::BadHeader.into());
        return;
    };
    let held = hold.streams.take(name).await;
    let known = held.as_ref().map(|_| name);
    let resumed = match held {
        Some(held) => {
            let ours = held.receipt().encode().to_be_bytes();
            match stream.send.write_all(&[&[CONNECTED][..], &ours].concat()).await {
                Ok(()) => {
                    session.held.add_resumed();
                    Some(stream.resume(held, receipt))
                }
                // It is held as before.
                Err(_) => None,
            }
        }
        None => {
            stream.reset(StreamCode::NotHeld.into());
            None
        }
    };
    if session.claims.answered(known) {
        session.release_unclaimed();
    }
    if let Some(resumed) = resumed {
        resumed.await;
    }
}

/// Connects a stream to the bench service, which has the same port in both protocols.
async fn answer_bench(
    session: &Arc<LiveSession>,
    bench: Option<SocketAddr>,
    protocol: Protocol,
    stream: Stream,
) {
    let Some(address) = bench else {
        stream.reset(StreamCode::NotPermitted.into());
        return;
    };
    let mut record = ConnectionRecord::new(&session.limits);
    record.set_target("bench");
    // The client has been sent the code.
    let request = Request { session, name: "bench", stream, record };
    let _ = match protocol {
        Protocol::Tcp => connect(request, dial_address(address)).await,
        Protocol::Udp => carry_flow(request, async { dial_address_udp(address) }).await,
    };
}

/// Serves a stream of a server, which must name a remote forward of this session.
pub(crate) async fn answer_server(session: Arc<LiveSession>, lookups: Lookups, mut stream: Stream) {
    let of_server = |header: &StreamHeader| matches!(header, StreamHeader::Remote(_));
    let id = match admitted(&session, None, &mut stream, of_server).await {
        Ok(StreamHeader::Remote(id)) => id,
        Ok(_) => return,
        Err(code) => {
            stream.reset(code.into());
            return;
        }
    };
    let Some(forward) = session.remote_forwards.find(id) else {
        debug!(peer = session.peer(), id, "unknown remote forward");
        stream.reset(StreamCode::Refused.into());
        return;
    };
    let name = Forward::Remote(RemoteForward::clone(&forward)).to_string();
    let mut record = ConnectionRecord::new(&session.limits);
    record.set_forward(&name, None);
    record.set_target(&forward.destination.to_string());
    let request = Request { session: &session, name: &name, stream, record };
    let ports = session.local_ports();
    let connected = match &forward.destination {
        Destination::Udp(target) => {
            carry_flow(request, dial_own_target(target, &lookups, ports)).await
        }
        destination => connect(request, dial_own(destination, &lookups, ports)).await,
    };
    if let Err(code) = connected
        && session.may_log()
    {
        info!(forward = name, %code, "could not connect to {}", forward.destination);
    }
}

/// Splices a stream with the socket that `dialing` connects, or resets it with the code.
async fn connect(
    request: Request<'_>,
    dialing: impl Future<Output = Result<DialedStream, StreamCode>>,
) -> Result<(), StreamCode> {
    let (session, name) = (request.session, request.name);
    let connected = request.connect(OF_CONNECTION, dialing).await?;
    let Connected { socket, stream, mut record, claimed: _claimed } = connected;
    let DialedStream { socket, port } = socket;
    record.set_port(port);
    if let Err(error) = splice_after(&[CONNECTED], socket, stream, &mut record).await {
        debug!(peer = session.peer(), target = name, %error, "connection failed");
    }
    if record.is_mute() && session.may_log_mute_target(name) {
        let peer = session.peer();
        info!(peer, target = name, "the target closed the connection without sending a byte");
    }
    Ok(())
}

/// The header of a new stream, if it is one that the other end may send and that the session
/// carries; else the code that refuses it.
async fn admitted(
    session: &LiveSession,
    peers: Option<&Peers>,
    stream: &mut Stream,
    may_send: impl Fn(&StreamHeader) -> bool,
) -> Result<StreamHeader, StreamCode> {
    let header = read_header(stream).await.filter(may_send).ok_or(StreamCode::BadHeader)?;
    let peers = peers.filter(|_| matches!(header, StreamHeader::Network));
    let network = peers.and_then(|peers| network_of(session, peers));
    session.carries().admit_to(network.as_deref(), header).map(AdmittedStream::into_header)
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
    timeout(HEADER_TIMEOUT, read).await.ok()?
}
