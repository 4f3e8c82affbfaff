//! Runs one end of a measurement like a machine of its own: a worker thread with its own event loop.
//!
//! Ends that share threads hand work to each other as no two machines do, and the thread a task lands on decides
//! what a path costs: of several paths with shared threads, one was slower by up to 1.6 times, whatever its suite.
//! Sockets belong to the loop that creates them, so everything a host does starts on it.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

use tokio::runtime::{Builder, Runtime};
use tokio::task::JoinSet;

/// One worker thread. Dropped, all that runs on it ends.
#[derive(Debug)]
pub struct Host {
    /// `None` only while it is dropped.
    runtime: Option<Runtime>,
    tasks: JoinSet<()>,
    /// Whether all its threads are where they have to be.
    is_seated: Arc<AtomicBool>,
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
        let take = move || {
            if enter().is_err() {
                seated.store(false, Relaxed);
            }
        };
        let runtime = Builder::new_multi_thread()
            .worker_threads(1)
            .thread_name("kpd-host")
            .on_thread_start(take)
            .enable_all()
            .build()?;
        Ok(Self { runtime: Some(runtime), tasks: JoinSet::new(), is_seated })
    }

    /// Does something on it and waits for the end.
    ///
    /// # Errors
    /// It ended on a fault, or ran where it should not.
    pub async fn run<F>(&self, future: F) -> io::Result<F::Output>
    where
        F: Future<Output: Send> + Send + 'static,
    {
        let done = self.runtime().spawn(future).await.map_err(io::Error::other)?;
        match self.is_seated.load(Relaxed) {
            true => Ok(done),
            false => Err(io::Error::other("a thread cannot enter its namespace or control group")),
        }
    }

    /// Has it do something for as long as it takes.
    pub fn spawn(&mut self, future: impl Future<Output = ()> + Send + 'static) {
        let handle = self.runtime().handle().clone();
        self.tasks.spawn_on(future, &handle);
    }

    /// Waits for all that was spawned.
    pub async fn rest(&mut self) {
        while self.tasks.join_next().await.is_some() {}
    }

    fn runtime(&self) -> &Runtime {
        self.runtime.as_ref().expect("there is one until it is dropped")
    }
}

impl Drop for Host {
    fn drop(&mut self) {
        // Waiting for it would block whichever loop drops it.
        if let Some(runtime) = self.runtime.take() {
            runtime.shutdown_background();
        }
    }
}
