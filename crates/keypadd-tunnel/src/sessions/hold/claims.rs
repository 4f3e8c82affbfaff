//! Counts the claims that a client makes in one session, so that its server knows when they are
//! complete.

use std::{
    collections::HashSet,
    sync::{Mutex, MutexGuard, PoisonError},
};

use keypadd_transport::StreamName;

/// The claims that a server has received in one session.
#[derive(Debug, Default)]
pub(crate) struct Claims(Mutex<ClaimsState>);

#[derive(Debug, Default)]
struct ClaimsState {
    /// How many there will be, once the client has said so.
    expected: Option<u32>,
    answered: u32,
    claimed: HashSet<StreamName>,
}

impl Claims {
    /// The client has announced how many there will be. Returns whether all are answered.
    pub(crate) fn expect(&self, count: u32) -> bool {
        let mut claims = self.state();
        claims.expected.get_or_insert(count);
        claims.are_answered()
    }

    /// A claim was answered; the stream continues if this end had it. Returns whether all are
    /// answered.
    pub(crate) fn answered(&self, resumed: Option<StreamName>) -> bool {
        let mut claims = self.state();
        claims.answered = claims.answered.saturating_add(1);
        claims.claimed.extend(resumed);
        claims.are_answered()
    }

    /// Whether the client has claimed this stream.
    pub(crate) fn has(&self, name: StreamName) -> bool {
        self.state().claimed.contains(&name)
    }

    /// Sets and counts, which no panic leaves half changed.
    fn state(&self) -> MutexGuard<'_, ClaimsState> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl ClaimsState {
    fn are_answered(&self) -> bool {
        self.expected == Some(self.answered)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn claims_are_complete_when_as_many_are_answered_as_were_announced_in_any_order() {
        let name = |stream| StreamName { epoch: 0, stream };
        let early = Claims::default();
        assert!(!early.answered(Some(name(0))));
        assert!(!early.expect(2));
        assert!(early.answered(None));
        assert!(early.has(name(0)) && !early.has(name(4)));
        assert!(Claims::default().expect(0));
        let late = Claims::default();
        assert!(!late.expect(1));
        assert!(late.answered(Some(name(4))));
        assert!(!late.expect(2) || !late.answered(None), "a second announcement changes nothing");
    }
}
