//! Carries the UDP flows of a listener: opens a stream for each source, and waits until it ends.
//!
//! The event loop carries the datagrams (`keypadd-transport`, `flows`). Used by both ends;
//! `answer_flow` turns a stream from the other end into a flow.

use std::{fmt, future::poll_fn, net::UdpSocket, sync::Arc, task::Poll, time::Duration};

use keypadd_transport::{Flow, FlowEnd, FlowListener, SocketLease, Source, Stream};
use tokio::{task::JoinSet, time::timeout};
use tracing::{debug, warn};

use crate::{
    forwards::{
        connection_log::ConnectionRecord,
        flow_outcome::FlowOutcome,
        open_stream::{OPEN_TIMEOUT, OpenError, answered, begin},
        splice_error::SpliceError,
    },
    limits::places::Slot,
    sessions::session::LiveSession,
    wire::{StreamCode, StreamHeader},
};

/// How long a flow waits for the place of another one, which ends for it.
const PLACE_TIMEOUT: Duration = Duration::from_secs(2);

/// Settings for forwarding the flows of a listener.
#[derive(Clone)]
pub(crate) struct FlowForward {
    pub(crate) session: Arc<LiveSession>,
    /// The forward, in status and logs.
    pub(crate) name: Arc<str>,
    pub(crate) header: StreamHeader,
    /// The target, if this end names it.
    pub(crate) target: Option<Arc<str>>,
    /// Whether a refusal may be logged now.
    pub(crate) may_log: Arc<dyn Fn(StreamCode) -> bool + Send + Sync>,
}

impl fmt::Debug for FlowForward {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("FlowForward").field("name", &self.name).finish_non_exhaustive()
    }
}

/// Carries the flows of these sockets until the session ends or nobody may listen any more; if
/// dropped, ends them.
pub(crate) async fn carry(
    forward: &FlowForward,
    sockets: Vec<(UdpSocket, SocketLease)>,
    is_permitted: impl Fn() -> bool,
) {
    let connection = &forward.session.connection;
    let listen = |(socket, lease)| connection.listen(socket, lease, forward.session.places.limit());
    let mut listeners: Vec<_> = sockets.into_iter().map(listen).collect();
    let mut flows = JoinSet::new();
    loop {
        tokio::select! {
            source = next_source(&mut listeners) => match source {
                Some(source) if is_permitted() => drop(flows.spawn(forward.clone().serve(source))),
                _ => return,
            },
            Some(_) = flows.join_next(), if !flows.is_empty() => {}
            _ = connection.closed() => return,
        }
    }
}

/// The next source of any listener; `None` once none of them receives any more.
async fn next_source(listeners: &mut Vec<FlowListener>) -> Option<Source> {
    poll_fn(|cx| {
        let mut at = 0;
        while at < listeners.len() {
            match listeners[at].poll_accept(cx) {
                Poll::Ready(Some(source)) => return Poll::Ready(Some(source)),
                Poll::Ready(None) => drop(listeners.swap_remove(at)),
                Poll::Pending => at += 1,
            }
        }
        if listeners.is_empty() { Poll::Ready(None) } else { Poll::Pending }
    })
    .await
}

impl FlowForward {
    /// Serves a source until its flow ends.
    async fn serve(self, source: Source) {
        let (session, name, from) = (&self.session, &*self.name, source.address());
        let mut record = ConnectionRecord::new(&session.limits);
        record.set_peer(session.peer());
        record.set_forward(name, Some(from));
        if let Some(target) = &self.target {
            record.set_target(target);
        }
        let Some(_slot) = self.slot().await else {
            record.no_place();
            return;
        };
        let _count = session.count_connection(name).of_flow();
        let (flow, stream) = match timeout(OPEN_TIMEOUT, self.open(source, &mut record)).await {
            Ok(Ok(opened)) => opened,
            Ok(Err(OpenError::Lost)) => return record.ended(&Err(SpliceError::Lost)),
            Ok(Err(OpenError::Refused(code))) => {
                record.refused(code);
                if (self.may_log)(code) {
                    warn!(forward = name, %code, "the other end could not forward UDP");
                }
                return;
            }
            Err(_) => return record.refused(StreamCode::TimedOut),
        };
        follow(flow, stream, &mut record).await;
        debug!(forward = name, %from, "flow ended");
    }

    /// Takes a slot; if none is free, displaces the flow that was idle for longest.
    async fn slot(&self) -> Option<Slot> {
        let places = &self.session.places;
        if let Some(slot) = places.try_take() {
            return Some(slot);
        }
        self.session.connection.displace_flow(Duration::ZERO);
        timeout(PLACE_TIMEOUT, places.take()).await.ok()
    }

    /// Opens the flow. Its first datagrams leave before the answer.
    async fn open(
        &self,
        source: Source,
        record: &mut ConnectionRecord,
    ) -> Result<(Flow, Stream), OpenError> {
        let session = &self.session;
        let header = session.carries().admit(&self.header).map_err(OpenError::Refused)?;
        let stream = begin(session, &header).await?;
        let mut flow = session.connection.carry_source(&stream, source);
        record.set_carried(flow.carried());
        tokio::select! {
            biased;
            answer = answered(stream) => match answer {
                Ok(stream) => Ok((flow, stream)),
                Err(OpenError::Refused(code)) => {
                    flow.refused();
                    Err(OpenError::Refused(code))
                }
                Err(OpenError::Lost) => Err(OpenError::Lost),
            },
            // Displaced, or the listener is gone.
            _ = &mut flow => Err(OpenError::Lost),
        }
    }
}

/// Waits until a flow ends at either end, and tells the other one.
pub(crate) async fn follow(mut flow: Flow, mut stream: Stream, record: &mut ConnectionRecord) {
    let mut byte = [0];
    let outcome = tokio::select! {
        biased;
        end = &mut flow => FlowOutcome::Here(end),
        there = stream.recv.read_exact(&mut byte) => FlowOutcome::There(match there {
            Ok(None) => SpliceError::Remote(StreamCode::Idle),
            Ok(Some(())) => SpliceError::Remote(StreamCode::BadHeader),
            Err(error) => error.into(),
        }),
    };
    let code = match &outcome {
        FlowOutcome::Here(FlowEnd::Idle | FlowEnd::Displaced) => StreamCode::Idle,
        FlowOutcome::Here(FlowEnd::Local(_)) => StreamCode::Unreachable,
        FlowOutcome::Here(_) => StreamCode::Shutdown,
        FlowOutcome::There(SpliceError::Remote(code)) => *code,
        FlowOutcome::There(_) => StreamCode::Shutdown,
    };
    record.flow_ended(&outcome);
    stream.reset(code.into());
}
