//! Records which directions of splices move between the two connections of a session.
//!
//! Knows no QUIC: `migrate` carries the moves out.

use std::{
    collections::VecDeque,
    time::{Duration, Instant},
};

use quinn_proto::StreamId;

use crate::{
    mailbox::{MigratingDirection, Migration, Sibling},
    splice::Cut,
};

/// With more directions than this waiting for the peer to follow, the next ones send nothing ahead:
/// those that nobody reads wait for good, and leave most of the connection's window to others.
const AHEAD_MAX: usize = 32;

/// Interval of requests for a bulk connection.
const ASK_INTERVAL: Duration = Duration::from_secs(1);

/// A direction idle this long on the bulk connection moves back.
const IDLE: Duration = Duration::from_secs(1);

/// Interval of the search for idle directions on the bulk connection.
const IDLE_CHECK: Duration = Duration::from_millis(250);

/// What a connection is to the other one of its session.
enum Pair {
    Alone {
        /// When a bulk connection was last asked for.
        asked_at: Option<Instant>,
    },
    Sparse {
        sibling: Sibling,
        /// Whether the next direction that moves takes the controller along.
        hands_over_controller: bool,
    },
    Bulk {
        sibling: Sibling,
        /// When to look for idle directions.
        idle_check: Option<Instant>,
    },
}

/// A direction that came from the sibling; the peer has not followed yet.
struct Following {
    /// The sibling's stream.
    origin: StreamId,
    at: StreamId,
}

/// The moves between a connection and its sibling.
pub(in crate::driver) struct Moves {
    pair: Pair,
    /// Directions that wait until the peer allows another stream.
    waiting: VecDeque<MigratingDirection>,
    following: Vec<Following>,
}

impl Default for Moves {
    fn default() -> Self {
        let (waiting, following) = Default::default();
        Self { pair: Pair::Alone { asked_at: None }, waiting, following }
    }
}

impl Moves {
    pub(super) fn attach(&mut self, sibling: Sibling, is_bulk: bool) {
        self.pair = match is_bulk {
            true => Pair::Bulk { sibling, idle_check: None },
            false => Pair::Sparse { sibling, hands_over_controller: true },
        };
    }

    pub(super) fn sibling(&self) -> Option<&Sibling> {
        match &self.pair {
            Pair::Alone { .. } => None,
            Pair::Sparse { sibling, .. } | Pair::Bulk { sibling, .. } => Some(sibling),
        }
    }

    /// Tells the sibling something, if there is one.
    pub(super) fn tell(&self, message: Migration) {
        if let Some(sibling) = self.sibling() {
            sibling.send(message);
        }
    }

    /// Whether this is the bulk connection.
    pub(in crate::driver) fn is_bulk(&self) -> bool {
        matches!(self.pair, Pair::Bulk { .. })
    }

    /// Whether streams move away from this connection when they become bulk.
    pub(in crate::driver) fn sends_bulk_away(&self) -> bool {
        matches!(self.pair, Pair::Sparse { .. })
    }

    /// Whether to ask for a bulk connection now: not more often than it could be made.
    pub(super) fn must_ask(&mut self, now: Instant) -> bool {
        let Pair::Alone { asked_at } = &mut self.pair else { return false };
        let is_due = asked_at.is_none_or(|at| now.saturating_duration_since(at) >= ASK_INTERVAL);
        if is_due {
            *asked_at = Some(now);
        }
        is_due
    }

    /// Whether the direction that moves now may take the controller along: the first one does.
    pub(super) fn take_hand_over(&mut self) -> bool {
        match &mut self.pair {
            Pair::Sparse { hands_over_controller, .. } => std::mem::take(hands_over_controller),
            Pair::Alone { .. } | Pair::Bulk { .. } => false,
        }
    }

    /// A direction begins to be carried here.
    pub(super) fn carries(&mut self, now: Instant) {
        if let Pair::Bulk { idle_check, .. } = &mut self.pair {
            idle_check.get_or_insert(now + IDLE);
        }
    }

    /// Whether to look for idle directions; if so, since when they must have been idle.
    pub(super) fn take_idle_check(&mut self, now: Instant) -> Option<Instant> {
        let Pair::Bulk { idle_check, .. } = &mut self.pair else { return None };
        idle_check.take_if(|at| *at <= now)?;
        Some(now.checked_sub(IDLE).unwrap_or(now))
    }

    /// Looks for idle directions again soon.
    pub(super) fn check_again(&mut self, now: Instant) {
        if let Pair::Bulk { idle_check, .. } = &mut self.pair {
            *idle_check = Some(now + IDLE_CHECK);
        }
    }

    /// The connection is lost: nothing moves back any more.
    pub(super) fn stay(&mut self) {
        if let Pair::Bulk { idle_check, .. } = &mut self.pair {
            *idle_check = None;
        }
    }

    /// When to look for idle directions.
    pub(in crate::driver) fn deadline(&self) -> Option<Instant> {
        match &self.pair {
            Pair::Alone { .. } | Pair::Sparse { .. } => None,
            Pair::Bulk { idle_check, .. } => *idle_check,
        }
    }

