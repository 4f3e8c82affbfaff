//! Describes what differs between the settings in force and those of the changed file. The daemon
//! applies the changes and prints these lines.

use std::collections::HashSet;

use keypadd_tunnel::Forward;

use crate::config::Config;
use crate::key::{Key, Reload};
use crate::peer::{Incoming, Outgoing, Peer};

/// The difference between two files.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Changes {
    /// What a reload applies, one line each.
    pub applied: Vec<String>,
    /// Keys that change at the next start.
    pub restart: Vec<&'static str>,
}

impl Changes {
    /// Compares the settings in force with the new ones. `started` is what the daemon was started
    /// with, which stays in force for keys that need a restart.
    pub fn between(started: &Config, current: &Config, new: &Config) -> Self {
        let restart = started.settings.differing(&new.settings);
        let restart = restart.filter(|key| key.reload == Reload::Restart).map(|key| key.name);
        // Permits are reported with the peers that they affect.
        let is_reported =
            |key: &&Key| key.reload == Reload::Applies && !key.name.starts_with("permit");
        let applied = current.settings.differing(&new.settings).filter(is_reported);
        let mut applied: Vec<String> = applied.map(|key| format!("{} changed", key.name)).collect();
        for peer in &new.peers {
            match find(current, peer) {
                None => applied.push(format!("peer {} added", peer.name)),
                Some(before) => peer_changes(before, peer, &mut applied),
            }
        }
        for peer in current.peers.iter().filter(|peer| find(new, peer).is_none()) {
            applied.push(format!("peer {} removed", peer.name));
        }
        Self { applied, restart: restart.collect() }
    }
}

fn find<'c>(config: &'c Config, wanted: &Peer) -> Option<&'c Peer> {
    config.peers.iter().find(|peer| peer.name == wanted.name)
}

fn peer_changes(before: &Peer, after: &Peer, out: &mut Vec<String>) {
    let name = &after.name;
    let mut say = |what: &str| out.push(format!("peer {name}: {what}"));
    if before.keys != after.keys {
        say("public-key changed");
    }
    if before.valid_until != after.valid_until {
        say("valid-until changed");
    }
    if before.pool_budget_bytes != after.pool_budget_bytes {
        say("pool-budget changed");
    }
    if before.max_rate != after.max_rate {
        say("max-rate changed");
    }
    if before.hold != after.hold {
        say("hold changed");
    }
    match (&before.networks, &after.networks) {
        (Some(before), Some(after)) => {
            if before.prefixes != after.prefixes {
                say("networks changed");
            }
            if before.permits != after.permits {
                say("permit-networks changed");
            }
        }
        (Some(_), None) => say("networks removed"),
        // Its device is opened at the next start.
        (None, Some(_) | None) => {}
    }
    match (&before.incoming, &after.incoming) {
        (Some(before), Some(after)) => {
            let Incoming { permit_open, permit_listen } = after;
            if before.permit_open != *permit_open {
                say("permit-open changed");
            }
            if before.permit_listen != *permit_listen {
                say("permit-listen changed");
            }
        }
        (None, Some(_)) => say("may connect to this host now"),
        (Some(_), None) => say("may no longer connect to this host"),
        (None, None) => {}
    }
    match (&before.outgoing, &after.outgoing) {
        (Some(before), Some(after)) => outgoing_changes(before, after, say),
        (None, Some(after)) => say(&format!("endpoint {} added", after.endpoint)),
        (Some(_), None) => say("endpoint removed"),
        (None, None) => {}
    }
}

fn outgoing_changes(before: &Outgoing, after: &Outgoing, mut say: impl FnMut(&str)) {
    if before.endpoint != after.endpoint {
        say(&format!("endpoint is now {}", after.endpoint));
    }
    if before.suites != after.suites {
        let suites: Vec<_> = after.suites.iter().map(|suite| suite.name()).collect();
        say(&format!("suite is now {}", suites.join(" or ")));
    }
    if before.kex != after.kex {
        say(&format!("kex is now {}", after.kex));
    }
    if before.proxy_headers.send != after.proxy_headers.send {
        say("send-proxy changed");
    }
    if before.proxy_headers.accept != after.proxy_headers.accept {
        say("accept-proxy changed");
    }
    let [old, new]: [HashSet<&Forward>; 2] =
        [before, after].map(|outgoing| outgoing.forwards.iter().collect());
    for forward in after.forwards.iter().filter(|one| !old.contains(one)) {
        say(&format!("forward {forward} added"));
    }
    for forward in before.forwards.iter().filter(|one| !new.contains(one)) {
        say(&format!("forward {forward} removed"));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::settings::Settings;

    const HEAD: &str = "listen = \"[::]:1\"\n[peer.in]\n\
        public-key = \"11qYAYKxCrfVS/7TyWQHOg7hcvPapiMlrwIaaPcHURo=\"\npermit-open = [\"a:1\"]\n";
    const DIALED: &str = "[peer.out]\npublic-key = \
        \"PUAXw+hDiVqStwqnTRt+vJyYLM8uxJaMwM1V8Sr0Zgw=\"\n\
        endpoint = \"a\"\nlocal = [\"1:a:1\"]\n";

    fn read(text: &str) -> Config {
        Config::read(text, u64::MAX).unwrap()
    }

    fn between(before: &str, after: &str) -> Changes {
        let before = read(before);
        Changes::between(&before, &before, &read(after))
    }

    #[test]
    fn the_same_file_changes_nothing() {
        let text = format!("{HEAD}{DIALED}");
        assert_eq!(between(&text, &text), Changes::default());
    }

    #[test]
    fn what_a_reload_applies_is_named_line_by_line() {
        let after = format!("suite = \"aes-128-gcm\"\n{HEAD}{DIALED}")
            .replace("a:1\"]\n[peer", "a:2\"]\n[peer")
            .replace("endpoint = \"a\"", "endpoint = \"b\"")
            .replace(
                "local = [\"1:a:1\"]",
                "remote = [\"2:a:1\"]\naccept-proxy = true\nsend-proxy = true",
            );
        assert_eq!(
            between(&format!("{HEAD}{DIALED}"), &after).applied,
            [
                "suite changed",
                "peer in: permit-open changed",
                "peer out: endpoint is now b:4433",
                "peer out: suite is now aes-128-gcm",
                "peer out: send-proxy changed",
                "peer out: accept-proxy changed",
                "peer out: forward -R 2:a:1 added",
                "peer out: forward -L 1:a:1 removed",
            ]
        );
        assert_eq!(between(&format!("{HEAD}{DIALED}"), HEAD).applied, ["peer out removed"]);
        assert_eq!(between(HEAD, &format!("{HEAD}{DIALED}")).applied, ["peer out added"]);
    }

    #[test]
    fn every_global_key_that_needs_a_restart_is_named_until_then() {
        let started = read(HEAD);
        for key in Settings::KEYS.iter().filter(|key| key.reload == Reload::Restart) {
            let example = key.line();
            let head = if key.name == "listen" { &HEAD[HEAD.find('\n').unwrap()..] } else { HEAD };
            let new = read(&format!("{example}\n{head}"));
            for current in [&started, &new] {
                let changes = Changes::between(&started, current, &new);
                assert_eq!(changes.restart, [key.name]);
                assert!(changes.applied.is_empty());
            }
        }
    }
}
