//! Decides what becomes of a lineage: the sessions of one run of a client that follow each other
//! at one server, and what outlives them.
//!
//! Loss, renewal of keys, failover and the replacement of a process are one event: another
//! connection says hello and proves to have a token. Reads no clock, takes no lock, and knows no
//! keys, sockets or streams: whoever keeps the lineage does what an [`Effect`] says.

use std::{
    mem,
    time::{Duration, Instant},
};

use keypadd_provider::SessionToken;

/// What the streams of a lineage belong to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Phase {
    /// To a session, and the client has its token.
    Live,
    /// To a session that the client may not know of. If it ended a hold, that would have lasted
    /// until `fallback`.
    Unconfirmed { fallback: Option<Instant> },
    /// To no session: they are held until then.
    Away { until: Instant },
    /// Nothing is left, and no token is good.
    Over,
}

/// What happens to a lineage. Sessions are named by their epoch.
#[derive(Debug)]
pub(crate) enum Event {
    /// A connection of the client said hello; `next` is the token of its session.
    Hello { presented: Presented, next: SessionToken },
    /// A session ended, and another may resume its streams. Both ends hold them for this time.
    Lost { epoch: u32, time: Duration },
    /// A session ended for good, as far as this end knows.
    Closed { epoch: u32, time: Duration },
    /// The client claims its streams: it has the session's token.
    Claims { epoch: u32 },
    /// A session ended without streams, or nobody resumed them in time.
    GivenUp { epoch: u32 },
    /// Another client of the key needs what this one takes while it is away.
    Evicted,
    /// One of the ends holds nothing any more, or the client's key is no longer listed.
    Disowned,
}

/// What a step asks of the keeper of a lineage.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Effect {
    /// Nothing.
    Nothing,
    /// The streams go on in the session of the hello.
    Resume,
    /// The streams end, and the session of the hello begins with none.
    BeginAnew,
    /// The streams are held until then.
    Hold(Instant),
    /// The streams end. The newest session, or who waits for another one, has yet to report.
    End,
    /// The streams end, if they have not, and nobody reports any more: its epochs may be reused.
    Forget,
}

/// Which of a lineage's tokens a hello presents.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Presented {
    Newest,
    /// The token of the session before the newest, which the client may not have.
    Former,
    /// None, or a token that is not good.
    Nothing,
}

/// The tokens that the next hello may present. Nothing else compares tokens.
#[derive(Debug)]
pub(crate) struct Tokens {
    pub(crate) newest: SessionToken,
    /// The one that the client presented last, until it has claimed its streams.
    pub(crate) former: Option<SessionToken>,
}

impl Tokens {
    fn new(newest: SessionToken) -> Self {
        Self { newest, former: None }
    }

    /// Recognizes the token that a client `has`.
    pub(crate) fn recognize(&self, has: impl Fn(&SessionToken) -> bool) -> Presented {
        match &self.former {
            _ if has(&self.newest) => Presented::Newest,
            Some(former) if has(former) => Presented::Former,
            _ => Presented::Nothing,
        }
    }

    /// The token that a hello presents.
    pub(crate) fn presented(&self, presented: Presented) -> Option<&SessionToken> {
        match presented {
            Presented::Newest => Some(&self.newest),
            Presented::Former => self.former.as_ref(),
            Presented::Nothing => None,
        }
    }

    /// Adds the token of a session that the client does not know yet.
    fn add(&mut self, presented: Presented, next: SessionToken) {
        let newest = mem::replace(&mut self.newest, next);
        if presented == Presented::Newest {
            self.former = Some(newest);
        }
    }
}

/// The sessions of one run of a client at one server.
#[derive(Debug)]
pub(crate) struct Lineage {
    phase: Phase,
    tokens: Tokens,
    epoch: u32,
}

impl Lineage {
    /// Begins with a session whose token this is.
    pub(crate) fn new(token: SessionToken) -> Self {
        Self { phase: Phase::Live, tokens: Tokens::new(token), epoch: 0 }
    }

    /// Continues with a lineage of another process that is away.
    pub(crate) fn import(tokens: Tokens, epoch: u32, until: Instant) -> Self {
        Self { phase: Phase::Away { until }, tokens, epoch }
    }

    /// Until when its streams are held; `None` while its client is not away.
    pub(crate) fn away_until(&self) -> Option<Instant> {
        match self.phase {
            Phase::Away { until } => Some(until),
            Phase::Live | Phase::Unconfirmed { .. } | Phase::Over => None,
        }
    }

    /// Whether a hello with a good token goes on with it.
    pub(crate) fn is_resumable(&self, now: Instant) -> bool {
        match self.phase {
            Phase::Live | Phase::Unconfirmed { .. } => true,
            Phase::Away { until } => now < until,
            Phase::Over => false,
        }
    }

    /// Whether nothing is left of it.
    pub(crate) fn is_over(&self) -> bool {
        self.phase == Phase::Over
    }

