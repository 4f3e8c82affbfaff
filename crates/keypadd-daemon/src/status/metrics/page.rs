//! Encodes the page of figures, and keeps it for a moment: however many ask, it is encoded ten
//! times a second at most.

use std::convert::Infallible;
use std::fmt;
use std::mem;
use std::pin::Pin;
use std::sync::{Mutex, PoisonError};
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use hyper::body::{Body, Frame, SizeHint};
use prometheus_client::collector::Collector;
use prometheus_client::encoding::text::encode;
use prometheus_client::registry::Registry;
use tokio::time::Instant;

use super::text_format;

/// How long a page is kept.
const AGE_MAX: Duration = Duration::from_millis(100);

/// The figures and their last page.
#[derive(Debug)]
pub(super) struct Pages {
    registry: Registry,
    last: Mutex<Option<(Page, Instant)>>,
}

/// A page in both formats; clones share it.
#[derive(Clone, Debug)]
pub(super) struct Page {
    pub(super) openmetrics: Bytes,
    pub(super) prometheus: Bytes,
}

impl Pages {
    pub(super) fn new(figures: impl Collector) -> Self {
        let mut registry = Registry::default();
        registry.register_collector(Box::new(figures));
        Self { registry, last: Mutex::default() }
    }

    /// The figures of now, or of a moment ago.
    ///
    /// # Errors
    /// They cannot be encoded.
    pub(super) fn current(&self) -> Result<Page, fmt::Error> {
        // A panic leaves the last page.
        let mut last = self.last.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((page, since)) = &*last
            && since.elapsed() < AGE_MAX
        {
            return Ok(page.clone());
        }
        let mut text = String::new();
        encode(&mut text, &self.registry)?;
        let prometheus = text_format::rewritten(&text).into();
        let page = Page { openmetrics: text.into(), prometheus };
        // Kept from now on, so that one that takes long to encode is not encoded all the time.
        *last = Some((page.clone(), Instant::now()));
        Ok(page)
    }
}

/// The body of an answer, which may be shared.
#[derive(Debug, Default)]
pub(super) struct Text(Bytes);

impl<T: Into<Bytes>> From<T> for Text {
    fn from(text: T) -> Self {
        Self(text.into())
    }
}

impl Body for Text {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        _: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        let text = mem::take(&mut self.0);
        Poll::Ready((!text.is_empty()).then(|| Ok(Frame::data(text))))
    }

    fn is_end_stream(&self) -> bool {
        self.0.is_empty()
    }

    fn size_hint(&self) -> SizeHint {
        SizeHint::with_exact(self.0.len() as u64)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

    use prometheus_client::encoding::DescriptorEncoder;
    use tokio::time::advance;

    use super::*;

    /// Counts how often it is collected.
    #[derive(Debug)]
    struct Counts(Arc<AtomicU64>);

    impl Collector for Counts {
        fn encode(&self, _: DescriptorEncoder<'_>) -> fmt::Result {
            self.0.fetch_add(1, Relaxed);
            Ok(())
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_page_is_encoded_once_for_all_who_ask_within_its_time_and_then_anew() {
        let collected = Arc::<AtomicU64>::default();
        let pages = Pages::new(Counts(Arc::clone(&collected)));
        for round in 1..=3 {
            let first = pages.current().unwrap();
            advance(AGE_MAX - Duration::from_millis(1)).await;
            let second = pages.current().unwrap();
            assert_eq!(collected.load(Relaxed), round);
            // Not copied.
            assert_eq!(first.openmetrics.as_ptr(), second.openmetrics.as_ptr());
            assert_eq!(first.prometheus.as_ptr(), second.prometheus.as_ptr());
            advance(Duration::from_millis(1)).await;
        }
    }
}
