//! Carries the packets of a network over a session: the client opens a stream for it, and both ends
//! attach their devices.
//!
//! The stream tells each end what the other accepts, for people, and that the network is over.

use std::{convert::Infallible, future::pending, sync::Arc, time::Duration};

use keypadd_share::Bucket;
use keypadd_transport::{FlowEnd, RecvHalf, SendHalf, Stream};
use tokio::time::{Instant, sleep, timeout};
use tracing::{info, warn};

use crate::{
    forwards::open_stream::{OPEN_TIMEOUT, OpenError, answered, begin},
    networks::{Carriage, Network, NetworkPhase},
    sessions::{
        control::{Message, RATE, read_message},
        session::LiveSession,
    },
    wire::{CONNECTED, NetworkAnnouncement, StreamCode, StreamHeader},
};

/// How long a client waits after its network has ended, or was refused: the server's file may
/// change.
const RETRY_INTERVAL: Duration = Duration::from_secs(10);

/// Keeps the network of a client's session open. Never returns; if dropped, ends it.
pub(crate) async fn keep_open(session: &LiveSession, network: &Network) -> Infallible {
    let mut refused = None;
    loop {
        // Fails only if the network is gone, and it is borrowed.
        let _ = network.accepts().wait_for(Option::is_some).await;
        if network.has_lost_device() {
            return pending().await;
        }
        match timeout(OPEN_TIMEOUT, open(session)).await {
            Ok(Ok(stream)) => {
                refused = None;
                carry(session, network, stream).await;
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

/// Why a peer refuses a network, for people.
fn refusal(code: StreamCode) -> String {
    match code {
        StreamCode::BadHeader => "its version has no networks".into(),
        StreamCode::NotPermitted => "it has no `networks` for this host".into(),
        StreamCode::Unreachable => "its device is lost".into(),
        code => code.to_string(),
    }
}

async fn open(session: &LiveSession) -> Result<Stream, OpenError> {
    if !session.connection.carries_datagrams() {
        return Err(OpenError::Refused(StreamCode::NoDatagrams));
    }
    let header = session.carries().admit(&StreamHeader::Network).map_err(OpenError::Refused)?;
    answered(begin(session, &header).await?).await
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
    // If the connection is lost, the network ends.
    let _ = stream.send.write_all(&[CONNECTED]).await;
    carry(session, &network, stream).await;
}

/// Carries packets until the network ends at either end, and tells the other one.
async fn carry(session: &LiveSession, network: &Network, mut stream: Stream) {
    let flow = session.connection.carry_packets(&stream, network.device());
    let mut carriage = network.up(session.remote());
    let (peer, device) = (session.peer(), network.device_name());
    if session.may_log() {
        info!(peer, device, "network up");
    }
    let code = tokio::select! {
        biased;
        end = flow => match end {
            FlowEnd::Local(error) => {
                warn!(peer, device, "the network's device is lost: {error}");
                carriage.ends_as = NetworkPhase::DeviceLost(error.to_string());
                StreamCode::Unreachable
            }
            _ => StreamCode::Shutdown,
        },
        () = receive(&carriage, &mut stream.recv) => StreamCode::Shutdown,
        () = tell(network, &stream.send) => StreamCode::NotPermitted,
    };
    stream.reset(code.into());
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