    /// A direction from the sibling waits until the peer allows another stream.
    pub(super) fn wait(&mut self, moving: MigratingDirection) {
        self.waiting.push_back(moving);
    }

    /// Drops waiting directions of splices that were cut.
    pub(super) fn drop_cut(&mut self) {
        self.waiting.retain(|moving| !moving.to_stream.state.is_cut());
    }

    pub(in crate::driver) fn has_waiting(&self) -> bool {
        !self.waiting.is_empty()
    }

    pub(super) fn next_waiting(&mut self) -> Option<MigratingDirection> {
        self.waiting.pop_front()
    }

    /// Ends a direction that waits for a stream, because the connection is gone; returns false if
    /// none does.
    pub(super) fn end_waiting(&mut self, holds: bool) -> bool {
        let Some(moving) = self.waiting.pop_front() else { return false };
        match holds {
            true => moving.to_stream.park(),
            false => drop(moving.to_stream.state.cut(Cut::Lost)),
        }
        true
    }

    /// Whether a direction may send some before the peer has followed.
    pub(super) fn may_send_ahead(&self) -> bool {
        self.following.len() < AHEAD_MAX
    }

    /// Waits for the peer to follow the direction from the sibling's stream `origin`.
    pub(super) fn follow(&mut self, origin: StreamId, at: StreamId) {
        self.following.push(Following { origin, at });
    }

    /// The peer has followed; returns the stream that carries the direction here.
    pub(super) fn followed(&mut self, origin: StreamId) -> Option<StreamId> {
        let index = self.following.iter().position(|following| following.origin == origin)?;
        Some(self.following.swap_remove(index).at)
    }

    /// Removes a direction that waited for the peer to follow.
    pub(super) fn forget(&mut self, at: StreamId) {
        self.following.retain(|following| following.at != at);
    }
}

#[cfg(test)]
mod tests {
    use mio::{Poll, Token, Waker};
    use quinn_proto::VarInt;

    use super::*;
    use crate::{mailbox::Mailbox, splice::Key};

    fn id(number: u32) -> StreamId {
        StreamId::from(VarInt::from_u32(number))
    }

    fn attached(is_bulk: bool) -> Moves {
        let poll = Poll::new().unwrap();
        let waker = Waker::new(poll.registry(), Token(0)).unwrap();
        let mailbox = Mailbox::new(waker).0;
        let mut moves = Moves::default();
        moves.attach(Sibling { mailbox, key: Key { handle: 0, serial: 0 } }, is_bulk);
        moves
    }

    #[test]
    fn a_bulk_connection_is_asked_for_once_a_second_while_there_is_none() {
        let (start, mut moves) = (Instant::now(), Moves::default());
        assert!(moves.must_ask(start));
        assert!(!moves.must_ask(start + ASK_INTERVAL / 2));
        assert!(moves.must_ask(start + ASK_INTERVAL));
        assert!(!moves.is_bulk() && !moves.sends_bulk_away() && moves.sibling().is_none());
        assert!(!attached(false).must_ask(start) && !attached(true).must_ask(start));
    }

    #[test]
    fn the_first_direction_that_becomes_bulk_may_take_the_controller_along() {
        let mut sparse = attached(false);
        assert!(sparse.sends_bulk_away() && !sparse.is_bulk() && sparse.sibling().is_some());
        assert!(sparse.take_hand_over());
        assert!(!sparse.take_hand_over());
        assert!(!attached(true).take_hand_over() && !Moves::default().take_hand_over());
    }

    #[test]
    fn a_bulk_connection_looks_for_idle_directions_while_it_carries_any() {
        let (start, mut bulk) = (Instant::now() + IDLE, attached(true));
        assert!(bulk.is_bulk() && !bulk.sends_bulk_away());
        assert_eq!(bulk.deadline(), None);
        bulk.carries(start);
        bulk.carries(start + IDLE);
        assert_eq!(bulk.deadline(), Some(start + IDLE));
        assert_eq!(bulk.take_idle_check(start), None);
        assert_eq!(bulk.take_idle_check(start + IDLE), Some(start));
        assert_eq!(bulk.take_idle_check(start + IDLE), None, "none was found");
        bulk.check_again(start);
        assert_eq!(bulk.deadline(), Some(start + IDLE_CHECK));
        bulk.stay();
        assert_eq!(bulk.deadline(), None);
        let mut sparse = attached(false);
        sparse.carries(start);
        sparse.check_again(start);
        assert_eq!(sparse.deadline(), None);
    }

    #[test]
    fn the_peer_follows_each_move_once_and_few_send_ahead() {
        let mut moves = attached(true);
        for number in 0..AHEAD_MAX as u32 {
            assert!(moves.may_send_ahead());
            moves.follow(id(number), id(100 + number));
        }
        assert!(!moves.may_send_ahead());
        assert_eq!(moves.followed(id(3)), Some(id(103)));
        assert_eq!(moves.followed(id(3)), None);
        assert!(moves.may_send_ahead());
        moves.forget(id(104));
        assert_eq!(moves.followed(id(4)), None);
        assert_eq!(moves.followed(id(5)), Some(id(105)));
        assert!(!moves.has_waiting() && !moves.end_waiting(false));
    }
}
