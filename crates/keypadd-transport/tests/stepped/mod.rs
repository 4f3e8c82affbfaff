//! Provides what tests of stepped event loops share: configurations of two ends, and futures that
//! are polled by hand.

#[path = "../configs/mod.rs"]
mod configs;

use std::{
    future::Future,
    pin::Pin,
    task::{Context, Poll, Waker},
};

pub use configs::configs;

pub type Task<T> = Pin<Box<dyn Future<Output = T>>>;

/// Polls a task once.
pub fn poll<T>(task: &mut Task<T>) -> Option<T> {
    match task.as_mut().poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(done) => Some(done),
        Poll::Pending => None,
    }
}
