//! Decides which of the connections that carry a device's packets reads it.
//!
//! The last one that has asked to; the others only write. When it is gone, the one before reads
//! again. While reading is paused, none does. A connection is told when it is its turn: the system
//! reports only once that a device has packets. Knows no devices.

use std::{
    fmt,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
};

/// A flow that may read a device.
pub(super) trait Reader: fmt::Debug + Send + Sync {
    /// Tells the flow, by a message, that it reads now.
    fn read(&self);
}

/// The connections that want to read a device.
#[derive(Debug, Default)]
pub(super) struct Readers {
    /// The number of the one that reads; 0 for none. Also in `state`, whose lock no packet takes.
    current: AtomicU64,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    /// In the order in which they have asked.
    asked: Vec<Asked>,
    /// The last one's number. The first is 1.
    numbers: u64,
    /// Pauses that have begun since then and last.
    pauses: usize,
}

#[derive(Debug)]
struct Asked {
    number: u64,
    reader: Arc<dyn Reader>,
}

impl State {
    fn current(&self) -> Option<&Asked> {
        self.asked.last().filter(|_| self.pauses == 0)
    }
}

impl Readers {
    /// Lets this one read from now on, in place of others, and ends pauses; returns its number.
    pub(super) fn ask(&self, reader: Arc<dyn Reader>) -> u64 {
        let mut state = self.state();
        state.numbers += 1;
        let number = state.numbers;
        state.asked.push(Asked { number, reader });
        state.pauses = 0;
        self.appoint(&state);
        number
    }

    /// The one with this number is gone.
    pub(super) fn leave(&self, number: u64) {
        let mut state = self.state();
        state.asked.retain(|asked| asked.number != number);
        self.appoint(&state);
    }

    /// Tells the one whose turn it is that there is something to send.
    pub(super) fn tell_current(&self) {
        if let Some(current) = self.state().current() {
            current.reader.read();
        }
    }

    /// Whether the one with this number reads.
    pub(super) fn is_current(&self, number: u64) -> bool {
        self.current.load(Relaxed) == number
    }

    /// Lets none read until the returned value is dropped.
    pub(super) fn pause(self: &Arc<Self>) -> Paused {
        let mut state = self.state();
        state.pauses += 1;
        self.appoint(&state);
        Paused { readers: Arc::clone(self), since: Some(state.numbers) }
    }

    /// Ends a pause, unless one has asked to read since.
    fn resume(&self, since: u64) {
        let mut state = self.state();
        if state.numbers == since {
            state.pauses = state.pauses.saturating_sub(1);
            self.appoint(&state);
        }
    }

    /// Tells the one whose turn it is now.
    fn appoint(&self, state: &State) {
        let current = state.current();
        let number = current.map_or(0, |asked| asked.number);
        let before = self.current.swap(number, Relaxed);
        if let Some(current) = current.filter(|_| before != number) {
            current.reader.read();
        }
    }

    /// No panic leaves it half changed.
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Keeps connections from reading a device.
#[derive(Debug)]
pub struct Paused {
    readers: Arc<Readers>,
    /// `None` if it stays.
    since: Option<u64>,
}

impl Paused {
    /// Leaves the device paused until another connection reads it.
    pub fn keep(mut self) {
        self.since = None;
    }
}

impl Drop for Paused {
    fn drop(&mut self) {
        if let Some(since) = self.since {
            self.readers.resume(since);
        }
    }
}
