//! Opens and closes the listeners of a client's forwards, and runs their accept loops.
//!
//! Listeners belong to the client and outlive its sessions. The set can change while the client
//! runs: unchanged listeners are not touched, and open connections survive their listener.

use std::{
    io, mem,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use tokio::task::JoinSet;

use crate::{
    addresses::{
        forward::{Forward, Listen},
        servers::ServerAddresses,
    },
    error::BindError,
    forwards::{
        accept::Acceptor,
        carrier::Carrier,
        listen::bind_own,
        listener_group::{Bound, ListenerGroup},
        spare_sockets::SpareSockets,
    },
    handover::{HandedSocket, Handover, SocketRecord},
    limits::{
        descriptors::{Holder, SetApart},
        places::Places,
    },
};

/// All listeners of a client.
#[derive(Debug)]
pub(crate) struct ForwardListeners {
    acceptor: Acceptor,
    handover: Handover,
    open: Mutex<Vec<ForwardListener>>,
    /// Serializes changes of the set.
    changing: tokio::sync::Mutex<()>,
}

/// The listeners of one forward.
#[derive(Debug)]
struct ForwardListener {
    forward: Arc<Forward>,
    accept_loop: JoinSet<()>,
    listeners: Arc<ListenerGroup>,
    _apart: SetApart,
}

/// Forwards with their sockets, which are bound and may be in use.
#[derive(Debug, Default)]
pub struct BoundForwards(Vec<(Forward, Arc<ListenerGroup>)>);

impl BoundForwards {
    /// Adds a forward that is open, with its sockets; returns false if another forward has taken
    /// its listen address, here or at the server.
    pub fn keep(&mut self, owner: &str, forward: Forward, spare: &mut SpareSockets) -> bool {
        let is_taken = |(one, _): &(Forward, _)| match (one, &forward) {
            (Forward::Remote(one), Forward::Remote(other)) => one.listen == other.listen,
            _ => false,
        };
        let listeners = spare.take(owner, &forward).filter(|_| !self.0.iter().any(is_taken));
        let is_kept = listeners.is_some();
        self.0.extend(listeners.map(|listeners| (forward, listeners)));
        is_kept
    }
}

impl ForwardListeners {
    pub(crate) fn new(acceptor: Acceptor, handover: Handover) -> Self {
        Self { acceptor, handover, open: Mutex::default(), changing: <_>::default() }
    }

    /// Carries connections of other processes, beside those accepted here.
    pub(crate) fn carrier(&self, server: ServerAddresses) -> Carrier {
        self.acceptor.carrier(server)
    }

    /// The places of its connections.
    pub(crate) fn places(&self) -> Arc<Places> {
        self.acceptor.places()
    }

    /// Who holds the descriptors of its connections.
    pub(crate) fn holder(&self) -> Holder {
        self.acceptor.holder()
    }

    /// Each forward with its bound addresses.
    pub(crate) fn list(&self) -> Vec<(Forward, Vec<Bound>)> {
        let open = self.open();
        open.iter().map(|entry| ((*entry.forward).clone(), entry.listeners.bound())).collect()
    }

    /// The sockets, for the process that follows.
    pub(crate) fn hand_over(&self, owner: &str) -> io::Result<Vec<HandedSocket>> {
        let mut sockets = Vec::new();
        for ForwardListener { forward, listeners, .. } in &*self.open() {
            let is_chosen = forward.listens_here().is_some_and(|listen| listen.is_any_port());
            for handed in listeners.hand_over() {
                let HandedSocket { record, socket } = handed?;
                let record = match is_chosen {
                    true => SocketRecord::Chosen {
                        owner: owner.into(),
                        forward: forward.to_string(),
                        bound: Box::new(record),
                    },
                    false => record,
                };
                sockets.push(HandedSocket { record, socket });
            }
        }
        Ok(sockets)
    }

    /// Adds the sockets of forwards that are not among these.
    pub(crate) fn add_spare(&self, owner: &str, forwards: &[Forward], spare: &mut SpareSockets) {
        let mut kept: Vec<&Forward> = forwards.iter().collect();
        for ForwardListener { forward, listeners, .. } in &*self.open() {
            match kept.iter().position(|&one| *one == **forward) {
                Some(found) => drop(kept.swap_remove(found)),
                None => spare.add(owner, (**forward).clone(), Arc::clone(listeners)),
            }
        }
    }

    /// Binds the sockets that these forwards lack: those already open, and spare ones, are reused.
    /// Changes nothing else.
    pub(crate) async fn bind(
        &self,
        owner: &str,
        forwards: Vec<Forward>,
        spare: &mut SpareSockets,
    ) -> Result<BoundForwards, BindError> {
        let of_entry =
            |entry: &ForwardListener| (Arc::clone(&entry.forward), Arc::clone(&entry.listeners));
        let mut open: Vec<_> = self.open().iter().map(of_entry).collect();
        let mut bound = Vec::new();
        for forward in forwards {
            let listeners = match open.iter().position(|(one, _)| **one == forward) {
                Some(found) => open.swap_remove(found).1,
                None => match (spare.take_for(owner, &forward), forward.listens_here()) {
                    (Some(taken), _) => taken,
                    (None, Some(listen)) => {
                        let text = forward.to_string();
                        Arc::new(bind_own(&listen, (owner, &text), &self.handover, spare).await?)
                    }
                    // The server listens.
                    (None, None) => Arc::default(),
                },
            };
            bound.push((forward, listeners));
        }
        Ok(BoundForwards(bound))
    }

    /// Stops using sockets that are not among these.
    pub(crate) async fn close_except(&self, BoundForwards(bound): &BoundForwards) {
        let _guard = self.changing.lock().await;
        self.retain(bound).await;
    }

    /// Sets the forwards.
    pub(crate) async fn set(&self, BoundForwards(bound): BoundForwards) {
        let _guard = self.changing.lock().await;
        self.retain(&bound).await;
        let place = |forward: &Forward| bound.iter().position(|(one, _)| one == forward);
        let mut open = self.open();
        for (forward, listeners) in &bound {
            if !open.iter().any(|entry| Arc::ptr_eq(&entry.listeners, listeners)) {
                open.push(self.start(forward.clone(), Arc::clone(listeners)));
            }
        }
        open.sort_unstable_by_key(|entry| place(&entry.forward));
    }

    /// Closes all listeners.
    pub(crate) async fn close(&self) {
        self.close_except(&BoundForwards::default()).await;
    }

    async fn retain(&self, bound: &[(Forward, Arc<ListenerGroup>)]) {
        let stays = |entry: &ForwardListener| {
            let is_same = |(forward, listeners): &(Forward, Arc<ListenerGroup>)| {
                *forward == *entry.forward && Arc::ptr_eq(listeners, &entry.listeners)
            };
            bound.iter().any(is_same)
        };
        let removed: Vec<_> = {
            let mut open = self.open();
            let (kept, removed) = mem::take(&mut *open).into_iter().partition(stays);
            *open = kept;
            removed
        };
        for mut listener in removed {
            // Waits for the loop to end: only then are the sockets closed, or free for another
            // loop.
            listener.accept_loop.shutdown().await;
        }
    }

    fn start(&self, forward: Forward, listeners: Arc<ListenerGroup>) -> ForwardListener {
        let forward = Arc::new(forward);
        let apart = self.acceptor.set_apart(listeners.descriptors());
        let mut accept_loop = JoinSet::new();
        let (acceptor, sockets) = (self.acceptor.clone(), Arc::clone(&listeners));
        match forward.listens_here() {
            Some(Listen::Udp { .. }) => {
                accept_loop.spawn(acceptor.run_udp(sockets, Arc::clone(&forward)))
            }
            _ => accept_loop.spawn(acceptor.run(sockets, Arc::clone(&forward))),
        };
        ForwardListener { forward, accept_loop, listeners, _apart: apart }
    }

    /// A panic cannot leave the list half changed.
    fn open(&self) -> MutexGuard<'_, Vec<ForwardListener>> {
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
