//! Lists the limits of routed networks, for their table in docs/limits.md.

use testbed::limits::{Amount, Limit, Words, compare};

use crate::{
    answers::{REFUSAL_RATE, TOO_BIG_RATE},
    coalescer::{CONNECTIONS_MAX, SEGMENTS_MAX},
    codel::TARGET,
    flows::{FLOWS_MAX, IDLE_MAX, TCP_IDLE_MAX},
    packet_queue::{QUEUE_BYTES_MAX, QUEUES, WAIT_MAX},
};

/// The limits of routed networks.
const LIMITS: &[Limit] = &[
    Limit {
        resource: "flows that began here, and whose answers pass from a peer's networks",
        holder: "peer",
        total: Amount::Count(FLOWS_MAX as u64),
        rule: Words(
            "all of them; idle for at most {}, of TCP {}",
            &[Amount::Duration(IDLE_MAX), Amount::Duration(TCP_IDLE_MAX)],
        ),
        when_reached: "the flow unused for longest is forgotten",
        setting: None,
        test: "the_flow_unused_for_longest_makes_room_for_a_new_one",
    },
    Limit {
        resource: "packets of networks that wait to be sent",
        holder: "peer",
        total: Amount::Bytes(QUEUE_BYTES_MAX as u64),
        rule: Words(
            "flows, spread over {} queues, share in bytes; one whose packets all wait for more \
             than {} (over a round trip of more than 100 ms, a twentieth of it, at most 50 ms) loses \
             some or has them marked (FQ-CoDel, RFC 8290); none is sent after {}",
            &[Amount::Count(QUEUES as u64), Amount::Duration(TARGET), Amount::Duration(WAIT_MAX)],
        ),
        when_reached: "the longest queue loses its oldest packets",
        setting: None,
        test: "the_longest_queue_makes_room",
    },
    Limit {
        resource: "connections whose segments are joined for a device",
        holder: "device of a network",
        total: Amount::Count(CONNECTIONS_MAX as u64),
        rule: Words(
            "{} segments of each, as far as they have arrived together",
            &[Amount::Count(SEGMENTS_MAX as u64)],
        ),
        when_reached: "those of the oldest go to the device",
        setting: None,
        test: "as_much_is_joined_as_a_packet_of_ip_holds_and_no_more",
    },
    Limit {
        resource: "ICMP errors about packets that are too big",
        holder: "device of a network",
        total: Amount::Rate(TOO_BIG_RATE),
        rule: Words("the same for each", &[]),
        when_reached: "the packet is carried, its sender is not told",
        setting: None,
        test: "errors_come_at_a_limited_rate_and_those_about_size_have_their_own",
    },
    Limit {
        resource: "ICMP errors about packets that may not pass",
        holder: "device of a network",
        total: Amount::Rate(REFUSAL_RATE),
        rule: Words("the same for each", &[]),
        when_reached: "the packet is dropped and counted, its sender is not told",
        setting: None,
        test: "errors_come_at_a_limited_rate_and_those_about_size_have_their_own",
    },
];

#[test]
fn the_page_of_limits_shows_the_table_of_the_code() {
    compare("keypadd-network", LIMITS, &|setting| panic!("{setting}: no setting of this crate"));
}
