//! The tasks that carry one connection each, kept apart from what accepted it: a listener may go while
//! its connections stay. Knows nothing of what a task does; dropped, it ends them all.

use std::{
    mem,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use tokio::{task::JoinSet, time::timeout};
use tracing::info;

/// Clones share one set.
#[derive(Clone, Debug, Default)]
pub(crate) struct Carried(Arc<Mutex<JoinSet<()>>>);

impl Carried {
    /// Runs a task until it ends by itself, or the set is ended or dropped.
    pub(crate) fn spawn(&self, task: impl Future<Output = ()> + Send + 'static) {
        let mut tasks = self.tasks();
        // Those that are through leave here, so that the set is no larger than what it carries.
        while tasks.try_join_next().is_some() {}
        tasks.spawn(task);
    }

    /// Gives all tasks `grace` to end by themselves, then cancels what is left of them. Returns when
    /// none is left; nobody may spawn meanwhile.
    pub(crate) async fn end(&self, grace: Duration) {
        let mut tasks = mem::take(&mut *self.tasks());
        let all = async { while tasks.join_next().await.is_some() {} };
        if timeout(grace, all).await.is_err() && !grace.is_zero() {
            info!("what is still open is cut off");
        }
        tasks.shutdown().await;
    }

    /// A panic cannot leave the set half changed.
    fn tasks(&self) -> MutexGuard<'_, JoinSet<()>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
