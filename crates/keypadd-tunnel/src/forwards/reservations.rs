//! Reserves addresses for the remote forwards of a server's sessions, and decides who may take one
//! over.
//!
//! An address belongs to the session that requested it first. A newer session of the same key takes
//! it over if the holder belongs to the same run of the client, or does not respond to a ping
//! within three seconds. A session of another key never does. Where a session goes on with the
//! streams of another, it also takes its listeners over, open as they are. Binds nothing.

use std::{
    collections::HashMap,
    convert::Infallible,
    io,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use tokio::{
    sync::{Notify, mpsc, watch},
    time::{Instant, sleep},
};

use crate::{
    addresses::forward::Listen,
    forwards::{listener_group::Bound, open_listener::OpenListener},
    handover::{HandedSocket, RemoteBound, RemoteRecord, SocketRecord},
    sessions::session::LiveSession,
    wire::{Frame, ListenCode},
};

/// A holder that sends nothing for this long after a ping loses its addresses.
const PING_TIMEOUT: Duration = Duration::from_secs(3);

/// Time between two checks for packets of the holder.
const POLL_INTERVAL: Duration = Duration::from_millis(50);

/// All reserved addresses of a server; clones share one table.
#[derive(Clone, Debug, Default)]
pub(crate) struct Reservations(Arc<Mutex<Table>>);

#[derive(Debug, Default)]
struct Table {
    next_id: u64,
    entries: HashMap<u64, Entry>,
    /// Listeners of sessions that others go on with, in the order in which they were left.
    left: Vec<Listening>,
    /// Another process follows.
    is_handed_over: bool,
}

/// What a session listens on for its client's number.
#[derive(Clone, Debug)]
struct Listening {
    session: Arc<LiveSession>,
    places: Vec<Bound>,
    /// Set once the sockets are bound.
    bound: Option<(u16, Listen, Arc<OpenListener>)>,
    /// While it is left: dropped once it is closed or taken over, which ends the wait of `left_by`.
    left: Option<mpsc::Sender<Infallible>>,
}

impl Listening {
    /// Whether this session may go on with the one that listens.
    fn continues_in(&self, session: &LiveSession) -> bool {
        self.session.leaves_listeners() && self.session.client() == session.client()
    }

    /// Whether it stays open without its session.
    fn stays(&self) -> bool {
        self.bound.is_some() && self.session.leaves_listeners()
    }

    fn is_udp(&self) -> bool {
        self.places.iter().any(|place| matches!(place, Bound::Udp(_)))
    }
}

#[derive(Clone, Debug)]
struct Entry {
    listening: Listening,
    revoke: Arc<Notify>,
    /// Closed when the reservation is released.
    released: watch::Receiver<()>,
}

/// Reserved addresses; released on drop. Sockets that were not [noted](Self::bound) must be closed
/// before.
#[derive(Debug)]
pub(crate) struct Reservation {
    reservations: Reservations,
    id: u64,
    revoke: Arc<Notify>,
    _unreleased: watch::Sender<()>,
}

impl Reservation {
    /// Waits until another session takes the addresses over.
    pub(crate) async fn revoked(&self) {
        self.revoke.notified().await;
    }

    /// Notes the sockets of the client's number, so that its next session can take them over.
    pub(crate) fn bound(&self, number: u16, listen: &Listen, open: &Arc<OpenListener>) {
        if let Some(entry) = self.reservations.table().entries.get_mut(&self.id) {
            entry.listening.bound = Some((number, listen.clone(), Arc::clone(open)));
        }
    }
}

impl Drop for Reservation {
    fn drop(&mut self) {
        let mut table = self.reservations.table();
        let Some(Entry { listening, .. }) = table.entries.remove(&self.id) else { return };
        // The process that follows binds UDP sockets anew.
        if listening.stays() && !(table.is_handed_over && listening.is_udp()) {
            table.left.push(listening);
        } else {
            drop(table);
            // Closes the sockets before the waiters hear of it.
            drop(listening);
        }
    }
}

impl Reservations {
    /// Reserves these addresses for `session`, taking them over from their holder if allowed.
    ///
    /// # Errors
    /// [`ListenCode::InUse`]: the holder keeps them.
    pub(crate) async fn reserve(
        &self,
        session: &Arc<LiveSession>,
        places: Vec<Bound>,
    ) -> Result<Reservation, ListenCode> {
        loop {
            let mut holder = match self.reserve_if_free(session, &places) {
                Ok(reservation) => return Ok(reservation),
                Err(holder) => holder,
            };
            if !may_take_over(session, &holder.listening.session).await {
                return Err(ListenCode::InUse);
            }
            holder.revoke.notify_one();
            while holder.released.changed().await.is_ok() {}
        }
    }

    /// Describes the listeners to the process that follows. Those of UDP are not among them: their
    /// flows end with the session, and the new process binds them anew. So until
    /// [`resume`](Self::resume) no UDP listener stays open after its session.
    pub(crate) fn hand_over(&self) -> io::Result<Vec<HandedSocket>> {
        let mut table = self.table();
        table.is_handed_over = true;
        let closed: Vec<_> = table.left.extract_if(.., |it| it.is_udp()).collect();
        let entries = table.entries.values().map(|entry| &entry.listening);
        let mut sockets = Vec::new();
        for Listening { session, bound, .. } in entries.chain(&table.left) {
            let Some((number, _, open)) = bound else { continue };
            for handed in open.hand_over() {
                let HandedSocket { record, socket } = handed?;
                let bound = match record {
                    SocketRecord::Tcp(address) => RemoteBound::Tcp(address),
                    SocketRecord::Unix(file) => RemoteBound::Unix(file),
                    SocketRecord::Udp(_)
                    | SocketRecord::UdpForward(_)
                    | SocketRecord::Chosen { .. }
                    | SocketRecord::Remote(_)
                    | SocketRecord::Device(_) => continue,
                };
                let (key, instance) = (session.identity().to_string(), session.instance().0);
                let record = RemoteRecord { key, instance, number: *number, bound };
                sockets.push(HandedSocket { record: SocketRecord::Remote(record), socket });
            }
        }
        drop(table);
        drop(closed);
        Ok(sockets)
    }

    /// No process followed.
    pub(crate) fn resume(&self) {
        self.table().is_handed_over = false;
    }

    /// Takes over what the session before listens on, if it goes on in this one.
    pub(crate) fn take_over(
        &self,
        session: &Arc<LiveSession>,
        number: u16,
        listen: &Listen,
    ) -> Option<(Arc<OpenListener>, Reservation)> {
        let wanted = |listening: &Listening| {
            let same = listening.bound.as_ref().is_some_and(|(its_number, its_listen, _)| {
                *its_number == number && its_listen == listen
            });
            same && listening.continues_in(session)
        };
        let mut table = self.table();
        let left = table.left.iter().position(wanted).map(|at| table.left.remove(at));
        let (mut listening, revoke) = match left {
            Some(listening) => (listening, None),
            None => {
                // Its task is about to end.
                let entries = &mut table.entries;
                let id = *entries.iter().find(|(_, entry)| wanted(&entry.listening))?.0;
                let Entry { listening, revoke, .. } = entries.remove(&id)?;
                (listening, Some(revoke))
            }
        };
        let open = Arc::clone(&listening.bound.as_ref()?.2);
        (listening.session, listening.left) = (Arc::clone(session), None);
        let reservation = self.insert(&mut table, listening);
        drop(table);
        if let Some(revoke) = revoke {
            revoke.notify_one();
        }
        Some((open, reservation))
    }

    /// Ends when nothing is left of what this session has listened on, as all of it is closed or
    /// taken over. Closes what others of its key have left, but for the newest: no more than `max`
    /// of them leave listeners.
    pub(crate) fn left_by(&self, session: &LiveSession, max: usize) -> mpsc::Receiver<Infallible> {
        let (left, is_left) = mpsc::channel(1);
        let mut table = self.table();
        let mut newest = Vec::new();
        for listening in table.left.iter_mut().rev() {
            let by = &listening.session;
            if by.identity() == session.identity() && !newest.contains(&by.id) && newest.len() < max
            {
                newest.push(by.id);
            }
            if by.id == session.id {
                listening.left = Some(left.clone());
            }
        }
        let closed = table.left.extract_if(.., |Listening { session: by, .. }| {
            by.identity() == session.identity() && !newest.contains(&by.id)
        });
        let closed: Vec<_> = closed.collect();
        drop(table);
        drop(closed);
        is_left
    }

    /// Closes what this session has left to the one that goes on with it, and that has not taken
    /// over.
    pub(crate) fn close_left_by(&self, session: &LiveSession) {
        let mut table = self.table();
        let closed: Vec<_> =
            table.left.extract_if(.., |listening| listening.session.id == session.id).collect();
        drop(table);
        drop(closed);
    }

    /// Reserves the addresses, or returns the entry that has one of them.
    fn reserve_if_free(
        &self,
        session: &Arc<LiveSession>,
        places: &[Bound],
    ) -> Result<Reservation, Box<Entry>> {
        let mut table = self.table();
        let overlaps = |listening: &Listening| {
            listening.places.iter().any(|held| places.iter().any(|place| held.overlaps(place)))
        };
        if let Some(holder) = table.entries.values().find(|entry| overlaps(&entry.listening)) {
            return Err(Box::new(holder.clone()));
        }
        // It listens there in another way now.
        table.left.retain(|listening| !(listening.continues_in(session) && overlaps(listening)));
        let (session, places) = (Arc::clone(session), places.to_vec());
        Ok(self.insert(&mut table, Listening { session, places, bound: None, left: None }))
    }

    fn insert(&self, table: &mut Table, listening: Listening) -> Reservation {
        let id = table.next_id;
        table.next_id += 1;
        let (unreleased, released) = watch::channel(());
        let revoke = Arc::new(Notify::new());
        table.entries.insert(id, Entry { listening, revoke: Arc::clone(&revoke), released });
        Reservation { reservations: self.clone(), id, revoke, _unreleased: unreleased }
    }

    /// A panic cannot leave the table half changed.
    fn table(&self) -> MutexGuard<'_, Table> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Whether a session may take over the holder's addresses.
async fn may_take_over(newcomer: &LiveSession, holder: &LiveSession) -> bool {
    if newcomer.identity() != holder.identity() || newcomer.id <= holder.id {
        return false;
    }
    newcomer.instance() == holder.instance() || is_unresponsive(holder).await
}

/// Pings a session; returns whether no packet of it arrives in time.
async fn is_unresponsive(session: &LiveSession) -> bool {
    let datagrams = || session.connection.stats().udp_rx.datagrams;
    let before = datagrams();
    // If the queue is full, its frames serve as the ping.
    session.try_send(Frame::Ping);
    let deadline = Instant::now() + PING_TIMEOUT;
    while !session.has_ended() {
        if datagrams() != before {
            return false;
        }
        if Instant::now() >= deadline {
            return true;
        }
        sleep(POLL_INTERVAL).await;
    }
    true
}
