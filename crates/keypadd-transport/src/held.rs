//! Keeps the sockets of a session's streams while it has no connection, until they are resumed.
//!
//! Each direction of a splice belongs to one event loop or is parked here: a loop parks the
//! directions of a connection that it loses ([`Parked`]), and a stream with both directions here is
//! *held*. Its socket stays open and unread. Whoever resumes it takes it out; it comes back by
//! itself unless another connection takes it over. Knows no peers, tokens or times.

use std::{
    collections::BTreeMap,
    io, mem,
    num::NonZeroU64,
    sync::{Arc, Mutex, MutexGuard, PoisonError, Weak},
};

use bytes::Bytes;
use quinn_proto::VarInt;
use tokio::sync::oneshot;

use crate::{
    handed::HandedStream,
    replay::{Receipt, Replay, ReplayBudget},
    socket::Socket,
    splice::{Cut, Holder, Parked, Registered, Reply, SpliceState, StreamName},
};

/// The streams of a session that outlive its connections. Clones share them.
#[derive(Clone, Debug)]
pub struct HeldStreams(Arc<HeldShared>);

#[derive(Debug)]
struct HeldShared {
    streams: Mutex<HeldTable>,
    budget: Arc<ReplayBudget>,
}

#[derive(Debug, Default)]
struct HeldTable {
    by_name: BTreeMap<StreamName, Entry>,
    /// All streams of earlier connections that both ends have were claimed, up to this epoch.
    claimed_before: u32,
    /// Nothing is held any more.
    closed: bool,
}

/// A stream that has not ended.
#[derive(Debug)]
struct Entry {
    state: Arc<SpliceState>,
    parked: Parts,
    /// Who waits for it to be held; dropped when it may be, and when it ends.
    waiting: Vec<oneshot::Sender<()>>,
}

/// The parked parts of a stream.
#[derive(Debug, Default)]
struct Parts {
    socket: Option<Socket>,
    to_stream: Option<Replay>,
    to_socket: bool,
}

impl HeldStreams {
    /// Starts empty. The replay buffers share `budget`.
    pub fn new(budget: Arc<ReplayBudget>) -> Self {
        Self(Arc::new(HeldShared { streams: Mutex::default(), budget }))
    }

    /// A new, empty set whose replay buffers share this one's budget.
    pub fn sharing_budget(&self) -> Self {
        Self::new(Arc::clone(&self.0.budget))
    }

    /// The names of all streams that have not ended, held or not.
    pub fn names(&self) -> Vec<StreamName> {
        self.0.streams().by_name.keys().copied().collect()
    }

    /// The names of all streams of connections before this one, to be claimed; one that comes later
    /// ends.
    pub fn claim_before(&self, epoch: u32) -> Vec<StreamName> {
        let mut streams = self.0.streams();
        streams.claimed_before = streams.claimed_before.max(epoch);
        streams.by_name.keys().copied().filter(|name| name.epoch < epoch).collect()
    }

    /// The number of held streams.
    pub fn held(&self) -> usize {
        self.0.streams().by_name.values().filter(|entry| entry.is_held()).count()
    }

    /// How many bytes of a stream there is memory for, if that is little.
    pub(crate) fn keeps(&self) -> Option<NonZeroU64> {
        self.0.budget.keeps()
    }

    /// Bytes in the peer's replay buffers.
    pub fn kept_bytes(&self) -> usize {
        self.0.budget.used()
    }

    /// Waits until a stream is held, then takes it out; `None` if it has ended or is unknown.
    pub async fn take(&self, name: StreamName) -> Option<HeldStream> {
        loop {
            let changed = {
                let mut streams = self.0.streams();
                let entry = streams.by_name.get_mut(&name)?;
                if entry.is_held() {
                    let (state, parts) = (Arc::clone(&entry.state), mem::take(&mut entry.parked));
                    let streams = Arc::downgrade(&self.0);
                    return Some(HeldStream { name, state, parts: Some(parts), streams });
                }
                let (waiting, changed) = oneshot::channel();
                entry.waiting.retain(|one| !one.is_closed());
                entry.waiting.push(waiting);
                changed
            };
            // Nothing is ever sent.
            let _ = changed.await;
        }
    }

