//! Delivers the frames of the peer to a connection's flows, each a share at a time.

use std::time::Instant;

use bytes::Bytes;
use quinn_proto::StreamId;

use super::{
    Flows, OpenEnd, OpenFlow,
    frame::{FlowFrame, Fragment, is_flow_stream},
};
use crate::{splice::Owner, time_share::TimeShare};

impl Flows {
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
        self.flush();
        !self.arrived.is_empty()
    }

    /// Gives devices what they are to get together. Hosts behind them may have answered by then:
    /// the answers are read in this round, before the system reports them.
    pub(super) fn flush(&mut self) {
        while let Some(id) = self.unflushed.pop() {
            if let Some(OpenFlow { end: OpenEnd::Network(network), .. }) = self.open.get_mut(&id) {
                network.flush();
                self.readable.insert(Owner::Flow(id));
            }
        }
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
            Some(datagram) if has_flow => self.deliver(stream, datagram, now),
            Some(datagram) => {
                if let Some(at) = self.early.add(stream, &datagram, now) {
                    self.check_at(at);
                }
            }
            None => {}
        }
    }

    /// Counts datagrams that will never be complete.
    pub(super) fn count_incomplete(&mut self) {
        for id in self.fragments.take_dropped() {
            if let Some(flow) = self.open.get(&id) {
                flow.carried.add_dropped(1);
            }
        }
    }

    /// Writes a datagram to the flow's socket, or has its device get it with the next
    /// [`flush`](Self::flush). One that is refused is lost, as on a network.
    pub(super) fn deliver(&mut self, id: StreamId, datagram: Bytes, now: Instant) {
        let path = self.path_of(id, now);
        let Some(flow) = self.open.get_mut(&id) else { return };
        let bytes = datagram.len();
        let sent = match &mut flow.end {
            OpenEnd::Connected(socket) => {
                flow.last_at = now;
                let (sent, was_unreachable) = socket.send(&datagram);
                if was_unreachable {
                    flow.carried.add_unreachable();
                }
                sent
            }
            // Only what a source sends keeps its flow alive (RFC 4787 REQ-6): its address may be
            // forged.
            OpenEnd::Source(name) => match self.listeners.get(&name.listener) {
                Some(listener) => listener.send(&datagram, name.from),
                None => return,
            },
            OpenEnd::Network(network) => {
                // The filter counts what it drops.
                if let Some(answer) = network.deliver(datagram, path) {
                    self.queue.push(id, answer, now);
                }
                if !self.unflushed.contains(&id) {
                    self.unflushed.push(id);
                }
                return;
            }
        };
        match sent {
            Ok(()) => flow.carried.add_datagram_to_socket(bytes),
            Err(_) => flow.carried.add_dropped(1),
        }
    }
}
