//! When keys are replaced although quinn, which counts packets, would go on with them: after so many
//! bytes and after so much time (`limits.rs`).
//!
//! Says what to do and when to ask again; whoever holds the connection does it and keeps the time. An
//! update needs the peer, so it is asked for again until the phase has changed, and a connection whose
//! peer never follows ends.

use std::future::poll_fn;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::task::Poll;
use std::time::{Duration, Instant};

use atomic_waker::AtomicWaker;

use crate::connection::ConnectionKeys;

/// Between an update that time asks for and the update itself the next phase's heads are made. This part
/// of an age, 10 s of an hour, is long enough for a keep-alive, with which the lane is opened, and for the
/// filler.
const LEADS: u32 = 360;
/// The same where bytes ask for it: packets follow each other fast then.
const LEAD_IN_TRAFFIC: Duration = Duration::from_millis(100);
/// quinn refuses an update for three probe timeouts after the one before; it is asked this often.
const RETRY: Duration = Duration::from_secs(1);

/// What is to be done about a connection's keys.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Renew {
    /// Nothing until then, unless [`Renewal::worn`] resolves before.
    Wait(Instant),
    /// Ask quinn for a key update now, and this again then.
    Update(Instant),
    /// Close the connection: updates have been asked for in vain.
    End,
}

/// Watches over the age of one connection's keys.
pub struct Renewal {
    keys: ConnectionKeys,
    watch: Watch,
}

impl Renewal {
    pub(crate) fn new(keys: ConnectionKeys, age_max: Duration, now: Instant) -> Self {
        Self { keys, watch: Watch::new(age_max, now) }
    }

    /// What to do at `now`.
    pub fn step(&mut self, now: Instant) -> Renew {
        let (outbound, _) = self.keys.directions();
        let Ok(phase) = outbound.departures.lock().map(|departures| departures.phases.sealing())
        else {
            return Renew::End;
        };
        let was_wanted = self.watch.update_at.is_some();
        let renew = self.watch.step(phase, outbound.worn.is(phase), now);
        if self.watch.update_at.is_some() && !was_wanted {
            self.keys.expect_update();
        }
        renew
    }

    /// Resolves when bytes ask for an update that [`Self::step`] does not know of.
    pub async fn worn(&self) {
        match self.watch.update_at {
            None => self.keys.directions().0.worn.wait(self.watch.phase).await,
            Some(_) => std::future::pending().await,
        }
    }
}

/// How long a sending phase has been seen.
#[derive(Debug)]
struct Watch {
    /// A phase that is found again after so long is to end. It may have begun as long before it was
    /// first seen, so this is half of what the age leaves.
    period: Duration,
    lead: Duration,
    phase: u64,
    /// When it was seen first.
    seen: Instant,
    /// When it is to end, once that is known.
    update_at: Option<Instant>,
}

impl Watch {
    fn new(age_max: Duration, now: Instant) -> Self {
        let lead = age_max / LEADS;
        Self { period: (age_max - lead) / 2, lead, phase: 0, seen: now, update_at: None }
    }

    fn step(&mut self, phase: u64, is_worn: bool, now: Instant) -> Renew {
        if phase != self.phase {
            (self.phase, self.seen, self.update_at) = (phase, now, None);
        }
        let old_at = self.seen + self.period;
        let update_at = match self.update_at {
            None if is_worn => *self.update_at.insert(now + LEAD_IN_TRAFFIC),
            None if now >= old_at => *self.update_at.insert(now + self.lead),
            None => return Renew::Wait(old_at),
            Some(at) => at,
        };
        if now < update_at {
            Renew::Wait(update_at)
        } else if now < update_at + self.period {
            Renew::Update(now + RETRY)
        } else {
            Renew::End
        }
    }
}

/// Tells that a sending phase has carried as many bytes as it should.
#[derive(Debug, Default)]
pub(crate) struct Worn {
    /// One above the last phase of which that is true.
    phases: AtomicU64,
    waiter: AtomicWaker,
}

impl Worn {
    pub(crate) fn set(&self, phase: u64) {
        self.phases.fetch_max(phase + 1, Relaxed);
        self.waiter.wake();
    }

