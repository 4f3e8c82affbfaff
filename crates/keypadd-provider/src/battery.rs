//! Tests packet protection as a whole: every suite with pads from every source, against independent
//! vectors and against itself.
//!
//! The claims are those of `docs/argument.md`: pooled bytes equal inline bytes (I2), no number is
//! sealed twice (I3), forged and replayed packets cost no keystream (I4, I5). No test depends on
//! timing; they wait for the filler.

mod allocations;
mod forgeries;
mod jumps;
mod late;
mod modes;
mod pacing;
mod replays;
mod rfc9001;
mod sealing;
mod support;
mod updates;
mod vectors;
