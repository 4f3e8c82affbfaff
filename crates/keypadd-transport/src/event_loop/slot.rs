//! Keeps a loop's records of one connection: who is at its other end, and how far its end has come.

use std::time::{Duration, Instant};

use keypadd_share::Begun;

use crate::{
    cid::Purpose,
    driver::Driver,
    intake::{Account, Metered},
    splice::Key,
};

/// A connection, and the loop's records of it.
pub(super) struct Slot<D = Driver> {
    pub(super) driver: D,
    pub(super) key: Key,
    pub(super) purpose: Purpose,
    /// The epoch in which it was made: it sends in no other.
    pub(super) epoch: u64,
    pub(super) standing: Standing,
    pub(super) stage: Stage,
    /// Counts it among the connections whose end is waited for, until nobody need wait.
    pub(super) awaited: Option<Begun>,
    /// Whether it is in the list of connections to drive.
    pub(super) dirty: bool,
    /// Its earliest entry among the timers.
    pub(super) deadline: Option<Instant>,
    pub(super) account: Account,
}

impl<D> Slot<D> {
    /// A connection that nobody waits for, made in the first epoch.
    pub(super) fn new(driver: D, key: Key, purpose: Purpose, standing: Standing) -> Self {
        Self {
            driver,
            key,
            purpose,
            epoch: 0,
            standing,
            stage: Stage::Live,
            awaited: None,
            dirty: false,
            deadline: None,
            account: Account::default(),
        }
    }

    /// Puts it into the list of connections to drive, unless it is there.
    pub(super) fn mark_in(&mut self, list: &mut Vec<Key>) {
        if !std::mem::replace(&mut self.dirty, true) {
            list.push(self.key);
        }
    }
}

impl Metered for Slot {
    fn is_stranger(&self) -> bool {
        self.standing.is_stranger()
    }

    fn is_bulk(&self) -> bool {
        self.purpose.is_bulk()
    }

    fn frames_received(&self) -> u64 {
        self.driver.frames_received()
    }

    fn acknowledged(&self) -> u64 {
        self.driver.acknowledged()
    }

    fn opening_cost(&self) -> Duration {
        self.driver.opening_cost()
    }

    fn account(&mut self) -> &mut Account {
        &mut self.account
    }
}

/// Who is at the other end of a connection.
#[derive(Debug)]
pub(super) enum Standing {
    /// A server that this end has dialed.
    Dialed,
    /// A client that has not proved a key yet.
    Stranger,
    /// A client that has proved a key. Counts as one until its connection is lost.
    Client(Option<Begun>),
}

impl Standing {
    pub(super) fn is_stranger(&self) -> bool {
        matches!(self, Self::Stranger)
    }

    /// The connection is lost: a client counts no longer.
    pub(super) fn lost(&mut self) {
        if let Self::Client(counted) = self {
            *counted = None;
        }
    }
}

/// How far the end of a connection has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Stage {
    Live,
    /// The connection is lost. The endpoint still routes late packets to it, for a while.
    Closing,
    /// The endpoint has forgotten it.
    Drained,
}

impl Stage {
    /// The connection is lost; returns whether it begins to close with that.
    pub(super) fn lost(&mut self) -> bool {
        let begins = *self == Self::Live;
        if begins {
            *self = Self::Closing;
        }
        begins
    }
}

#[cfg(test)]
mod tests {
    use keypadd_share::Underway;

    use super::*;

    #[test]
    fn a_client_counts_until_its_connection_is_lost() {
        let clients = Underway::default();
        let mut standing = Standing::Client(Some(clients.begin()));
        assert_eq!(clients.count(), 1);
        standing.lost();
        assert_eq!(clients.count(), 0);
        assert!(!standing.is_stranger() && matches!(standing, Standing::Client(None)));
    }

    #[test]
    fn who_has_proved_nothing_stays_a_stranger() {
        let mut standing = Standing::Stranger;
        standing.lost();
        assert!(standing.is_stranger());
        assert!(!Standing::Dialed.is_stranger());
    }

    #[test]
    fn a_connection_begins_to_close_once_and_not_after_the_endpoint_has_forgotten_it() {
        let mut stage = Stage::Live;
        assert_eq!((stage.lost(), stage), (true, Stage::Closing));
        assert_eq!((stage.lost(), stage), (false, Stage::Closing));
        stage = Stage::Drained;
        assert_eq!((stage.lost(), stage), (false, Stage::Drained));
    }
}
