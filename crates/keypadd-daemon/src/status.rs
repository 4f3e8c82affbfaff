//! What a daemon tells about itself: one snapshot, shown as JSON, as text and as metrics over HTTP,
//! and its connections.

pub(crate) mod connections;
pub(crate) mod metrics;
pub(crate) mod peers;
mod prometheus;
pub(crate) mod rates;
pub(crate) mod snapshot;
pub(crate) mod sources;
pub(crate) mod text;
