//! Lists the limits of the daemon's own sockets, and those that follow from the host and from settings,
//! for their tables in docs/limits.md.

use keypadd_config::Settings;
use keypadd_tunnel::{FORWARD_BYTES_MIN, FORWARDS_ONE_IN};
use testbed::limits::{Amount, Limit, Words, compare};

use crate::control;
use crate::daemon::descriptors::{RESERVED_MAX, RESERVED_MIN};
use crate::daemon::pooling::BUDGET_ONE_IN;
use crate::status::metrics;

/// The limits of the daemon's own sockets, and those that follow from the host and from settings.
const LIMITS: &[Limit] = &[
    Limit {
        resource: "sessions",
        holder: "key",
        total: Amount::Default("max-sessions-per-key"),
        rule: Words("the same for each", &[]),
        when_reached: "a client that is away longest loses its place; without one, the session is \
                       refused",
        setting: Some("max-sessions-per-key"),
        test: "a_session_beyond_the_limit_of_its_key_is_refused_by_the_name_of_the_setting",
    },
    Limit {
        resource: "open connections and UDP flows, each way",
        holder: "forward",
        total: Amount::Words(Words("{} of a session", &[Amount::Default("max-forwards")])),
        rule: Words(
            "those that wait for its target, times the forwards with such, \
             are no more than are free",
            &[],
        ),
        when_reached: "the next one waits",
        setting: Some("max-forwards"),
        test: "a_forward_whose_target_does_not_answer_leaves_places_to_the_others",
    },
    Limit {
        resource: "open files for forwards",
        holder: "peer, or this end's programs",
        total: Amount::Words(Words(
            "those of the process, without own listeners and a reserve of {} to {}, and no more \
             than 2 for each {} of one part in {} of a limited memory",
            &[
                Amount::Count(RESERVED_MIN as u64),
                Amount::Count(RESERVED_MAX as u64),
                Amount::Bytes(FORWARD_BYTES_MIN),
                Amount::Count(FORWARDS_ONE_IN),
            ],
        )),
        rule: Words("as many as it leaves free", &[]),
        when_reached: "clients of its key that are away lose theirs; then it is refused or waits",
        setting: Some("LimitNOFILE="),
        test: "a_greedy_holder_leaves_as_many_free_as_it_has_and_the_next_gets_some",
    },
    Limit {
        resource: "memory of the pool",
        holder: "pool",
        total: Amount::Words(Words(
            "one part in {} of the memory",
            &[Amount::Count(BUDGET_ONE_IN)],
        )),
        rule: Words("its budget", &[]),
        when_reached: "the budget is cut, and a line says so",
        setting: Some("pool-budget"),
        test: "a_budget_is_at_most_an_eighth_of_the_memory_and_by_default_a_sixteenth",
    },
    Limit {
        resource: "connections of the control socket",
        holder: "the daemon's user",
        total: Amount::Count(control::CONNECTIONS_MAX as u64),
        rule: Words("what is free", &[]),
        when_reached: "the oldest that has sent no request is closed; without one, the next one \
            waits",
        setting: None,
        test: "connections_that_send_nothing_or_wait_for_the_daemon_do_not_delay_a_request",
    },
    Limit {
        resource: "connections of `/metrics`",
        holder: "anyone who can connect",
        total: Amount::Count(metrics::CONNECTIONS_MAX as u64),
        rule: Words("what is free", &[]),
        when_reached: "the oldest is closed",
        setting: None,
        test: "silent_control_connections_and_scrapers_that_take_all_open_files_do_not_delay_status",
    },
];

/// What a setting is unless somebody sets it.
fn default_of(setting: &str) -> u64 {
    let key = Settings::KEYS.iter().find(|key| key.name == setting);
    key.and_then(|key| key.default.parse().ok()).expect("a number, by default")
}

#[test]
fn the_page_of_limits_shows_the_table_of_the_code() {
    compare("keypadd-daemon", LIMITS, &default_of);
}
