//! Delivers received stream data to sockets and readers, and adjusts the receive window to slow ones.

use std::time::Instant;

use super::Driver;
use crate::{
    channel::Channel,
    splice::Cut,
    to_socket::{Delivered, ReceiptDue},
};

impl Driver {
    /// Passes received data to sockets and readers.
    pub(super) fn deliver(&mut self, now: Instant) {
        let mut arrived = std::mem::take(&mut self.arrived);
        for id in arrived.drain(..) {
            match self.channels.get_mut(&id) {
                Some(Channel::Controlled(control)) => {
                    control.receive(self.connection.recv_stream(id))
                }
                Some(Channel::Spliced(spliced)) => {
                    let Some(to_socket) = &mut spliced.to_socket else { continue };
                    if spliced.state.failed_at().is_some() {
                        to_socket.block(now);
                        self.window.blocked(now);
                        continue;
                    }
                    let before = to_socket.offset;
                    let stream = self.connection.recv_stream(id);
                    let delivered = to_socket.deliver(stream, self.window.out_of_order(), now);
                    match to_socket.receipt_due() {
                        ReceiptDue::Now => self.receipts.add(id, to_socket.take_receipt()),
                        ReceiptDue::Later => self.receipts.add_later(id, now),
                        ReceiptDue::Not => {}
                    }
                    if let Some(window) = self.window.read(to_socket.offset - before) {
                        // quinn-proto announces only a window that grows.
                        self.connection.set_receive_window(window.saturating_sub(1).into());
                        self.connection.set_receive_window(window.into());
                    }
                    match delivered {
                        _ if self.window.is_overrun() => self.cut(id, Cut::Lost),
                        Ok(Delivered::Partly) if to_socket.is_blocked() => self.window.blocked(now),
                        Ok(Delivered::Partly) => {}
                        Ok(Delivered::UpToMove) => self.move_in(id),
                        Ok(Delivered::Whole) => {
                            spliced.to_socket = None;
                            self.retire(id);
                        }
                        Err(cut) => self.end_splice(id, cut, now),
                    }
                }
                Some(Channel::Announced(_)) => self.read_announcement(id, now),
                Some(Channel::Receipts(_)) => self.read_receipts(id, now),
                Some(Channel::Awaiting) | None => {}
            }
        }
        if let Some(window) = self.window.follow_out_of_order() {
            self.connection.set_receive_window(window.into());
        }
        // Keep its capacity.
        if self.arrived.is_empty() {
            self.arrived = arrived;
        }
        if self.lost {
            let overdue =
                |channel: &Channel| channel.deadline().is_some_and(|deadline| deadline <= now);
            let overdue = self.channels.iter().filter(|(_, channel)| overdue(channel));
            let ids: Vec<_> = overdue.map(|(id, _)| *id).collect();
            for id in ids {
                self.cut(id, Cut::Lost);
            }
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
