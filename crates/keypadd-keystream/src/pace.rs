//! The seam by which measurements slow the making of keystream, and nothing else.
//!
//! Knows no clock: who paces has one. Where nobody does, it costs a branch for each piece that is made.

use std::fmt;
use std::ptr;

/// Decides how long the making of keystream takes.
pub trait Pace: Send + Sync {
    /// Calls `make` exactly once, which makes so many bytes of keystream, and takes as long as they are
    /// to take.
    fn paced(&self, bytes: usize, make: &mut dyn FnMut());
}

/// A pace, or none. Copied into every key, so it is one thin pointer.
#[derive(Clone, Copy, Default)]
pub struct Pacing(Option<&'static &'static dyn Pace>);

impl Pacing {
    /// Keeps the pace for the life of the process: a measurement has few.
    pub(crate) fn by(pace: impl Pace + 'static) -> Self {
        let pace: &'static dyn Pace = Box::leak(Box::new(pace));
        Self(Some(Box::leak(Box::new(pace))))
    }

    /// Runs what makes so many bytes of keystream.
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
                // Keystream that was not made would be zeros, and plaintext on the wire.
                once();
            }
        }
    }
}

/// The same pace, not one that is alike.
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

    /// Calls what it is given so many times.
    struct Calls(usize);

    impl Pace for Calls {
        fn paced(&self, bytes: usize, make: &mut dyn FnMut()) {
            assert_eq!(bytes, 9);
            (0..self.0).for_each(|_| make());
        }
    }

    #[test]
    fn keystream_is_made_once_whatever_a_pace_does() {
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
