//! Reads the sockets of a connection's flows, each a share at a time.

use std::{collections::VecDeque, io, time::Instant};

use bytes::Bytes;
use quinn_proto::StreamId;
use rustc_hash::FxHashSet;

use super::{Flows, OpenEnd, handles::FlowEnd, network::READ_BYTES_MAX, socket::is_unreachable};
use crate::{splice::Owner, time_share::TimeShare};

/// Datagrams to read from one socket before reading others.
const READS: usize = 64;

/// Sockets to read before driving other connections.
const SOCKETS: usize = 8;

/// Sockets that may have something to read, each once.
#[derive(Debug, Default)]
pub(super) struct Readable {
    order: VecDeque<Owner>,
    /// The sockets in `order`, and the one that is being read.
    members: FxHashSet<Owner>,
}

impl Readable {
    pub(super) fn insert(&mut self, owner: Owner) {
        if self.members.insert(owner) {
            self.order.push_back(owner);
        }
    }
}

impl Flows {
    /// Reads what has arrived on sockets until its share of the round is used up; returns whether
    /// there may be more.
    pub(crate) fn read_sockets(&mut self, now: Instant, share: &mut TimeShare) -> bool {
        if self.readable.order.is_empty() {
            return false;
        }
        let mut buffer = std::mem::take(&mut self.buffer);
        // More than any datagram has.
        buffer.resize(READ_BYTES_MAX, 0);
        for _ in 0..self.readable.order.len().min(SOCKETS) {
            let Some(owner) = self.readable.order.pop_front() else { break };
            let has_more = match owner {
                Owner::Flow(id) => self.read_flow(id, &mut buffer, now, share),
                Owner::Listener(listener) => self.read_listener(listener, &mut buffer, now, share),
                Owner::Stream(_) => false,
            };
            // Sockets with more to read go to the back.
            match has_more {
                true => self.readable.order.push_back(owner),
                false => drop(self.readable.members.remove(&owner)),
            }
            if share.is_over() {
                break;
            }
        }
        self.buffer = buffer;
        !self.readable.order.is_empty()
    }

    /// Returns whether there may be more to read.
    fn read_flow(
        &mut self,
        id: StreamId,
        buffer: &mut [u8],
        now: Instant,
        share: &mut TimeShare,
    ) -> bool {
        let path = self.path_of(id, now);
        for _ in 0..READS {
            let Some(flow) = self.open.get_mut(&id) else { return false };
            let (received, is_queued) = match &flow.end {
                OpenEnd::Connected(socket) => (socket.receive(buffer).map(Some), false),
                OpenEnd::Network(network) => (network.receive(buffer, path), true),
                OpenEnd::Source(_) => return false,
            };
            match received {
                Ok(Some(bytes)) if is_queued => {
                    flow.carried.add_datagram_from_socket(bytes);
                    self.queue.wake(id);
                }
                Ok(Some(bytes)) => self.enqueue(id, Bytes::copy_from_slice(&buffer[..bytes]), now),
                // The filter has dropped it.
                Ok(None) => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return false,
                // The flow continues (RFC 4787 REQ-10): the target may come back.
                Err(error) if is_unreachable(&error) => flow.carried.add_unreachable(),
                Err(error) => {
                    self.end(id, error.into());
                    return false;
                }
            }
            if share.is_used_up() {
                break;
            }
        }
        true
    }

    /// Returns whether there may be more to read.
    fn read_listener(
        &mut self,
        listener: u64,
        buffer: &mut [u8],
        now: Instant,
        share: &mut TimeShare,
    ) -> bool {
        let mut has_made_room = false;
        for nth in 0..READS {
            if nth > 0 && share.is_used_up() {
                break;
            }
            let Some(one) = self.listeners.get_mut(&listener) else { return false };
            let arrival = match one.receive(buffer) {
                Ok(arrival) => arrival,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return false,
                // The error is about one datagram: the next may be from another source.
                Err(_) => continue,
            };
            let datagram = &buffer[..arrival.bytes];
            if one.needs_room(arrival.from) {
                // Making room takes time, which a flood of new sources must not take from others.
                if std::mem::replace(&mut has_made_room, true) {
                    continue;
                }
                if !one.forget_muted(now) && !self.displace_of(listener) {
                    continue;
                }
            }
            let number = self.next_source;
            self.next_source += 1;
            let Some(one) = self.listeners.get_mut(&listener) else { return false };
            if let Some(id) = one.arrived(arrival, datagram, number, now) {
                self.enqueue(id, Bytes::copy_from_slice(datagram), now);
            }
        }
        true
    }

    /// Ends a listener's flow that was idle for longest; returns whether there was one.
    fn displace_of(&mut self, listener: u64) -> bool {
        let Some(one) = self.listeners.get(&listener) else { return false };
        // A flow that has ended frees its place immediately.
        let last_at = |id: &StreamId| self.open.get(id).map(|flow| flow.last_at);
        let Some(id) = one.open_flows().min_by_key(last_at) else { return false };
        self.end(id, FlowEnd::Displaced);
        true
    }
}
