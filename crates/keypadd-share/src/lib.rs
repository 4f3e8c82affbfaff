//! Says who gets how much of something that many want: shares of a total, rates, who makes room,
//! and when all that is underway has ended.
//!
//! Knows holders and numbers. Must never know what is shared out, keys, sockets, logs or a clock:
//! the caller passes the time, and says what happens to those that get nothing.

#![cfg_attr(test, allow(clippy::unwrap_used))]

mod bucket;
mod budget;
mod rates;
mod shares;
mod threshold;
mod underway;
mod waiting;

pub use bucket::{Bucket, Rate};
pub use budget::{Budget, Part};
pub use rates::{Rates, SOURCES_MAX};
pub use shares::{Share, Shares};
pub use threshold::threshold;
pub use underway::{Begun, Underway};
pub use waiting::Waiting;
