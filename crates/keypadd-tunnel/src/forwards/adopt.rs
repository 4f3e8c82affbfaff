//! Carries a connection taken over from another process until it ends: counted, logged and in the
//! descriptor budget, like one that was accepted or dialed here. It is open, so it always counts.

use std::sync::Arc;

use keypadd_transport::{HandedStream, HeldStreams, Splice};

use crate::{
    forwards::{connection_log::ConnectionRecord, splice_error::SpliceError},
    limits::{
        SharedLimits,
        descriptors::{Holder, OF_CARRIED, OF_CONNECTION},
        places::Slot,
    },
    sessions::counts::ForwardCounts,
    wire::StreamCode,
};

/// Holds the stream with those of `peer`; the returned task ends with the stream, and resets it if
/// dropped. `slot` is its place, if this end accepted the connection.
pub(crate) fn adopt(
    stream: HandedStream,
    streams: &HeldStreams,
    counts: &Arc<ForwardCounts>,
    limits: &Arc<SharedLimits>,
    (peer, holder): (&str, Holder),
    slot: Option<Slot>,
) -> impl Future<Output = Result<(), SpliceError>> + Send + use<> {
    let record = ConnectionRecord::adopted(limits, peer, stream.record.label());
    let count = counts.count(&record.name());
    let count_of = if stream.descriptors.is_empty() { OF_CONNECTION } else { OF_CARRIED };
    let descriptors = limits.descriptors.shares().adopt(holder, count_of);
    let spliced = Splice::adopt(stream, streams, StreamCode::Shutdown.into());
    async move {
        let _held = (count, descriptors, slot);
        record.follow(spliced).await
    }
}
