//! Carries a connection of another process to its end: counted, logged and within the budget of descriptors,
//! as one that was accepted or dialed here.

use std::sync::Arc;

use keypadd_transport::{HandedStream, HeldStreams, Splice};

use crate::{
    forwards::connection_log::ConnectionRecord,
    limits::{
        Limits,
        descriptors::{Holder, OF_CONNECTION},
    },
    sessions::counts::ForwardCounts,
    wire::StreamCode,
};

/// Holds the stream among those of `peer` at once; the returned task ends with it, and resets it if dropped.
pub(crate) fn adopt(
    stream: HandedStream,
    streams: &HeldStreams,
    counts: &Arc<ForwardCounts>,
    limits: &Arc<Limits>,
    (peer, holder): (&str, Holder),
) -> impl Future<Output = ()> + Send + use<> {
    let record = ConnectionRecord::adopted(limits, peer, stream.record.label());
    let count = counts.count(record.name());
    let name = match holder {
        Holder::Peer(_) => peer,
        Holder::Client(_) => record.name(),
    };
    let descriptors = limits.descriptors.acquire(holder, name, OF_CONNECTION);
    let spliced = Splice::adopt(stream, streams, StreamCode::ShuttingDown.into());
    async move {
        let _held = (count, descriptors);
        record.follow(spliced).await;
    }
}
