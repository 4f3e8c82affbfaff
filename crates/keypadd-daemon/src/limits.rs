//! The table of all limits: who gets how much of what, and what happens then. docs/limits.md shows
//! it, which a test compares.

use keypadd_share::{Amount, Limit};

use crate::control;
use crate::status::metrics;

/// All limits, by part of the program.
pub const TABLE: [&[Limit]; 3] = [keypadd_transport::LIMITS, keypadd_tunnel::LIMITS, OWN];

/// The limits of the daemon's own sockets.
const OWN: &[Limit] = &[
    Limit {
        resource: "connections of the control socket",
        holder: "the daemon's user",
        total: Amount::Count(control::CONNECTIONS_MAX as u64),
        rule: "what is free",
        when_reached: "the oldest that has sent no request is closed; without one, the next one waits",
        setting: None,
        test: "connections_that_send_nothing_or_wait_for_the_daemon_do_not_delay_a_request",
    },
    Limit {
        resource: "connections of `/metrics`",
        holder: "anyone who can connect",
        total: Amount::Count(metrics::CONNECTIONS_MAX as u64),
        rule: "what is free",
        when_reached: "the oldest is closed",
        setting: None,
        test: "silent_control_connections_and_scrapers_that_take_all_open_files_do_not_delay_status",
    },
];

#[cfg(test)]
mod tests {
    use std::env;
    use std::fs;

    use super::*;

    const PAGE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/limits.md");

    const HEAD: &str = "\
        | Resource | Holder | Total | One may have | When reached | Setting | Test |\n\
        | --- | --- | --- | --- | --- | --- | --- |\n";

    fn row(limit: &Limit) -> String {
        let Limit { resource, holder, total, rule, when_reached, setting, test } = limit;
        // tests/docs.rs takes names with so many words for those of tests, and checks that they exist.
        assert!(test.matches('_').count() >= 4, "{test}");
        let setting = setting.map(|setting| format!("`{setting}`")).unwrap_or_default();
        format!(
            "| {resource} | {holder} | {total} | {rule} | {when_reached} | {setting} | `{test}` |\n"
        )
    }

    /// `LIMITS=overwrite` rewrites the page.
    #[test]
    fn the_page_of_limits_shows_the_table_of_the_code() {
        let rows: String = TABLE.into_iter().flatten().map(row).collect();
        let table = format!("{HEAD}{rows}");
        let page = fs::read_to_string(PAGE).unwrap();
        let (prose, shown) = page.split_at(page.find("| Resource").unwrap_or(page.len()));
        if env::var_os("LIMITS").is_some_and(|value| value == "overwrite") {
            fs::write(PAGE, format!("{prose}{table}")).unwrap();
        } else {
            assert_eq!(shown, table, "LIMITS=overwrite rewrites it");
        }
    }
}
