//! Drives one connection in its loop: QUIC events, its streams and sockets, and what it sends.
//!
//! Runs until it has nothing to do each time the loop drives it. Gives quinn-proto only as much
//! stream data as the congestion window allows now, sparse streams first, so that nothing waits
//! inside it.

mod deliver;
mod end;
mod flows;
mod hold;
mod migrate;
mod one_way;
mod roaming;
mod send;
mod silence;
mod streams;
mod tail;

use std::{
    collections::VecDeque,
    sync::Arc,
    time::{Duration, Instant},
};

use bytes::Bytes;
use mio::Token;
use quinn_proto::{
    Connection, ConnectionError, EndpointEvent, Event, FrameStats, StreamEvent, StreamId, VarInt,
};
use rustc_hash::FxHashMap;
use tokio::sync::{mpsc, oneshot};

use self::{one_way::OneWay, roaming::Roaming, silence::Silence, tail::Tail};
use crate::{
    allowance::Allowance,
    channel::Channel,
    connection,
    datagrams::Datagrams,
    flows::Flows,
    gate::CongestionGate,
    handshake::Accepted,
    held::HeldStreams,
    mailbox::{ConnectionCommand, ConnectionShared, Established, MigratingDirection, Sibling},
    receipts::Receipts,
    settings::Plan,
    splice::Registrar,
    stream::Stream,
    time_share::TimeShare,
    windows::ReceiveWindow,
};

/// The limits of a connection.
pub(crate) struct Limits {
    pub(crate) gate: CongestionGate,
    pub(crate) window: ReceiveWindow,
    /// Indexed by `Dir`.
    pub(crate) allowances: [Allowance; 2],
}

/// What a driver sends with: its loop's socket, and a buffer for sealed packets.
pub(crate) struct SendContext<'a> {
    pub(crate) udp: &'a mut dyn Datagrams,
    pub(crate) buffer: &'a mut Vec<u8>,
    /// Whether the connection was made in an earlier epoch (see [`Egress`](crate::Egress)): it seals
    /// and sends nothing more.
    pub(crate) outdated: bool,
    pub(crate) now: Instant,
}

/// Who waits for the handshake.
pub(crate) enum HandshakeReply {
    /// Nobody any more.
    Nobody,
    Client(oneshot::Sender<Result<Established, ConnectionError>>),
    Server(mpsc::UnboundedSender<Accepted>),
}

/// A connection, its streams and their sockets.
pub(crate) struct Driver {
    pub(crate) connection: Connection,
    pub(crate) gate: CongestionGate,
    window: ReceiveWindow,
    allowances: [Allowance; 2],
    /// Streams that the peer had open at the last check.
    remote_open: [u64; 2],
    pub(crate) shared: Arc<ConnectionShared>,
    pub(crate) rules: Arc<Plan>,
    waiting: HandshakeReply,
    incoming: Option<mpsc::UnboundedSender<Stream>>,
    pub(crate) channels: FxHashMap<StreamId, Channel>,
    /// Streams with data to read.
    pub(crate) arrived: Vec<StreamId>,
    /// Streams that the lost connection has left to be ended.
    losing: FxHashMap<StreamId, Channel>,
    /// Whether to look for splices that were cut elsewhere.
    must_sweep: bool,
    /// Streams whose sockets have failed, to be ended if they may be.
    failed: Vec<StreamId>,
    /// The same, until the peer has what they delivered before.
    lingering: Vec<StreamId>,
    /// When the first of them is reset at the latest.
    linger_at: Option<Instant>,
    /// Streams whose sockets may have data to send.
    pub(crate) sparse: VecDeque<StreamId>,
    pub(crate) bulk: VecDeque<StreamId>,
    pub(crate) moves: MigrationState,
    pub(crate) flows: Flows,
    /// Holds streams spliced from now on when the connection is lost, with this epoch.
    hold: Option<(HeldStreams, u32)>,
    receipts: Receipts,
    opening: VecDeque<oneshot::Sender<Stream>>,
    /// Tokens of closed sockets.
    ended_sockets: Vec<Token>,
    /// When pacing allows more to be sent.
    pub(crate) paced_until: Option<Instant>,
    /// The stream that last read more from its socket than could be sent immediately.
    reading_ahead: Option<StreamId>,
    /// Stream bytes given to quinn-proto that may not have been sent.
    handed_over: usize,
    /// Bulk data that this drive has carried, in bytes.
    bulk_bytes: usize,
    /// Whether quinn-proto may have more to send than it was allowed.
    repairs_wait: bool,
    /// Datagrams that this drive may send regardless of pacing.
    free_datagrams: usize,
    silence: Silence,
    roaming: Roaming,
    one_way: OneWay,
    tail: Tail,
    /// When the first datagram of the handshake was sent.
    began: Option<Instant>,
    proved: bool,
    /// CPU time that opening a full datagram takes; none before the handshake is complete.
    opening_cost: Duration,
    pub(crate) lost: bool,
    /// The connection was lost in a way that lets its streams be held.
    holds: bool,
    drained: bool,
}

