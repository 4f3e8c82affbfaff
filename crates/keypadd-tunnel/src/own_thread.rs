//! Runs work that blocks on a thread of its own, for tasks that must not.

use std::{
    io,
    panic::resume_unwind,
    thread::{Builder, JoinHandle},
};

use tokio::sync::oneshot;

/// Runs `work` on a new thread; it goes on even if the future is dropped. Panics if `work` does.
///
/// # Errors
/// No thread can be started (RLIMIT_NPROC, pids.max, memory), where tokio's `spawn_blocking` would
/// panic.
pub async fn on_own_thread<T: Send + 'static>(
    work: impl FnOnce() -> T + Send + 'static,
) -> io::Result<T> {
    let (sender, done) = oneshot::channel();
    let thread = start(Box::new(move || drop(sender.send(work()))))?;
    match done.await {
        Ok(outcome) => Ok(outcome),
        // It panicked.
        Err(_) => thread.join().map_or_else(|panic| resume_unwind(panic), |()| unreachable!()),
    }
}

/// Compiled once for all work.
fn start(work: Box<dyn FnOnce() + Send>) -> io::Result<JoinHandle<()>> {
    Builder::new().name("keypadd-once".into()).spawn(work)
}
