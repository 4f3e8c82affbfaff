//! Decides which of the connections that carry a device's packets reads it, and which send them.
//!
//! The last one that has asked to read does, and sends; the others only write. When it is gone, the
//! one before reads again. Another connection of its session may send the packets of bulk flows.
//! While reading is paused, none does either. A connection is told when it is its turn: the system
//! reports only once that a device has packets. One that begins to send the packets of bulk flows
//! continues with the congestion controller of the one before. Knows no devices.

use std::{
    fmt,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    time::{Duration, Instant},
};

use keypadd_network::{Class, Classes};

use crate::handed_controller::HandedController;

/// How long a path is taken to be as a connection has left it: as long as packets wait for the
/// next one.
pub(super) const KNOWN_FOR: Duration = Duration::from_secs(10);

/// What a connection may do with the packets of a device, besides writing what arrives.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PacketRole {
    /// Reads the device, and sends what it gives but for the packets that another one sends.
    Reads,
    /// Sends those packets of bulk flows that the connection of the same session has read.
    SendsBulk,
}

/// A flow that may read a device, or send its packets.
pub(super) trait Reader: fmt::Debug + Send + Sync {
    /// Tells the flow, by a message, that it reads or has something to send now, or no more.
    fn read(&self);
}

/// The connections that want to read a device, or to send its packets.
#[derive(Debug, Default)]
pub(super) struct Readers {
    /// The number of the one that reads, and of the one that sends the packets of bulk flows; 0 for
    /// none. Also in `state`, whose lock no packet takes.
    reads: AtomicU64,
    sends_bulk: AtomicU64,
    state: Mutex<State>,
    /// The congestion controller that the one whose turn is over has left, with its number.
    left: Mutex<Option<(u64, HandedController)>>,
}

#[derive(Debug, Default)]
struct State {
    /// In the order in which they have asked.
    asked: Vec<Asked>,
    /// The last one's number. The first is 1.
    numbers: u64,
    /// The number of the last one that has asked to read.
    asked_to_read: u64,
    /// Pauses that have begun since then and last.
    pauses: usize,
    /// Pauses of bulk packets alone that last.
    bulk_pauses: usize,
}

#[derive(Debug)]
struct Asked {
    number: u64,
    session: u64,
    role: PacketRole,
    reader: Arc<dyn Reader>,
}

impl State {
    fn reads(&self) -> Option<&Asked> {
        let last = self.asked.iter().rfind(|asked| asked.role == PacketRole::Reads);
        last.filter(|_| self.pauses == 0)
    }

    fn sends_bulk(&self) -> Option<&Asked> {
        let reads = self.reads().filter(|_| self.bulk_pauses == 0)?;
        let is_its =
            |asked: &&Asked| asked.role == PacketRole::SendsBulk && asked.session == reads.session;
        self.asked.iter().rfind(is_its).or(Some(reads))
    }
}

impl Readers {
    /// Lets this one have its role from now on, in place of others; one that reads ends pauses.
    /// Returns its number.
    pub(super) fn ask(&self, session: u64, role: PacketRole, reader: Arc<dyn Reader>) -> u64 {
        let mut state = self.state();
        state.numbers += 1;
        let number = state.numbers;
        state.asked.push(Asked { number, session, role, reader });
        if role == PacketRole::Reads {
            (state.asked_to_read, state.pauses) = (number, 0);
        }
        self.appoint(&state);
        number
    }

    /// The one with this number is gone.
    pub(super) fn leave(&self, number: u64) {
        let mut state = self.state();
        state.asked.retain(|asked| asked.number != number);
        self.appoint(&state);
    }

    /// Tells the one that sends packets of this class that there are some, unless it has this
    /// number.
    pub(super) fn tell(&self, class: Class, by: u64) {
        if self.classes_of(by).has(class) {
            return;
        }
        let state = self.state();
        let sends = match class {
            Class::Sparse => state.reads(),
            Class::Bulk => state.sends_bulk(),
        };
        if let Some(sends) = sends {
            sends.reader.read();
        }
    }

    /// Whether the one with this number reads.
    pub(super) fn is_reading(&self, number: u64) -> bool {
        self.reads.load(Relaxed) == number
    }

    /// The classes whose packets the one with this number sends.
    pub(super) fn classes_of(&self, number: u64) -> Classes {
        Classes { sparse: self.is_reading(number), bulk: self.sends_bulk.load(Relaxed) == number }
    }

    /// Lets none read or send until the returned value is dropped.
    pub(super) fn pause(self: &Arc<Self>) -> Paused {
        let mut state = self.state();
        state.pauses += 1;
        self.appoint(&state);
        let since = state.asked_to_read;
        Paused { readers: Arc::clone(self), of: Some(PauseOf::All { since }) }
    }

    /// Lets none send packets of bulk flows until the returned value is dropped.
    pub(super) fn pause_bulk(self: &Arc<Self>) -> Paused {
        let mut state = self.state();
        state.bulk_pauses += 1;
        self.appoint(&state);
        Paused { readers: Arc::clone(self), of: Some(PauseOf::Bulk) }
    }

    fn resume(&self, of: PauseOf) {
        let mut state = self.state();
        match of {
            PauseOf::All { since } if state.asked_to_read != since => return,
            PauseOf::All { .. } => state.pauses = state.pauses.saturating_sub(1),
            PauseOf::Bulk => state.bulk_pauses = state.bulk_pauses.saturating_sub(1),
        }
        self.appoint(&state);
    }

    /// The one with this number sends the packets of bulk flows no more, and leaves its controller
    /// for the next one, which may have begun.
    pub(super) fn leave_controller(&self, number: u64, controller: Option<HandedController>) {
        *lock(&self.left) = controller.map(|it| (number, it));
        self.tell(Class::Bulk, number);
    }

    /// What another one has left, if the path is still known to be so. The one with this number
    /// sends the packets of bulk flows now.
    pub(super) fn take_controller(&self, number: u64, now: Instant) -> Option<HandedController> {
        let (by, left) = lock(&self.left).take()?;
        let is_known = now.saturating_duration_since(left.at) < KNOWN_FOR;
        (by != number && is_known).then_some(left)
    }

    /// Tells those whose turn it is now, and the one whose turn it is no more to send the packets
    /// of bulk flows.
    fn appoint(&self, state: &State) {
        let replace = |now: Option<&Asked>, is: &AtomicU64| {
            let number = now.map_or(0, |asked| asked.number);
            let before = is.swap(number, Relaxed);
            if let Some(now) = now.filter(|_| before != number) {
                now.reader.read();
            }
            (before != number).then_some(before)
        };
        replace(state.reads(), &self.reads);
        if let Some(before) = replace(state.sends_bulk(), &self.sends_bulk)
            && let Some(before) = state.asked.iter().find(|asked| asked.number == before)
        {
            before.reader.read();
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        lock(&self.state)
    }
}

/// Locks what no panic leaves half changed.
pub(super) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Keeps connections from reading a device and from sending its packets.
#[derive(Debug)]
pub struct Paused {
    readers: Arc<Readers>,
    /// `None` if it stays.
    of: Option<PauseOf>,
}

#[derive(Clone, Copy, Debug)]
enum PauseOf {
    /// All packets; over once another connection than this has asked to read.
    All { since: u64 },
    /// Packets of bulk flows.
    Bulk,
}

impl Paused {
    /// Leaves the device paused until another connection reads it.
    pub fn keep(mut self) {
        self.of = None;
    }
}

impl Drop for Paused {
    fn drop(&mut self) {
        if let Some(of) = self.of {
            self.readers.resume(of);
        }
    }
}
