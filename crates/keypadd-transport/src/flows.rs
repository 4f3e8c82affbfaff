//! Carries the datagrams of UDP flows between the DATAGRAM frames of a connection and UDP sockets.
//!
//! A flow lives as long as its bidirectional stream. At one end it has a socket connected to the
//! target; at the other it is one source address of a listening socket (`listener`). What a peer
//! can make this end hold is bounded: sources, incomplete datagrams (`fragments`), datagrams for
//! streams that have no flow yet (`early`), and the send queue (`send_queue`). Knows no congestion
//! control and no permits.

mod arrived;
mod early;
pub(crate) mod fragments;
pub(crate) mod frame;
pub(crate) mod handles;
mod listener;
mod reading;
pub(crate) mod send_queue;
mod socket;

use std::{
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
    frame::{FlowFrame, Fragment, is_flow_stream},
    handles::{FlowCommand, FlowCommands, FlowEnd, FlowSide, NewFlow, SourceName},
    listener::Listener,
    reading::Readable,
    send_queue::SendQueue,
    socket::FlowSocket,
};
use crate::{
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
    /// A flow ends after this long without a datagram.
    idle: Duration,
    /// When to check for idle flows and overdue datagrams.
    check_at: Option<Instant>,
    /// Tokens of closed sockets.
    ended_sockets: Vec<Token>,
    /// One datagram; allocated with the first socket.
    buffer: Vec<u8>,
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
                let owner = Owner::Flow(id);
                let token = registrar.token(owner);
                match FlowSocket::new(socket, token, registrar.registry()) {
                    Ok(socket) => {
                        self.on_ready(owner);
                        OpenEnd::Connected(socket)
                    }
                    Err(error) => {
                        self.ended_sockets.push(token);
                        self.queue.close(id);
                        let _ = ended.send(error.into());
                        return;
                    }
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
        self.open.insert(id, OpenFlow { end, carried, ended, last_at: now });
        self.check_at(now + self.idle);
        for datagram in waiting {
            self.enqueue(id, datagram, now);
        }
        for datagram in self.early.take(id) {
            self.deliver(id, &datagram, now);
        }
    }

    /// Queues a frame from the peer; drops it if many wait, and counts a datagram that it begins.
    pub(crate) fn arrive(&mut self, frame: Bytes) {
        let Err(dropped) = self.arrived.push(frame) else { return };
        let Some(FlowFrame { stream, fragment, .. }) = FlowFrame::decode(dropped) else { return };
        if fragment.is_none_or(|fragment| fragment.offset == 0)
            && let Some(flow) = self.open.get(&stream)
        {
            flow.carried.add_dropped(1);
            if let Some(Fragment { number, .. }) = fragment {
                self.fragments.counted(stream, number);
            }
        }
    }

    /// Handles frames from the peer until its share of the round is used up; returns whether more
    /// wait. `is_open` tells whether a stream is open.
    pub(crate) fn receive_some(
        &mut self,
        is_open: impl Fn(StreamId) -> bool,
        now: Instant,
        share: &mut TimeShare,
    ) -> bool {
        while let Some(frame) = self.arrived.pop() {
            self.receive(frame, &is_open, now);
            if share.is_used_up() {
                break;
            }
        }
        !self.arrived.is_empty()
    }

    fn receive(&mut self, frame: Bytes, is_open: impl FnOnce(StreamId) -> bool, now: Instant) {
        let Some(FlowFrame { stream, fragment, bytes }) = FlowFrame::decode(frame) else { return };
        let has_flow = self.open.contains_key(&stream);
        if !is_flow_stream(stream) || !(has_flow || is_open(stream)) {
            return;
        }
        let datagram = match fragment {
            None => Some(bytes),
            Some(fragment) => {
                let whole = self.fragments.add(stream, fragment, &bytes, now);
                if let Some(at) = self.fragments.deadline() {
                    self.check_at(at);
                }
                self.count_incomplete();
                whole
            }
        };
        match datagram {
            Some(datagram) if has_flow => self.deliver(stream, &datagram, now),
            Some(datagram) => {
                if let Some(at) = self.early.add(stream, &datagram, now) {
                    self.check_at(at);
                }
            }
            None => {}
        }
    }

    /// Counts datagrams that will never be complete.
    fn count_incomplete(&mut self) {
        for id in self.fragments.take_dropped() {
            if let Some(flow) = self.open.get(&id) {
                flow.carried.add_dropped(1);
            }
        }
    }

    /// Writes a datagram to the flow's socket. A datagram that the socket refuses is lost, as on a
    /// network.
    fn deliver(&mut self, id: StreamId, datagram: &[u8], now: Instant) {
        let Some(flow) = self.open.get_mut(&id) else { return };
        let sent = match &flow.end {
            OpenEnd::Connected(socket) => {
                flow.last_at = now;
                let (sent, was_unreachable) = socket.send(datagram);
                if was_unreachable {
                    flow.carried.add_unreachable();
                }
                sent
            }
            // Only what a source sends keeps its flow alive (RFC 4787 REQ-6): its address may be
            // forged.
            OpenEnd::Source(name) => match self.listeners.get(&name.listener) {
                Some(listener) => listener.send(datagram, name.from),
                None => return,
            },
        };
        match sent {
            Ok(()) => flow.carried.add_datagram_to_socket(datagram.len()),
            Err(_) => flow.carried.add_dropped(1),
        }
    }

    /// Queues a datagram for the peer.
    fn enqueue(&mut self, id: StreamId, datagram: Bytes, now: Instant) {
        let Some(flow) = self.open.get_mut(&id) else { return };
        flow.last_at = now;
        flow.carried.add_datagram_from_socket(datagram.len());
        self.queue.push(id, datagram, now);
    }

    /// Whether datagrams wait to be sent.
    pub(crate) fn has_unsent(&self) -> bool {
        !self.queue.is_empty()
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
        let idle = |flow: &OpenFlow| flow.last_at + self.idle <= now;
        let ids: Vec<_> =
            self.open.iter().filter(|(_, flow)| idle(flow)).map(|(id, _)| *id).collect();
        for id in ids {
            self.end(id, FlowEnd::Idle);
        }
        self.fragments.expire(now);
        self.count_incomplete();
        self.early.expire(now);
        let next_idle = self.open.values().map(|flow| flow.last_at + self.idle).min();
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
