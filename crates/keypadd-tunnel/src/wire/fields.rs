//! Reads the fields of a frame's body, one after the other.

use crate::wire::error::WireError;

/// The rest of a body.
pub(super) struct Fields<'a> {
    pub(super) kind: u8,
    pub(super) rest: &'a [u8],
}

impl<'a> Fields<'a> {
    pub(super) fn array<const BYTES: usize>(&mut self) -> Result<[u8; BYTES], WireError> {
        let short = WireError::ShortFrame { kind: self.kind };
        let (&field, rest) = self.rest.split_first_chunk().ok_or(short)?;
        self.rest = rest;
        Ok(field)
    }

    pub(super) fn byte(&mut self) -> Result<u8, WireError> {
        self.array::<1>().map(|[byte]| byte)
    }

    pub(super) fn number(&mut self) -> Result<u16, WireError> {
        self.array().map(u16::from_be_bytes)
    }

    pub(super) fn long(&mut self) -> Result<u32, WireError> {
        self.array().map(u32::from_be_bytes)
    }

    /// Text with its length in one byte before it.
    pub(super) fn text(&mut self) -> Result<&'a str, WireError> {
        let bytes = usize::from(self.byte()?);
        let short = WireError::ShortFrame { kind: self.kind };
        let (text, rest) = self.rest.split_at_checked(bytes).ok_or(short)?;
        self.rest = rest;
        str::from_utf8(text).map_err(|_| WireError::NotText)
    }
}
