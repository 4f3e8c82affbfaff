//! Keeps a loop's connections: adds, drives and removes them, at events and when their timers expire.

use std::{
    cmp::Reverse,
    net::SocketAddr,
    panic::{AssertUnwindSafe, catch_unwind},
    sync::Arc,
    time::{Duration, Instant},
};

use quinn_proto::{ConnectionError, ConnectionHandle, EndpointEvent};
use tracing::error;

use super::{
    EventLoop,
    slot::{Slot, Stage, Standing},
};
use crate::{
    cid::Lane,
    datagrams::Datagrams,
    driver::{Driver, HandshakeReply, Limits, SendContext},
    handling_cost::ExcessCost,
    handshake::Refusal,
    mailbox::ConnectionShared,
    splice::{Key, Registrar},
    time_share::TimeShare,
};

/// What all deliveries of a round may take, and reading sockets and ending streams: less than receiving,
/// so that what a peer sends in excess waits for its window and not in the socket, before everyone's
/// datagrams.
const DELIVERY_TIME: Duration = Duration::from_micros(500);

/// Most connections of a loop that have ended and wait for late packets.
const CLOSING_MAX: usize = 256;

impl<U: Datagrams> EventLoop<U> {
    pub(super) fn add(
        &mut self,
        handle: ConnectionHandle,
        connection: quinn_proto::Connection,
        (limits, lane): (Limits, Lane),
        (waiting, standing): (HandshakeReply, Standing),
        remote: SocketAddr,
    ) -> Arc<ConnectionShared> {
        let key = Key { handle: handle.0, serial: self.next_serial };
        self.next_serial += 1;
        let shared = Arc::new(ConnectionShared::new(key, self.mailbox.clone(), remote));
        let plan = Arc::clone(&self.plan);
        let driver = Driver::new(connection, limits, Arc::clone(&shared), plan, waiting);
        let slot = Slot {
            driver,
            key,
            lane,
            epoch: self.udp.epoch(),
            standing,
            stage: Stage::Live,
            awaited: Some(self.counters.connections.begin()),
            dirty: false,
            deadline: None,
            excess: ExcessCost::default(),
            round: 0,
            handled_for: Duration::ZERO,
        };
        self.slots.insert(key, Box::new(slot));
        self.routes.insert(handle.0, key);
        self.mark(key);
        shared
    }

    /// Marks connections whose timers have expired.
    pub(super) fn expire(&mut self, now: Instant) {
        while let Some(&Reverse((at, serial, handle))) = self.timers.peek() {
            if at > now {
                break;
            }
            self.timers.pop();
            let key = Key { handle, serial };
            if let Some(slot) = self.slots.get_mut(&key)
                && slot.deadline == Some(at)
            {
                slot.deadline = None;
                self.mark(key);
            }
        }
        while let Some(key) = self.handshakes.overdue(now) {
            self.give_up(key, Refusal::TimedOut);
        }
    }

    /// Drives the marked connections.
    pub(super) fn drive(&mut self, now: Instant) {
        let mut keys = std::mem::take(&mut self.dirty);
        let share = DELIVERY_TIME / keys.len().max(1) as u32;
        for key in keys.drain(..) {
            if let Some(slot) = self.slots.get_mut(&key) {
                slot.dirty = false;
                if catch_unwind(AssertUnwindSafe(|| self.drive_one(key, share, now))).is_err() {
                    self.fault(key);
                }
            }
        }
        if self.dirty.is_empty() {
            self.dirty = keys;
        }
    }

