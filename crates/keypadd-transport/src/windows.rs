//! The receive window of a connection, which grows while sockets take nothing.
//!
//! In QUIC all streams share their connection's window, and what a stalled socket leaves unread stays
//! part of it (RFC 9000 4.1): enough of them would stop every other stream. So the window grows by as
//! much as stalled streams may hold, up to a limit, and shrinks again when they are read. Knows counts
//! and times only.

use std::time::{Duration, Instant};

use crate::endpoint::Windows;

/// A socket that has taken nothing for this long is stalled; how often that is looked at.
const STALLED: Duration = Duration::from_millis(100);

#[derive(Debug)]
pub(crate) struct ReceiveWindow {
    windows: Windows,
    current: u32,
    check_at: Option<Instant>,
}

impl ReceiveWindow {
    pub(crate) fn new(windows: Windows) -> Self {
        Self { windows, current: windows.connection, check_at: None }
    }

    /// A socket takes nothing now.
    pub(crate) fn blocked(&mut self, now: Instant) {
        self.check_at.get_or_insert(now + STALLED);
    }

    /// When to look at the sockets.
    pub(crate) fn deadline(&self) -> Option<Instant> {
        self.check_at
    }

    /// Whether it is time to look, and since when a socket must have been blocked to count.
    pub(crate) fn is_due(&mut self, now: Instant) -> Option<Instant> {
        self.check_at.take_if(|at| *at <= now).map(|_| now.checked_sub(STALLED).unwrap_or(now))
    }

    /// So many sockets are blocked, and of them so many are stalled; the window where it changes.
    pub(crate) fn set_stalled(
        &mut self,
        blocked: usize,
        stalled: usize,
        now: Instant,
    ) -> Option<u32> {
        if blocked > 0 {
            self.blocked(now);
        }
        let Windows { stream, connection, connection_max } = self.windows;
        let held = u32::try_from(stalled).unwrap_or(u32::MAX).saturating_mul(stream);
        let window = connection.saturating_add(held).min(connection_max.max(connection));
        let changed = window != self.current;
        self.current = window;
        changed.then_some(window)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const WINDOWS: Windows = Windows { stream: 10, connection: 100, connection_max: 150 };

    #[test]
    fn the_window_grows_by_what_stalled_streams_hold_up_to_its_limit() {
        let (mut window, now) = (ReceiveWindow::new(WINDOWS), Instant::now());
        assert_eq!(window.set_stalled(0, 0, now), None);
        assert_eq!(window.set_stalled(3, 3, now), Some(130));
        assert_eq!(window.set_stalled(9, 9, now), Some(150));
        assert_eq!(window.set_stalled(0, 0, now), Some(100));
    }

    #[test]
    fn sockets_are_looked_at_only_while_one_is_blocked() {
        let (mut window, start) = (ReceiveWindow::new(WINDOWS), Instant::now());
        assert_eq!(window.deadline(), None);
        window.blocked(start);
        assert_eq!(window.is_due(start), None);
        let now = start + STALLED;
        assert_eq!(window.is_due(now), Some(start));
        window.set_stalled(1, 1, now);
        assert_eq!(window.deadline(), Some(now + STALLED));
        assert_eq!(window.is_due(now + STALLED), Some(now));
        window.set_stalled(0, 0, now + STALLED);
        assert_eq!(window.deadline(), None);
    }
}