    pub(crate) fn is(&self, phase: u64) -> bool {
        self.phases.load(Relaxed) > phase
    }

    /// Waits until this, or a later phase, is worn. One waiter at a time.
    async fn wait(&self, phase: u64) {
        poll_fn(|context| {
            self.waiter.register(context.waker());
            if self.is(phase) { Poll::Ready(()) } else { Poll::Pending }
        })
        .await;
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use keypadd_keystream::Suite;

    use super::*;
    use crate::fault::FaultLatch;
    use crate::limits::Limits;
    use crate::meters::Meters;
    use crate::open::Inbound;
    use crate::phases::Ahead;
    use crate::seal::Outbound;

    const HOUR: Duration = Duration::from_secs(3600);

    /// A watch that has just begun, and a clock that is set by hand.
    fn watch() -> (Watch, impl Fn(u64) -> Instant) {
        let began = Instant::now();
        (Watch::new(HOUR, began), move |seconds| began + Duration::from_secs(seconds))
    }

    #[test]
    fn a_quiet_phase_ends_within_an_hour_of_its_begin() {
        let (mut watch, at) = watch();
        assert_eq!(watch.step(0, false, at(0)), Renew::Wait(at(1795)));
        // The next one came by itself, a moment after that, and is first seen now.
        assert_eq!(watch.step(1, false, at(1795)), Renew::Wait(at(3590)));
        assert_eq!(watch.step(1, false, at(3590)), Renew::Wait(at(3600)));
        assert_eq!(watch.step(1, false, at(3600)), Renew::Update(at(3601)));
        assert_eq!(watch.step(2, false, at(3601)), Renew::Wait(at(3601 + 1795)));
    }

    #[test]
    fn a_worn_phase_ends_at_once_whatever_its_age() {
        let (mut watch, at) = watch();
        let now = at(7);
        assert_eq!(watch.step(0, true, now), Renew::Wait(now + LEAD_IN_TRAFFIC));
        let now = now + LEAD_IN_TRAFFIC;
        assert_eq!(watch.step(0, true, now), Renew::Update(now + RETRY));
        // The one after it is as good as new.
        assert_eq!(watch.step(1, false, now + RETRY), Renew::Wait(now + RETRY + watch.period));
    }

    #[test]
    fn a_peer_that_never_follows_is_asked_for_half_an_hour_and_then_left() {
        let (mut watch, at) = watch();
        let mut asked = 0;
        let mut now = at(0);
        loop {
            now = match watch.step(0, false, now) {
                Renew::Wait(until) => until,
                Renew::Update(again) => {
                    asked += 1;
                    again
                }
                Renew::End => break,
            };
        }
        assert_eq!((asked, now), (1795, at(1795 + 10 + 1795)));
    }

    /// quinn would take the update, and the peer, which has seen nothing of the phase before it, would
    /// open no packet any more.
    #[test]
    fn a_phase_that_came_from_the_peer_is_not_ended_before_anything_was_sent_in_it() {
        let suite = Suite::default().into();
        let (limits, ahead) = (Limits::of(suite), Ahead::default());
        let (fault, meters) = <(Arc<FaultLatch>, Arc<Meters>)>::default();
        let outbound = Arc::new(Outbound::new(limits, ahead.clone(), fault, Arc::clone(&meters)));
        let inbound = Arc::new(Inbound::new(limits, ahead, meters));
        let keys = ConnectionKeys::new(suite, Arc::clone(&outbound), inbound);
        let began = Instant::now();
        let at = |seconds| began + Duration::from_secs(seconds);
        let mut renewal = keys.renewal(HOUR, began);
        for phase in [0, 1] {
            outbound.departures.lock().expect("no panic").phases.add(phase, None);
        }
        assert_eq!(renewal.step(at(1795)), Renew::Wait(at(1805)));
        // It follows its peer, and sends nothing.
        outbound.departures.lock().expect("no panic").phases.add(2, None);
        assert_eq!(renewal.step(at(1805)), Renew::Wait(at(1805 + 1795)));
    }
}
