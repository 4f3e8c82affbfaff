//! Compares each type with what it replaced: both get the same random events, and every answer must
//! be equal. The other files are the former code, unchanged but for its logs and its names of types.

#![allow(clippy::unwrap_used)]

mod descriptors;
mod excess_cost;
mod incomplete;
mod inviter;
mod line_rate_limit;
mod log_rate_limit;
mod per_key_limit;
mod resume_rate;
mod token_bucket;
mod windows;

use std::{
    pin::Pin,
    task::{Context, Poll, Waker},
    time::{Duration, Instant},
};

use keypadd_share::{Bucket, Rate, Rates, Share, Shares, Waiting, threshold};
use proptest::{collection::vec, prelude::*};
use tokio::sync::oneshot;

/// The source of a claim.
pub(crate) type Source = u8;

type Wait<T> = Pin<Box<dyn Future<Output = T>>>;

fn poll<T>(wait: &mut Wait<T>) -> Option<T> {
    match wait.as_mut().poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(ready) => Some(ready),
        Poll::Pending => None,
    }
}

/// Random events: what happens, to whom, with what number.
fn events(most: usize) -> impl Strategy<Value = Vec<(u8, u8, u8)>> {
    vec((any::<u8>(), any::<u8>(), any::<u8>()), 0..most)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(100))]

    #[test]
    fn a_bucket_answers_as_before(
        (burst, interval) in (1_u32..200, 1_u64..5_000),
        steps in vec((0_u64..20_000, 0_u8..8), 0..200),
    ) {
        let interval = Duration::from_millis(interval);
        let rate = Rate { burst, interval };
        let mut now = Instant::now();
        let (mut bucket, mut former) = (Bucket::FULL, token_bucket::TokenBucket::new(now));
        for (millis, bursts) in steps {
            // Mostly several at the same time.
            if bursts == 0 {
                now += Duration::from_millis(millis);
            }
            prop_assert_eq!(
                bucket.take(rate, now),
                former.take(token_bucket::Rate { burst, interval }, now)
            );
            prop_assert_eq!(bucket.full_in(now).is_zero(), former.is_full(now));
        }
    }

    #[test]
    fn a_line_a_minute_is_logged_as_before(steps in vec(0_u64..40_000, 0..100)) {
        let mut now = Instant::now();
        let (mut bucket, mut former) = <(Bucket, line_rate_limit::LineRateLimit)>::default();
        for millis in steps {
            now += Duration::from_millis(millis);
            prop_assert_eq!(bucket.take(Rate::ONE_A_MINUTE, now).is_ok(), former.allow(now));
        }
    }

    #[test]
    fn lines_by_source_are_logged_as_before(steps in events(200)) {
        let (lines, former) = (Rates::log_lines(), log_rate_limit::LogRateLimit::default());
        let mut now = Instant::now();
        for (step, source, permits) in steps {
            now += Duration::from_secs(u64::from(step % 16));
            // At times there are more sources than are tracked.
            let crowd = if step > 250 { 600 } else { 1 };
            for source in u32::from(source % 8) * 1_000..u32::from(source % 8) * 1_000 + crowd {
                let permits = permits % 4 > 0;
                let (mut asked, mut asked_former) = (0, 0);
                let allowed = lines.allow_if(source, now, || {
                    asked += 1;
                    permits
                });
                let allowed_former = former.allow_if(source, now, || {
                    asked_former += 1;
                    permits
                });
                prop_assert_eq!((allowed, asked), (allowed_former, asked_former));
            }
        }
    }

    #[test]
    fn sessions_are_resumed_as_before(sessions_max in 1_usize..100, steps in events(400)) {
        let former = resume_rate::ResumeRate::default();
        let burst = u32::try_from((2 * sessions_max).max(32)).unwrap();
        let interval = Duration::from_secs(8) / burst;
        let rates = Rates::new(Rate { burst, interval }, usize::MAX);
        let mut now = Instant::now();
        for (millis, key, many) in steps {
            now += Duration::from_millis(u64::from(millis));
            for _ in 0..many / 4 {
                let key = key % 4;
                prop_assert_eq!(rates.take(key, now), former.take(key, sessions_max, now));
            }
        }
    }

    #[test]
    fn excess_time_is_charged_as_before(steps in events(200)) {
        let (share, advance) = (10, Duration::from_millis(20));
        let (mut bucket, mut former) = <(Bucket, excess_cost::ExcessCost)>::default();
        let mut now = Instant::now();
        for (what, millis, excess) in steps {
            now += Duration::from_millis(u64::from(millis));
            match what % 4 {
                0 => {
                    let most = (advance - Duration::from_millis(2)) * share;
                    bucket.charge(most.saturating_sub(bucket.full_in(now)), now);
                    former.proved(now);
                }
                _ => {
                    let excess = Duration::from_micros(u64::from(excess) * 100);
                    bucket.charge(excess * share, now);
                    former.charge(excess, now);
                }
            }
            prop_assert_eq!(bucket.full_in(now) > advance * share, former.is_too_high(now));
        }
    }

    #[test]
    fn each_holder_gets_as_many_as_before(max in 0_usize..6, steps in events(300)) {
        let (shares, former) = (Shares::of_each(max), per_key_limit::PerKeyLimit::default());
        let mut held = Vec::new();
        for (what, holder, at) in steps {
            if what % 3 == 0 && !held.is_empty() {
                held.swap_remove(usize::from(at) % held.len());
                continue;
            }
            let taken = (shares.try_take(holder % 4, 1), former.acquire(holder % 4, max));
            prop_assert_eq!(taken.0.is_some(), taken.1.is_some());
            held.push(taken);
        }
    }

    #[test]
    fn descriptors_are_shared_as_before(files in 1_usize..200, steps in events(300)) {
        let reserved = |files: usize| files / 3;
        let former = descriptors::DescriptorBudget::new(files, reserved);
        let total = |apart: usize| {
            let files = files.saturating_sub(apart);
            files.saturating_sub(reserved(files))
        };
        let shares = Shares::of_total(total(0));
        let mut held: Vec<(Share<u8>, descriptors::Descriptors)> = Vec::new();
        let mut apart = Vec::new();
        let mut waiting: Vec<(Wait<Share<u8>>, Wait<descriptors::Descriptors>)> = Vec::new();
        for (what, holder, number) in steps {
            let (holder, at) = (holder % 4, usize::from(number));
            let count = 1 + at % 5;
            match what % 8 {
                0 | 1 => {
                    let taken = shares.try_take(holder, count);
                    let taken_former = former.try_acquire(holder, count);
                    prop_assert_eq!(taken.is_some(), taken_former.is_some());
                    held.extend(taken.zip(taken_former));
                }
                2 if !held.is_empty() => drop(held.swap_remove(at % held.len())),
                3 => {
                    let returned = shares.of(&holder).min(at / 5);
                    prop_assert_eq!(
                        shares.would_allow(&holder, returned, count),
                        former.would_allow(holder, returned, count)
                    );
                }
                4 if number < 64 => {
                    held.push((shares.adopt(holder, count), former.adopt(holder, count)));
                }
                5 => {
                    match number % 2 {
                        0 if !apart.is_empty() => drop(apart.swap_remove(at % apart.len())),
                        _ => apart.push((former.set_apart(count), count)),
                    }
                    shares.set_total(total(apart.iter().map(|(_, count)| count).sum()));
                }
                6 => {
                    let (shares, former) = (shares.clone(), former.clone());
                    waiting.push((
                        Box::pin(async move { shares.take(holder, count).await }),
                        Box::pin(async move { former.when_free(holder, count).await }),
                    ));
                }
                7 if !waiting.is_empty() => drop(waiting.remove(at % waiting.len())),
                _ => {}
            }
            let mut still = Vec::new();
            for (mut one, mut one_former) in waiting {
                match (poll(&mut one), poll(&mut one_former)) {
                    (Some(share), Some(descriptors)) => held.push((share, descriptors)),
                    (None, None) => still.push((one, one_former)),
                    (one, _) => prop_assert!(false, "one of them waits, now: {}", one.is_none()),
                }
            }
            waiting = still;
            prop_assert_eq!(shares.taken(), former.held_now());
            prop_assert_eq!(total(apart.iter().map(|(_, count)| count).sum()), former.total());
        }
    }

    #[test]
    fn windows_grow_as_before(bytes in 0_u64..1_000, steps in events(200)) {
        let former = windows::Budget::new(bytes);
        let (mut free, mut grown) = (bytes, [0_u64; 4]);
        for (connection, wanted, _) in steps {
            let grown = &mut grown[usize::from(connection % 4)];
            let granted = u64::from(wanted).min(threshold((3, 1), *grown, free).max(*grown));
            prop_assert_eq!(granted, former.exchange(*grown, wanted.into()));
            free = free + *grown - granted;
            *grown = granted;
        }
    }

    #[test]
    fn datagrams_fit_the_backlog_as_before(
        own in 0_u64..5_000_000,
        others in 0_u64..5_000_000,
        bytes in 512_u64..66_000,
    ) {
        let most = 4 << 20;
        prop_assume!(own + others <= most);
        let former = own + bytes <= most.saturating_sub(own + others + bytes);
        prop_assert_eq!(own + bytes <= threshold((1, 1), own, most - own - others), former);
    }

    #[test]
    fn unread_connections_are_closed_as_before(steps in events(200)) {
        let (former, mut waiting) = (incomplete::Incomplete::default(), Waiting::default());
        let mut open: Vec<(oneshot::Receiver<()>, Wait<Option<()>>)> = Vec::new();
        for (what, at, _) in steps {
            match what % 3 {
                0 if !open.is_empty() => drop(open.remove(usize::from(at) % open.len())),
                1 => {
                    waiting.displace();
                    let mut room: Wait<()> = {
                        let former = former.clone();
                        Box::pin(async move { former.make_room(std::future::pending()).await })
                    };
                    prop_assert!(poll(&mut room).is_none());
                }
                _ => {
                    let reading = former.add().read(std::future::pending());
                    open.push((waiting.add(()), Box::pin(reading)));
                }
            }
            let mut still = Vec::new();
            for (mut one, mut one_former) in open {
                let displaced = one.try_recv().is_ok();
                prop_assert_eq!(displaced, poll(&mut one_former).is_some());
                if !displaced {
                    still.push((one, one_former));
                }
            }
            open = still;
        }
    }

    #[test]
    fn claims_make_room_as_before(steps in events(200)) {
        let mut former = Vec::<(Source, oneshot::Sender<()>)>::new();
        let (mut waiting, mut open) = (Waiting::default(), Vec::new());
        for (what, source, at) in steps {
            let source = source % 4;
            if what % 3 == 0 && !open.is_empty() {
                drop(open.remove(usize::from(at) % open.len()));
                continue;
            }
            former.retain(|(_, evict)| !evict.is_closed());
            if former.len() >= 8 && let Some(oldest) = inviter::of_busiest(&former) {
                former.remove(oldest).1.send(()).unwrap();
            }
            if waiting.count() >= 8 {
                prop_assert!(waiting.displace());
            }
            let (evict, mut evicted) = oneshot::channel();
            former.push((source, evict));
            prop_assert!(evicted.try_recv().is_err());
            open.push((waiting.add(source), evicted));
            for (one, one_former) in &mut open {
                prop_assert_eq!(one.try_recv().is_ok(), one_former.try_recv().is_ok());
            }
        }
    }
}
