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
    addresses::forward::{BenchForward, DynamicForward, Forward, Listen},
    error::BindError,
    forwards::{
        accept::Acceptor,
        listen::{Bound, ListenerGroup, bind_own},
    },
};

/// All listeners of a client.
#[derive(Debug)]
pub(crate) struct ForwardListeners {
    acceptor: Acceptor,
    open: Mutex<Vec<ForwardListener>>,
    /// Serializes changes of the set.
    changing: tokio::sync::Mutex<()>,
}

/// The listeners of one forward.
#[derive(Debug)]
struct ForwardListener {
    forward: Arc<Forward>,
    addresses: Vec<Bound>,
    accept_loop: JoinSet<()>,
}

impl ForwardListeners {
    pub(crate) fn new(acceptor: Acceptor) -> Self {
        Self { acceptor, open: Mutex::default(), changing: <_>::default() }
    }

    /// Each forward with its bound addresses.
    pub(crate) fn list(&self) -> Vec<(Forward, Vec<Bound>)> {
        let open = self.open();
        open.iter().map(|entry| ((*entry.forward).clone(), entry.addresses.clone())).collect()
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
            Forward::Local(forward) => bind_own(&forward.listen).await?,
            Forward::Dynamic(DynamicForward { bind, port })
            | Forward::Bench(BenchForward { bind, port }) => {
                bind_own(&Listen::Tcp { bind: bind.clone(), port: *port }).await?
            }
            // The server listens.
            Forward::Remote(_) => ListenerGroup::default(),
        };
        let forward = Arc::new(forward);
        let addresses = listeners.bound();
        let mut accept_loop = JoinSet::new();
        accept_loop.spawn(self.acceptor.clone().run(listeners, Arc::clone(&forward)));
        Ok(ForwardListener { forward, addresses, accept_loop })
    }

    /// A panic cannot leave the list half changed.
    fn open(&self) -> MutexGuard<'_, Vec<ForwardListener>> {
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