    /// Ends every held stream that `keep` excludes because the peer does not have it: one that has
    /// finished both ways is closed cleanly, any other is reset. Returns how many are reset.
    pub fn release(&self, keep: impl Fn(StreamName) -> bool) -> usize {
        let gone: BTreeMap<_, _> = {
            let mut streams = self.0.streams();
            let all = mem::take(&mut streams.by_name).into_iter();
            let (gone, kept) = all.partition(|(name, entry)| entry.is_held() && !keep(*name));
            streams.by_name = kept;
            gone
        };
        gone.into_values().filter_map(|entry| end(&entry.state, entry.parked).then_some(())).count()
    }

    /// Ends every held stream of connections before `epoch` that the peer has not claimed, as
    /// [`release`](Self::release) does: it has claimed all that it has. One that is to be held
    /// later is reset. Returns how many are reset now.
    pub fn release_before(&self, epoch: u32, is_claimed: impl Fn(StreamName) -> bool) -> usize {
        self.claim_before(epoch);
        self.release(|name| name.epoch >= epoch || is_claimed(name))
    }

    /// Stops holding: held streams end as by `release`, and those that would be held later are
    /// reset.
    pub fn close(&self) -> usize {
        self.0.streams().closed = true;
        self.release(|_| false)
    }

    /// Stops holding, and resets all streams with this code, also those that a connection carries.
    pub fn reset_all(&self, code: VarInt) {
        self.close();
        let states: Vec<_> =
            self.0.streams().by_name.values().map(|entry| Arc::clone(&entry.state)).collect();
        for state in states {
            state.abandon(code);
        }
    }

    /// Describes everything held, for another process; it stays held here as well.
    ///
    /// # Errors
    /// The system is out of descriptors for a copy of a socket.
    pub fn hand_over(&self) -> io::Result<Vec<HandedStream>> {
        let streams = self.0.streams();
        let held = streams.by_name.iter().filter(|(_, entry)| entry.is_held());
        held.filter_map(|(name, Entry { state, parked, .. })| {
            let socket = parked.socket.as_ref()?.try_clone();
            let to_stream = parked.to_stream.as_ref();
            Some(socket.map(|socket| HandedStream::new(*name, state, socket, to_stream)))
        })
        .collect()
    }

    /// Holds a stream from another process from now on. Reports its end to `reply`.
    pub(crate) fn adopt(&self, handed: HandedStream, reply: Reply) -> Option<Arc<SpliceState>> {
        let name = handed.name();
        let (state, socket, to_stream) = handed.restore(reply, &self.0.budget)?;
        let parked = Parts { socket: Some(socket), to_stream, to_socket: true };
        self.insert(&mut self.0.streams(), name, &state, parked).then_some(state)
    }

    /// Adds a stream; false if nothing is held any more, or it was cut.
    fn insert(
        &self,
        streams: &mut HeldTable,
        name: StreamName,
        state: &Arc<SpliceState>,
        parked: Parts,
    ) -> bool {
        let holder: Weak<HeldShared> = Arc::downgrade(&self.0);
        let added = !streams.closed && state.set_held_by(name, holder);
        if added {
            let entry = Entry { state: Arc::clone(state), parked, waiting: Vec::new() };
            streams.by_name.insert(name, entry);
        }
        added
    }

    /// Registers a spliced stream.
    pub(crate) fn add(&self, name: StreamName, state: &Arc<SpliceState>) -> Option<Replay> {
        self.insert(&mut self.0.streams(), name, state, Parts::default())
            .then(|| Replay::new(Arc::clone(&self.0.budget)))
    }

    /// Holds a stream from its beginning: its connection was lost before the loop could splice it.
    /// If its streams were already claimed, it is reset.
    pub(crate) fn add_parked(
        &self,
        name: StreamName,
        state: &Arc<SpliceState>,
        preface: &Bytes,
        socket: Socket,
    ) {
        let mut replay = Replay::new(Arc::clone(&self.0.budget));
        replay.push(preface);
        let parked = Parts { socket: Some(socket), to_stream: Some(replay), to_socket: true };
        let mut streams = self.0.streams();
        let is_late = name.epoch < streams.claimed_before;
        let added = !is_late && self.insert(&mut streams, name, state, parked);
        if added {
            state.detach();
        }
        drop(streams);
        if !added {
            state.cut(Cut::Lost);
        }
    }
}

