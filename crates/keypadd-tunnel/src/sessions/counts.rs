//! Counts the open connections of a session's forwards, and lists forwards that have none.
//!
//! Sessions that resume one another's streams share the counts.

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use crate::limits::peer_log::most_first;

/// The forwards by name.
#[derive(Debug, Default)]
pub(crate) struct ForwardCounts(Mutex<BTreeMap<String, ForwardEntry>>);

/// A forward in the session's status.
#[derive(Clone, Copy, Debug, Default)]
struct ForwardEntry {
    /// Open connections and flows.
    open: u64,
    /// The flows among them, which start over on another session.
    flows: u64,
    /// Listed even while it has no connection. A server lists a target only while it is in use,
    /// because the client chooses the text, and a remote forward for as long as it listens.
    pinned: bool,
    /// Guards that keep it listed.
    pins: u32,
}

impl ForwardEntry {
    fn is_listed(&self) -> bool {
        self.open > 0 || self.pinned || self.pins > 0
    }
}

impl ForwardCounts {
    /// Each forward with its open connections.
    pub(crate) fn list(&self) -> Vec<(String, u64)> {
        self.forwards().iter().map(|(name, entry)| (name.clone(), entry.open)).collect()
    }

    /// Open connections of all forwards, without flows.
    pub(crate) fn connections(&self) -> u64 {
        self.forwards().values().map(|entry| entry.open - entry.flows).sum()
    }

    /// Which forwards they are of, for one line; empty without any.
    pub(crate) fn shown(&self) -> String {
        let forwards = self.forwards();
        let open = forwards.iter().map(|(name, entry)| (entry.open - entry.flows, name.clone()));
        most_first(open.filter(|(open, _)| *open > 0).collect(), "forwards")
    }

    /// Sets which forwards are listed even while they have no connection.
    pub(crate) fn pin_all(&self, names: &[String]) {
        let mut forwards = self.forwards();
        for (name, entry) in forwards.iter_mut() {
            entry.pinned = names.contains(name);
        }
        forwards.retain(|_, entry| entry.is_listed());
        for name in names {
            forwards.entry(name.clone()).or_default().pinned = true;
        }
    }

    /// Lists `forward` even while it has no connection, until the guard is dropped.
    pub(crate) fn pin(self: &Arc<Self>, forward: &str) -> PinnedForward {
        self.forwards().entry(forward.into()).or_default().pins += 1;
        PinnedForward { counts: Arc::clone(self), forward: forward.into() }
    }

    /// Counts a connection of `forward` until the guard is dropped.
    pub(crate) fn count(self: &Arc<Self>, forward: &str) -> ConnectionCount {
        self.forwards().entry(forward.into()).or_default().open += 1;
        ConnectionCount { counts: Arc::clone(self), forward: forward.into(), is_flow: false }
    }

    fn update(&self, forward: &str, update: impl FnOnce(&mut ForwardEntry)) {
        let mut forwards = self.forwards();
        if let Some(entry) = forwards.get_mut(forward) {
            update(entry);
            if !entry.is_listed() {
                forwards.remove(forward);
            }
        }
    }

    /// Plain counts, which no panic can leave half changed.
    fn forwards(&self) -> MutexGuard<'_, BTreeMap<String, ForwardEntry>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Keeps a forward listed.
pub(crate) struct PinnedForward {
    counts: Arc<ForwardCounts>,
    forward: String,
}

impl Drop for PinnedForward {
    fn drop(&mut self) {
        self.counts.update(&self.forward, |entry| entry.pins -= 1);
    }
}

/// Counts one connection of a forward.
pub(crate) struct ConnectionCount {
    counts: Arc<ForwardCounts>,
    forward: String,
    is_flow: bool,
}

impl ConnectionCount {
    /// Counts it as a flow.
    pub(crate) fn of_flow(mut self) -> Self {
        if !std::mem::replace(&mut self.is_flow, true) {
            self.counts.update(&self.forward, |entry| entry.flows += 1);
        }
        self
    }
}

impl Drop for ConnectionCount {
    fn drop(&mut self) {
        let flows = u64::from(self.is_flow);
        self.counts.update(&self.forward, |entry| {
            (entry.open, entry.flows) = (entry.open - 1, entry.flows - flows);
        });
    }
}
