//! The listeners of a client's forwards and the loops that accept from them.
//!
//! They belong to the client and outlive its sessions. The set can be changed while it runs: what
//! stays in it is not touched, and connections that are already in stay whatever happens to the
//! listener they came through.

use std::{
    mem,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use tokio::task::JoinSet;

use crate::{
    error::BindError,
    forwards::{
        accept::{Accepting, accept_loop},
        listen::{Bound, Listeners, bind_own},
    },
    spec::forward::{BenchForward, DynamicForward, Forward, Listen},
};

/// All listeners of a client.
#[derive(Debug)]
pub(crate) struct Entrances {
    accepting: Accepting,
    open: Mutex<Vec<Entrance>>,
    /// Held by the one call that changes the set.
    changing: tokio::sync::Mutex<()>,
}

/// One forward's listeners.
#[derive(Debug)]
struct Entrance {
    forward: Arc<Forward>,
    addresses: Vec<Bound>,
    accepting: JoinSet<()>,
}

impl Entrances {
    pub(crate) fn new(accepting: Accepting) -> Self {
        Self { accepting, open: Mutex::default(), changing: <_>::default() }
    }

    /// Each forward with the addresses it listens on.
    pub(crate) fn list(&self) -> Vec<(Forward, Vec<Bound>)> {
        let open = self.open();
        open.iter().map(|entry| ((*entry.forward).clone(), entry.addresses.clone())).collect()
    }

    /// Closes what is not among `forwards` and opens what is new there, in this order, so that a
    /// port may go from one forward to another. What cannot be bound is left out and returned.
    pub(crate) async fn set(&self, forwards: Vec<Forward>) -> Vec<BindError> {
        let _turn = self.changing.lock().await;
        let mut wanted: Vec<&Forward> = forwards.iter().collect();
        let mut gone = Vec::new();
        {
            let mut open = self.open();
            for entrance in mem::take(&mut *open) {
                match wanted.iter().position(|&forward| *forward == *entrance.forward) {
                    Some(found) => {
                        wanted.remove(found);
                        open.push(entrance);
                    }
                    None => gone.push(entrance),
                }
            }
        }
        for mut entrance in gone {
            // The sockets are closed when the loop is gone, not when it is told to go.
            entrance.accepting.shutdown().await;
        }
        let mut errors = Vec::new();
        for forward in wanted {
            match self.entrance(forward.clone()).await {
                Ok(entrance) => self.open().push(entrance),
                Err(error) => errors.push(error),
            }
        }
        self.open().sort_by_key(|entrance| {
            forwards.iter().position(|forward| *forward == *entrance.forward)
        });
        errors
    }

    /// Closes all listeners.
    pub(crate) async fn close(&self) {
        self.set(Vec::new()).await;
    }

    async fn entrance(&self, forward: Forward) -> Result<Entrance, BindError> {
        let listeners = match &forward {
            Forward::Local(forward) => bind_own(&forward.listen).await?,
            Forward::Dynamic(DynamicForward { bind, port })
            | Forward::Bench(BenchForward { bind, port }) => {
                bind_own(&Listen::Tcp { bind: bind.clone(), port: *port }).await?
            }
            // Its listeners are the server's.
            Forward::Remote(_) => Listeners::default(),
        };
        let forward = Arc::new(forward);
        let addresses = listeners.bound();
        let mut accepting = JoinSet::new();
        accepting.spawn(accept_loop(self.accepting.clone(), listeners, Arc::clone(&forward)));
        Ok(Entrance { forward, addresses, accepting })
    }

    /// A panic cannot leave the list half changed.
    fn open(&self) -> MutexGuard<'_, Vec<Entrance>> {
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
