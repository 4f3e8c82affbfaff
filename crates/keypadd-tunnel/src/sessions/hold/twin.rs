//! Compares [`Lineage`] with [`Chains`], which decided before, on random schedules.

use std::time::{Duration, Instant};

use keypadd_provider::PrivateKey;
use keypadd_share::Shares;
use tokio::sync::oneshot::channel;

use super::{
    chains::{Admitted, AwayState, Chains, Held},
    held_list::HeldList,
    lineage::{Effect, Event, Lineage, Presented},
    *,
};
use crate::{limits::places::Places, wire::Instance};

#[test]
fn a_lineage_answers_as_a_chain_does() {
    let key = PrivateKey::generate().unwrap().public();
    let (client, other) = ((key, Instance([1; 16])), (key, Instance([2; 16])));
    let settings = HoldSettings { time: Duration::from_secs(600), ..HoldSettings::OFF };
    let (mut held_tokens, mut counts) = (0, [0_u32; 8]);
    for seed in 1..=3_000_u64 {
        let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
        let mut below = |end: u64| {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            (state >> 11) % end
        };
        let (chains, list) = (Chains::default(), HeldList::default());
        let places = Shares::of_each(1_000);
        let mut lineage: Option<Lineage> = None;
        let mut now = Instant::now();
        let mut drawn = vec![0_u8];
        let mut sessions: Vec<SessionHold> = Vec::new();
        for _ in 0..60 {
            now += Duration::from_secs(below(200));
            let nth = if below(3) == 0 { below(4) } else { 0 };
            let session = sessions.iter().rev().nth(nth as usize).cloned();
            match below(9) {
                0..3 => {
                    let range = if below(4) == 0 { drawn.len() as u64 } else { 3 };
                    let back = below(range);
                    let presented = drawn.iter().rev().nth(back as usize).copied();
                    let presented = presented.filter(|_| below(8) > 0);
                    let next = drawn.len() as u8;
                    drawn.push(next);
                    let token = |byte: u8| HoldToken([byte.wrapping_add(1); 16]);
                    let presented = presented.map(token);
                    let request = HoldRequest { seconds: 600, token: presented.clone() };
                    let Admitted { grant, hold, .. } = chains
                        .admit(client, Some(request), &settings, token(next), &Places::new(8), now)
                        .unwrap();
                    let resumed = match &mut lineage {
                        Some(lineage) => {
                            let presented = lineage.tokens().recognize(presented.as_ref());
                            counts[presented as usize] += 1;
                            let right = presented != Presented::Nothing;
                            let event = Event::Hello { presented, next: token(next) };
                            let effect = lineage.step(event, now);
                            held_tokens += u32::from(right && effect == Effect::BeginAnew);
                            effect == Effect::Resume
                        }
                        None => {
                            lineage = Some(Lineage::new(token(next)));
                            false
                        }
                    };
                    assert_eq!(grant.resumed, resumed, "seed {seed}");
                    assert_eq!(Some(grant.epoch), lineage.as_ref().map(Lineage::epoch));
                    sessions.push(hold);
                }
                3 | 4 => {
                    let Some(session) = session else { continue };
                    // A session ends once.
                    sessions.retain(|it| it.epoch != session.epoch);
                    let lost = below(2) == 0;
                    let (epoch, time) = (session.epoch, session.time);
                    let _listed = list.add("peer", &session.streams, time);
                    let away =
                        AwayState { slot: places.try_take(key, 1), _listed, _over: channel().0 };
                    let until = chains.lost(&client, &session, lost, away, now);
                    if until.is_none() {
                        chains.end(&client, epoch);
                    }
                    let Some(own) = &mut lineage else { continue };
                    let event = match lost {
                        true => Event::Lost { epoch, time },
                        false => Event::Closed { epoch, time },
                    };
                    let effect = own.step(event, now);
                    let held = match effect {
                        Effect::Hold(until) => Some(until),
                        _ => None,
                    };
                    assert_eq!(until, held, "seed {seed}");
                    counts[3] += u32::from(held.is_some());
                    if effect == Effect::Forget {
                        counts[4] += 1;
                        (lineage, sessions) = (None, Vec::new());
                    }
                }
                5 => {
                    let Some(session) = session else { continue };
                    chains.confirm(&client, session.epoch);
                    if let Some(lineage) = &mut lineage {
                        lineage.step(Event::Claims { epoch: session.epoch }, now);
                    }
                }
                6 => {
                    // The end of a hold, or of a session without streams.
                    let is_over =
                        |it: &Lineage| it.away_until().is_some() || it.is_over() || nth > 0;
                    let Some(own) = lineage.as_mut().filter(|it| is_over(it)) else { continue };
                    let epoch = own.epoch();
                    sessions.retain(|it| it.epoch != epoch);
                    chains.end(&client, epoch);
                    own.step(Event::GivenUp { epoch }, now);
                    counts[5] += 1;
                    if own.is_over() {
                        (lineage, sessions) = (None, Vec::new());
                    }
                }
                7 => {
                    if below(3) > 0 {
                        continue;
                    }
                    let ended = chains.end_away(&other, Held::Place, now).is_some();
                    let effect = lineage.as_mut().map(|it| it.step(Event::Evicted, now));
                    assert_eq!(ended, effect == Some(Effect::End), "seed {seed}");
                    counts[7] += u32::from(ended);
                }
                _ => {
                    if below(4) > 0 {
                        continue;
                    }
                    chains.admit(client, None, &settings, HoldToken([0; 16]), &Places::new(8), now);
                    counts[6] += u32::from(lineage.is_some());
                    sessions.clear();
                    if let Some(mut lineage) = lineage.take() {
                        lineage.step(Event::Disowned, now);
                        assert!(lineage.is_over());
                    }
                }
            }
        }
    }
    println!("{counts:?}, {held_tokens} right tokens in vain");
    assert!(counts.iter().all(|count| *count > 500) && held_tokens > 200);
}
