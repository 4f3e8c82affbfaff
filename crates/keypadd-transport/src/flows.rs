//! Carries the datagrams of UDP flows between the DATAGRAM frames of a connection and UDP sockets.
//!
//! A flow lives as long as its bidirectional stream. At one end it has a socket connected to the
//! target; at the other it is one source address of a listening socket (`listener`). A network is a
//! flow as well, with a device for IP packets at both ends (`network`). What a peer can make this
//! end hold is bounded: sources, incomplete datagrams (`fragments`), datagrams for
//! streams that have no flow yet (`early`), and the send queue (`send_queue`). Knows no congestion
//! control and no permits.

mod arrived;
mod delivering;
mod early;
pub(crate) mod fragments;
pub(crate) mod frame;
pub(crate) mod handles;
mod listener;
pub(crate) mod network;
pub(crate) mod readers;
mod reading;
pub(crate) mod send_queue;
mod socket;

use std::{
    io,
    net::SocketAddr,
    sync::Arc,
    time::{Duration, Instant},
};

use bytes::Bytes;
use mio::Token;
use quinn_proto::StreamId;
use rustc_hash::FxHashMap;
use tokio::sync::oneshot;

use self::{
    arrived::Arrived,
    early::EarlyDatagrams,
    fragments::Fragments,
    frame::head_bytes,
    handles::{FlowCommand, FlowCommands, FlowEnd, FlowSide, NetworkReader, NewFlow, SourceName},
    listener::Listener,
    network::{NetworkEnd, PacketPath},
    reading::Readable,
    send_queue::SendQueue,
    socket::FlowSocket,
};
use crate::{
    handed_controller::HandedController,
    splice::{Owner, Registrar},
    time_share::TimeShare,
    transfer_stats::TransferStats,
};

/// The flows of a connection.
#[derive(Default)]
pub(crate) struct Flows {
    open: FxHashMap<StreamId, OpenFlow>,
    listeners: FxHashMap<u64, Listener>,
    /// Frames from the peer.
    arrived: Arrived,
    /// Sockets that may have something to read.
    readable: Readable,
    queue: SendQueue,
    fragments: Fragments,
    early: EarlyDatagrams,
    /// Networks whose devices have not got all that has arrived.
    unflushed: Vec<StreamId>,
    /// A flow ends after this long without a datagram, unless it is a network.
    idle: Duration,
    /// When to check for idle flows and overdue datagrams.
    check_at: Option<Instant>,
    /// Tokens of closed sockets.
    ended_sockets: Vec<Token>,
    /// What is read at once; allocated with the first socket.
    buffer: Vec<u8>,
    /// What one frame holds, and where the peer is, as of the last drive.
    frame_max: usize,
    remote: Option<SocketAddr>,
    /// A listener's next source.
    next_source: u64,
}

struct OpenFlow {
    end: OpenEnd,
    carried: Arc<TransferStats>,
    ended: oneshot::Sender<FlowEnd>,
    last_at: Instant,
}

enum OpenEnd {
    Connected(FlowSocket),
    Source(SourceName),
    Network(NetworkEnd),
}

impl OpenFlow {
    /// When it ends unless it carries something, if ever.
    fn idle_at(&self, idle: Duration) -> Option<Instant> {
        match self.end {
            OpenEnd::Connected(_) | OpenEnd::Source(_) => Some(self.last_at + idle),
            OpenEnd::Network(_) => None,
        }
    }
}

impl Flows {
    pub(crate) fn new(idle: Duration) -> Self {
        Self { idle, ..Self::default() }
    }

