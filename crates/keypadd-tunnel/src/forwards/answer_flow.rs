//! Answers a stream that the other end opened for a UDP flow: connects a socket to the target, and
//! carries the flow until it ends.

use std::net::UdpSocket;

use tracing::info;

use crate::{
    forwards::{
        flows::follow,
        request::{Connected, Request},
    },
    limits::descriptors::OF_FLOW,
    wire::{CONNECTED, StreamCode},
};

/// Carries a flow over the socket that `dialing` connects, or resets the stream with the code.
pub(crate) async fn carry_flow(
    request: Request<'_>,
    dialing: impl Future<Output = Result<UdpSocket, StreamCode>>,
) -> Result<(), StreamCode> {
    let (session, name) = (request.session, request.name);
    if !session.connection.carries_datagrams() {
        return Err(request.refuse(StreamCode::NoDatagrams));
    }
    let connected = request.connect(OF_FLOW, dialing).await?;
    let Connected { socket, stream, mut record, claimed: (_descriptors, count) } = connected;
    let _count = count.of_flow();
    let flow = session.connection.carry(&stream, socket);
    let carried = flow.carried();
    record.set_carried(flow.carried());
    // If the connection is lost, the flow ends.
    let _ = stream.send.write_all(&[CONNECTED]).await;
    follow(flow, stream, &mut record).await;
    let is_mute = carried.from_socket() == 0 && carried.unreachable() > 0;
    if is_mute && session.may_log_mute_target(name) {
        let peer = session.peer();
        info!(peer, target = name, "target unreachable: nothing is listening there (ICMP)");
    }
    Ok(())
}
