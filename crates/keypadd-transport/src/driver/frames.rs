//! Counts the frames that ask for an ACK (RFC 9000 13.2), from quinn-proto's statistics.

use quinn_proto::FrameStats;

/// Frames that ask for an ACK.
#[must_use]
pub fn ack_eliciting(of: &FrameStats) -> u64 {
    of.ack_frequency
        + of.crypto
        + of.data_blocked
        + of.datagram
        + u64::from(of.handshake_done)
        + of.immediate_ack
        + of.max_data
        + of.max_stream_data
        + of.max_streams_bidi
        + of.max_streams_uni
        + of.new_connection_id
        + of.new_token
        + of.path_challenge
        + of.path_response
        + of.ping
        + of.reset_stream
        + of.retire_connection_id
        + of.stream_data_blocked
        + of.streams_blocked_bidi
        + of.streams_blocked_uni
        + of.stop_sending
        + of.stream
}
