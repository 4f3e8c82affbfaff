//! Models rtrb's queue for loom: the calls that the pool makes, on a list behind a lock.

use std::cell::OnceCell;
use std::collections::VecDeque;

use loom::sync::{Arc, Mutex};

struct Inside<T> {
    items: VecDeque<T>,
    most: usize,
}

/// Creates both ends, like rtrb's type of this name.
pub(crate) struct RingBuffer;

impl RingBuffer {
    pub(crate) fn new<T>(most: usize) -> (Producer<T>, Consumer<T>) {
        let inside = Arc::new(Mutex::new(Inside { items: VecDeque::new(), most }));
        (Producer(Arc::clone(&inside)), Consumer { inside, front: OnceCell::new() })
    }
}

pub(crate) struct Producer<T>(Arc<Mutex<Inside<T>>>);

impl<T> Producer<T> {
    pub(crate) fn is_full(&self) -> bool {
        let inside = self.0.lock().expect("no panic");
        inside.items.len() >= inside.most
    }

    pub(crate) fn push(&mut self, item: T) -> Result<(), T> {
        let mut inside = self.0.lock().expect("no panic");
        if inside.items.len() >= inside.most {
            return Err(item);
        }
        inside.items.push_back(item);
        Ok(())
    }
}

pub(crate) struct Consumer<T> {
    inside: Arc<Mutex<Inside<T>>>,
    /// The item last peeked at.
    front: OnceCell<T>,
}

impl<T> Consumer<T> {
    fn next(&self) -> Option<T> {
        self.inside.lock().expect("no panic").items.pop_front()
    }

    pub(crate) fn peek(&self) -> Result<&T, ()> {
        if self.front.get().is_none()
            && let Some(item) = self.next()
        {
            let _ = self.front.set(item);
        }
        self.front.get().ok_or(())
    }

    pub(crate) fn pop(&mut self) -> Result<T, ()> {
        self.front.take().or_else(|| self.next()).ok_or(())
    }
}
