//! Opens and closes the listeners of a client's forwards, and runs their accept loops.
//!
//! Listeners belong to the client and outlive its sessions. The set can change while the client
//! runs: unchanged listeners are not touched, and open connections survive their listener.

use std::{
    mem,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use tokio::task::JoinSet;

use crate::{
    addresses::{
        forward::{BenchForward, DynamicForward, Forward, Listen},
        servers::ServerAddresses,
    },
    error::BindError,
    forwards::{
        accept::Acceptor,
        carrier::Carrier,
        listen::{Bound, ListenerGroup, bind_own},
    },
    handover::{HandedSocket, Handover},
    limits::descriptors::{Holder, SetApart},
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

impl ForwardListeners {
    pub(crate) fn new(acceptor: Acceptor, handover: Handover) -> Self {
        Self { acceptor, handover, open: Mutex::default(), changing: <_>::default() }
    }

    /// Carries connections of other processes, beside those accepted here.
    pub(crate) fn carrier(&self, server: ServerAddresses) -> Carrier {
        self.acceptor.carrier(server)
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
    pub(crate) fn hand_over(&self) -> Vec<HandedSocket> {
        self.open().iter().flat_map(|entry| entry.listeners.hand_over()).collect()
    }

    /// Closes listeners that are not in `forwards`, then opens the new ones, so that a port can
    /// move from one forward to another. Skips what cannot be bound and returns the errors.
    pub(crate) async fn set(&self, forwards: Vec<Forward>) -> Vec<BindError> {
        let _guard = self.changing.lock().await;
        let mut wanted: Vec<&Forward> = forwards.iter().collect();
        let mut removed = Vec::new();
        {
            let mut open = self.open();
            for listener in mem::take(&mut *open) {
                match wanted.iter().position(|&forward| *forward == *listener.forward) {
                    Some(found) => {
                        wanted.remove(found);
                        open.push(listener);
                    }
                    None => removed.push(listener),
                }
            }
        }
        for mut listener in removed {
            // Waits for the loop to end: only then are the sockets closed.
            listener.accept_loop.shutdown().await;
        }
        let mut errors = Vec::new();
        for forward in wanted {
            match self.start(forward.clone()).await {
                Ok(listener) => self.open().push(listener),
                Err(error) => errors.push(error),
            }
        }
        self.open().sort_by_key(|listener| {
            forwards.iter().position(|forward| *forward == *listener.forward)
        });
        errors
    }

    /// Closes all listeners.
    pub(crate) async fn close(&self) {
        self.set(Vec::new()).await;
    }

    async fn start(&self, forward: Forward) -> Result<ForwardListener, BindError> {
        let listeners = match &forward {
            Forward::Local(forward) => bind_own(&forward.listen, &self.handover).await?,
            Forward::Dynamic(DynamicForward { bind, port })
            | Forward::Bench(BenchForward { bind, port }) => {
                let listen = Listen::Tcp { bind: bind.clone(), port: *port };
                bind_own(&listen, &self.handover).await?
            }
            // The server listens.
            Forward::Remote(_) => ListenerGroup::default(),
        };
        let (forward, listeners) = (Arc::new(forward), Arc::new(listeners));
        let apart = self.acceptor.set_apart(listeners.descriptors());
        let mut accept_loop = JoinSet::new();
        let (acceptor, sockets) = (self.acceptor.clone(), Arc::clone(&listeners));
        match &*forward {
            Forward::Local(local) if matches!(local.listen, Listen::Udp { .. }) => {
                let name = forward.to_string().into();
                accept_loop.spawn(acceptor.run_udp(sockets, local.clone(), name))
            }
            _ => accept_loop.spawn(acceptor.run(sockets, Arc::clone(&forward))),
        };
        Ok(ForwardListener { forward, accept_loop, listeners, _apart: apart })
    }

    /// A panic cannot leave the list half changed.
    fn open(&self) -> MutexGuard<'_, Vec<ForwardListener>> {
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
