//! Says whether this process is suspended while another may take its place.
//!
//! Knows neither what is suspended nor how a process is replaced.

use std::sync::Arc;

use tokio::sync::watch;

/// Whether a daemon is suspended. Clones share it.
#[derive(Clone, Debug, Default)]
pub(crate) struct Suspension(Arc<watch::Sender<bool>>);

impl Suspension {
    /// Suspends or resumes the daemon.
    pub(crate) fn set(&self, is_on: bool) {
        self.0.send_replace(is_on);
    }

    /// Whether the daemon is suspended.
    pub(crate) fn is_on(&self) -> bool {
        *self.0.borrow()
    }

    /// Completes when the daemon is suspended, or when it is not.
    pub(crate) async fn becomes(&self, wanted: bool) {
        // Fails only if the sender is gone, and this has it.
        let _ = self.0.subscribe().wait_for(|is_on| *is_on == wanted).await;
    }
}
