//! Counts what is underway, and lets others wait until nothing is.

use std::{
    pin::pin,
    sync::{
        Arc,
        atomic::{
            AtomicUsize,
            Ordering::{Acquire, Release},
        },
    },
};

use tokio::sync::Notify;

/// How many are underway. Counting takes no lock: strangers cause it, on every event loop.
#[derive(Debug, Default)]
pub struct Underway(Arc<Count>);

/// One that is underway, until it is dropped.
#[derive(Debug)]
pub struct Begun(Arc<Count>);

#[derive(Debug, Default)]
struct Count {
    underway: AtomicUsize,
    none: Notify,
}

impl Underway {
    /// Counts another one.
    pub fn begin(&self) -> Begun {
        self.0.underway.fetch_add(1, Acquire);
        Begun(Arc::clone(&self.0))
    }

    /// How many there are.
    pub fn count(&self) -> usize {
        self.0.underway.load(Acquire)
    }

    /// Waits until there is none.
    pub async fn none(&self) {
        loop {
            let mut none = pin!(self.0.none.notified());
            // Waits from here on: one that ends after the count is read wakes it.
            none.as_mut().enable();
            if self.count() == 0 {
                return;
            }
            none.await;
        }
    }
}

impl Drop for Begun {
    fn drop(&mut self) {
        if self.0.underway.fetch_sub(1, Release) == 1 {
            self.0.none.notify_waiters();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::{
        pin::pin,
        task::{Context, Waker},
    };

    use super::*;

    #[test]
    fn the_wait_ends_with_the_last_that_is_underway() {
        let underway = Underway::default();
        let [one, two] = [(); 2].map(|()| underway.begin());
        let mut none = pin!(underway.none());
        let context = &mut Context::from_waker(Waker::noop());
        assert!(none.as_mut().poll(context).is_pending());
        assert_eq!(underway.count(), 2);
        drop(one);
        assert_eq!(underway.count(), 1);
        assert!(none.as_mut().poll(context).is_pending());
        drop(two);
        assert!(none.as_mut().poll(context).is_ready());
        assert!(pin!(underway.none()).poll(context).is_ready());
    }
}
