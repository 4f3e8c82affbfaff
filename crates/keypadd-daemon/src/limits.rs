//! The table of all limits: who gets how much of what, and what happens then. docs/limits.md shows
//! it, which a test compares.

use keypadd_share::{Amount, Limit, Words};
use keypadd_tunnel::{FORWARD_BYTES_MIN, FORWARDS_ONE_IN};

use crate::control;
use crate::daemon::descriptors::{RESERVED_MAX, RESERVED_MIN};
use crate::daemon::pooling::BUDGET_ONE_IN;
use crate::status::metrics;

/// All limits, by part of the program.
pub const TABLE: [&[Limit]; 3] = [keypadd_transport::LIMITS, keypadd_tunnel::LIMITS, OWN];

/// The limits of the daemon's own sockets, and those that follow from the host.
const OWN: &[Limit] = &[
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

#[cfg(test)]
mod tests {
    use std::env;
    use std::fs;

    use keypadd_config::Settings;

    use super::*;

    const PAGE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/limits.md");

    const HEAD: &str = "\
        | Resource | Holder | Total | One may have | When reached | Setting |\n\
        | --- | --- | --- | --- | --- | --- |\n";

    const TESTS_HEAD: &str = "\n| Limit | Test |\n| --- | --- |\n";

    /// Marks around the tables in the page.
    const BEGIN: &str = "<!-- limits -->\n";
    const END: &str = "<!-- end -->";

    /// What a setting is unless somebody sets it.
    fn default_of(setting: &str) -> u64 {
        let key = Settings::KEYS.iter().find(|key| key.name == setting);
        key.and_then(|key| key.default.parse().ok()).expect("a number, by default")
    }

    fn row(limit: &Limit) -> String {
        let Limit { resource, holder, total, rule, when_reached, setting, test: _ } = limit;
        let (total, rule) = (total.text(&default_of), rule.text(&default_of));
        let setting = setting.map(|setting| format!("`{setting}`")).unwrap_or_default();
        format!("| {resource} | {holder} | {total} | {rule} | {when_reached} | {setting} |\n")
    }

    fn test_row(Limit { resource, test, .. }: &Limit) -> String {
        // tests/docs.rs takes names with so many words for those of tests, and checks that they
        // exist.
        assert!(test.matches('_').count() >= 4, "{test}");
        format!("| {resource} | `{test}` |\n")
    }

    /// `LIMITS=overwrite` rewrites the tables.
    #[test]
    fn the_page_of_limits_shows_the_table_of_the_code() {
        let rows: String = TABLE.into_iter().flatten().map(row).collect();
        let tests: String = TABLE.into_iter().flatten().map(test_row).collect();
        let table = format!("{HEAD}{rows}{TESTS_HEAD}{tests}");
        let page = fs::read_to_string(PAGE).unwrap();
        let start = page.find(BEGIN).expect("a mark before the table") + BEGIN.len();
        let end = start + page[start..].find(END).expect("a mark after the table");
        let shown = &page[start..end];
        if env::var_os("LIMITS").is_some_and(|value| value == "overwrite") {
            fs::write(PAGE, [&page[..start], &table, &page[end..]].concat()).unwrap();
        } else {
            assert_eq!(shown, table, "LIMITS=overwrite rewrites it");
        }
    }
}
