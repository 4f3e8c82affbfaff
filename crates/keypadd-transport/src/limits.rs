//! Lists the limits of event loops and their connections, for their tables in docs/limits.md.

use testbed::limits::{Amount, Limit, Words, compare};

use crate::{
    admission::{ROOMY, SLOTS},
    flows::{fragments, send_queue},
    intake::{
        backlog,
        handling_cost::{ADVANCE, SHARE},
        newcomers,
    },
    owed::OWED_PACKETS_MAX,
};

/// The limits of event loops and their connections.
const LIMITS: &[Limit] = &[
    Limit {
        resource: "handshakes in progress, of a loop",
        holder: "network",
        total: Amount::Count(SLOTS as u64),
        rule: Words(
            "from {} on, shares by the length of its prefix",
            &[Amount::Count(ROOMY as u64)],
        ),
        when_reached: "the busiest network loses its oldest",
        setting: None,
        test: "a_full_table_gives_up_the_oldest_of_the_busiest_network",
    },
    Limit {
        resource: "newcomers that wait for a loop's time",
        holder: "network",
        total: Amount::Count(newcomers::PLACES as u64),
        rule: Words("the network with the fewest handshakes is next", &[]),
        when_reached: "the oldest of the busiest network is ignored",
        setting: None,
        test: "without_room_the_busiest_network_loses_its_oldest_newcomer",
    },
    Limit {
        resource: "CPU time of a loop beyond what datagrams usually take",
        holder: "connection",
        total: Amount::Time { advance: ADVANCE, one_in: SHARE },
        rule: Words("the same for each", &[]),
        when_reached: "its datagrams are dropped",
        setting: None,
        test: "a_connection_whose_datagrams_take_too_much_cpu_time_gets_its_share_of_it_only",
    },
    Limit {
        resource: "datagrams that wait for a loop's time",
        holder: "connection",
        total: Amount::Bytes(backlog::BYTES_MAX),
        rule: Words("as much as it leaves free", &[]),
        when_reached: "its datagrams are dropped",
        setting: None,
        test: "whoever_sends_most_loses_most",
    },
    Limit {
        resource: "packets that wait for acknowledgment, beside those of twice the window",
        holder: "connection",
        total: Amount::Count(OWED_PACKETS_MAX),
        rule: Words("the same for each", &[]),
        when_reached: "two packets a second are sent",
        setting: None,
        test: "a_peer_that_acknowledges_nothing_is_sent_no_more_until_it_does",
    },
    Limit {
        resource: "datagrams of UDP flows that wait to be sent",
        holder: "flow",
        total: Amount::Words(Words(
            "{} of a connection",
            &[Amount::Bytes(send_queue::QUEUE_BYTES_MAX as u64)],
        )),
        rule: Words(
            "{} in {}",
            &[
                Amount::Count(send_queue::FLOW_DATAGRAMS_MAX as u64),
                Amount::Bytes(send_queue::FLOW_BYTES_MAX as u64),
            ],
        ),
        when_reached: "the oldest are dropped and counted",
        setting: None,
        test: "all_flows_together_hold_no_more_than_a_bound",
    },
    Limit {
        resource: "incomplete datagrams of UDP flows",
        holder: "connection",
        total: Amount::Words(Words(
            "{} in {}",
            &[
                Amount::Count(fragments::PARTIAL_MAX as u64),
                Amount::Bytes(fragments::PARTIAL_BYTES_MAX as u64),
            ],
        )),
        rule: Words("the same for each", &[]),
        when_reached: "the oldest are dropped and counted",
        setting: None,
        test: "what_a_peer_leaves_incomplete_stays_within_the_bounds",
    },
];

#[test]
fn the_page_of_limits_shows_the_table_of_the_code() {
    compare("keypadd-transport", LIMITS, &|setting| panic!("{setting}: no setting of this crate"));
}