impl Entry {
    /// Whether no event loop owns a direction of it.
    fn is_held(&self) -> bool {
        self.parked.socket.is_some()
            && (self.parked.to_stream.is_some() || self.state.is_to_stream_done())
            && (self.parked.to_socket || self.state.is_to_socket_done())
    }
}

/// Ends a stream that the peer does not have; returns whether it is reset. Dropping the socket
/// resets it unless it is closed cleanly.
fn end(state: &SpliceState, parts: Parts) -> bool {
    let sent_all = parts.to_stream.as_ref().is_none_or(Replay::has_ended);
    let written_all = state.is_to_socket_done();
    match &parts.socket {
        // The peer has forgotten it because it knew that everything had arrived: nothing was cut
        // off.
        Some(socket) if sent_all && written_all => {
            state.end_well(socket);
            false
        }
        _ => {
            state.cut(Cut::Lost);
            true
        }
    }
}

impl HeldShared {
    /// No panic can leave it half changed.
    fn streams(&self) -> MutexGuard<'_, HeldTable> {
        self.streams.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Holder for HeldShared {
    fn park(&self, name: StreamName, registered: &Registered, parked: Parked) -> Result<(), Cut> {
        let mut streams = self.streams();
        if streams.closed {
            return Err(Cut::Lost);
        }
        // A splice that was cut in the meantime is not in the list.
        let Some(entry) = streams.by_name.get_mut(&name) else { return Err(Cut::Lost) };
        let Entry { state, parked: parts, waiting } = entry;
        if parts.socket.is_none() {
            // A clone, because the loop stops watching its own descriptor.
            parts.socket = Some(registered.socket.try_clone()?);
        }
        match parked {
            Parked::ToStream(replay) => parts.to_stream = Some(replay),
            Parked::ToSocket => parts.to_socket = true,
        }
        state.detach();
        let changed = mem::take(waiting);
        drop(streams);
        drop(changed);
        Ok(())
    }

    fn notify(&self, name: StreamName) {
        let mut streams = self.streams();
        let changed = streams.by_name.get_mut(&name).map(|entry| mem::take(&mut entry.waiting));
        drop(streams);
        drop(changed);
    }

    fn forget(&self, name: StreamName) {
        let entry = self.streams().by_name.remove(&name);
        // Dropped after the lock is released: its state takes the lock again.
        drop(entry);
    }
}

/// A held stream about to be resumed; if dropped before that, it is held as before.
#[derive(Debug)]
pub struct HeldStream {
    name: StreamName,
    pub(crate) state: Arc<SpliceState>,
    parts: Option<Parts>,
    streams: Weak<HeldShared>,
}

impl HeldStream {
    /// Its name.
    pub fn name(&self) -> StreamName {
        self.name
    }

    /// How much this end has written to the socket.
    pub fn receipt(&self) -> Receipt {
        self.state.local_receipt()
    }

    /// Ends it because the peer does not have it (see [`HeldStreams::release`]); returns whether it
    /// is reset.
    pub fn release(mut self) -> bool {
        self.parts.take().is_some_and(|parts| end(&self.state, parts))
    }

    /// The socket, and what may have to be sent again if that direction has not ended.
    pub(crate) fn into_parts(mut self) -> Option<(Arc<SpliceState>, Socket, Option<Replay>)> {
        let Parts { socket, to_stream, .. } = self.parts.take()?;
        Some((Arc::clone(&self.state), socket?, to_stream))
    }
}

impl Drop for HeldStream {
    fn drop(&mut self) {
        let Some(parts) = self.parts.take() else { return };
        let held = self.streams.upgrade();
        let kept = held.as_ref().and_then(|shared| {
            let mut streams = shared.streams();
            let open = !streams.closed;
            let entry = streams.by_name.get_mut(&self.name).filter(|_| open);
            entry.map(|entry| {
                entry.parked = parts;
                mem::take(&mut entry.waiting)
            })
        });
        if kept.is_none() {
            // It was cut, or nothing is held any more.
            self.state.cut(Cut::Lost);
        }
    }
}
