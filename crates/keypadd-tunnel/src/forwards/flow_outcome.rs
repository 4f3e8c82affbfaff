//! Describes how a UDP flow ended.

use keypadd_transport::FlowEnd;

use crate::forwards::splice_error::SpliceError;

/// How a flow ended.
#[derive(Debug)]
pub(crate) enum FlowOutcome {
    /// Here.
    Here(FlowEnd),
    /// At the other end, or with the connection.
    There(SpliceError),
}
