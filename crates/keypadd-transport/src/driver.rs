//! Drives one connection in its loop: QUIC events, its streams and sockets, and what it sends.
//!
//! Runs until it has nothing to do each time the loop drives it. Gives quinn-proto only as much
//! stream data as the congestion window allows now, sparse streams first, so that nothing waits
//! inside it. Its parts do not know each other, except for those that are passed to them.

mod carrier;
mod controller_handover;
mod events;
mod flow_frames;
mod frames;
mod lifecycle;
mod metered;
mod one_way;
mod path_watch;
mod receiver;
mod roaming;
mod sender;
mod silence;
mod streams;
mod tail;

use std::{
    net::{IpAddr, SocketAddr},
    sync::Arc,
    time::Instant,
};

use bytes::Bytes;
use mio::Token;
use quinn_proto::{Connection, ConnectionError, EndpointEvent, VarInt};

pub use self::frames::ack_eliciting;
use self::{
    carrier::{Carrier, Loss},
    controller_handover::network_path,
    lifecycle::Lifecycle,
    path_watch::PathWatch,
    receiver::Receiver,
    sender::Sender,
};
pub(crate) use self::{lifecycle::HandshakeReply, sender::SendContext};
use crate::{
    channel::Channel,
    flows::Flows,
    gate::CongestionGate,
    mailbox::{ConnectionCommand, ConnectionShared, Migration},
    settings::Plan,
    splice::{Owner, Registrar},
    stream_credit::StreamCredit,
    time_share::TimeShare,
    windows::ReceiveWindow,
};

/// The limits of a connection.
pub(crate) struct ConnectionLimits {
    pub(crate) gate: CongestionGate,
    pub(crate) window: ReceiveWindow,
    /// Indexed by `Dir`.
    pub(crate) stream_credits: [StreamCredit; 2],
}

/// A connection, its streams and their sockets.
pub(crate) struct Driver {
    carrier: Carrier,
    flows: Flows,
    sender: Sender,
    receiver: Receiver,
    path: PathWatch,
    shared: Arc<ConnectionShared>,
    plan: Arc<Plan>,
}

/// The outcome of driving a connection, for the loop.
#[derive(Clone, Copy, Debug)]
pub(crate) struct DriveOutcome {
    /// Whether the connection must be driven again immediately.
    pub(crate) more: bool,
    /// When to drive it again unless something happens first.
    pub(crate) deadline: Option<Instant>,
    /// Bulk data that it has carried, in bytes.
    pub(crate) bulk_bytes: usize,
    /// Its handshake has proved a key.
    pub(crate) proved: bool,
    pub(crate) lost: bool,
}

impl Driver {
    pub(crate) fn new(
        quic: Connection,
        ConnectionLimits { gate, window, stream_credits }: ConnectionLimits,
        shared: Arc<ConnectionShared>,
        plan: Arc<Plan>,
        waiting: HandshakeReply,
    ) -> Self {
        let path = PathWatch::new(quic.remote_address());
        let lifecycle = Lifecycle::new(waiting);
        Self {
            carrier: Carrier::new(quic, lifecycle, Arc::clone(&shared), plan.cut_code),
            flows: Flows::new(plan.flow_idle),
            sender: Sender::new(gate),
            receiver: Receiver::new(window, stream_credits),
            path,
            shared,
            plan,
        }
    }

    pub(crate) fn shared(&self) -> &Arc<ConnectionShared> {
        &self.shared
    }

