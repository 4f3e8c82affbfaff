//! Carries the packets of a network over a session: the client opens a stream for it, and both ends
//! attach their devices, each before the other one can send.
//!
//! The stream tells each end what the other accepts, for people, and that the network is over. Once
//! the session has a bulk connection, the client opens a stream there, too, and the packets of bulk
//! flows go over that one. It tells nothing but its end.

use std::{convert::Infallible, future::pending, io, sync::Arc, time::Duration};

use futures_util::future::join_all;
use keypadd_share::Bucket;
use keypadd_transport::{
    Connection, Flow, FlowEnd, PacketRole, Paused, RecvHalf, SendHalf, Stream,
};
use rustix::io::Errno;
use tokio::time::{Instant, sleep, timeout};
use tracing::{info, warn};

use crate::{
    forwards::open_stream::{OPEN_TIMEOUT, OpenError, answered, request},
    networks::{Carriage, Network},
    sessions::{
        control::{Message, RATE, read_message},
        session::LiveSession,
    },
    wire::{CONNECTED, NetworkAnnouncement, StreamCode, StreamHeader},
};

/// How long a client waits after its network has ended, or was refused: the server's file may
/// change.
const RETRY_INTERVAL: Duration = Duration::from_secs(10);

/// How long packets on their way over a session may delay the next one that carries them, besides a
/// round trip.
const LAST_PACKETS: Duration = Duration::from_millis(250);

/// Keeps the network of a client's session open. Never returns; if dropped, ends it.
pub(crate) async fn keep_open(session: &LiveSession, network: &Network) -> Infallible {
    let mut refused = None;
    loop {
        // Fails only if the network is gone, and it is borrowed.
        let _ = network.accepts().wait_for(Option::is_some).await;
        if network.has_lost_device() {
            return pending().await;
        }
        let opening = open(session, &session.connection, PacketRole::Reads, network);
        match timeout(OPEN_TIMEOUT, opening).await {
            Ok(Ok(opened)) => {
                refused = None;
                carry(session, network, opened).await;
            }
            Ok(Err(OpenError::Lost)) => return pending().await,
            Ok(Err(OpenError::Refused(code))) => {
                if refused.replace(code) != Some(code) && session.may_log() {
                    let why = refusal(code);
                    warn!(peer = session.peer(), "the peer does not carry the network: {why}");
                }
                network.refused(refusal(code));
            }
            Err(_) => network.refused("no answer".into()),
        }
        sleep(RETRY_INTERVAL).await;
    }
}

/// Keeps the network of a client's session open on its bulk connection as well, while the session
/// carries it. Never returns; if dropped, ends that.
pub(crate) async fn keep_open_on_bulk(
    session: &LiveSession,
    bulk: &Connection,
    network: &Network,
) -> Infallible {
    loop {
        network.until_carried_by(session.id, true).await;
        let opening = open(session, bulk, PacketRole::SendsBulk, network);
        // Without it the first connection carries all packets.
        if let Ok(Ok(opened)) = timeout(OPEN_TIMEOUT, opening).await {
            carry_bulk(session, network, opened).await;
        }
        sleep(RETRY_INTERVAL).await;
    }
}

/// Why a peer refuses a network, for people.
fn refusal(code: StreamCode) -> String {
    match code {
        StreamCode::BadHeader => "its version does not support networks".into(),
        StreamCode::NotPermitted => "it has no `networks` for this host".into(),
        StreamCode::Unreachable => "its device is lost".into(),
        code => code.to_string(),
    }
}

/// The stream of a network, and the flow of its packets.
struct Opened {
    stream: Stream,
    flow: Flow,
}

impl Opened {
    /// Lets what the peer sends find the device, whose packets are not sent yet.
    fn new(
        session: &LiveSession,
        connection: &Connection,
        role: PacketRole,
        network: &Network,
        stream: Stream,
    ) -> Self {
        let flow = connection.carry_packets(&stream, network.device(), session.id, role);
        Self { stream, flow }
    }
}

async fn open(
    session: &LiveSession,
    connection: &Connection,
    role: PacketRole,
    network: &Network,
) -> Result<Opened, OpenError> {
    if !connection.carries_datagrams() {
        return Err(OpenError::Refused(StreamCode::NoDatagrams));
    }
    let header = session.carries().admit_to(Some(network), &StreamHeader::Network);
    let header = header.map_err(OpenError::Refused)?;
    let stream = connection.open_bi().await.map_err(|_| OpenError::Lost)?;
    let Opened { stream, flow } = Opened::new(session, connection, role, network, stream);
    request(&stream, &header).await?;
    Ok(Opened { stream: answered(stream).await?, flow })
}

/// Keeps packets in the device once those on their way over a session have arrived: the next
/// session's hello ends this one at the server, and all that comes later.
pub(crate) async fn pause(session: &LiveSession, network: &Network) -> Paused {
    let paused = network.pause();
    let all = join_all(session.connections().map(Connection::acknowledged));
    // If they do not arrive in time, the path is lost.
    let _ = timeout(last_packets_time(session), all).await;
    paused
}

fn last_packets_time(session: &LiveSession) -> Duration {
    LAST_PACKETS + session.connection.stats().path.rtt
}

/// Waits for the end of a session that the server has ended: its last packets come before.
pub(crate) async fn last_packets(session: &LiveSession) {
    let _ = timeout(LAST_PACKETS, join_all(session.connections().map(Connection::closed))).await;
}

