//! Model-checks how senders and a loop meet at its mailbox, in every order with up to three
//! preemptions, with loom. Includes the shipped file with other atomics: under `cfg(loom)`, tokio
//! would have no sockets.
#![allow(clippy::unwrap_used)]

use std::collections::VecDeque;

use loom::model::Builder;
use loom::sync::{Arc, Mutex, Notify};
use loom::thread;
use queue_state::QueueState;

mod sync {
    pub(crate) use loom::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
}

#[path = "../src/queue_state.rs"]
mod queue_state;

/// A mailbox: the queue stands for the channel, the notification for the loop's waker.
struct Mailbox {
    state: QueueState,
    queue: Mutex<VecDeque<u8>>,
    waker: Notify,
}

impl Mailbox {
    fn send(&self, message: u8) {
        self.queue.lock().unwrap().push_back(message);
        if self.state.must_wake() {
            self.waker.notify();
        }
    }
}

fn model(claim: impl Fn() + Send + Sync + 'static) {
    let mut builder = Builder::new();
    builder.preemption_bound = Some(3);
    builder.check(claim);
}

#[test]
fn a_message_never_waits_for_a_loop_that_sleeps() {
    model(|| {
        let mailbox = Arc::new(Mailbox {
            state: QueueState::new(1),
            queue: Mutex::default(),
            waker: Notify::new(),
        });
        let senders = [1, 2].map(|message| {
            let mailbox = Arc::clone(&mailbox);
            thread::spawn(move || mailbox.send(message))
        });
        let mut taken = 0;
        loop {
            mailbox.state.begin_read();
            taken += std::mem::take(&mut *mailbox.queue.lock().unwrap()).len();
            if taken == senders.len() {
                break;
            }
            // A message that nobody wakes it for would be a deadlock, which loom reports.
            mailbox.waker.wait();
        }
        senders.into_iter().for_each(|sender| sender.join().unwrap());
    });
}

#[test]
fn datagrams_take_no_more_places_than_there_are_and_give_all_back() {
    model(|| {
        let state = Arc::new(QueueState::new(1));
        let senders = [(); 2].map(|()| {
            let state = Arc::clone(&state);
            thread::spawn(move || state.reserve_place())
        });
        let took = senders.map(|sender| sender.join().unwrap());
        assert_eq!(took.into_iter().filter(|took| *took).count(), 1);
        state.release_place();
        assert!(state.reserve_place());
    });
}
