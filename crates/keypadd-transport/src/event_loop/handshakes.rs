//! Starts handshakes: connects, and accepts, challenges or refuses clients.

use std::{
    net::SocketAddr,
    sync::Arc,
    time::{Duration, Instant},
};

use quinn_proto::{
    AckFrequencyConfig, ConnectError, ConnectionError, Dir, Incoming, ServerConfig, TransportConfig,
};
use tokio::sync::oneshot;
use tracing::debug;

use super::{EventLoop, datagram::HANDSHAKE_BYTES_MAX, slot::Standing};
use crate::{
    admission::Admission,
    allowance::Allowance,
    cid::Lane,
    congestion::ACK_DELAY,
    datagrams::Datagrams,
    dial::Dial,
    driver::{HandshakeReply, Limits},
    gate::CongestionGate,
    handshake::{Accepted, Refusal},
    mailbox::{Opened, PendingConnection},
    route,
    settings::Streams,
    splice::Key,
    windows::ReceiveWindow,
};

/// Received DATAGRAM frames buffered until their connection is driven: as many as a round receives.
const DATAGRAM_BUFFER_BYTES: usize = 1 << 20;

/// The same of a connection without flows.
const ONE_WAY_BUFFER_BYTES: usize = 1 << 10;

/// What clients' handshakes may take of a round, after all else: packets of those that have begun up
/// to half of it.
const HANDSHAKE_TIME: Duration = Duration::from_micros(250);

/// Bulk packets per ACK, unless [`ACK_DELAY`] passes first. If every second packet were acknowledged, ACKs alone would
/// fill a return path that is 40 times slower than the forward path.
const BULK_ACK_PACKETS: u32 = 10;

/// A client's other packets that are kept while it waits for its handshake, and those of all: one, in which a
/// post-quantum key exchange ends. They are handled with the first one, whatever time it takes.
const INCOMING_BYTES: u64 = HANDSHAKE_BYTES_MAX as u64;
const INCOMING_BYTES_TOTAL: u64 = 1 << 20;

impl<U: Datagrams> EventLoop<U> {
    pub(crate) fn set_server(&mut self, mut config: Option<ServerConfig>) {
        if let Some(config) = &mut config {
            config.incoming_buffer_size(INCOMING_BYTES);
            config.incoming_buffer_size_total(INCOMING_BYTES_TOTAL);
        }
        self.server = config;
        self.endpoint.set_server_config(self.server.clone().map(Arc::new));
    }

    /// The configuration and the limits of one connection to `peer`.
    pub(super) fn limits(
        &self,
        peer: SocketAddr,
        lane: Lane,
        now: Instant,
    ) -> (Limits, TransportConfig) {
        let (gate, factory) =
            CongestionGate::new(self.plan.congestion.clone(), self.plan.flight_max, now);
        let windows = self.plan.windows(lane);
        let Streams { bidirectional, unidirectional } = self.plan.streams;
        // Indexed by `Dir`.
        let allowances = [bidirectional, unidirectional].map(Allowance::new);
        let mut transport = (self.plan.transport)(route::payload_max(peer));
        // Flows belong to sparse connections; the others tell how long answers wait.
        let datagrams = if lane.is_bulk() { ONE_WAY_BUFFER_BYTES } else { DATAGRAM_BUFFER_BYTES };
        transport
            .datagram_receive_buffer_size(Some(datagrams))
            .congestion_controller_factory(factory)
            .stream_receive_window(windows.stream.into())
            .receive_window(windows.connection.into())
            .max_concurrent_bidi_streams(allowances[Dir::Bi as usize].current())
            .max_concurrent_uni_streams(allowances[Dir::Uni as usize].current());
        if lane.is_bulk() {
            transport.ack_frequency_config(Some(bulk_acks()));
        }
        let window = ReceiveWindow::new(windows, Arc::clone(&self.budget));
        (Limits { gate, window, allowances }, transport)
    }

    pub(super) fn connect(
        &mut self,
        dial: Dial,
        reply: oneshot::Sender<Result<Opened, ConnectError>>,
        now: Instant,
    ) {
        let Dial { mut config, address, server_name, lane, rtt } = dial;
        self.begin_epoch();
        let (limits, mut transport) = self.limits(address, lane, now);
        if let Some(rtt) = rtt {
            transport.initial_rtt(rtt);
        }
        config.transport_config(Arc::new(transport));
        match self.endpoint.connect(now, config, address, server_name) {
            Ok((handle, connection)) => {
                let (established, wait) = oneshot::channel();
                let waiting = HandshakeReply::Client(established);
                let shared = self.add(
                    handle,
                    connection,
                    (limits, lane),
                    (waiting, Standing::Dialed),
                    address,
                );
                let attempt = PendingConnection(Some(shared));
                // If nobody waits, this drops the attempt, which closes it.
                let _ = reply.send(Ok(Opened { attempt, established: wait }));
            }
            Err(error) => drop(reply.send(Err(error))),
        }
    }