/// Carries the network that a client has asked for, until it ends at either end.
pub(crate) async fn answer(session: &LiveSession, network: Option<Arc<Network>>, stream: Stream) {
    let has_rules = |network: &Arc<Network>| network.accepts().borrow().is_some();
    let Some(network) = network.filter(has_rules) else {
        return stream.reset(StreamCode::NotPermitted.into());
    };
    if network.has_lost_device() {
        return stream.reset(StreamCode::Unreachable.into());
    }
    if !session.connection.carries_datagrams() {
        return stream.reset(StreamCode::NoDatagrams.into());
    }
    let Ok(_only) = session.network.try_acquire() else {
        return stream.reset(StreamCode::Refused.into());
    };
    let opened = Opened::new(session, &session.connection, PacketRole::Reads, &network, stream);
    // If the connection is lost, the network ends.
    let _ = opened.stream.send.write_all(&[CONNECTED]).await;
    carry(session, &network, opened).await;
}

/// Carries the packets of bulk flows that a client sends over its bulk connection, or is to get
/// there, while the session carries the network.
pub(crate) async fn answer_on_bulk(
    session: &LiveSession,
    bulk: &Connection,
    network: Option<Arc<Network>>,
    stream: Stream,
) {
    let Some(network) = network else {
        return stream.reset(StreamCode::NotPermitted.into());
    };
    // The client may know earlier than this task that the first connection carries it.
    if timeout(LAST_PACKETS, network.until_carried_by(session.id, true)).await.is_err() {
        return stream.reset(StreamCode::NotPermitted.into());
    }
    if !bulk.carries_datagrams() {
        return stream.reset(StreamCode::NoDatagrams.into());
    }
    let opened = Opened::new(session, bulk, PacketRole::SendsBulk, &network, stream);
    // If the connection is lost, the session ends.
    let _ = opened.stream.send.write_all(&[CONNECTED]).await;
    carry_bulk(session, &network, opened).await;
}

/// Carries packets of bulk flows until either end carries the network no more.
async fn carry_bulk(session: &LiveSession, network: &Network, opened: Opened) {
    let Opened { mut stream, flow } = opened;
    // No packet overtakes those of its flow that the first connection has sent.
    let paused = network.pause_bulk();
    let _ = timeout(last_packets_time(session), session.connection.acknowledged()).await;
    flow.send_packets(Some(paused));
    let mut nothing = [0];
    tokio::select! {
        _ = flow => {}
        _ = stream.recv.read_exact(&mut nothing) => {}
        () = network.until_carried_by(session.id, false) => {}
    }
    stream.reset(StreamCode::Shutdown.into());
}

/// Carries packets until the network ends at either end, and tells the other one.
async fn carry(session: &LiveSession, network: &Network, opened: Opened) {
    let Opened { mut stream, flow } = opened;
    flow.send_packets(None);
    let carriage = network.up(session.id);
    let (peer, device) = (session.peer(), network.device_name());
    let code = tokio::select! {
        biased;
        end = flow => match end {
            FlowEnd::Local(error) if is_gone(&error) => {
                if network.lose_device(error.to_string()) {
                    warn!(
                        peer,
                        device,
                        "the network's device is lost ({error}); restart keypadd to open it again"
                    );
                }
                StreamCode::Unreachable
            }
            FlowEnd::Local(error) => {
                if session.may_log() {
                    warn!(peer, device, "cannot use the network's device ({error}); retrying");
                }
                StreamCode::Reset
            }
            _ => StreamCode::Shutdown,
        },
        () = receive(&carriage, &mut stream.recv) => StreamCode::Shutdown,
        () = tell(network, &stream.send) => StreamCode::NotPermitted,
        never = log_turns(session, network) => match never {},
    };
    stream.reset(code.into());
}

/// Whether an error of a device says that it will not work again: the device was deleted. Others
/// pass, such as a moment without descriptors or memory.
fn is_gone(error: &io::Error) -> bool {
    // What is written to a device that is down is lost, as on any link (EIO).
    let errno = Errno::from_io_error(error);
    error.kind() == io::ErrorKind::UnexpectedEof
        || matches!(errno, Some(Errno::BADFD | Errno::NODEV | Errno::NXIO | Errno::FAULT))
}

/// Logs when a session is the one that sends: from the beginning, and each time that the others of
/// the same key, which have begun later, are gone.
async fn log_turns(session: &LiveSession, network: &Network) -> Infallible {
    let (peer, device, number) = (session.peer(), network.device_name(), session.id);
    let mut line = "network up";
    loop {
        network.until_sent_by(number, true).await;
        if session.may_log() {
            info!(peer, device, session = number, "{line}");
        }
        network.until_sent_by(number, false).await;
        line = "network uses this session again";
    }
}

/// Tells the peer what this end accepts, at once and after each change, until that is nothing.
async fn tell(network: &Network, send: &SendHalf) {
    let mut accepts = network.accepts();
    loop {
        let now = accepts.borrow_and_update().clone();
        let Some(accepts_now) = now else { return };
        let announcement = NetworkAnnouncement { mtu: network.mtu(), accepts: accepts_now };
        // Fails if the peer has ended the stream, which `receive` notices.
        let _ = send.write_all(&announcement.encode()).await;
        if accepts.changed().await.is_err() {
            return;
        }
    }
}

/// Notes what the peer says, at a limited rate, until it ends the stream or says what cannot be
/// decoded.
async fn receive(carriage: &Carriage<'_>, recv: &mut RecvHalf) {
    let mut bucket = Bucket::FULL;
    while let Ok(Message { kind, body }) =
        read_message(recv, NetworkAnnouncement::BODY_BYTES_MAX).await
    {
        match NetworkAnnouncement::decode(kind, &body) {
            Ok(Some(announced)) => carriage.announced(announced),
            Ok(None) => {}
            Err(_) => return,
        }
        while let Err(wait) = bucket.take(RATE, Instant::now().into_std()) {
            sleep(wait).await;
        }
    }
}
