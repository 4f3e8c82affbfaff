//! Delivers received stream data to sockets and readers, and adjusts the receive window to slow ones.

use std::time::Instant;

use quinn_proto::StreamId;
use rustc_hash::FxHashSet;

use super::Driver;
use crate::{
    channel::Channel,
    splice::Cut,
    time_share::TimeShare,
    to_socket::{Delivered, ReceiptDue},
};

/// With more entries than this, streams are looked for that are listed again.
const LISTED_AGAIN_MIN: usize = 64;

impl Driver {
    /// Passes received data to sockets and readers, until its share of the round is used up.
    pub(super) fn deliver(&mut self, now: Instant, share: &mut TimeShare) {
        let mut arrived = std::mem::take(&mut self.arrived);
        list_once(&mut arrived);
        let mut delivered = 0;
        while let Some(&id) = arrived.get(delivered) {
            delivered += 1;
            self.deliver_stream(id, now, share);
            if share.is_used_up() {
                break;
            }
        }
        arrived.drain(..delivered);
        // What has arrived meanwhile goes behind the rest.
        arrived.append(&mut self.arrived);
        self.arrived = arrived;
        if let Some(window) = self.window.follow_out_of_order() {
            self.connection.set_receive_window(window.into());
        }
        if self.lost {
            let overdue =
                |channel: &Channel| channel.deadline().is_some_and(|deadline| deadline <= now);
            let overdue = self.channels.iter().filter(|(_, channel)| overdue(channel));
            let ids: Vec<_> = overdue.map(|(id, _)| *id).collect();
            for id in ids {
                self.cut(id, Cut::Lost);
                if share.is_used_up_by_now() {
                    break;
                }
            }
        }
    }

    fn deliver_stream(&mut self, id: StreamId, now: Instant, share: &mut TimeShare) {
        match self.channels.get_mut(&id) {
            Some(Channel::Controlled(control)) => control.receive(self.connection.recv_stream(id)),
            Some(Channel::Spliced(spliced)) => {
                let Some(to_socket) = &mut spliced.to_socket else { return };
                if spliced.state.failed_at().is_some() {
                    to_socket.block(now);
                    self.window.blocked(now);
                    return;
                }
                let before = to_socket.offset;
                let stream = self.connection.recv_stream(id);
                let delivered = to_socket.deliver(stream, self.window.out_of_order(), share, now);
                match to_socket.receipt_due() {
                    ReceiptDue::Now => self.receipts.add(id, to_socket.take_receipt()),
                    ReceiptDue::Later => self.receipts.add_later(id, now),
                    ReceiptDue::Not => {}
                }
                let taken = to_socket.offset - before;
                self.bulk_bytes += to_socket.bulk_bytes(taken as usize);
                if let Some(window) = self.window.read(taken) {
                    // quinn-proto announces only a window that grows.
                    self.connection.set_receive_window(window.saturating_sub(1).into());
                    self.connection.set_receive_window(window.into());
                }
                match delivered {
                    _ if self.window.is_overrun() => self.cut(id, Cut::Lost),
                    Ok(Delivered::Partly) if to_socket.is_blocked() => self.window.blocked(now),
                    Ok(Delivered::Partly) => {}
                    Ok(Delivered::UpToShare) => self.arrived.push(id),
                    Ok(Delivered::UpToMove(at)) => self.move_in(id, at),
                    Ok(Delivered::Whole) => {
                        spliced.to_socket = None;
                        self.retire(id);
                    }
                    Err(cut) => self.end_splice(id, cut, now),
                }
            }
            Some(Channel::Announced(_)) => self.read_announcement(id, now, share),
            Some(Channel::Receipts(_)) => self.read_receipts(id, now, share),
            // A move that was abandoned; what was sent ahead waits.
            Some(Channel::Awaiting(_)) => {
                if let Ok(Some(_)) = self.connection.recv_stream(id).received_reset() {
                    self.channels.remove(&id);
                }
            }
            None => {}
        }
    }

    /// Keeps enough of the window for other streams while some sockets accept nothing.
    pub(super) fn adjust_window(&mut self, now: Instant) {
        let Some(since) = self.window.is_due(now) else { return };
        let slow = |channel: &&Channel| match channel {
            Channel::Spliced(spliced) => {
                spliced.to_socket.as_ref().is_some_and(|to_socket| to_socket.was_blocked(since))
            }
            _ => false,
        };
        let slow = self.channels.values().filter(slow).count();
        if let Some(bytes) = self.window.set_slow(slow, now) {
            self.connection.set_receive_window(bytes.into());
        }
    }
}

/// Removes streams that are listed again: each packet lists its own.
fn list_once(ids: &mut Vec<StreamId>) {
    if ids.len() > LISTED_AGAIN_MIN {
        let mut listed = FxHashSet::default();
        ids.retain(|id| listed.insert(*id));
    }
}
