//! What a daemon tells about itself: the schema of its status, its text, and its metrics over HTTP.

pub(crate) mod metrics;
pub(crate) mod rates;
pub(crate) mod report;
pub(crate) mod sources;
pub(crate) mod text;
