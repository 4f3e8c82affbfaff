//! Counts forwarded connections and UDP flows by peer and forward, and logs each when it ends, if
//! `log-connections` is on.
//!
//! These lines have no rate limit: whoever turns them on wants all of them, and a log with gaps is
//! no audit trail. Knows no sockets: callers report what was carried and how it ended.

use std::{net::SocketAddr, os::fd::OwnedFd, sync::Arc, time::Instant};

use keypadd_transport::{FlowEnd, Label, Socket, Splice, TransferStats};
use tracing::{debug, info};

use crate::{
    forwards::{flow_outcome::FlowOutcome, splice_error::SpliceError},
    limits::{
        SharedLimits, local_ports::LocalPort, open_connections::ListedConnection,
        traffic::ConnectionEnd,
    },
    wire::StreamCode,
};

/// Reasons for connections that carried nothing.
const NO_SESSION: &str = "no session within 10s";
const GAVE_UP: &str = "closed before the target answered";
const NO_TARGET: &str = "no valid SOCKS request";
const NO_PROXY_HEADER: &str = "no valid PROXY header";
const NO_PLACE: &str = "too many connections (max-forwards)";

/// A forwarded connection; counted and logged when this is dropped.
#[derive(Debug)]
pub(crate) struct ConnectionRecord {
    limits: Arc<SharedLimits>,
    began: Instant,
    listed: ListedConnection,
    end: ConnectionEnd,
    /// How it ended, in words.
    ended: String,
    /// Whether another process carried it before.
    is_adopted: bool,
    /// What goes with it to another process.
    descriptors: Arc<[OwnedFd]>,
    /// The local port of its target's connection, if this end made that.
    port: Option<LocalPort>,
}

impl ConnectionRecord {
    /// A connection that begins now.
    pub(crate) fn new(limits: &Arc<SharedLimits>) -> Self {
        Self::of(limits, limits.open_connections.add())
    }

    /// A connection that begins now, after it has waited for its place.
    pub(crate) fn of(limits: &Arc<SharedLimits>, listed: ListedConnection) -> Self {
        listed.got_place();
        Self {
            limits: Arc::clone(limits),
            began: Instant::now(),
            listed,
            // The default if its task is dropped.
            end: ConnectionEnd::Lost,
            ended: "cut: shutting down".into(),
            is_adopted: false,
            descriptors: Arc::new([]),
            port: None,
        }
    }

    /// A connection taken over from another process, which holds it under this
    /// [label](Self::label).
    pub(crate) fn adopted(limits: &Arc<SharedLimits>, peer: &str, label: &str) -> Self {
        let mut record = Self::new(limits);
        record.is_adopted = true;
        let (forward, target) = label.split_once('\n').unwrap_or((label, ""));
        let named = |name: &str| (!name.is_empty()).then(|| name.to_owned());
        {
            let mut details = record.listed.details();
            (details.forward, details.target) = (named(forward), named(target));
        }
        record.set_peer(peer);
        record
    }

    /// The forward and the target, each on a line, for the process that takes over.
    pub(crate) fn label(&self) -> Label {
        let details = self.listed.details();
        let [forward, target] =
            [&details.forward, &details.target].map(|name| name.as_deref().unwrap_or_default());
        let text = format!("{forward}\n{target}").into();
        Label { text, descriptors: Arc::clone(&self.descriptors) }
    }

    /// The name that it is counted under; may be empty.
    pub(crate) fn name(&self) -> String {
        let details = self.listed.details();
        details.forward.clone().or_else(|| details.target.clone()).unwrap_or_default()
    }

    /// Carries a connection taken over from another process until it ends.
    pub(crate) async fn follow(mut self, spliced: Splice) -> Result<(), SpliceError> {
        self.set_carried(spliced.carried());
        let outcome = spliced.await.map_err(SpliceError::from);
        if let Err(error) = &outcome {
            debug!(forward = self.name(), %error, "connection failed");
        }
        self.ended(&outcome);
        outcome
    }

    /// The peer whose session carries it.
    pub(crate) fn set_peer(&mut self, peer: &str) {
        self.listed.details().peer = Some(peer.into());
    }