    /// Takes the tokens of sockets closed since the last call.
    pub(crate) fn ended_sockets(&mut self) -> impl Iterator<Item = Token> + '_ {
        let of_flows = self.flows.take_ended_sockets();
        self.carrier.closed.drain(..).chain(of_flows)
    }

    /// Handles an event from the endpoint: a datagram, or new connection IDs.
    pub(crate) fn on_event(&mut self, event: quinn_proto::ConnectionEvent, now: Instant) {
        self.carrier.quic.handle_event(event);
        if !self.flows.is_empty() {
            self.take_frames(now);
        }
    }

    /// Takes the DATAGRAM frames that have arrived: quinn-proto would drop many, uncounted.
    fn take_frames(&mut self, now: Instant) {
        let Self { carrier, flows, sender, path, .. } = self;
        let received = flow_frames::receive(&mut carrier.quic, flows, &mut path.one_way, now);
        sender.add_bulk(received.bulk_bytes);
        received.waits.into_iter().for_each(|waits| sender.gate().set_waits(waits));
    }

    /// Records the address of this host at which a datagram of the connection has arrived, and from
    /// where that came, with its length.
    pub(crate) fn arrived(&mut self, local: Option<IpAddr>, from: SocketAddr, len: usize) {
        self.path.arrived(&self.carrier.quic, local, from, len);
    }

    /// The next event for the endpoint.
    pub(crate) fn endpoint_event(&mut self) -> Option<EndpointEvent> {
        self.carrier.quic.poll_endpoint_events()
    }

    /// Handles the system's report on a socket.
    pub(crate) fn on_socket(&mut self, owner: Owner, event: &mio::event::Event, now: Instant) {
        match owner {
            Owner::Stream(id) => self.carrier.on_socket(id, event, now),
            Owner::Flow(_) | Owner::Listener(_) => self.flows.on_ready(owner),
        }
    }

    /// Handles a command from a control task or from the loop of the sibling connection.
    pub(crate) fn on_command(
        &mut self,
        command: ConnectionCommand,
        registrar: &mut Registrar<'_>,
        now: Instant,
    ) {
        let carrier = &mut self.carrier;
        match command {
            ConnectionCommand::Open(reply) => {
                carrier.opening.push_back(reply);
                carrier.open();
            }
            ConnectionCommand::Close { code, reason } => self.close(code, reason, now),
            ConnectionCommand::Acknowledge(reply) => self.sender.await_acknowledgment(reply),
            ConnectionCommand::UpdateKeys => carrier.quic.force_key_update(),
            ConnectionCommand::AttachBulk(bulk) => carrier.attach_bulk(bulk),
            ConnectionCommand::Cap(cap) => self.sender.set_cap(cap),
            ConnectionCommand::Hold { streams, epoch } => carrier.holding.set(streams, epoch),
            ConnectionCommand::Stream(id, command) => {
                carrier.on_stream_command(id, command, registrar, now);
            }
            // Dropping it tells the caller that the connection is gone.
            ConnectionCommand::Flow(_) if carrier.lifecycle.is_lost() => {}
            ConnectionCommand::Flow(command) => self.on_flow_command(command, registrar, now),
            ConnectionCommand::Migration(mut message) => {
                // One that carries a network has a controller that knows the path better.
                if !carrier.lifecycle.is_lost()
                    && self.flows.is_empty()
                    && let Migration::Adopt(moving) = &mut message
                    && let Some(handed) = moving.controller.take()
                    && handed.path == network_path(&carrier.quic)
                {
                    self.sender.take_over(&mut carrier.quic, handed, now);
                }
                carrier.on_migration(message, registrar, now);
            }
        }
    }

    /// Closes the connection from this side.
    pub(crate) fn close(&mut self, code: VarInt, reason: Bytes, now: Instant) {
        if !self.carrier.quic.is_closed() {
            self.carrier.quic.close(now, code, reason);
        }
        let holds = self.plan.hold_code == Some(code);
        self.lose(ConnectionError::LocallyClosed, holds);
    }

    /// Drives the connection until it has nothing to do or has used up its share of the round.
    pub(crate) fn drive(
        &mut self,
        context: &mut SendContext<'_>,
        registrar: &mut Registrar<'_>,
        mut share: TimeShare,
    ) -> DriveOutcome {
        let now = context.now;
        let mut more = self.poll_events(&mut share);
        self.end_some(now, &mut share);
        share.go_on();
        self.deliver(now, &mut share);
        share.go_on();
        more |= self.carry_flows(now, &mut share);
        self.carrier.adopt(registrar, now);
        self.carrier.move_idle_back(now);
        self.receiver.adjust_window(&mut self.carrier, now);
        self.follow_path(now);
        self.carrier.send_receipts(now);
        self.sender.send_tail(&mut self.carrier, context);
        self.receiver.announce_free(&mut self.carrier.quic);
        share.go_on();
        more |= match self.carrier.lifecycle.is_dialing() {
            true => self.dial(context, &mut share),
            false => self.send(context, &mut share),
        };
        // Handle timers after answering what has arrived: on a path that has just changed,
        // quinn-proto assumes that something is in flight.
        if self.carrier.quic.poll_timeout().is_some_and(|deadline| deadline <= now) {
            self.carrier.quic.handle_timeout(now);
            more |= self.poll_events(&mut share);
            more |= self.send(context, &mut share);
        }
        more |= share.is_over() && self.carrier.streams.some_wait();
        more |= self.poll_events(&mut share);
        more |= self.carrier.streams.has_arrived() || self.has_some_to_end();
        self.publish();
        DriveOutcome {
            more,
            deadline: self.deadline(now),
            bulk_bytes: self.sender.take_bulk_bytes(),
            proved: self.carrier.lifecycle.is_proved(),
            lost: self.carrier.lifecycle.is_lost(),
        }
    }

    fn send(&mut self, context: &mut SendContext<'_>, share: &mut TimeShare) -> bool {
        let Self { carrier, flows, path, sender, .. } = self;
        sender.run(carrier, flows, path, context, share)
    }

    /// Sends the handshake of this end, and ends it if this host does not let it out.
    fn dial(&mut self, context: &mut SendContext<'_>, share: &mut TimeShare) -> bool {
        // Another connection's.
        let _ = context.udp.take_not_sent();
        let more = self.send(context, share);
        if let Some(not_sent) = context.udp.take_not_sent() {
            self.carrier.lifecycle.fail_dialing(not_sent.into());
            self.close(VarInt::from_u32(0), Bytes::new(), context.now);
        }
        more
    }

    /// Notices where both ends are, and whether the peer responds.
    fn follow_path(&mut self, now: Instant) {
        let Self { carrier: Carrier { quic, lifecycle, .. }, path, sender, .. } = self;
        if path.follow_own_address(quic, now) {
            sender.gate().start_afresh(now);
        }
        if lifecycle.is_up() {
            path.probe_silence(quic, sender.gate().waits(), now);
        }
    }

    fn publish(&mut self) {
        let quic = &self.carrier.quic;
        let (remote, mut stats) = (quic.remote_address(), quic.stats());
        self.path.observe(remote, &stats);
        let gate = self.sender.gate();
        gate.sent(ack_eliciting(&stats.frame_tx), stats.path.sent_packets);
        // quinn-proto has no limit of its own.
        stats.path.cwnd = gate.window();
        self.shared.publish(remote, stats, gate.acks());
    }

    /// Whether the connection is completely over.
    pub(crate) fn is_over(&self) -> bool {
        self.carrier.quic.is_drained() && self.carrier.lifecycle.is_lost() && !self.has_streams()
    }

    /// Whether it has streams or flows, also those that a lost connection has left to be ended.
    pub(crate) fn has_streams(&self) -> bool {
        let Self { carrier, flows, .. } = self;
        !(carrier.streams.is_empty() && !carrier.moves.has_waiting() && flows.is_empty())
    }

    fn deadline(&mut self, now: Instant) -> Option<Instant> {
        let Self { carrier, receiver, sender, flows, .. } = self;
        // What concerns the peer ends with the connection.
        let (delivery, silence, receipts) = match carrier.lifecycle.is_lost() {
            true => (carrier.delivery_deadline(), None, None),
            false => (None, self.path.deadline(), carrier.holding.deadline()),
        };
        let (linger, moves) = (carrier.streams.deadline(), carrier.moves.deadline());
        let (sending, window, flows) =
            (sender.deadline(now), receiver.deadline(), flows.deadline());
        let timeout = carrier.quic.poll_timeout();
        [timeout, sending, delivery, linger, moves, window, silence, receipts, flows]
            .into_iter()
            .flatten()
            .min()
    }

    /// Passes received data to sockets and readers, until its share of the round is used up.
    fn deliver(&mut self, now: Instant, share: &mut TimeShare) {
        let bulk_bytes = self.receiver.deliver(&mut self.carrier, now, share);
        self.sender.add_bulk(bulk_bytes);
        if self.carrier.lifecycle.is_lost() {
            self.carrier.end_overdue(now, share);
        }
    }

    /// Delivers the datagrams that have arrived from the peer, and reads those of sockets; returns
    /// whether there may be more.
    fn carry_flows(&mut self, now: Instant, share: &mut TimeShare) -> bool {
        if self.carrier.lifecycle.is_lost() {
            return false;
        }
        self.take_frames(now);
        let Self { carrier, flows, path, .. } = self;
        flow_frames::answer(&mut carrier.quic, &mut path.one_way);
        if !flows.is_empty() {
            let frame_max = carrier.quic.datagrams().max_size().unwrap_or(0);
            flows.set_path(frame_max, carrier.quic.remote_address(), carrier.quic.rtt());
        }
        let is_open = |id| matches!(carrier.streams.get(id), Some(Channel::Controlled(_)));
        let more = flows.receive_some(is_open, now, share);
        flows.expire(now);
        share.go_on();
        let more = flows.read_sockets(now, share) || more;
        if flows.take_wants_bulk() {
            carrier.want_bulk(now);
        }
        more
    }

    /// Ends streams that are to end, until its share of the round is used up.
    fn end_some(&mut self, now: Instant, share: &mut TimeShare) {
        self.end_lost(now, share);
        self.carrier.end_failed(now, share);
        self.carrier.end_swept(share);
    }

    /// Ends the streams and flows of a connection that is lost.
    fn end_lost(&mut self, now: Instant, share: &mut TimeShare) {
        if !self.carrier.lifecycle.is_lost() {
            return;
        }
        self.leave_networks(now);
        // What has arrived is delivered, as the data of streams is.
        self.take_frames(now);
        let Self { carrier, flows, .. } = self;
        if flows.receive_some(|_| false, now, share) {
            return;
        }
        let Some(reason) = &self.shared.close_reason() else { return };
        let is_goodbye = self.plan.is_goodbye(reason);
        let loss = Loss { reason, is_goodbye };
        if !carrier.end_lost(&loss, now, share) {
            return;
        }
        flows.end_some(share);
        if flows.is_empty() {
            // Dropping them tells the callers that the connection is gone.
            carrier.opening.clear();
        }
    }

    fn has_some_to_end(&self) -> bool {
        self.carrier.streams.has_some_to_end()
            || (self.carrier.lifecycle.is_lost()
                && (self.carrier.has_left() || !self.flows.is_empty()))
    }

    /// Ends immediately without telling the peer, because of a fault or the end of the loop.
    pub(crate) fn abandon(mut self, reason: ConnectionError) {
        self.shared.ended(reason.clone());
        if let HandshakeReply::Client(reply) = self.carrier.lifecycle.lose(false) {
            let _ = reply.send(Err(reason.clone().into()));
        }
        self.flows.end_all();
        self.carrier.abandon(&reason);
    }
}