    pub(crate) fn tokens(&self) -> &Tokens {
        &self.tokens
    }

    /// The number of its newest session.
    pub(crate) fn epoch(&self) -> u32 {
        self.epoch
    }

    /// Goes from one phase to the next:
    ///
    /// | event | live | unconfirmed | away | over |
    /// | --- | --- | --- | --- | --- |
    /// | hello, a good token | unconfirmed | unconfirmed | in time: unconfirmed | anew |
    /// | hello, otherwise | anew | anew | anew | anew |
    /// | lost | away | away | - | forgotten |
    /// | closed | forgotten | away | - | forgotten |
    /// | claims | - | live | - | - |
    /// | given up | forgotten | forgotten | forgotten | forgotten |
    /// | evicted | - | - | over | - |
    /// | disowned | over | over | over | - |
    ///
    /// Each hello begins another epoch; anew is live with one token. The client may not know of an
    /// unconfirmed session: closing that ends nothing, and does not prolong the hold before. What
    /// a session reports after another has followed it changes nothing.
    pub(crate) fn step(&mut self, event: Event, now: Instant) -> Effect {
        use Event::{Claims, Closed, Disowned, Evicted, GivenUp, Hello, Lost};
        use Phase::{Away, Live, Over, Unconfirmed};

        let hold = |until| (Away { until }, Effect::Hold(until));
        let (phase, effect) = match (self.phase, event) {
            (phase, Hello { presented, next }) => {
                self.epoch = self.epoch.wrapping_add(1);
                let resumed = match phase {
                    Live => Some(Unconfirmed { fallback: None }),
                    Unconfirmed { .. } => Some(phase),
                    Away { until } if now < until => Some(Unconfirmed { fallback: Some(until) }),
                    Away { .. } | Over => None,
                };
                match resumed.filter(|_| presented != Presented::Nothing) {
                    Some(resumed) => {
                        self.tokens.add(presented, next);
                        (resumed, Effect::Resume)
                    }
                    None => {
                        self.tokens = Tokens::new(next);
                        (Live, Effect::BeginAnew)
                    }
                }
            }
            (
                phase,
                Lost { epoch, .. } | Closed { epoch, .. } | Claims { epoch } | GivenUp { epoch },
            ) if epoch != self.epoch => (phase, Effect::Nothing),
            (Live, Lost { time, .. }) => hold(now + time),
            (Unconfirmed { fallback }, Lost { time, .. } | Closed { time, .. }) => {
                hold(fallback.unwrap_or(now + time))
            }
            (Unconfirmed { .. }, Claims { .. }) => {
                self.tokens.former = None;
                (Live, Effect::Nothing)
            }
            (Live, Closed { .. }) | (Over, Lost { .. } | Closed { .. }) | (_, GivenUp { .. }) => {
                (Over, Effect::Forget)
            }
            (Away { .. }, Evicted) | (Live | Unconfirmed { .. } | Away { .. }, Disowned) => {
                (Over, Effect::End)
            }
            (phase @ (Live | Over), Claims { .. } | Evicted)
            | (phase @ Unconfirmed { .. }, Evicted)
            | (phase @ Away { .. }, Lost { .. } | Closed { .. } | Claims { .. })
            | (phase @ Over, Disowned) => (phase, Effect::Nothing),
        };
        self.phase = phase;
        effect
    }
}

#[cfg(test)]
mod tests {
    use keypadd_provider::SESSION_TOKEN_BYTES;

    use super::*;

    const TIME: Duration = Duration::from_secs(600);

    fn token(byte: u8) -> SessionToken {
        SessionToken::from_bytes(&[byte; SESSION_TOKEN_BYTES])
    }

    fn byte(token: &SessionToken) -> u8 {
        token.as_bytes()[0]
    }

    impl Lineage {
        /// A hello with this token; returns whether the streams go on.
        fn hello(&mut self, presented: u8, next: u8, now: Instant) -> bool {
            let presented = self.tokens.recognize(|token| byte(token) == presented);
            let effect = self.step(Event::Hello { presented, next: token(next) }, now);
            assert!(matches!(effect, Effect::Resume | Effect::BeginAnew));
            effect == Effect::Resume
        }
    }

