//! Handles the streams of one session as part of the session's own task, a few at a time.
//!
//! With a task for each stream, a client that opens a thousand at once puts a thousand tasks before
//! those of everybody else. Here a session is one task among the others', whatever it has to do.

use std::{
    pin::Pin,
    task::{Context, Poll, ready},
};

use futures_util::stream::{FuturesUnordered, StreamExt as _};
use tokio::task::coop::{has_budget_remaining, poll_proceed};

/// Units of a task's budget that one poll of a stream's future takes. tokio gives a task 128 before
/// it has to let others run, so that a session's turn is eight polls, some 100 us.
const POLL_COST: u32 = 16;

/// A session's streams, dropped with it.
pub(super) struct SessionStreams<T>(FuturesUnordered<InTurn<T>>);

/// What handles one stream.
struct InTurn<T>(Pin<Box<dyn Future<Output = T> + Send>>);

impl<T> SessionStreams<T> {
    pub(super) fn new() -> Self {
        Self(FuturesUnordered::new())
    }

    /// Adds a stream; `handling` starts with the next poll of [`next`](Self::next).
    pub(super) fn push(&self, handling: impl Future<Output = T> + Send + 'static) {
        self.0.push(InTurn(Box::pin(handling)));
    }

    /// Handles the streams until one of them ends; `None` if there is none. Dropping the future
    /// loses nothing.
    pub(super) async fn next(&mut self) -> Option<T> {
        self.0.next().await
    }

    pub(super) fn len(&self) -> usize {
        self.0.len()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Drops all streams, which resets them.
    pub(super) fn clear(&mut self) {
        self.0.clear();
    }
}

impl<T> Future for InTurn<T> {
    type Output = T;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<T> {
        if !has_budget_remaining() {
            // Tells the set as well that this turn is over.
            context.waker().wake_by_ref();
            return Poll::Pending;
        }
        for _ in 0..POLL_COST {
            ready!(poll_proceed(context)).made_progress();
        }
        self.0.as_mut().poll(context)
    }
}

#[cfg(test)]
mod tests {
    use std::{
        future::poll_fn,
        sync::{
            Arc,
            atomic::{AtomicUsize, Ordering},
        },
    };

    use tokio::task::spawn;

    use super::*;

    #[tokio::test]
    async fn a_thousand_new_streams_let_others_run_after_a_few_of_them() {
        const STREAMS: usize = 1_000;
        let begun = Arc::new(AtomicUsize::new(0));
        let mut streams = SessionStreams::new();
        for _ in 0..STREAMS {
            let begun = Arc::clone(&begun);
            streams.push(poll_fn(move |_| {
                begun.fetch_add(1, Ordering::Relaxed);
                Poll::<()>::Pending
            }));
        }
        let session = spawn(async move { streams.next().await });
        let mut all = 0;
        let other = poll_fn(move |context| {
            let of_turn = begun.load(Ordering::Relaxed) - all;
            assert!(of_turn <= 16, "{of_turn} streams in one turn");
            all += of_turn;
            // `yield_now` would let the session have several turns.
            context.waker().wake_by_ref();
            if all < STREAMS { Poll::Pending } else { Poll::Ready(()) }
        });
        spawn(other).await.unwrap();
        session.abort();
    }
}
