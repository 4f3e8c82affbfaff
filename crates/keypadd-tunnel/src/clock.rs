//! Detects clock jumps, and stops all output until every older connection is closed.

pub(crate) mod clones;
pub(crate) mod egress_gate;
pub(crate) mod jump;
pub(crate) mod monitor;
