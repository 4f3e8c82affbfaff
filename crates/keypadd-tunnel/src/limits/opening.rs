//! Counts connections that are being opened: from the request for a stream until the event loop has been told to
//! carry it. Only those that it carries can be held.

use std::sync::Arc;

use tokio::sync::watch;

/// The connections of a daemon, or of a session, that are being opened.
#[derive(Debug, Default)]
pub(crate) struct OpeningCount(Arc<watch::Sender<usize>>);

/// Counts a connection as being opened, until it is dropped.
#[derive(Debug)]
pub struct Opening(Arc<watch::Sender<usize>>);

impl OpeningCount {
    /// Counts another one.
    pub(crate) fn begin(&self) -> Opening {
        self.0.send_modify(|opening| *opening += 1);
        Opening(Arc::clone(&self.0))
    }

    /// Waits until there is none.
    pub(crate) async fn none(&self) {
        // Fails only if the sender is gone, and this has it.
        let _ = self.0.subscribe().wait_for(|opening| *opening == 0).await;
    }
}

impl Drop for Opening {
    fn drop(&mut self) {
        self.0.send_modify(|opening| *opening -= 1);
    }
}
