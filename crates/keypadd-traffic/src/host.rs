//! Runs one end of a measurement on its own thread and event loop, optionally inside a network
//! namespace or control group.
//!
//! Ends that shared threads slowed some paths by up to 1.6 times, whatever the suite. Sockets
//! belong to the loop that creates them, so everything an end does starts on its thread.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::thread;

use tokio::runtime::{Builder, Handle};
use tokio::sync::oneshot;
use tokio::task::JoinSet;

/// One worker thread. Dropped, all that runs on it ends.
#[derive(Debug)]
pub struct Host {
    handle: Handle,
    tasks: JoinSet<()>,
    /// Whether all its threads are where they have to be.
    is_seated: Arc<AtomicBool>,
    /// Dropped, the thread ends.
    _stop: oneshot::Sender<()>,
}

impl Host {
    /// Starts its thread, which sees and uses what this process may.
    ///
    /// # Errors
    /// The system has no thread or no descriptor for it.
    pub fn start() -> io::Result<Self> {
        Self::start_in(|| Ok(()))
    }

    /// Starts its thread, which first enters wherever it is to be.
    ///
    /// # Errors
    /// As for [`start`](Self::start).
    pub fn start_in(
        enter: impl Fn() -> io::Result<()> + Send + Sync + 'static,
    ) -> io::Result<Self> {
        let is_seated = Arc::new(AtomicBool::new(true));
        let seated = Arc::clone(&is_seated);
        let take = Arc::new(move || {
            if enter().is_err() {
                seated.store(false, Relaxed);
            }
        });
        // Called by the threads that block; the loop's own is no concern of the runtime.
        let blocking = Arc::clone(&take);
        let runtime = Builder::new_current_thread()
            .on_thread_start(move || blocking())
            .enable_all()
            .build()?;
        let handle = runtime.handle().clone();
        let (stop, stopped) = oneshot::channel();
        thread::Builder::new().name("kpd-host".into()).spawn(move || {
            take();
            // An error: the host was dropped.
            let _ = runtime.block_on(stopped);
            runtime.shutdown_background();
        })?;
        Ok(Self { handle, tasks: JoinSet::new(), is_seated, _stop: stop })
    }

    /// Does something on it and waits for the end.
    ///
    /// # Errors
    /// The future ended on a fault, or ran where it should not.
    pub async fn run<F>(&self, future: F) -> io::Result<F::Output>
    where
        F: Future<Output: Send> + Send + 'static,
    {
        let done = self.handle.spawn(future).await.map_err(io::Error::other)?;
        match self.is_seated.load(Relaxed) {
            true => Ok(done),
            false => Err(io::Error::other("a thread cannot enter its namespace or control group")),
        }
    }

    /// Has it do something for as long as it takes.
    pub fn spawn(&mut self, future: impl Future<Output = ()> + Send + 'static) {
        self.tasks.spawn_on(future, &self.handle);
    }

    /// Waits for all that was spawned.
    pub async fn rest(&mut self) {
        while self.tasks.join_next().await.is_some() {}
    }
}