/// The outcome of driving a connection, for the loop.
#[derive(Clone, Copy, Debug)]
pub(crate) struct DriveOutcome {
    /// It must be driven again immediately.
    pub(crate) more: bool,
    /// When to drive it again unless something happens first.
    pub(crate) deadline: Option<Instant>,
    /// Bulk data that it has carried, in bytes.
    pub(crate) bulk_bytes: usize,
    /// Its handshake has proved a key.
    pub(crate) proved: bool,
    pub(crate) lost: bool,
}

/// Frames that ask for an ACK.
fn eliciting(of: &FrameStats) -> u64 {
    of.ack_frequency
        + of.crypto
        + of.data_blocked
        + of.datagram
        + u64::from(of.handshake_done)
        + of.immediate_ack
        + of.max_data
        + of.max_stream_data
        + of.max_streams_bidi
        + of.max_streams_uni
        + of.new_connection_id
        + of.new_token
        + of.path_challenge
        + of.path_response
        + of.ping
        + of.reset_stream
        + of.retire_connection_id
        + of.stream_data_blocked
        + of.streams_blocked_bidi
        + of.streams_blocked_uni
        + of.stop_sending
        + of.stream
}

impl Driver {
    pub(crate) fn new(
        connection: Connection,
        Limits { gate, window, allowances }: Limits,
        shared: Arc<ConnectionShared>,
        rules: Arc<Plan>,
        waiting: HandshakeReply,
    ) -> Self {
        let flows = Flows::new(rules.flow_idle);
        let roaming = Roaming::new(connection.remote_address());
        Self {
            connection,
            gate,
            window,
            allowances,
            remote_open: [0; 2],
            shared,
            rules,
            waiting,
            incoming: None,
            channels: FxHashMap::default(),
            arrived: Vec::new(),
            losing: FxHashMap::default(),
            must_sweep: false,
            failed: Vec::new(),
            lingering: Vec::new(),
            linger_at: None,
            sparse: VecDeque::new(),
            bulk: VecDeque::new(),
            moves: MigrationState::default(),
            flows,
            hold: None,
            receipts: Receipts::default(),
            opening: VecDeque::new(),
            ended_sockets: Vec::new(),
            paced_until: None,
            reading_ahead: None,
            handed_over: 0,
            bulk_bytes: 0,
            repairs_wait: false,
            free_datagrams: 0,
            silence: Silence::default(),
            roaming,
            one_way: OneWay::new(),
            tail: Tail::default(),
            began: None,
            proved: false,
            opening_cost: Duration::ZERO,
            lost: false,
            holds: false,
            drained: false,
        }
    }

    pub(crate) fn shared(&self) -> &Arc<ConnectionShared> {
        &self.shared
    }

