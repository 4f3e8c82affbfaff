//! Owns the tasks that serve one connection each, so that connections survive their listener.

use std::{
    mem,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use tokio::{
    task::JoinSet,
    time::{Instant, timeout_at},
};

/// A set of tasks, aborted on drop; clones share it.
#[derive(Clone, Debug, Default)]
pub(crate) struct ConnectionTasks(Arc<Mutex<Tasks>>);

#[derive(Debug, Default)]
struct Tasks {
    running: JoinSet<()>,
    /// No task is added once the set has drained.
    is_closed: bool,
}

impl ConnectionTasks {
    /// Spawns a task into the set; drops it if the set drains.
    pub(crate) fn spawn(&self, task: impl Future<Output = ()> + Send + 'static) {
        let mut tasks = self.tasks();
        if tasks.is_closed {
            return;
        }
        // Removes finished tasks, so that the set does not grow.
        while tasks.running.try_join_next().is_some() {}
        tasks.running.spawn(task);
    }

    /// Waits until then for all tasks to finish, then aborts the rest; returns whether all have
    /// finished. Adds no more from now on.
    pub(crate) async fn drain(&self, until: Instant) -> bool {
        let mut tasks = {
            let mut tasks = self.tasks();
            tasks.is_closed = true;
            mem::take(&mut tasks.running)
        };
        let all = async { while tasks.join_next().await.is_some() {} };
        let finished = timeout_at(until, all).await.is_ok();
        tasks.shutdown().await;
        finished
    }

    /// A panic cannot leave the set half changed.
    fn tasks(&self) -> MutexGuard<'_, Tasks> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
