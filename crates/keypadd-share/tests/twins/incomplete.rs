//! Lists accepted connections whose SOCKS request or PROXY header has not arrived. Where a newer
//! connection finds no room, the oldest of them is closed.

use std::{
    collections::VecDeque,
    pin::pin,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use tokio::sync::oneshot;

/// The incomplete connections that share slots; clones share the list.
#[derive(Clone, Debug, Default)]
pub(crate) struct Incomplete(Arc<Mutex<VecDeque<oneshot::Sender<()>>>>);

/// An accepted connection in the list; leaves it when dropped.
#[derive(Debug)]
pub(crate) struct Unread(oneshot::Receiver<()>);

impl Unread {
    /// Runs `reading`, which reads what the connection begins with. `None` if a newer connection
    /// needed its room. The list may be gone by then, with the session that accepted it.
    pub(crate) async fn read<T>(self, reading: impl Future<Output = T>) -> Option<T> {
        tokio::select! {
            biased;
            read = reading => Some(read),
            Ok(()) = self.0 => None,
        }
    }
}

impl Incomplete {
    /// Adds a connection that has just been accepted.
    pub(crate) fn add(&self) -> Unread {
        let (entry, displaced) = oneshot::channel();
        let mut entries = self.entries();
        entries.retain(|entry| !entry.is_closed());
        entries.push_back(entry);
        Unread(displaced)
    }

    /// Waits for `room`; if there is none at once, closes the oldest incomplete connection.
    pub(crate) async fn make_room<T>(&self, room: impl Future<Output = T>) -> T {
        let mut room = pin!(room);
        tokio::select! {
            biased;
            room = &mut room => return room,
            () = std::future::ready(()) => {}
        }
        self.displace_oldest();
        room.await
    }

    fn displace_oldest(&self) {
        let mut entries = self.entries();
        while entries.pop_front().is_some_and(|entry| entry.send(()).is_err()) {}
    }

    /// A panic cannot leave the list half changed.
    fn entries(&self) -> MutexGuard<'_, VecDeque<oneshot::Sender<()>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
