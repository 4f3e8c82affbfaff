//! Works out the limits and QUIC's configuration of a connection from the plan of its endpoint.

use std::{net::SocketAddr, sync::Arc, time::Instant};

use quinn_proto::{AckFrequencyConfig, Dir, TransportConfig};

use super::EndpointShared;
use crate::{
    cid::Purpose, congestion::ACK_DELAY, driver::ConnectionLimits, flight::Flight,
    gate::CongestionGate, route, settings::Streams, stream_credit::StreamCredit,
    windows::ReceiveWindow,
};

/// Received DATAGRAM frames buffered until their connection is driven: as many as a round receives.
const DATAGRAM_BUFFER_BYTES: usize = 1 << 20;

/// Bulk packets per ACK, unless [`ACK_DELAY`] passes first. If every second packet were
/// acknowledged, ACKs alone would fill a return path that is 40 times slower than the forward path.
const BULK_ACK_PACKETS: u32 = 10;

/// The limits and the configuration of one connection to `peer`.
pub(super) fn limits(
    shared: &EndpointShared,
    peer: SocketAddr,
    purpose: Purpose,
    now: Instant,
) -> (ConnectionLimits, TransportConfig) {
    let plan = &shared.plan;
    let flight = Flight::new(plan.flight_first, plan.flight_max, Arc::clone(&shared.memory.sent));
    let (gate, factory) = CongestionGate::new(plan.congestion.clone(), flight, now);
    let windows = plan.windows(purpose);
    let Streams { bidirectional, unidirectional } = plan.streams;
    // Indexed by `Dir`.
    let stream_credits = [bidirectional, unidirectional].map(StreamCredit::new);
    let mut transport = (plan.transport)(route::payload_max(peer));
    transport
        .datagram_receive_buffer_size(Some(DATAGRAM_BUFFER_BYTES))
        .congestion_controller_factory(factory)
        .stream_receive_window(windows.stream.into())
        .receive_window(windows.first.into())
        .max_concurrent_bidi_streams(stream_credits[Dir::Bi as usize].current())
        .max_concurrent_uni_streams(stream_credits[Dir::Uni as usize].current());
    if purpose.is_bulk() {
        transport.ack_frequency_config(Some(bulk_acks()));
    }
    let window = ReceiveWindow::new(windows, Arc::clone(&shared.memory.received));
    (ConnectionLimits { gate, window, stream_credits }, transport)
}

/// When a receiver of bulk is to acknowledge it.
fn bulk_acks() -> AckFrequencyConfig {
    let mut acks = AckFrequencyConfig::default();
    // An ACK is due once there are more packets than the threshold; at each gap, too (RFC 9000
    // 13.2.1).
    acks.ack_eliciting_threshold((BULK_ACK_PACKETS - 1).into())
        .max_ack_delay(Some(ACK_DELAY))
        .reordering_threshold(1_u32.into());
    acks
}