    /// Handles a client's first packet: it waits for its handshake.
    pub(super) fn incoming(&mut self, incoming: Incoming, now: Instant) {
        let Some(incoming) = self.admit(incoming, now) else { return };
        let address = incoming.remote_address().ip();
        let load = self.handshakes.load(address);
        if let Some(ignored) = self.newcomers.push(incoming, address, load) {
            self.refused(ignored.remote_address(), Refusal::Crowded);
            self.endpoint.ignore(ignored);
        }
    }

    /// Continues and begins clients' handshakes, for a share of the round that is short and not
    /// empty.
    pub(super) fn shake_hands(&mut self, now: Instant) {
        let clock = self.clock().map(|clock| (clock, clock()));
        let is_over = |share| clock.is_some_and(|(clock, began)| clock() >= began + share);
        while let Some(key) = self.strangers.next_connection() {
            if let Some(event) = self.strangers.pop(key) {
                self.handle_alone(key, event, now);
            }
            if is_over(HANDSHAKE_TIME / 2) {
                break;
            }
        }
        while let Some(incoming) = self.newcomers.pop(|address| self.handshakes.load(address)) {
            // Apply what the owner changed before this client spoke.
            self.commands(now);
            if let Some(incoming) = self.admit(incoming, now) {
                self.begin(incoming, now);
            }
            if is_over(HANDSHAKE_TIME) {
                break;
            }
        }
    }

    /// Returns the client if its handshake may begin, now or later; otherwise answers it.
    fn admit(&mut self, incoming: Incoming, now: Instant) -> Option<Incoming> {
        let remote = incoming.remote_address();
        self.send_buffer.clear();
        let full = self.counters.clients(Lane::of(incoming.orig_dst_cid())).count()
            >= self.plan.connections_max;
        if self.refusing || full {
            if !self.refusing {
                self.refused(remote, Refusal::Full);
            }
            let transmit = self.endpoint.refuse(incoming, &mut self.send_buffer);
            self.respond(transmit);
            return None;
        }
        match self.handshakes.decide(remote.ip(), incoming.remote_address_validated(), now) {
            Admission::Retry if incoming.may_retry() => {
                if let Ok(transmit) = self.endpoint.retry(incoming, &mut self.send_buffer) {
                    self.respond(transmit);
                }
                None
            }
            Admission::Wait => {
                self.refused(remote, Refusal::Crowded);
                self.endpoint.ignore(incoming);
                None
            }
            Admission::Retry | Admission::Accept => Some(incoming),
        }
    }

    /// Begins a client's handshake.
    fn begin(&mut self, incoming: Incoming, now: Instant) {
        let remote = incoming.remote_address();
        let lane = Lane::of(incoming.orig_dst_cid());
        self.begin_epoch();
        if let Some(key) = self.handshakes.make_room(remote.ip()) {
            self.give_up(key, Refusal::Displaced);
        }
        let Some(mut config) = self.server.clone() else { return self.endpoint.ignore(incoming) };
        let (limits, transport) = self.limits(remote, lane, now);
        config.transport_config(Arc::new(transport));
        self.send_buffer.clear();
        let accepted =
            self.endpoint.accept(incoming, now, &mut self.send_buffer, Some(Arc::new(config)));
        match accepted {
            Ok((handle, connection)) => {
                let waiting = HandshakeReply::Server(self.accepted.clone());
                let shared = self.add(
                    handle,
                    connection,
                    (limits, lane),
                    (waiting, Standing::Stranger),
                    remote,
                );
                self.handshakes.add(Some(shared.key), remote, now);
            }
            Err(error) => {
                debug!(%remote, error = %error.cause, "not accepted");
                self.handshakes.add(None, remote, now);
                if let Some(transmit) = error.response {
                    self.respond(transmit);
                }
            }
        }
    }

    pub(super) fn refused(&self, remote: SocketAddr, refusal: Refusal) {
        self.counters.refused(refusal);
        let _ = self.accepted.send(Accepted::Refused(remote, refusal));
    }

    /// Begins the current epoch if it is a new one. Called before keys are made, so that no connection
    /// counts as made in a later epoch than it was.
    ///
    /// Drops the handshakes of clients that can no longer be answered: their places are for others.
    pub(super) fn begin_epoch(&mut self) {
        if !self.udp.begin_epoch() {
            return;
        }
        let strangers = self.slots.values().filter(|slot| slot.standing.is_stranger());
        let keys: Vec<_> = strangers.map(|slot| slot.key).collect();
        for key in keys {
            self.remove(key, ConnectionError::TimedOut);
        }
    }

    /// Drops a handshake that has proved nothing, without an answer.
    pub(super) fn give_up(&mut self, key: Key, refusal: Refusal) {
        if let Some(slot) = self.slots.get(&key) {
            let remote = slot.driver.shared().remote();
            self.refused(remote, refusal);
            self.remove(key, ConnectionError::TimedOut);
        }
    }
}

/// When a receiver of bulk is to acknowledge it.
fn bulk_acks() -> AckFrequencyConfig {
    let mut acks = AckFrequencyConfig::default();
    // An ACK is due once there are more packets than the threshold; at each gap, too (RFC 9000 13.2.1).
    acks.ack_eliciting_threshold((BULK_ACK_PACKETS - 1).into())
        .max_ack_delay(Some(ACK_DELAY))
        .reordering_threshold(1_u32.into());
    acks
}
