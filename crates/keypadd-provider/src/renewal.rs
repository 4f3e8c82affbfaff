//! Renews keys by bytes sent and by age (`limits.rs`), in addition to quinn, which counts packets.
//!
//! Decides what to do and when to ask again; the owner of the connection acts and keeps time. A key
//! update needs the peer, so it is requested again until the phase changes; if the peer never
//! follows, the connection must be closed.

use std::time::{Duration, Instant};

use crate::connection::ConnectionKeys;

/// The next phase's heads are precomputed before an update that is due by age. This fraction of the
/// age, 10 s of an hour, leaves time for a keep-alive, which opens the lane for the packets after
/// it, and for the filler.
const LEADS: u32 = 360;
/// How long before an update that is due by bytes the heads are precomputed: packets follow quickly
/// then.
const LEAD_IN_TRAFFIC: Duration = Duration::from_millis(100);
/// The interval of requests: quinn refuses an update within three probe timeouts of the last one.
const RETRY: Duration = Duration::from_secs(1);

/// What to do about a connection's keys.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Renew {
    /// Do nothing until then, unless [`Renewal::usage_limit_reached`] resolves first.
    Wait(Instant),
    /// Request a key update from quinn now, and ask again then.
    Update(Instant),
    /// Close the connection: the peer follows no update.
    End,
}

/// Watches the bytes and the age of one connection's keys.
pub struct Renewal {
    keys: ConnectionKeys,
    watch: Watch,
}

impl ConnectionKeys {
    /// Watches these keys' bytes and age, from `now` on; see [`Self::age_max`].
    pub fn renewal(&self, age_max: Duration, now: Instant) -> Renewal {
        Renewal { keys: self.clone(), watch: Watch::new(age_max, now) }
    }
}

impl Renewal {
    /// What to do at `now`.
    pub fn step(&mut self, now: Instant) -> Renew {
        let (outbound, _) = self.keys.directions();
        let Ok(phase) = outbound.sending.lock().map(|sending| sending.phases.sealing()) else {
            return Renew::End;
        };
        let was_wanted = self.watch.update_at.is_some();
        let renew = self.watch.step(phase, outbound.usage_limit.is_reached(phase), now);
        if self.watch.update_at.is_some() && !was_wanted {
            self.keys.expect_update();
        }
        renew
    }

    /// Resolves when the bytes sent call for an update that [`Self::step`] has not seen yet.
    pub async fn usage_limit_reached(&self) {
        match self.watch.update_at {
            None => self.keys.directions().0.usage_limit.wait(self.watch.phase).await,
            Some(_) => std::future::pending().await,
        }
    }
}

/// Tracks the age of the sending phase.
#[derive(Debug)]
struct Watch {
    /// A phase seen again after this long must end. It may have begun this long before it was first
    /// seen, so this is half the maximum age, less the lead.
    period: Duration,
    lead: Duration,
    phase: u64,
    /// When the phase was first seen.
    seen: Instant,
    /// When to update, once that is decided.
    update_at: Option<Instant>,
}

impl Watch {
    fn new(age_max: Duration, now: Instant) -> Self {
        let lead = age_max / LEADS;
        Self { period: (age_max - lead) / 2, lead, phase: 0, seen: now, update_at: None }
    }

    fn step(&mut self, phase: u64, is_used_up: bool, now: Instant) -> Renew {
        if phase != self.phase {
            (self.phase, self.seen, self.update_at) = (phase, now, None);
        }
        let old_at = self.seen + self.period;
        let update_at = match self.update_at {
            None if is_used_up => *self.update_at.insert(now + LEAD_IN_TRAFFIC),
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

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use keypadd_keystream::Suite;

    use super::*;
    use crate::fault::FaultLatch;
    use crate::limits::KeyLimits;
    use crate::meters::Meters;
    use crate::open::Inbound;
    use crate::phases::NewestPhase;
    use crate::seal::Outbound;

    const HOUR: Duration = Duration::from_secs(3600);

    /// A new watch, and a manual clock.
    fn watch() -> (Watch, impl Fn(u64) -> Instant) {
        let began = Instant::now();
        (Watch::new(HOUR, began), move |seconds| began + Duration::from_secs(seconds))
    }

    #[test]
    fn a_quiet_phase_ends_within_an_hour_of_its_start() {
        let (mut watch, at) = watch();
        assert_eq!(watch.step(0, false, at(0)), Renew::Wait(at(1795)));
        // The next one began right after that, and is first seen now.
        assert_eq!(watch.step(1, false, at(1795)), Renew::Wait(at(3590)));
        assert_eq!(watch.step(1, false, at(3590)), Renew::Wait(at(3600)));
        assert_eq!(watch.step(1, false, at(3600)), Renew::Update(at(3601)));
        assert_eq!(watch.step(2, false, at(3601)), Renew::Wait(at(3601 + 1795)));
    }

    #[test]
    fn a_phase_at_its_usage_limit_ends_at_once_whatever_its_age() {
        let (mut watch, at) = watch();
        let now = at(7);
        assert_eq!(watch.step(0, true, now), Renew::Wait(now + LEAD_IN_TRAFFIC));
        let now = now + LEAD_IN_TRAFFIC;
        assert_eq!(watch.step(0, true, now), Renew::Update(now + RETRY));
        // The next one starts afresh.
        assert_eq!(watch.step(1, false, now + RETRY), Renew::Wait(now + RETRY + watch.period));
    }

    #[test]
    fn a_peer_that_never_follows_is_asked_for_half_an_hour_and_then_dropped() {
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

    /// quinn would accept the update, and the peer, which has seen no packet of the phase before,
    /// could open no more.
    #[test]
    fn a_phase_started_by_the_peer_does_not_end_before_we_sent_in_it() {
        let suite = Suite::default().into();
        let (limits, ahead) = (KeyLimits::of(suite), NewestPhase::default());
        let (fault, meters) = <(Arc<FaultLatch>, Arc<Meters>)>::default();
        let outbound = Arc::new(Outbound::new(limits, ahead.clone(), fault, Arc::clone(&meters)));
        let inbound = Arc::new(Inbound::new(limits, ahead, meters));
        let keys = ConnectionKeys::new(suite, Arc::clone(&outbound), inbound);
        let began = Instant::now();
        let at = |seconds| began + Duration::from_secs(seconds);
        let mut renewal = keys.renewal(HOUR, began);
        for phase in [0, 1] {
            outbound.sending.lock().expect("no panic").phases.add(phase, None);
        }
        assert_eq!(renewal.step(at(1795)), Renew::Wait(at(1805)));
        // We follow the peer, and send nothing.
        outbound.sending.lock().expect("no panic").phases.add(2, None);
        assert_eq!(renewal.step(at(1805)), Renew::Wait(at(1805 + 1795)));
    }
}
