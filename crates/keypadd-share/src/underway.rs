//! Counts what is underway, and lets others wait until nothing is.

use std::sync::Arc;

use tokio::sync::watch;

/// How many are underway.
#[derive(Debug, Default)]
pub struct Underway(Arc<watch::Sender<usize>>);

/// One that is underway, until it is dropped.
#[derive(Debug)]
pub struct Begun(Arc<watch::Sender<usize>>);

impl Underway {
    /// Counts another one.
    pub fn begin(&self) -> Begun {
        self.0.send_modify(|count| *count += 1);
        Begun(Arc::clone(&self.0))
    }

    /// How many there are.
    pub fn count(&self) -> usize {
        *self.0.borrow()
    }

    /// Waits until there is none.
    pub async fn none(&self) {
        // Fails only if the sender is gone, and this has it.
        let _ = self.0.subscribe().wait_for(|count| *count == 0).await;
    }
}

impl Drop for Begun {
    fn drop(&mut self) {
        self.0.send_modify(|count| *count -= 1);
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
