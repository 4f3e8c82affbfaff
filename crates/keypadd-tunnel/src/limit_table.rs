//! Lists the limits of sessions, their forwards and what peers make this end log, for their tables in
//! docs/limits.md.

use keypadd_share::{Rate, SOURCES_MAX};
use keypadd_transport::STREAM_MIN_BYTES;
use testbed::limits::{Amount, Limit, Words, compare};

use crate::{
    forwards::remote_listen::LISTENERS_MAX,
    limits::{
        memory::{
            CONNECTION_BYTES, CONNECTIONS_MAX, RECEIVED_BYTES_MAX, RECEIVED_ONE_IN, SENT_ONE_IN,
        },
        peer_log,
    },
    net::{
        host_ports::{REUSE_TIME, TIME_WAIT},
        lookup::{OF_CLIENT, SHARED_MAX},
    },
    networks,
    pairing::inviter::CLAIMS_MAX,
    sessions::{
        carries::NETWORKS_MAX,
        control,
        hold::{
            HoldSettings,
            resume_rate::{BURST_MIN, REFILL},
        },
    },
};

/// The limits of sessions, their forwards and what peers make this end log.
const LIMITS: &[Limit] = &[
    Limit {
        resource: "invited connections without a proof",
        holder: "IPv4 address or IPv6 /64",
        total: Amount::Count(CLAIMS_MAX as u64),
        rule: Words("what is free", &[]),
        when_reached: "the oldest of the busiest source is closed",
        setting: None,
        test: "strangers_that_send_no_proof_make_room_for_the_host_that_has_it",
    },
    Limit {
        resource: "log lines about strangers, of each kind",
        holder: "IPv4 address or IPv6 /64",
        total: Amount::Rate(Rate::ONE_A_MINUTE),
        rule: Words(
            "one for each; beyond {} sources, one together",
            &[Amount::Count(SOURCES_MAX as u64)],
        ),
        when_reached: "the line is counted and not written",
        setting: None,
        test: "untracked_sources_share_one_line_and_use_no_memory",
    },
    Limit {
        resource: "log lines about a peer",
        holder: "key",
        total: Amount::Rate(peer_log::RATE),
        rule: Words("the same for each", &[]),
        when_reached: "the lines are counted, and told of once a minute",
        setting: None,
        test: "a_peer_that_churns_sessions_listeners_and_streams_writes_few_lines_and_is_told_of_by_count",
    },
    Limit {
        resource: "gone clients whose bytes are still delivered",
        holder: "key",
        total: Amount::Words(Words("as many as sessions", &[])),
        rule: Words("the same for each", &[]),
        when_reached: "what the next one has sent is reset",
        setting: Some("max-sessions-per-key"),
        test: "what_gone_clients_of_a_key_have_sent_is_delivered_for_as_many_as_it_may_have_sessions",
    },
    Limit {
        resource: "connections without a hello",
        holder: "key",
        total: Amount::Words(Words("twice as many as sessions", &[])),
        rule: Words("the same for each", &[]),
        when_reached: "the connection is refused",
        setting: Some("max-sessions-per-key"),
        test: "a_key_has_few_connections_without_a_hello",
    },
    Limit {
        resource: "resumed sessions",
        holder: "key",
        total: Amount::Words(Words(
            "{} or twice as many as sessions, and as many again in each {}",
            &[Amount::Count(BURST_MIN as u64), Amount::Duration(REFILL)],
        )),
        rule: Words("the same for each", &[]),
        when_reached: "the session waits, and its streams are held",
        setting: Some("max-sessions-per-key"),
        test: "all_sessions_of_a_key_come_back_twice_at_once_and_then_some_each_second",
    },
    Limit {
        resource: "bytes of a peer's streams that may have to be sent again",
        holder: "stream",
        total: Amount::Words(Words(
            "{} of a peer, {} of a stream",
            &[
                Amount::Bytes(HoldSettings::OFF.peer_bytes as u64),
                Amount::Bytes(HoldSettings::OFF.stream_bytes as u64),
            ],
        )),
        rule: Words(
            "{}, and of one half no more than is free",
            &[Amount::Bytes(STREAM_MIN_BYTES as u64)],
        ),
        when_reached: "the stream's socket is not read",
        setting: None,
        test: "streams_nobody_reads_leave_every_other_stream_room",
    },
    Limit {
        resource: "bytes per second to a peer",
        holder: "peer",
        total: Amount::Words(Words("none, unless it is set", &[])),
        rule: Words("all sessions of the peer together", &[]),
        when_reached: "what is to be sent waits",
        setting: Some("max-rate"),
        test: "both_connections_of_a_session_send_no_more_than_the_peers_cap_together",
    },
    Limit {
        resource: "receive windows beyond the first bytes",
        holder: "connection",
        total: Amount::Words(Words(
            "{}, or one part in {} of the memory if that is less",
            &[Amount::Bytes(RECEIVED_BYTES_MAX), Amount::Count(RECEIVED_ONE_IN)],
        )),
        rule: Words(
            "a seventh of what it leaves free; while sockets are slow, three times what it leaves",
            &[],
        ),
        when_reached: "the window grows no further",
        setting: None,
        test: "a_greedy_connection_leaves_some_of_the_budget_to_the_next",
    },
    Limit {
        resource: "what was sent and may have to be sent again",
        holder: "peer, or connection that holds nothing",
        total: Amount::Words(Words(
            "one part in {} of a limited memory",
            &[Amount::Count(SENT_ONE_IN)],
        )),
        rule: Words("a third of what it leaves free", &[]),
        when_reached: "its streams' sockets are not read",
        setting: None,
        test: "greedy_peers_leave_some_of_the_memory_of_all_to_the_next_one",
    },
    Limit {
        resource: "clients of a server, with one connection of each kind; handshakes of all loops",
        holder: "client",
        total: Amount::Words(Words(
            "one for each {} of the memory, at most {}; without a limit of the memory at least {}",
            &[
                Amount::Bytes(CONNECTION_BYTES),
                Amount::Count(CONNECTIONS_MAX[1]),
                Amount::Count(CONNECTIONS_MAX[0]),
            ],
        )),
        rule: Words("what is free", &[]),
        when_reached: "the connection is refused",
        setting: None,
        test: "a_full_server_refuses_connections_as_such",
    },
    Limit {
        resource: "control frames",
        holder: "session",
        total: Amount::Rate(control::RATE),
        rule: Words("the same for each", &[]),
        when_reached: "more wait unread",
        setting: None,
        test: "unknown_frames_are_read_at_the_rate_of_all",
    },
    Limit {
        resource: "connections without a complete SOCKS request or PROXY header",
        holder: "forwards of a session",
        total: Amount::Words(Words("places and open files", &[])),
        rule: Words("what is free", &[]),
        when_reached: "the oldest is closed",
        setting: Some("max-forwards"),
        test: "a_connection_without_a_request_gives_its_place_to_a_newer_one_of_any_listener",
    },
    Limit {
        resource: "remote forwards",
        holder: "session",
        total: Amount::Count(LISTENERS_MAX as u64),
        rule: Words("the same for each", &[]),
        when_reached: "the next one is refused",
        setting: None,
        test: "a_client_that_requests_hundreds_of_listeners_gets_64_and_affects_no_other",
    },
    Limit {
        resource: "networks",
        holder: "session",
        total: Amount::Count(NETWORKS_MAX as u64),
        rule: Words("the same for each", &[]),
        when_reached: "the next one is refused",
        setting: None,
        test: "a_peer_has_one_network_however_many_it_asks_for",
    },
    Limit {
        resource: "log lines about dropped packets of a network, of each reason",
        holder: "peer",
        total: Amount::Rate(networks::DROPPED_RATE),
        rule: Words("the same for each", &[]),
        when_reached: "the packets are counted, and the next line has their number",
        setting: None,
        test: "packets_dropped_for_a_reason_cause_one_line_a_minute_with_their_count",
    },
    Limit {
        resource: "local ports of TCP connections to one address and port",
        holder: "peer",
        total: Amount::Words(Words(
            "those of `net.ipv4.ip_local_port_range` at the start; one that this end has closed \
             first counts for {} more, or {} where the kernel uses it again",
            &[Amount::Duration(TIME_WAIT), Amount::Duration(REUSE_TIME)],
        )),
        rule: Words("as much as it leaves free", &[]),
        when_reached: "the connection is refused",
        setting: Some("net.ipv4.tcp_tw_reuse"),
        test: "quick_connections_of_one_peer_to_a_target_leave_local_ports_to_another",
    },
    Limit {
        resource: "name lookups",
        holder: "client",
        total: Amount::CountOf { each: OF_CLIENT as u64, all: SHARED_MAX as u64 },
        rule: Words("the same for each; one of them is beside those of all", &[]),
        when_reached: "the next one waits",
        setting: None,
        test: "a_client_looks_names_up_though_all_that_clients_share_is_taken",
    },
];

#[test]
fn the_page_of_limits_shows_the_table_of_the_code() {
    compare("keypadd-tunnel", LIMITS, &|setting| panic!("{setting}: no setting of this crate"));
}