    /// The forward that accepted it here, and where it comes from.
    pub(crate) fn set_forward(&mut self, forward: &str, from: Option<SocketAddr>) {
        let mut details = self.listed.details();
        (details.forward, details.from) = (Some(forward.into()), from);
    }

    /// Where it leads.
    pub(crate) fn set_target(&mut self, target: &str) {
        self.listed.details().target = Some(target.into());
    }

    /// The local port that it keeps while it is open, and for a while after this end has closed it
    /// first.
    pub(crate) fn set_port(&mut self, port: Option<LocalPort>) {
        self.port = port;
    }

    /// What goes with it to the process that takes over.
    pub(crate) fn set_descriptors(&mut self, descriptors: Arc<[OwnedFd]>) {
        self.descriptors = descriptors;
    }

    /// Limits what the kernel keeps of its socket, if memory is short.
    pub(crate) fn limit_buffers(&self, socket: &Socket) {
        if let Some(bytes) = self.limits.socket_bytes {
            socket.limit_buffers(bytes);
        }
    }

    /// Its bytes are counted here from now on.
    pub(crate) fn set_carried(&mut self, carried: Arc<TransferStats>) {
        let mut details = self.listed.details();
        if let Some((peer, forward)) = details.counted_as() {
            self.limits.traffic.add(peer, forward, &carried);
        }
        details.carried = Some(carried);
    }

    fn carried(&self) -> Option<Arc<TransferStats>> {
        self.listed.details().carried.clone()
    }

    /// Whether its target ended the connection before sending a byte.
    pub(crate) fn is_mute(&self) -> bool {
        let is_mute = |carried: &Arc<TransferStats>| {
            carried.from_socket() == 0 && carried.socket_ended_first()
        };
        self.carried().as_ref().is_some_and(is_mute)
    }

    /// The other end could not connect to the target.
    pub(crate) fn refused(&mut self, code: StreamCode) {
        self.set_end(ConnectionEnd::Refused, format!("refused: {code}"));
    }

    /// There was no session to carry it.
    pub(crate) fn no_session(&mut self) {
        self.set_end(ConnectionEnd::Lost, NO_SESSION.into());
    }

    /// Records that the connection failed or was closed before it was connected.
    pub(crate) fn gave_up(&mut self) {
        self.set_end(ConnectionEnd::Reset, GAVE_UP.into());
    }

    /// Records that the connection named no target.
    pub(crate) fn no_target(&mut self) {
        self.set_end(ConnectionEnd::Reset, NO_TARGET.into());
    }

    /// Records that the connection did not begin with the required PROXY header.
    pub(crate) fn no_proxy_header(&mut self) {
        self.set_end(ConnectionEnd::Reset, NO_PROXY_HEADER.into());
    }

    /// There was no slot for its source.
    pub(crate) fn no_place(&mut self) {
        self.set_end(ConnectionEnd::Lost, NO_PLACE.into());
    }

    /// The flow ended like this.
    pub(crate) fn flow_ended(&mut self, outcome: &FlowOutcome) {
        let (end, text) = match outcome {
            FlowOutcome::Here(end @ (FlowEnd::Idle | FlowEnd::Displaced)) => {
                (ConnectionEnd::Closed, end.to_string())
            }
            FlowOutcome::Here(FlowEnd::Local(error)) => {
                (ConnectionEnd::Reset, format!("failed here: {error}"))
            }
            FlowOutcome::There(SpliceError::Remote(StreamCode::Idle)) => {
                (ConnectionEnd::Closed, "ended by the peer: idle".into())
            }
            FlowOutcome::There(SpliceError::Remote(code)) => {
                (ConnectionEnd::Reset, format!("reset by the peer: {code}"))
            }
            FlowOutcome::Here(_) | FlowOutcome::There(_) => {
                (ConnectionEnd::Lost, "connection to the peer lost".into())
            }
        };
        self.set_end(end, text);
    }

