//! The bytes that the two ends say to each other inside QUIC streams.
//!
//! The first bidirectional stream that the client opens is the control stream: frames of
//! `u16 length | u8 type | body`, the length being the body's, big-endian. Types that are not known
//! are skipped, so that later versions may say more. Every other stream starts with a header of
//! four bytes and perhaps a host or a path, and is answered by one byte 0, or by a reset whose
//! code says why not. Everything here is a total function on bytes: no sockets, no panics.

mod code;
mod error;
mod frame;
mod header;

pub use code::{CloseCode, ListenCode, StreamCode};
pub use error::WireError;
pub use frame::{FRAME_HEAD_BYTES, Frame, FrameHead, Instance, SessionToken};
pub use header::{CONNECTED, STREAM_HEAD_BYTES, StreamHead, StreamHeader};

/// Version of the control protocol that this end speaks.
pub const VERSION: u8 = 1;

#[cfg(test)]
mod tests;