    pub(crate) fn on_command(
        &mut self,
        command: FlowCommand,
        connection: &Arc<dyn FlowCommands>,
        registrar: &mut Registrar<'_>,
        now: Instant,
    ) {
        match command {
            FlowCommand::Listen(new) => {
                let (listener, owner) = (new.listener, Owner::Listener(new.listener));
                let token = registrar.token(owner);
                match Listener::new(new, token, registrar.registry(), connection) {
                    Ok(opened) => {
                        self.listeners.insert(listener, opened);
                        self.on_ready(owner);
                    }
                    // Drops the sender, which tells the control task.
                    Err(_) => self.ended_sockets.push(token),
                }
            }
            FlowCommand::Unlisten { listener } => self.unlisten(listener),
            FlowCommand::Carry(id, new) => self.carry(id, *new, registrar, now),
            FlowCommand::End(id) => self.end(id, FlowEnd::Lost),
            FlowCommand::AskToSend(id, paused) => {
                if let Some(OpenFlow { end: OpenEnd::Network(network), .. }) =
                    self.open.get_mut(&id)
                {
                    let reader = NetworkReader { connection: Arc::clone(connection), id };
                    if let Some(outgoing) = network.ask_to_send(Arc::new(reader)) {
                        self.queue.take_from(id, outgoing);
                    }
                }
                drop(paused);
            }
            FlowCommand::Read(id) => {
                self.queue.wake(id);
                self.on_ready(Owner::Flow(id));
            }
            FlowCommand::Displace { idle } => {
                let is_source = |flow: &OpenFlow| matches!(flow.end, OpenEnd::Source(_));
                let of_listeners = self.open.iter().filter(|(_, flow)| is_source(flow));
                let idlest = of_listeners.min_by_key(|(_, flow)| flow.last_at);
                let idlest = idlest.filter(|(_, flow)| flow.last_at + idle <= now);
                if let Some(id) = idlest.map(|(id, _)| *id) {
                    self.end(id, FlowEnd::Displaced);
                }
            }
            FlowCommand::Refuse { source, mute } => {
                let listener = self.listeners.get_mut(&source.listener);
                let open = listener.and_then(|listener| listener.refuse(source, mute, now));
                if let Some(id) = open {
                    self.end(id, FlowEnd::Lost);
                }
            }
        }
    }

    /// Follows the turns of a network; see [`NetworkEnd::follow_turn`].
    pub(crate) fn follow_turn(
        &mut self,
        id: StreamId,
        ends: bool,
        now: Instant,
        own: impl FnOnce() -> Option<HandedController>,
    ) -> Option<HandedController> {
        match &mut self.open.get_mut(&id)?.end {
            OpenEnd::Network(network) => network.follow_turn(ends, now, own),
            OpenEnd::Connected(_) | OpenEnd::Source(_) => None,
        }
    }

    /// The streams of networks.
    pub(crate) fn networks(&self) -> Vec<StreamId> {
        let is_network = |flow: &OpenFlow| matches!(flow.end, OpenEnd::Network(_));
        self.open.iter().filter(|(_, flow)| is_network(flow)).map(|(id, _)| *id).collect()
    }

    /// The system has reported on a socket.
    pub(crate) fn on_ready(&mut self, owner: Owner) {
        self.readable.insert(owner);
    }

    fn carry(&mut self, id: StreamId, new: NewFlow, registrar: &mut Registrar<'_>, now: Instant) {
        let NewFlow { end, carried, ended } = new;
        self.queue.open(id, Arc::clone(&carried));
        let mut waiting = Vec::new();
        let end = match end {
            FlowSide::Connected(socket) => {
                let token = registrar.token(Owner::Flow(id));
                let end = FlowSocket::new(socket, token, registrar.registry());
                match self.registered(id, token, end.map(OpenEnd::Connected)) {
                    Ok(end) => end,
                    Err(error) => return drop(ended.send(error.into())),
                }
            }
            FlowSide::Network(side) => {
                let token = registrar.token(Owner::Flow(id));
                let end = NetworkEnd::new(side, token, registrar.registry());
                match self.registered(id, token, end.map(OpenEnd::Network)) {
                    Ok(end) => end,
                    Err(error) => return drop(ended.send(error.into())),
                }
            }
            FlowSide::Source(name) => {
                let listener = self.listeners.get_mut(&name.listener);
                let Some(sent) = listener.and_then(|listener| listener.opened(name, id)) else {
                    self.queue.close(id);
                    let _ = ended.send(FlowEnd::Lost);
                    return;
                };
                carried.add_dropped(sent.dropped);
                waiting = sent.datagrams;
                OpenEnd::Source(name)
            }
        };
        let flow = OpenFlow { end, carried, ended, last_at: now };
        if let Some(at) = flow.idle_at(self.idle) {
            self.check_at(at);
        }
        self.open.insert(id, flow);
        for datagram in waiting {
            self.enqueue(id, datagram, now);
        }
        for datagram in self.early.take(id) {
            self.deliver(id, datagram, now);
        }
        self.flush();
    }

    /// A flow's socket or device is registered, or its flow cannot begin.
    fn registered(
        &mut self,
        id: StreamId,
        token: Token,
        end: io::Result<OpenEnd>,
    ) -> io::Result<OpenEnd> {
        match end {
            Ok(_) => self.on_ready(Owner::Flow(id)),
            Err(_) => {
                self.ended_sockets.push(token);
                self.queue.close(id);
            }
        }
        end
    }

    /// Queues a datagram for the peer.
    fn enqueue(&mut self, id: StreamId, datagram: Bytes, now: Instant) {
        let Some(flow) = self.open.get_mut(&id) else { return };
        flow.last_at = now;
        flow.carried.add_datagram_from_socket(datagram.len());
        self.queue.push(id, datagram, now);
    }

