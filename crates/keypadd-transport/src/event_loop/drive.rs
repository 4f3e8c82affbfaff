//! Drives a loop's connections, and removes those that are over, that panic, or that are given up.

use std::{
    net::SocketAddr,
    panic::{AssertUnwindSafe, catch_unwind},
    sync::Arc,
    time::{Duration, Instant},
};

use quinn_proto::{Connection, ConnectionError, ConnectionHandle, EndpointEvent};
use tracing::error;

use super::{
    EventLoop,
    slot::{Slot, Stage, Standing},
};
use crate::{
    cid::Purpose,
    datagrams::Datagrams,
    driver::{ConnectionLimits, Driver, HandshakeReply, SendContext},
    handshake::Refusal,
    intake::Step,
    mailbox::ConnectionShared,
    splice::Key,
};

/// Who is at the other end of a connection, and who waits for its handshake.
pub(super) struct Peer {
    pub(super) remote: SocketAddr,
    pub(super) purpose: Purpose,
    pub(super) standing: Standing,
    pub(super) waiting: HandshakeReply,
}

impl<U: Datagrams> EventLoop<U> {
    /// Adds a connection that the endpoint has made.
    pub(super) fn add(
        &mut self,
        (handle, connection): (ConnectionHandle, Connection),
        limits: ConnectionLimits,
        peer: Peer,
    ) -> Arc<ConnectionShared> {
        let Peer { remote, purpose, standing, waiting } = peer;
        let key = self.connections.next_key(handle.0);
        let shared = Arc::new(ConnectionShared::new(key, self.mailbox.clone(), remote));
        let plan = Arc::clone(&self.shared.plan);
        let driver = Driver::new(connection, limits, Arc::clone(&shared), plan, waiting);
        self.connections.insert(Slot {
            epoch: self.io.udp.epoch(),
            awaited: Some(self.shared.counters.connections.begin()),
            ..Slot::new(driver, key, purpose, standing)
        });
        shared
    }

    /// Marks connections whose timers have expired, and gives up handshakes that take too long.
    pub(super) fn expire(&mut self, now: Instant) {
        self.connections.expire(now);
        while let Some(key) = self.admission.handshakes.overdue(now) {
            self.give_up(key, Refusal::TimedOut);
        }
    }

    /// Drives the marked connections; returns how many bytes of bulk data they have carried.
    pub(super) fn drive(&mut self, now: Instant) -> usize {
        let mut keys = self.connections.take_marked();
        let time = Step::Deliver.time() / keys.len().max(1) as u32;
        let (mut bulk_bytes, mut have_sent) = (0, self.io.udp.is_full().then_some(0));
        for key in keys.drain(..) {
            match catch_unwind(AssertUnwindSafe(|| self.drive_one(key, time, now))) {
                Ok(bytes) => bulk_bytes += bytes,
                Err(_) => self.fault(key),
            }
            if have_sent.is_none() && self.io.udp.is_full() {
                have_sent = Some(self.connections.marked());
            }
        }
        if let Some(marked) = have_sent {
            self.connections.put_behind(marked);
        }
        self.connections.give_back(keys);
        bulk_bytes
    }

    fn drive_one(&mut self, key: Key, time: Duration, now: Instant) -> usize {
        let Self { io, endpoint, admission, connections, intake, shared, .. } = self;
        let Some(slot) = connections.get_mut(key) else { return 0 };
        slot.dirty = false;
        let outdated = slot.epoch != io.udp.epoch();
        let mut context = SendContext { udp: &mut io.udp, buffer: &mut io.buffer, outdated, now };
        let mut registrar = io.sockets.registrar(key);
        let mut outcome = slot.driver.drive(&mut context, &mut registrar, intake.share(time));
        if outcome.proved && slot.standing.is_stranger() {
            slot.account.excess.proved(now);
            let is_client = admission.handshakes.remove(key, true);
            let counted = is_client.then(|| shared.counters.clients(slot.purpose).begin());
            slot.standing = Standing::Client(counted);
        }
        if outcome.lost {
            slot.standing.lost();
            if !outcome.proved {
                admission.handshakes.fail(key);
                // The peer has been told, and has nothing to lose if it has not heard it.
                slot.awaited = None;
            }
        }
        let mut drained = false;
        while let Some(event) = slot.driver.endpoint_event() {
            drained |= event.is_drained();
            if let Some(event) = endpoint.handle_event(ConnectionHandle(key.handle), event) {
                slot.driver.on_event(event, now);
                // The endpoint's answers may give a connection more to send.
                outcome.more = true;
            }
        }
        io.sockets.forget(slot.driver.ended_sockets());
        let over = slot.driver.is_over();
        if outcome.lost {
            connections.lost(key);
        }
        if drained {
            connections.drained(key);
        }
        if over {
            connections.remove(key);
            return outcome.bulk_bytes;
        }
        self.limit_closing();
        if outcome.more || self.io.udp.is_full() {
            self.connections.mark(key);
        }
        if let Some(at) = outcome.deadline {
            self.connections.set_timer(key, at);
        }
        outcome.bulk_bytes
    }

    /// Forgets the oldest connections that are closing if there are many. Later packets get
    /// stateless resets.
    fn limit_closing(&mut self) {
        while let Some(key) = self.connections.surplus() {
            let slot = self.connections.get_mut(key);
            if slot.is_some_and(|slot| !slot.driver.has_streams()) {
                self.remove(key, ConnectionError::LocallyClosed);
            }
        }
    }

    /// Works on a connection; a panic ends that connection only.
    pub(super) fn guarded(&mut self, key: Key, work: impl FnOnce(&mut Slot)) {
        if self.connections.work(key, work).is_err() {
            self.fault(key);
        }
    }

    /// Ends a connection that has panicked, without calling it again.
    pub(super) fn fault(&mut self, key: Key) {
        let slot = self.connections.get_mut(key);
        let remote = slot.map(|slot| slot.driver.shared().remote());
        error!(?remote, "internal error: closed this connection");
        self.remove(key, ConnectionError::LocallyClosed);
    }

    /// Drops a handshake that has proved nothing, without an answer.
    pub(super) fn give_up(&mut self, key: Key, refusal: Refusal) {
        if let Some(slot) = self.connections.get_mut(key) {
            self.shared.refused(slot.driver.shared().remote(), refusal);
            self.remove(key, ConnectionError::TimedOut);
        }
    }

    pub(super) fn remove(&mut self, key: Key, reason: ConnectionError) {
        self.admission.handshakes.remove(key, false);
        let Some(slot) = self.connections.remove(key) else { return };
        if slot.stage != Stage::Drained {
            let handle = ConnectionHandle(key.handle);
            let _ = self.endpoint.handle_event(handle, EndpointEvent::drained());
        }
        self.io.sockets.forget_all(key);
        abandon(slot, reason);
    }
}

/// Ends a connection without telling its peer. It counts until that is done.
pub(super) fn abandon(slot: Slot, reason: ConnectionError) {
    let Slot { driver, awaited: _awaited, .. } = slot;
    let _ = catch_unwind(AssertUnwindSafe(|| driver.abandon(reason)));
}
