//! Delivers received stream data to sockets and readers, and limits what the peer may send: bytes
//! (`windows`) and streams (`allowance`).

use std::time::Instant;

use quinn_proto::{Connection, Dir, StreamId};

use super::carrier::Carrier;
use crate::{
    channel::Channel,
    splice::Cut,
    stream_credit::{ANNOUNCES_EACH, StreamCredit},
    time_share::TimeShare,
    to_socket::Delivered,
    windows::ReceiveWindow,
};

/// What a connection receives.
pub(super) struct Receiver {
    window: ReceiveWindow,
    /// Indexed by `Dir`.
    stream_credits: [StreamCredit; 2],
    /// Streams that the peer had open at the last check.
    remote_open: [u64; 2],
}

impl Receiver {
    pub(super) fn new(window: ReceiveWindow, stream_credits: [StreamCredit; 2]) -> Self {
        Self { window, stream_credits, remote_open: [0; 2] }
    }

    /// The peer has proved a key.
    pub(super) fn proved(&mut self, quic: &mut Connection) {
        if let Some(bytes) = self.window.proved() {
            quic.set_receive_window(bytes.into());
        }
    }

    /// Passes received data to sockets and readers, until its share of the round is used up.
    /// Returns how many bytes of bulk data it has passed on.
    pub(super) fn deliver(
        &mut self,
        carrier: &mut Carrier,
        now: Instant,
        share: &mut TimeShare,
    ) -> usize {
        let arrived = carrier.streams.take_arrived();
        let (mut delivered, mut bulk_bytes) = (0, 0);
        while let Some(&id) = arrived.get(delivered) {
            delivered += 1;
            bulk_bytes += self.deliver_stream(id, carrier, now, share);
            if share.is_used_up() {
                break;
            }
        }
        carrier.streams.put_back(arrived, delivered);
        if let Some(window) = self.window.follow_out_of_order() {
            carrier.quic.set_receive_window(window.into());
        }
        bulk_bytes
    }

    fn deliver_stream(
        &mut self,
        id: StreamId,
        carrier: &mut Carrier,
        now: Instant,
        share: &mut TimeShare,
    ) -> usize {
        let Carrier { quic, streams, holding, .. } = carrier;
        match streams.get_mut(id) {
            Some(Channel::Controlled(control)) => control.receive(quic.recv_stream(id)),
            Some(Channel::Spliced(spliced)) => {
                let Some(to_socket) = &mut spliced.to_socket else { return 0 };
                if spliced.state.failed_at().is_some() {
                    to_socket.block(now);
                    self.window.blocked(now);
                    return 0;
                }
                let before = to_socket.offset;
                let out_of_order = self.window.out_of_order();
                let delivered = to_socket.deliver(quic.recv_stream(id), out_of_order, share, now);
                holding.delivered(id, to_socket, now);
                let taken = to_socket.offset - before;
                let bulk_bytes = to_socket.bulk_bytes(taken as usize);
                if let Some(window) = self.window.read(taken) {
                    // quinn-proto announces only a window that grows.
                    quic.set_receive_window(window.saturating_sub(1).into());
                    quic.set_receive_window(window.into());
                }
                match delivered {
                    _ if self.window.is_overrun() => carrier.cut(id, Cut::Lost),
                    Ok(Delivered::Partly) if to_socket.is_blocked() => self.window.blocked(now),
                    Ok(Delivered::Partly) => {}
                    Ok(Delivered::UpToShare) => streams.arrived(id),
                    Ok(Delivered::UpToMove(at)) => carrier.move_in(id, at),
                    Ok(Delivered::Whole) => {
                        spliced.to_socket = None;
                        carrier.retire(id);
                    }
                    Err(cut) => carrier.end_splice(id, cut, now),
                }
                return bulk_bytes;
            }
            Some(Channel::Announced(_)) => carrier.read_announcement(id, now, share),
            Some(Channel::Receipts(_)) => carrier.read_receipts(id, now, share),
            // A move that was abandoned; what was sent ahead waits.
            Some(Channel::Awaiting(_)) => {
                if let Ok(Some(_)) = quic.recv_stream(id).received_reset() {
                    streams.remove(id);
                }
            }
            None => {}
        }
        0
    }

    /// Keeps enough of the window for other streams while some sockets accept nothing.
    pub(super) fn adjust_window(&mut self, carrier: &mut Carrier, now: Instant) {
        let Some(since) = self.window.is_due(now) else { return };
        let sockets = carrier.streams.all_spliced().filter_map(|(_, it)| it.to_socket.as_ref());
        let slow = sockets.filter(|to_socket| to_socket.was_blocked(since)).count();
        if let Some(bytes) = self.window.set_slow(slow, now) {
            carrier.quic.set_receive_window(bytes.into());
        }
    }

    /// When to look at sockets that accept nothing.
    pub(super) fn deadline(&self) -> Option<Instant> {
        self.window.deadline()
    }

    /// Raises the peer's stream limit if it has opened many.
    pub(super) fn allow_more(&mut self, quic: &mut Connection, dir: Dir) {
        let open = quic.streams().remote_open_streams(dir);
        if let Some(count) = self.stream_credits[dir as usize].grow(open) {
            quic.set_max_concurrent_streams(dir, count);
        }
    }

    /// Announces freed streams to a peer that may be waiting for one: it would not learn of the
    /// last eighth.
    pub(super) fn announce_free(&mut self, quic: &mut Connection) {
        for dir in [Dir::Bi, Dir::Uni] {
            let open = quic.streams().remote_open_streams(dir);
            let stream_credit = self.stream_credits[dir as usize];
            let before = std::mem::replace(&mut self.remote_open[dir as usize], open);
            if open != before && stream_credit.is_short(open) {
                quic.set_max_concurrent_streams(dir, ANNOUNCES_EACH);
                quic.set_max_concurrent_streams(dir, stream_credit.current());
            }
        }
    }
}