    #[test]
    fn every_cell_of_a_lineages_table_is_as_it_says() {
        use Effect::{BeginAnew, End, Forget, Hold, Nothing, Resume};
        use Event::{Claims, Closed, Disowned, Evicted, GivenUp, Hello, Lost};
        use Phase::{Away, Live, Over, Unconfirmed};

        let now = Instant::now();
        let (soon, later) = (now + TIME / 2, now + TIME);
        let (first, back) = (Unconfirmed { fallback: None }, Unconfirmed { fallback: Some(soon) });
        let (away, late) = (Away { until: soon }, Away { until: now });
        let phases = [Live, first, back, away, late, Over];
        let (full, rest) = ((Away { until: later }, Hold(later)), (away, Hold(soon)));
        let (anew, over, gone) = ((Live, BeginAnew), (Over, End), (Over, Forget));
        let resumed = [first, first, back, back].map(|phase| (phase, Resume));
        let [live, of_first, of_back, of_away] = resumed;
        let resumed = [live, of_first, of_back, of_away, anew, anew];
        let [live, first, back, away, late, none] = phases.map(|phase| (phase, Nothing));
        let table = [
            resumed,
            resumed,
            [anew; 6],
            [full, full, rest, away, late, gone],
            [gone, full, rest, away, late, gone],
            [live, live, live, away, late, none],
            [gone; 6],
            [live, first, back, over, over, none],
            [over, over, over, over, over, none],
        ];
        let hello = |presented| Hello { presented, next: token(9) };
        let event = |row: usize, epoch: u32| match row {
            0 => hello(Presented::Newest),
            1 => hello(Presented::Former),
            2 => hello(Presented::Nothing),
            3 => Lost { epoch, time: TIME },
            4 => Closed { epoch, time: TIME },
            5 => Claims { epoch },
            6 => GivenUp { epoch },
            7 => Evicted,
            _ => Disowned,
        };
        for (row, cells) in table.into_iter().enumerate() {
            for (phase, expected) in phases.into_iter().zip(cells) {
                let begin = || {
                    let tokens = Tokens { newest: token(2), former: Some(token(1)) };
                    Lineage { phase, tokens, epoch: 7 }
                };
                let context = format!("{:?} {phase:?}", event(row, 7));
                let mut lineage = begin();
                let effect = lineage.step(event(row, 7), now);
                assert_eq!((lineage.phase, effect), expected, "{context}");
                let (epoch, newest, former) = match (effect, row) {
                    (Resume, 0) => (8, 9, Some(2)),
                    (Resume, _) => (8, 9, Some(1)),
                    (BeginAnew, _) => (8, 9, None),
                    (_, 5) if phase != lineage.phase => (7, 2, None),
                    _ => (7, 2, Some(1)),
                };
                let Tokens { newest: has_newest, former: has_former } = &lineage.tokens;
                assert_eq!(lineage.epoch, epoch, "{context}");
                let has = (byte(has_newest), has_former.as_ref().map(byte));
                assert_eq!(has, (newest, former), "{context}");
                if matches!(row, 3..=6) {
                    let mut lineage = begin();
                    assert_eq!(lineage.step(event(row, 6), now), Nothing, "late: {context}");
                    assert_eq!((lineage.phase, lineage.epoch), (phase, 7), "late: {context}");
                }
            }
        }
    }

    #[test]
    fn a_token_is_good_until_the_client_confirms_the_next_and_never_again() {
        let (mut lineage, now) = (Lineage::new(token(1)), Instant::now());
        assert!(lineage.hello(1, 2, now));
        assert!(lineage.hello(1, 3, now), "the answer was lost");
        let recognize = |lineage: &Lineage, it| lineage.tokens.recognize(|token| byte(token) == it);
        assert_eq!(recognize(&lineage, 2), Presented::Nothing, "unheard of");
        lineage.step(Event::Claims { epoch: 1 }, now);
        assert!(matches!(lineage.phase, Phase::Unconfirmed { .. }), "that was an earlier session");
        lineage.step(Event::Claims { epoch: 2 }, now);
        assert_eq!(recognize(&lineage, 1), Presented::Nothing, "it is used up");
        assert!(lineage.hello(3, 4, now));
        assert!(!lineage.hello(9, 5, now), "nobody drew it");
        assert!(!lineage.hello(4, 6, now), "what it was for has ended");
    }

    #[test]
    fn a_token_is_good_for_the_hold_time_and_attempts_prolong_nothing() {
        let (mut lineage, now) = (Lineage::new(token(1)), Instant::now());
        let until = now + TIME;
        assert_eq!(lineage.step(Event::Lost { epoch: 0, time: TIME }, now), Effect::Hold(until));
        let (attempt, time) = (now + TIME / 2, TIME);
        assert!(lineage.hello(1, 2, attempt));
        // The client has not heard of it.
        assert_eq!(lineage.step(Event::Closed { epoch: 1, time }, attempt), Effect::Hold(until));
        assert!(!lineage.hello(1, 3, until));
    }
    #[test]
    fn a_client_of_another_process_is_away_until_its_time() {
        let now = Instant::now();
        let tokens = Tokens { newest: token(2), former: Some(token(1)) };
        let mut lineage = Lineage::import(tokens, 7, now + TIME);
        assert_eq!((lineage.away_until(), lineage.is_over()), (Some(now + TIME), false));
        assert!(lineage.hello(1, 3, now), "the client may not have heard of the newest");
        assert_eq!((lineage.away_until(), lineage.epoch()), (None, 8));
        lineage.step(Event::Disowned, now);
        assert!(lineage.is_over() && lineage.away_until().is_none());
    }
}
