//! Detects clock jumps, and stops all output until the connections from before are closed.

pub(crate) mod clones;
pub(crate) mod egress_gate;
pub(crate) mod jump;
pub(crate) mod monitor;