    fn drive_one(&mut self, key: Key, share: Duration, now: Instant) {
        let share = TimeShare::new(self.clock(), share);
        let Self { registry, sockets, next_token, slots, udp, send_buffer, bulk_bytes, .. } = self;
        let Some(slot) = slots.get_mut(&key) else { return };
        let mut registrar = Registrar { key, registry, sockets, next_token };
        let outdated = slot.epoch != udp.epoch();
        let mut context = SendContext { udp, buffer: send_buffer, outdated, now };
        let mut outcome = slot.driver.drive(&mut context, &mut registrar, share);
        *bulk_bytes += outcome.bulk_bytes;
        if outcome.proved && slot.standing.is_stranger() {
            slot.excess.proved(now);
            let is_client = self.handshakes.remove(key, true);
            let counted = is_client.then(|| self.counters.clients(slot.lane).begin());
            slot.standing = Standing::Client(counted);
        }
        if outcome.lost {
            slot.standing.lost();
            if !outcome.proved {
                self.handshakes.fail(key);
                // The peer has been told, and has nothing to lose if it has not heard it.
                slot.awaited = None;
            }
            if slot.stage.lost() {
                self.closing.push_back(key);
            }
        }
        // The endpoint's answers may give a connection more to send.
        let mut answered = false;
        while let Some(event) = slot.driver.endpoint_event() {
            if event.is_drained() {
                slot.stage = Stage::Drained;
                self.routes.remove(&key.handle);
            }
            if let Some(event) = self.endpoint.handle_event(ConnectionHandle(key.handle), event) {
                slot.driver.on_event(event);
                answered = true;
            }
        }
        outcome.more |= answered;
        for token in slot.driver.ended_sockets() {
            self.sockets.remove(&token);
        }
        if slot.driver.is_over() {
            self.slots.remove(&key);
            return;
        }
        self.limit_closing();
        if outcome.more || self.udp.is_full() {
            self.mark(key);
        }
        if let Some(at) = outcome.deadline {
            self.set_timer(key, at);
        }
    }

    /// Forgets the oldest connections that are closing if there are many: how long they wait for
    /// late packets depends on the peer (RFC 9000 10.2). Later packets get stateless resets.
    fn limit_closing(&mut self) {
        while self.closing.len() > CLOSING_MAX {
            let Some(key) = self.closing.pop_front() else { return };
            let slot = self.slots.get(&key);
            if slot.is_some_and(|slot| !slot.driver.has_streams()) {
                self.remove(key, ConnectionError::LocallyClosed);
            }
        }
    }

    pub(super) fn set_timer(&mut self, key: Key, at: Instant) {
        let Some(slot) = self.slots.get_mut(&key) else { return };
        // An entry that is due earlier leads here again.
        if slot.deadline.is_none_or(|earlier| at < earlier) {
            slot.deadline = Some(at);
            self.timers.push(Reverse((at, key.serial, key.handle)));
        }
    }

    pub(super) fn mark(&mut self, key: Key) {
        if let Some(slot) = self.slots.get_mut(&key)
            && !slot.dirty
        {
            slot.dirty = true;
            self.dirty.push(key);
        }
    }

    /// Works on a connection; a panic ends that connection only.
    pub(super) fn guarded(&mut self, key: Key, work: impl FnOnce(&mut Slot)) {
        let Some(slot) = self.slots.get_mut(&key) else { return };
        match catch_unwind(AssertUnwindSafe(|| work(slot))) {
            Ok(()) => self.mark(key),
            Err(_) => self.fault(key),
        }
    }

    /// Ends a connection that has panicked, without calling it again.
    pub(super) fn fault(&mut self, key: Key) {
        let remote = self.slots.get(&key).map(|slot| slot.driver.shared().remote());
        error!(?remote, "internal error: closed this connection");
        self.remove(key, ConnectionError::LocallyClosed);
    }

    pub(super) fn remove(&mut self, key: Key, reason: ConnectionError) {
        self.handshakes.remove(key, false);
        let Some(slot) = self.slots.remove(&key) else { return };
        let Slot { driver, stage, awaited: _awaited, .. } = *slot;
        if stage != Stage::Drained {
            self.routes.remove(&key.handle);
            let _ =
                self.endpoint.handle_event(ConnectionHandle(key.handle), EndpointEvent::drained());
        }
        self.sockets.retain(|_, (of, _)| *of != key);
        let _ = catch_unwind(AssertUnwindSafe(|| driver.abandon(reason)));
    }
}
