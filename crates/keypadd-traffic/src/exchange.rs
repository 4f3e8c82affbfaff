//! Defines the unit of measured traffic: a request and a response of given sizes.
//!
//! The requester sends a header of two numbers and fills the request to its size; the service reads
//! all of it and answers. Fill bytes are a function of the position in the stream, so either end
//! notices a byte that is lost, duplicated, altered or misplaced. Knows no sockets.

use std::sync::LazyLock;

use serde::{Deserialize, Serialize};

/// Bytes of a request's head: its size and the response's, 64 bits each, big-endian.
pub const HEADER_BYTES: usize = 16;

/// Most bytes that are filled or compared at a time.
pub const STEP_BYTES: usize = 32 << 10;

/// Bytes that the pattern repeats: a prime number, so that no block size or packet size hides a
/// piece that is out of place.
const PERIOD_BYTES: usize = 65_521;

/// One request and its response.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Exchange {
    request_bytes: u64,
    response_bytes: u64,
}

impl Exchange {
    /// Least bytes of a request: its header.
    pub const REQUEST_BYTES_MIN: u64 = HEADER_BYTES as u64;

    /// A request of so many bytes, header included, that is answered by so many. Sizes below the
    /// least possible, 16 and 1, are raised to them.
    pub const fn new(request_bytes: u64, response_bytes: u64) -> Self {
        const fn at_least(least: u64, bytes: u64) -> u64 {
            if bytes < least { least } else { bytes }
        }
        Self {
            request_bytes: at_least(Self::REQUEST_BYTES_MIN, request_bytes),
            response_bytes: at_least(1, response_bytes),
        }
    }

    /// Bytes of the request, its header included.
    pub fn request_bytes(self) -> u64 {
        self.request_bytes
    }

    /// Bytes of the response.
    pub fn response_bytes(self) -> u64 {
        self.response_bytes
    }

    /// The head of the request.
    pub fn header(self) -> [u8; HEADER_BYTES] {
        let mut header = [0; HEADER_BYTES];
        header[..8].copy_from_slice(&self.request_bytes.to_be_bytes());
        header[8..].copy_from_slice(&self.response_bytes.to_be_bytes());
        header
    }

    /// `None`: no requester of ours sends that.
    pub(crate) fn parse(header: [u8; HEADER_BYTES]) -> Option<Self> {
        let number = |bytes: &[u8]| bytes.iter().fold(0, |sum, &byte| sum << 8 | u64::from(byte));
        let exchange =
            Self { request_bytes: number(&header[..8]), response_bytes: number(&header[8..]) };
        (exchange == Self::new(exchange.request_bytes, exchange.response_bytes)).then_some(exchange)
    }
}

/// The pattern of one direction of a connection, from its first byte on. Headers are no part of it.
#[derive(Debug, Default)]
pub struct PatternBytes {
    position: u64,
}

impl PatternBytes {
    /// The next bytes: `len`, or [`STEP_BYTES`] if that is less.
    pub fn next(&mut self, len: u64) -> &'static [u8] {
        static PATTERN: LazyLock<Vec<u8>> = LazyLock::new(|| {
            let mut bytes = vec![0; PERIOD_BYTES];
            fastrand::Rng::with_seed(0).fill(&mut bytes);
            bytes.extend_from_within(..STEP_BYTES);
            bytes
        });
        let start = (self.position % PERIOD_BYTES as u64) as usize;
        let len = len.min(STEP_BYTES as u64);
        self.position += len;
        &PATTERN[start..start + len as usize]
    }

    /// Whether `bytes`, at most [`STEP_BYTES`], are the next ones.
    pub fn matches_next(&mut self, bytes: &[u8]) -> bool {
        self.next(bytes.len() as u64) == bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_header_is_read_as_it_was_written() {
        for exchange in [Exchange::new(0, 0), Exchange::new(64, 1024), Exchange::new(1 << 40, 1)] {
            assert_eq!(Exchange::parse(exchange.header()), Some(exchange));
        }
        assert_eq!(Exchange::parse([0; HEADER_BYTES]), None);
    }

    #[test]
    fn filling_shows_what_is_lost_doubled_or_altered() {
        let bytes: Vec<u8> = PatternBytes::default().next(4096).to_vec();
        let seen = |bytes: &[u8]| {
            let mut pattern = PatternBytes::default();
            bytes.chunks(100).all(|bytes| pattern.matches_next(bytes))
        };
        assert!(seen(&bytes));
        let without = [&bytes[..700], &bytes[701..]].concat();
        let doubled = [&bytes[..700], &bytes[600..]].concat();
        let mut altered = bytes.clone();
        altered[4095] ^= 1;
        assert!(!seen(&without) && !seen(&doubled) && !seen(&altered));
    }
}
