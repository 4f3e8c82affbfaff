//! Answers a stream that the other end opened for a UDP flow: connects a socket to the target, and carries the
//! flow to its end.

use std::{net::UdpSocket, time::Instant};

use keypadd_transport::Stream;
use tracing::{debug, info};

use crate::{
    forwards::{connection_log::ConnectionRecord, flows::follow},
    limits::descriptors::OF_FLOW,
    sessions::session::LiveSession,
    wire::{CONNECTED, StreamCode},
};

/// Carries a flow with the socket that `dialing` connects, or resets the stream with the code.
pub(crate) async fn carry_flow(
    session: &LiveSession,
    name: &str,
    stream: Stream,
    dialing: impl Future<Output = Result<UdpSocket, StreamCode>>,
    mut record: ConnectionRecord,
) -> Result<(), StreamCode> {
    record.set_peer(session.peer());
    let refused = |mut record: ConnectionRecord, stream: Stream, code: StreamCode| {
        debug!(peer = session.peer(), target = name, %code, "no flow");
        record.refused(code);
        stream.reset(code.into());
        Err(code)
    };
    if !session.connection.carries_datagrams() {
        return refused(record, stream, StreamCode::NoDatagrams);
    }
    let Some(_descriptors) = session.descriptors(OF_FLOW) else {
        return refused(record, stream, StreamCode::OpenFiles);
    };
    let _count = session.count_connection(name);
    let stopped = stream.send.stopped();
    let dialed = tokio::select! {
        dialed = dialing => dialed,
        // The other end has given up.
        _ = stopped => Err(StreamCode::Reset),
    };
    let socket = match dialed {
        Ok(socket) => socket,
        Err(code) => return refused(record, stream, code),
    };
    let flow = session.connection.carry(&stream, socket);
    let carried = flow.carried();
    record.set_carried(flow.carried());
    // If the connection is lost, the flow ends.
    let _ = stream.send.write_all(&[CONNECTED]).await;
    follow(flow, stream, &mut record).await;
    let is_mute = carried.from_socket() == 0 && carried.unreachable() > 0;
    if is_mute && session.limits.mute_targets.allow(name.into(), Instant::now()) {
        let peer = session.peer();
        info!(peer, target = name, "the target cannot be reached: nobody listens there (ICMP)");
    }
    Ok(())
}
