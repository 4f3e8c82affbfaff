//! Reads operations and their arguments from the bytes of an input. Knows no target.

/// What is left of an input.
pub(crate) struct Input<'a>(&'a [u8]);

impl<'a> Input<'a> {
    pub(crate) fn new(bytes: &'a [u8]) -> Self {
        Self(bytes)
    }

    /// The next byte; `None` at the end, where an input stops.
    pub(crate) fn byte(&mut self) -> Option<u8> {
        self.bytes(1).first().copied()
    }

    /// A number of two bytes, big-endian.
    pub(crate) fn short(&mut self) -> Option<usize> {
        let bytes = self.bytes(2).try_into().ok()?;
        Some(usize::from(u16::from_be_bytes(bytes)))
    }

    /// The next bytes, fewer at the end.
    pub(crate) fn bytes(&mut self, count: usize) -> &'a [u8] {
        let (bytes, rest) = self.0.split_at(count.min(self.0.len()));
        self.0 = rest;
        bytes
    }
}
