//! Lists accepted connections whose SOCKS request or PROXY header has not arrived. Where a newer
//! connection finds no room, the oldest of them is closed.

use std::{
    pin::pin,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use keypadd_share::Waiting;
use tokio::sync::oneshot;

/// The incomplete connections that share slots; clones share the list.
#[derive(Clone, Debug, Default)]
pub(crate) struct Incomplete(Arc<Mutex<Waiting<()>>>);

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
        Unread(self.waiting().add(()))
    }

    /// Waits for `room`; if there is none at once, closes the oldest incomplete connection.
    pub(crate) async fn make_room<T>(&self, room: impl Future<Output = T>) -> T {
        let mut room = pin!(room);
        tokio::select! {
            biased;
            room = &mut room => return room,
            () = std::future::ready(()) => {}
        }
        self.waiting().displace();
        room.await
    }

    /// A panic cannot leave the list half changed.
    fn waiting(&self) -> MutexGuard<'_, Waiting<()>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
