//! Tells systemd about the daemon's state, if systemd started this process (sd_notify(3)).

use std::time::Duration;

use humantime::format_duration;
use sd_notify::NotifyState;
use tracing::{debug, info};

/// How long shutdown takes beyond the drain timeout.
const SHUTDOWN_TIME: Duration = Duration::from_secs(5);

/// Tells systemd that the daemon is stopping and how long that may take.
pub(crate) fn notify_stopping(drain: Duration) {
    let micros = u32::try_from((drain + SHUTDOWN_TIME).as_micros()).unwrap_or(u32::MAX);
    let patience = NotifyState::ExtendTimeoutUsec(micros);
    notify(&[NotifyState::Stopping, patience]);
    if !drain.is_zero() {
        info!(
            "shutting down: draining for up to {}; signal again to stop now",
            format_duration(drain)
        );
    }
}

/// Notifies systemd, if it started this process (sd_notify(3)).
pub(crate) fn notify(states: &[NotifyState]) {
    if let Err(error) = sd_notify::notify(states) {
        debug!(%error, "cannot notify systemd");
    }
}
