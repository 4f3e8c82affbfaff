//! Throttles keystream generation for measurements.
//!
//! Reads no clock: the pace that is set does. Without one it costs one branch per piece generated.

use std::fmt;
use std::ptr;
use std::time::Duration;

/// Decides how long generating keystream takes.
pub trait Pace: Send + Sync {
    /// Calls `make`, which generates `bytes` bytes of keystream, exactly once, and returns when
    /// that should have finished.
    fn paced(&self, bytes: usize, make: &mut dyn FnMut());

    /// The longest that generating this many bytes takes at this pace.
    fn longest(&self, bytes: usize) -> Duration;
}

/// An optional pace. Copied into every key, so it is one thin pointer.
#[derive(Clone, Copy, Default)]
pub struct Pacing(Option<&'static &'static dyn Pace>);

impl Pacing {
    /// Leaks the pace: a measurement has few.
    pub(crate) fn by(pace: impl Pace + 'static) -> Self {
        let pace: &'static dyn Pace = Box::leak(Box::new(pace));
        Self(Some(Box::leak(Box::new(pace))))
    }

    /// The longest that generating this many bytes takes at this pace.
    pub fn longest(self, bytes: usize) -> Duration {
        self.0.map_or(Duration::ZERO, |pace| pace.longest(bytes))
    }

    /// Runs `make`, which generates `bytes` bytes of keystream, at this pace.
    pub fn make(self, bytes: usize, mut make: impl FnMut()) {
        match self.0 {
            None => make(),
            Some(pace) => {
                let mut made = false;
                let mut once = || {
                    if !std::mem::replace(&mut made, true) {
                        make();
                    }
                };
                pace.paced(bytes, &mut once);
                // Missing keystream would be zeros, and would put plaintext on the wire.
                once();
            }
        }
    }
}

/// Compares identity: equal if they are the same pace.
impl PartialEq for Pacing {
    fn eq(&self, other: &Self) -> bool {
        match (self.0, other.0) {
            (None, None) => true,
            (Some(one), Some(other)) => ptr::eq(one, other),
            _ => false,
        }
    }
}

impl fmt::Debug for Pacing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.0.is_some() { "Pacing(paced)" } else { "Pacing(none)" })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::Cell;

    /// Calls `make` this many times.
    struct Calls(usize);

    impl Pace for Calls {
        fn paced(&self, bytes: usize, make: &mut dyn FnMut()) {
            assert_eq!(bytes, 9);
            (0..self.0).for_each(|_| make());
        }

        fn longest(&self, _: usize) -> Duration {
            Duration::ZERO
        }
    }

    #[test]
    fn keystream_is_generated_exactly_once_whatever_a_pace_does() {
        let pacings = [0, 1, 2].map(|times| Pacing::by(Calls(times)));
        for pacing in pacings.into_iter().chain([Pacing::default()]) {
            let made = Cell::new(0);
            pacing.make(9, || made.set(made.get() + 1));
            assert_eq!(made.get(), 1);
        }
        assert!(pacings[0] == pacings[0] && pacings[0] != pacings[1]);
        assert!(pacings[0] != Pacing::default() && Pacing::default() == Pacing::default());
    }
}
