//! Measurements of keypadd: seeded traffic, arms that take turns, statistics, reports.
//!
//! Runs both ends of a tunnel, or the near end of one whose far end permits it, sends traffic through
//! it and says what that cost, with intervals. It measures what ships and adds nothing to the way of
//! the data. Knows no command line and prints nothing.

#![cfg_attr(test, allow(clippy::unwrap_used))]
