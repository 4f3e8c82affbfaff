//! Lists the limits of event loops and their connections, for the table of all limits.

use keypadd_share::{Amount, Limit};

use crate::{
    admission::SLOTS,
    intake::{
        backlog,
        handling_cost::{ADVANCE, SHARE},
        newcomers,
    },
    owed::OWED_PACKETS_MAX,
};

/// The limits of event loops and their connections.
pub const LIMITS: &[Limit] = &[
    Limit {
        resource: "handshakes in progress, of a loop",
        holder: "network",
        total: Amount::Count(SLOTS as u64),
        rule: "from 384 on, shares by the length of its prefix",
        when_reached: "the busiest network loses its oldest",
        setting: None,
        test: "a_full_table_gives_up_the_oldest_of_the_busiest_network",
    },
    Limit {
        resource: "newcomers that wait for a loop's time",
        holder: "network",
        total: Amount::Count(newcomers::PLACES as u64),
        rule: "the network with the fewest handshakes is next",
        when_reached: "the oldest of the busiest network is ignored",
        setting: None,
        test: "without_room_the_busiest_network_loses_its_oldest_newcomer",
    },
    Limit {
        resource: "CPU time of a loop beyond what datagrams usually take",
        holder: "connection",
        total: Amount::Time { advance: ADVANCE, one_in: SHARE },
        rule: "the same for each",
        when_reached: "its datagrams are dropped",
        setting: None,
        test: "a_connection_whose_datagrams_take_too_much_cpu_time_gets_its_share_of_it_only",
    },
    Limit {
        resource: "datagrams that wait for a loop's time",
        holder: "connection",
        total: Amount::Bytes(backlog::BYTES_MAX),
        rule: "as much as it leaves free",
        when_reached: "its datagrams are dropped",
        setting: None,
        test: "whoever_sends_most_loses_most",
    },
    Limit {
        resource: "growth of receive windows while sockets are slow",
        holder: "connection",
        total: Amount::Text("4 GiB, or a quarter of the memory if that is less"),
        rule: "three times what it leaves free",
        when_reached: "the window grows no further",
        setting: None,
        test: "a_greedy_connection_leaves_some_of_the_budget_to_the_next",
    },
    Limit {
        resource: "bytes of a peer's streams that may have to be sent again",
        holder: "stream",
        total: Amount::Text("256 MiB of a peer, 64 MiB of a stream"),
        rule: "128 KiB, and of one half no more than is free",
        when_reached: "the stream's socket is not read",
        setting: None,
        test: "streams_nobody_reads_leave_every_other_stream_room",
    },
    Limit {
        resource: "packets that wait for acknowledgment, beside those of twice the window",
        holder: "connection",
        total: Amount::Count(OWED_PACKETS_MAX),
        rule: "the same for each",
        when_reached: "two packets a second are sent",
        setting: None,
        test: "a_peer_that_acknowledges_nothing_is_sent_no_more_until_it_does",
    },
];