    /// Takes the tokens of sockets closed since the last call.
    pub(crate) fn ended_sockets(&mut self) -> impl Iterator<Item = Token> + '_ {
        let of_flows = self.flows.take_ended_sockets();
        self.ended_sockets.drain(..).chain(of_flows)
    }

    /// Handles an event from the endpoint: a datagram, or new connection IDs.
    pub(crate) fn on_event(&mut self, event: quinn_proto::ConnectionEvent) {
        self.connection.handle_event(event);
    }

    /// How many frames but padding have been received.
    #[inline(never)]
    pub(crate) fn frames_received(&self) -> u64 {
        let received = self.connection.stats().frame_rx;
        received.acks + eliciting(&received)
    }

    /// CPU time that opening a full datagram takes.
    pub(crate) fn opening_cost(&self) -> Duration {
        self.opening_cost
    }

    /// The next event for the endpoint.
    pub(crate) fn endpoint_event(&mut self) -> Option<EndpointEvent> {
        let event = self.connection.poll_endpoint_events()?;
        self.drained |= event.is_drained();
        Some(event)
    }

    /// Handles a command from a control task or from the loop of the sibling connection.
    pub(crate) fn on_command(
        &mut self,
        command: ConnectionCommand,
        registrar: &mut Registrar<'_>,
        now: Instant,
    ) {
        match command {
            ConnectionCommand::Open(reply) => {
                self.opening.push_back(reply);
                self.open();
            }
            ConnectionCommand::Close { code, reason } => self.close(code, reason, now),
            ConnectionCommand::UpdateKeys => self.connection.force_key_update(),
            ConnectionCommand::AttachBulk(bulk) => self.attach_bulk(bulk),
            ConnectionCommand::Hold { streams, epoch } => self.hold = Some((streams, epoch)),
            ConnectionCommand::Stream(id, command) => {
                self.on_stream_command(id, command, registrar, now);
            }
            ConnectionCommand::Flow(command) => self.on_flow_command(command, registrar, now),
            ConnectionCommand::Migration(message) => self.on_migration(message, registrar, now),
        }
    }

    /// Closes the connection from this side.
    pub(crate) fn close(&mut self, code: VarInt, reason: Bytes, now: Instant) {
        if !self.connection.is_closed() {
            self.connection.close(now, code, reason);
        }
        let holds = self.rules.hold_code == Some(code);
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
        self.adopt(registrar, now);
        self.move_idle_back(now);
        self.adjust_window(now);
        self.follow_own_address(now);
        self.probe_silence(now);
        self.send_receipts(now);
        self.send_tail(context);
        self.announce_free();
        share.go_on();
        more |= self.send(context, &mut share);
        // Handle timers after answering what has arrived: on a path that has just changed,
        // quinn-proto assumes that something is in flight.
        if self.connection.poll_timeout().is_some_and(|deadline| deadline <= now) {
            self.connection.handle_timeout(now);
            more |= self.poll_events(&mut share);
            more |= self.send(context, &mut share);
        }
        more |= share.is_over() && !(self.sparse.is_empty() && self.bulk.is_empty());
        more |= self.poll_events(&mut share);
        more |= !self.arrived.is_empty() || self.has_some_to_end();
        self.publish();
        DriveOutcome {
            more,
            deadline: self.deadline(now),
            bulk_bytes: std::mem::take(&mut self.bulk_bytes),
            proved: self.proved,
            lost: self.lost,
        }
    }

    fn publish(&mut self) {
        let (remote, mut stats) = (self.connection.remote_address(), self.connection.stats());
        self.roaming.observe(remote, &stats);
        self.gate.sent(eliciting(&stats.frame_tx), stats.path.sent_packets);
        // quinn-proto has no limit of its own.
        stats.path.cwnd = self.gate.window();
        self.shared.publish(remote, stats, self.gate.acks());
    }

    /// Whether the connection is completely over.
    pub(crate) fn is_over(&self) -> bool {
        self.drained && self.lost && !self.has_streams()
    }

    /// Whether it has streams or flows, also those that a lost connection has left to be ended.
    pub(crate) fn has_streams(&self) -> bool {
        !(self.channels.is_empty()
            && self.losing.is_empty()
            && self.moves.waiting.is_empty()
            && self.flows.is_empty())
    }

    fn deadline(&mut self, now: Instant) -> Option<Instant> {
        let splices = match self.lost {
            true => self.channels.values().filter_map(Channel::deadline).min(),
            false => None,
        };
        let paced = self.paced_until.filter(|until| *until > now);
        let (moves, window) = (self.moves.deadline(), self.window.deadline());
        let silence = self.silence.deadline().filter(|_| !self.lost);
        let receipts = self.receipts.deadline().filter(|_| !self.lost);
        let (tail, flows) = (self.tail.deadline(), self.flows.deadline());
        let timeout = self.connection.poll_timeout();
        [timeout, paced, splices, self.linger_at, moves, window, silence, receipts, tail, flows]
            .into_iter()
            .flatten()
            .min()
    }

    /// Handles events until its share of the round is used up; returns whether there may be more.
    fn poll_events(&mut self, share: &mut TimeShare) -> bool {
        while let Some(event) = self.connection.poll() {
            let may_end_stream = matches!(
                event,
                Event::Stream(StreamEvent::Finished { .. } | StreamEvent::Stopped { .. })
            );
            match event {
                Event::Connected => self.established(),
                Event::ConnectionLost { reason } => {
                    let holds = self.rules.holds(&reason);
                    self.lose(reason, holds);
                }
                Event::Stream(event) => self.on_stream_event(event),
                Event::HandshakeDataReady | Event::DatagramReceived | Event::DatagramsUnblocked => {
                }
            }
            let is_used_up = match may_end_stream {
                true => share.is_used_up_by_now(),
                false => share.is_used_up(),
            };
            if is_used_up {
                return true;
            }
        }
        false
    }

    fn established(&mut self) {
        let (incoming, streams) = mpsc::unbounded_channel();
        (self.incoming, self.proved) = (Some(incoming), true);
        let proof = (self.rules.inspect)(self.connection.crypto_session());
        self.opening_cost = (self.rules.opening_cost)(self.connection.crypto_session());
        let carries_datagrams = self.connection.datagrams().max_size().is_some();
        let shared = Arc::clone(&self.shared);
        let established = Established { shared, proof, streams, carries_datagrams };
        self.publish();
        match std::mem::replace(&mut self.waiting, HandshakeReply::Nobody) {
            // If nobody waits any more, this drops the handle, which closes the connection.
            HandshakeReply::Client(reply) => drop(reply.send(Ok(established))),
            HandshakeReply::Server(accepted) => {
                let connection = connection::Connection::new(established);
                drop(accepted.send(Accepted::Connection(connection)));
            }
            HandshakeReply::Nobody => {}
        }
    }
}

/// A driver's state of stream migrations.
#[derive(Default)]
pub(crate) struct MigrationState {
    pub(super) sibling: Option<Sibling>,
    pub(super) is_bulk: bool,
    /// Directions that wait until the peer allows another stream.
    pub(super) waiting: VecDeque<MigratingDirection>,
    /// Directions that came from these streams of the sibling, waiting for the peer to follow.
    pub(super) following: Vec<(StreamId, StreamId)>,
    pub(super) idle_check: Option<Instant>,
    /// Whether the next direction that moves takes the controller along.
    pub(super) hands_over_controller: bool,
    /// When a bulk connection was last asked for.
    pub(super) asked_at: Option<Instant>,
}

impl MigrationState {
    /// When to look for idle directions.
    pub(crate) fn deadline(&self) -> Option<Instant> {
        self.idle_check
    }
}
