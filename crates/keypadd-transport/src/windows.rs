//! Grows a connection's receive window while sockets are slower than the network, and shrinks it by
//! the data behind gaps.
//!
//! In QUIC all streams share their connection's window, and what a slow socket leaves unread stays
//! part of it (RFC 9000 4.1): enough slow sockets would stop every other stream. So the window
//! grows by what their streams may hold, and shrinks when they are read. All but the first bytes of
//! a window come out of a budget that all connections of a process share. Data that waits behind
//! gaps (`reassembly`) reduces the window, so that the peer never makes us hold more. Knows counts
//! and times only.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use keypadd_share::{Budget, Part};

use crate::reassembly::OutOfOrder;

/// How often to look at sockets while one accepts nothing.
const CHECK: Duration = Duration::from_millis(100);

/// A socket that was blocked within this time may leave its stream's window full, even if it is
/// read a little at a time.
const SLOW: Duration = Duration::from_secs(1);

/// Credit is announced each time that one part in this many of the connection's window was read, as
/// in quinn-proto.
const ANNOUNCED_ONE_IN: u32 = 8;

/// The window follows the data behind gaps in steps of one part in this many.
const FOLLOWED_ONE_IN: u32 = 16;

/// Least average size of the pieces behind gaps, in bytes of a connection's window: a quarter of
/// the smallest packet (RFC 9000 14.1). Smaller ones would cost more than they hold.
const PIECE_BYTES_MIN: u32 = 300;

/// While sockets are slow a connection may take three times what it leaves of the budget, so that
/// later ones always find some.
const SLOW_SHARE: (u64, u64) = (3, 1);

/// A connection whose peer has proved a key may take a seventh of what it leaves of the budget.
const OWN_SHARE: (u64, u64) = (1, 7);

/// Receive windows of a connection, in bytes: what a peer may make us hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Windows {
    /// Per stream.
    pub stream: u32,
    /// For all streams together before the peer has proved a key, and whatever others take.
    pub first: u32,
    /// For all streams together, if the budget allows.
    pub connection: u32,
    /// The most that the connection's window grows to while sockets are slow: by one stream's
    /// window for each, so that the others keep theirs.
    pub connection_max: u32,
}

#[derive(Debug)]
pub(crate) struct ReceiveWindow {
    windows: Windows,
    /// What it has beyond the first bytes.
    part: Part,
    /// How much of that it has whether or not sockets are slow.
    own: u32,
    out_of_order: Arc<OutOfOrder>,
    /// What the window has shrunk by for data behind gaps.
    taken: u32,
    check_at: Option<Instant>,
    /// Bytes read since credit was announced.
    read: u64,
}

impl ReceiveWindow {
    pub(crate) fn new(windows: Windows, budget: Arc<Budget>) -> Self {
        Self {
            windows,
            part: Part::of(budget),
            own: 0,
            out_of_order: Arc::default(),
            taken: 0,
            check_at: None,
            read: 0,
        }
    }

    /// The data behind gaps.
    pub(crate) fn out_of_order(&self) -> &Arc<OutOfOrder> {
        &self.out_of_order
    }

    /// The window without growth.
    fn base(&self) -> u32 {
        self.windows.first + self.own
    }

    /// The window with its growth.
    fn grown(&self) -> u32 {
        self.windows.first.saturating_add(u32::try_from(self.part.amount()).unwrap_or(u32::MAX))
    }

    fn size(&self) -> u32 {
        self.grown().saturating_sub(self.taken)
    }

    /// Takes what a peer that has proved a key may have; returns the window if it changes.
    pub(crate) fn proved(&mut self) -> Option<u32> {
        let wanted = self.windows.connection.saturating_sub(self.windows.first);
        self.own = self.part.set(wanted.into(), OWN_SHARE) as u32;
        (self.own > 0).then_some(self.size())
    }

    /// Follows the data behind gaps; returns the window if it changes.
    pub(crate) fn follow_out_of_order(&mut self) -> Option<u32> {
        let bytes = u32::try_from(self.out_of_order.bytes()).unwrap_or(u32::MAX);
        let step = self.base() / FOLLOWED_ONE_IN;
        let before = self.size();
        if bytes.abs_diff(self.taken) > step {
            self.taken = bytes;
        }
        Some(self.size()).filter(|size| *size != before)
    }

    /// Whether there are more pieces than any loss leaves.
    pub(crate) fn is_overrun(&self) -> bool {
        let most = self.grown() / PIECE_BYTES_MIN;
        self.out_of_order.pieces() > most.into()
    }

    /// Records that a socket accepts nothing now.
    pub(crate) fn blocked(&mut self, now: Instant) {
        self.check_at.get_or_insert(now + CHECK);
    }

    /// When to look at the sockets.
    pub(crate) fn deadline(&self) -> Option<Instant> {
        self.check_at
    }

    /// Whether it is time to look; if so, since when a socket must have been blocked to count as
    /// slow.
    pub(crate) fn is_due(&mut self, now: Instant) -> Option<Instant> {
        self.check_at.take_if(|at| *at <= now).map(|_| now.checked_sub(SLOW).unwrap_or(now))
    }

    /// Records bytes read; returns the window if it must be announced. `quinn-proto` does so itself
    /// when an eighth of it was read, which may be more than slow streams leave to the others.
    pub(crate) fn read(&mut self, bytes: u64) -> Option<u32> {
        self.read += bytes;
        let due = self.read >= u64::from(self.base() / ANNOUNCED_ONE_IN);
        if due {
            self.read = 0;
        }
        (due && self.grown() > self.base()).then_some(self.size())
    }

