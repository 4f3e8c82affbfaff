//! Tracks the minimum or maximum over a sliding window of time, in constant memory.

use std::time::{Duration, Instant};

/// An extreme over the last one to two spans: of the current span and the one before.
#[derive(Clone, Copy, Debug)]
pub struct Windowed {
    span: Duration,
    began: Option<Instant>,
    current: Duration,
    previous: Duration,
    pick: fn(Duration, Duration) -> Duration,
    neutral: Duration,
}

impl Windowed {
    /// The minimum over `span` to twice as long.
    pub fn min(span: Duration) -> Self {
        Self::new(span, Ord::min, Duration::MAX)
    }

    /// The maximum.
    pub fn max(span: Duration) -> Self {
        Self::new(span, Ord::max, Duration::ZERO)
    }

    fn new(span: Duration, pick: fn(Duration, Duration) -> Duration, neutral: Duration) -> Self {
        Self { span, began: None, current: neutral, previous: neutral, pick, neutral }
    }

    /// Takes a value of this time, which is no earlier than that of the last one.
    pub fn insert(&mut self, now: Instant, value: Duration) {
        let began = *self.began.get_or_insert(now);
        if now.saturating_duration_since(began) >= self.span {
            self.began = Some(now);
            self.previous = std::mem::replace(&mut self.current, self.neutral);
        }
        self.current = (self.pick)(self.current, value);
    }

    /// The extreme; the neutral element if nothing was inserted.
    pub fn get(&self) -> Duration {
        (self.pick)(self.current, self.previous)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_extreme_value_counts_for_one_to_two_spans() {
        let (start, second) = (Instant::now(), Duration::from_secs(1));
        let [one, two, three] = [1, 2, 3].map(Duration::from_millis);
        let mut least = Windowed::min(second);
        assert_eq!(least.get(), Duration::MAX);
        least.insert(start, one);
        least.insert(start + second, three);
        assert_eq!(least.get(), one);
        least.insert(start + 2 * second, two);
        assert_eq!(least.get(), two);
    }
}