    /// The connection ended like this.
    pub(crate) fn ended(&mut self, outcome: &Result<(), SpliceError>) {
        let held = self.carried().is_some_and(|carried| carried.is_held());
        let (end, text) = match outcome {
            Ok(()) => (ConnectionEnd::Closed, "closed".into()),
            Err(SpliceError::Local(error)) => {
                (ConnectionEnd::Reset, format!("failed here: {error}"))
            }
            Err(SpliceError::Remote(code)) => {
                (ConnectionEnd::Reset, format!("reset by the peer: {code}"))
            }
            Err(SpliceError::Lost) if held => {
                (ConnectionEnd::Lost, "held, then reset: the peer did not return".into())
            }
            Err(SpliceError::Lost) => (ConnectionEnd::Lost, "connection to the peer lost".into()),
        };
        self.set_end(end, text);
    }

    fn set_end(&mut self, end: ConnectionEnd, text: String) {
        (self.end, self.ended) = (end, text);
    }
}

impl Drop for ConnectionRecord {
    fn drop(&mut self) {
        if let Some(port) = self.port.take()
            && self.carried().is_some_and(|carried| carried.stream_ended_first())
        {
            port.closed_first(Instant::now());
        }
        let details = self.listed.details();
        let carried = details.carried.as_deref();
        if let Some((peer, forward)) = details.counted_as() {
            self.limits.traffic.end(peer, forward, details.carried.as_ref(), self.end);
        }
        if !self.limits.logs_connections() {
            return;
        }
        let bytes = |count: fn(&TransferStats) -> u64| carried.map_or(0, count);
        let flow = carried.filter(|carried| carried.is_flow());
        if let Some(carried) = flow {
            let (sent, received) = carried.datagrams();
            info!(
                peer = details.peer,
                forward = details.forward,
                from = details.from.map(tracing::field::display),
                target = details.target,
                sent_bytes = carried.from_socket(),
                received_bytes = carried.to_socket(),
                sent_datagrams = sent,
                received_datagrams = received,
                dropped_datagrams = carried.dropped(),
                seconds = self.began.elapsed().as_millis() as f64 / 1e3,
                ended = self.ended,
                "flow"
            );
            return;
        }
        info!(
            peer = details.peer,
            forward = details.forward,
            from = details.from.map(tracing::field::display),
            target = details.target,
            sent_bytes = bytes(TransferStats::from_socket),
            received_bytes = bytes(TransferStats::to_socket),
            seconds = self.began.elapsed().as_millis() as f64 / 1e3,
            ended = self.ended,
            // Bytes and seconds are then counted from the replacement of the daemon.
            since_replacement = self.is_adopted.then_some(true),
            "connection"
        );
    }
}

#[cfg(test)]
mod tests {
    use std::io;

    use super::*;

    /// The counts of a connection that ends in this way, by outcome.
    fn counted(end: impl FnOnce(&mut ConnectionRecord)) -> Vec<(&'static str, u64)> {
        let limits = Arc::default();
        let mut record = ConnectionRecord::new(&limits);
        record.set_peer("lab");
        record.set_target("db:5432");
        end(&mut record);
        drop(record);
        let ends = limits.forwards().into_iter().flat_map(|totals| totals.ended);
        ends.filter(|(_, count)| *count > 0).map(|(end, count)| (end.name(), count)).collect()
    }

    #[test]
    fn every_connection_counts_once_by_how_it_ended() {
        type End = fn(&mut ConnectionRecord);
        let cases: [(End, &str); 7] = [
            (|record| record.ended(&Ok(())), "closed"),
            (|record| record.ended(&Err(SpliceError::Remote(StreamCode::Reset))), "reset"),
            (
                |record| record.ended(&Err(io::Error::from(io::ErrorKind::BrokenPipe).into())),
                "reset",
            ),
            (|record| record.ended(&Err(SpliceError::Lost)), "lost"),
            (|record| record.refused(StreamCode::NotPermitted), "refused"),
            (ConnectionRecord::gave_up, "reset"),
            // Its task is dropped.
            (|_| {}, "lost"),
        ];
        for (end, name) in cases {
            assert_eq!(counted(end), [(name, 1)]);
        }
    }

    #[test]
    fn a_connection_that_no_session_took_has_no_peer_to_count_for() {
        let limits = Arc::default();
        let mut record = ConnectionRecord::new(&limits);
        record.set_forward("-L 1:a:1", None);
        record.no_session();
        drop(record);
        assert_eq!(limits.forwards(), []);
    }
}
