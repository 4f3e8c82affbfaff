//! Owns the tasks that serve one connection each, so that connections survive their listener.

use std::{
    mem,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use tokio::{task::JoinSet, time::timeout};
use tracing::info;

/// A set of tasks, aborted on drop; clones share it.
#[derive(Clone, Debug, Default)]
pub(crate) struct ConnectionTasks(Arc<Mutex<JoinSet<()>>>);

impl ConnectionTasks {
    /// Spawns a task into the set.
    pub(crate) fn spawn(&self, task: impl Future<Output = ()> + Send + 'static) {
        let mut tasks = self.tasks();
        // Removes finished tasks, so that the set does not grow.
        while tasks.try_join_next().is_some() {}
        tasks.spawn(task);
    }

    /// Waits up to `grace` for all tasks to finish, then aborts the rest. Nothing may be spawned
    /// meanwhile.
    pub(crate) async fn drain(&self, grace: Duration) {
        let mut tasks = mem::take(&mut *self.tasks());
        let all = async { while tasks.join_next().await.is_some() {} };
        if timeout(grace, all).await.is_err() && !grace.is_zero() {
            info!("drain timeout: resetting open connections");
        }
        tasks.shutdown().await;
    }

    /// A panic cannot leave the set half changed.
    fn tasks(&self) -> MutexGuard<'_, JoinSet<()>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