    /// The path carries frames of this size now, and leads there. A round trip takes so long.
    pub(crate) fn set_path(&mut self, frame_max: usize, remote: SocketAddr, rtt: Duration) {
        self.queue.set_round_trip(rtt);
        self.frame_max = frame_max;
        self.remote = Some(SocketAddr::new(remote.ip().to_canonical(), remote.port()));
    }

    /// What carries the packets of the network of this stream.
    fn path_of(&self, id: StreamId, now: Instant) -> PacketPath {
        let room = self.frame_max.saturating_sub(head_bytes(id, false));
        PacketPath { room, remote: self.remote, now }
    }

    /// Whether datagrams wait to be sent.
    pub(crate) fn has_unsent(&self) -> bool {
        !self.queue.is_empty()
    }

    /// Whether packets of bulk flows have been queued that a bulk connection should send; asked
    /// once.
    pub(crate) fn take_wants_bulk(&mut self) -> bool {
        self.queue.take_wants_bulk()
    }

    /// The next frame for the peer, of at most `bytes_max`.
    pub(crate) fn next_frame(&mut self, bytes_max: usize, now: Instant) -> Option<Bytes> {
        self.queue.next_frame(bytes_max, now)
    }

    /// When to check for idle flows and overdue datagrams.
    pub(crate) fn deadline(&self) -> Option<Instant> {
        self.check_at
    }

    fn check_at(&mut self, at: Instant) {
        self.check_at = Some(self.check_at.map_or(at, |earlier| earlier.min(at)));
    }

    /// Ends idle flows, and drops overdue datagrams.
    pub(crate) fn expire(&mut self, now: Instant) {
        if self.check_at.take_if(|at| *at <= now).is_none() {
            return;
        }
        let idle = |flow: &OpenFlow| flow.idle_at(self.idle).is_some_and(|at| at <= now);
        let ids: Vec<_> =
            self.open.iter().filter(|(_, flow)| idle(flow)).map(|(id, _)| *id).collect();
        for id in ids {
            self.end(id, FlowEnd::Idle);
        }
        self.fragments.expire(now);
        self.count_incomplete();
        self.early.expire(now);
        let next_idle = self.open.values().filter_map(|flow| flow.idle_at(self.idle)).min();
        self.check_at = [next_idle, self.fragments.deadline(), self.early.deadline()]
            .into_iter()
            .flatten()
            .min();
    }

    fn end(&mut self, id: StreamId, end: FlowEnd) {
        let Some(flow) = self.open.remove(&id) else { return };
        self.queue.close(id);
        self.fragments.forget(id);
        match flow.end {
            OpenEnd::Connected(socket) => self.ended_sockets.push(socket.token),
            OpenEnd::Network(mut network) => {
                network.flush();
                self.ended_sockets.push(network.token);
            }
            OpenEnd::Source(name) => {
                if let Some(listener) = self.listeners.get_mut(&name.listener) {
                    listener.closed(name);
                }
            }
        }
        // If the task was dropped, nobody waits for it.
        let _ = flow.ended.send(end);
    }

    fn unlisten(&mut self, listener: u64) {
        let Some(one) = self.listeners.remove(&listener) else { return };
        self.ended_sockets.push(one.token());
        for id in one.open_flows() {
            self.end(id, FlowEnd::Lost);
        }
    }

    /// Whether it has nothing to end.
    pub(crate) fn is_empty(&self) -> bool {
        self.open.is_empty() && self.listeners.is_empty()
    }

    /// Ends flows, because the connection is gone, until its share of the round is used up.
    pub(crate) fn end_some(&mut self, share: &mut TimeShare) {
        while let Some(id) = self.open.keys().next().copied() {
            self.end(id, FlowEnd::Lost);
            if share.is_used_up_by_now() {
                return;
            }
        }
        self.end_all();
    }

    /// Ends all flows: the connection is gone.
    pub(crate) fn end_all(&mut self) {
        let ids: Vec<_> = self.open.keys().copied().collect();
        for id in ids {
            self.end(id, FlowEnd::Lost);
        }
        let listeners: Vec<_> = self.listeners.keys().copied().collect();
        for listener in listeners {
            self.unlisten(listener);
        }
        (self.early, self.fragments) = (EarlyDatagrams::default(), Fragments::default());
        (self.check_at, self.buffer) = (None, Vec::new());
        self.arrived = Arrived::default();
        self.readable = Readable::default();
    }

    /// Takes the tokens of sockets closed since the last call.
    pub(crate) fn take_ended_sockets(&mut self) -> Vec<Token> {
        std::mem::take(&mut self.ended_sockets)
    }
}

#[cfg(test)]
mod tests;
