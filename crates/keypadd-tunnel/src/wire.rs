//! Encodes and decodes what the two ends send in QUIC streams.
//!
//! The first bidirectional stream of the client is the control stream: frames of `u16 length | u8
//! type | body`, big-endian, where the length is that of the body. Frames of unknown types are
//! skipped, so that later versions can add types. Every other stream starts with a header of four
//! bytes and an optional host or path. The answer is one byte 0, or a reset with a code. No sockets
//! here, and no input panics.

mod code;
mod error;
mod fields;
mod frame;
mod header;
mod hello;
mod network;

pub use code::{CloseCode, ListenCode, StreamCode};
pub use error::WireError;
pub use frame::{FRAME_HEAD_BYTES, Frame, FrameHead};
pub use header::{CONNECTED, Claim, STREAM_HEAD_BYTES, StreamHead, StreamHeader};
pub use hello::{HoldGrant, HoldRequest, Instance};
pub use network::{NETWORKS_MAX, NetworkAnnouncement};

/// Version of the control protocol that this end uses.
pub const VERSION: u8 = 1;

#[cfg(test)]
mod tests;