    /// Sets the number of slow sockets; returns the window if it changes.
    pub(crate) fn set_slow(&mut self, slow: usize, now: Instant) -> Option<u32> {
        if slow > 0 {
            self.blocked(now);
        }
        let Windows { stream, connection, connection_max, .. } = self.windows;
        let held = u32::try_from(slow).unwrap_or(u32::MAX).saturating_mul(stream);
        let growth = held.min(connection_max.saturating_sub(connection));
        let before = self.grown();
        self.part.set(u64::from(self.own) + u64::from(growth), SLOW_SHARE);
        (self.grown() != before).then_some(self.size())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::reassembly::Reassembly;

    const WINDOWS: Windows =
        Windows { stream: 10, first: 100, connection: 100, connection_max: 150 };

    fn window(budget: &Arc<Budget>) -> ReceiveWindow {
        ReceiveWindow::new(WINDOWS, Arc::clone(budget))
    }

    /// Windows that a peer has before it has proved a key.
    fn plain(connection: u32, connection_max: u32) -> Windows {
        Windows { stream: 1_000, first: connection, connection, connection_max }
    }

    #[test]
    fn the_window_grows_by_what_slow_streams_hold_up_to_its_limit() {
        let (budget, now) = (Arc::new(Budget::new(1_000)), Instant::now());
        let mut window = window(&budget);
        assert_eq!(window.proved(), None);
        assert_eq!(window.set_slow(0, now), None);
        assert_eq!(window.set_slow(3, now), Some(130));
        assert_eq!(window.set_slow(3, now), None);
        assert_eq!(window.set_slow(9, now), Some(150));
        assert_eq!(window.set_slow(0, now), Some(100));
    }

    #[test]
    fn a_greedy_connection_leaves_some_of_the_budget_to_the_next() {
        let (budget, now) = (Arc::new(Budget::new(40)), Instant::now());
        let (mut greedy, mut late) = (window(&budget), window(&budget));
        assert_eq!(greedy.set_slow(9, now), Some(130), "three quarters of it");
        assert_eq!(late.set_slow(9, now), Some(107), "three quarters of the rest");
        assert_eq!(greedy.set_slow(9, now), None, "what it has is not taken away");
        drop(greedy);
        assert_eq!(late.set_slow(9, now), Some(130));
        drop(late);
        assert_eq!(budget.free(), 40, "all of it is back");
    }

    #[test]
    fn who_has_proved_a_key_has_an_eighth_of_what_is_free_and_a_stranger_the_first_bytes_alone() {
        let (budget, now) = (Arc::new(Budget::new(800)), Instant::now());
        let windows = Windows { stream: 10, first: 20, connection: 1_020, connection_max: 1_220 };
        let strangers = [(); 9].map(|()| ReceiveWindow::new(windows, Arc::clone(&budget)));
        assert!(strangers.iter().all(|one| one.size() == 20) && budget.taken() == 0);
        let mut known = ReceiveWindow::new(windows, Arc::clone(&budget));
        assert_eq!(known.proved(), Some(120));
        let mut next = ReceiveWindow::new(windows, Arc::clone(&budget));
        assert_eq!(next.proved(), Some(107));
        assert_eq!(known.set_slow(4, now), Some(160));
        assert_eq!(known.set_slow(0, now), Some(120), "what it had when no socket was slow");
        drop((known, next));
        assert_eq!(budget.taken(), 0);
    }

    #[test]
    fn what_waits_behind_gaps_takes_its_place_in_the_window() {
        let windows = plain(16_000, 17_000);
        let mut window = ReceiveWindow::new(windows, Arc::new(Budget::new(1_000)));
        let mut reassembly = Reassembly::new(0, Arc::clone(window.out_of_order()));
        reassembly.insert(1, vec![0; 900].into());
        assert_eq!(window.follow_out_of_order(), None, "too little to tell");
        reassembly.insert(1_000, vec![0; 8_000].into());
        assert_eq!(window.follow_out_of_order(), Some(16_000 - 8_900));
        assert_eq!(window.follow_out_of_order(), None);
        drop(reassembly);
        assert_eq!(window.follow_out_of_order(), Some(16_000));
    }

    #[test]
    fn scraps_beyond_those_of_any_loss_overrun_the_window() {
        let windows = plain(3_000, 3_000);
        let window = ReceiveWindow::new(windows, Arc::new(Budget::new(0)));
        let mut reassembly = Reassembly::new(0, Arc::clone(window.out_of_order()));
        for offset in 1..=10 {
            reassembly.insert(2 * offset, vec![0].into());
            assert!(!window.is_overrun());
        }
        reassembly.insert(22, vec![0].into());
        assert!(window.is_overrun());
    }

    #[test]
    fn a_grown_window_is_announced_as_often_as_one_that_has_not_grown() {
        let (budget, now) = (Arc::new(Budget::new(1_000)), Instant::now());
        let mut window = window(&budget);
        assert_eq!(window.read(1_000), None, "quinn-proto does so");
        window.set_slow(5, now);
        assert_eq!(window.read(11), None);
        assert_eq!(window.read(1), Some(150));
        assert_eq!(window.read(1), None);
    }

    #[test]
    fn sockets_are_looked_at_only_while_one_is_slow() {
        let (budget, start) = (Arc::new(Budget::new(1_000)), Instant::now() + SLOW);
        let mut window = window(&budget);
        assert_eq!(window.deadline(), None);
        window.blocked(start);
        assert_eq!(window.is_due(start), None);
        let now = start + CHECK;
        assert_eq!(window.is_due(now), Some(now - SLOW));
        window.set_slow(1, now);
        assert_eq!(window.deadline(), Some(now + CHECK));
        assert_eq!(window.is_due(now + CHECK), Some(now + CHECK - SLOW));
        window.set_slow(0, now + CHECK);
        assert_eq!(window.deadline(), None);
    }
}
