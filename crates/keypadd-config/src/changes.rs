//! What differs between the settings in force and those of the file as it is now, in words. Decides nothing:
//! the daemon applies, and says these lines.

use keypadd_tunnel::Forward;

use crate::config::Config;
use crate::keys::{KEYS, Reload, Scope};
use crate::peer::{Dialled, Incoming, Peer};

/// The difference between two files.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Changes {
    /// What a reload applies, a line each.
    pub applied: Vec<String>,
    /// Keys whose change waits for a restart.
    pub restart: Vec<&'static str>,
}

impl Changes {
    /// From the settings in force to those that are to be. `started` is what the daemon was started with,
    /// which is what still holds for keys that wait for a restart.
    pub fn between(started: &Config, current: &Config, new: &Config) -> Self {
        let global = |reload| {
            KEYS.iter().filter(move |key| key.scope == Scope::Global && key.reload == reload)
        };
        let restart = global(Reload::Restart)
            .map(|key| key.name)
            .filter(|name| differs(started, new, name))
            .collect();
        // What only peers see of a global key is said with them.
        let applied = global(Reload::Applies)
            .filter(|key| !key.name.starts_with("permit") && differs(current, new, key.name))
            .map(|key| format!("{} has changed", key.name));
        let mut applied: Vec<String> = applied.collect();
        for peer in &new.peers {
            match find(current, peer) {
                None => applied.push(format!("peer {} added", peer.name)),
                Some(before) => peer_changes(before, peer, &mut applied),
            }
        }
        for peer in current.peers.iter().filter(|peer| find(new, peer).is_none()) {
            applied.push(format!("peer {} removed", peer.name));
        }
        Self { applied, restart }
    }
}

fn find<'c>(config: &'c Config, wanted: &Peer) -> Option<&'c Peer> {
    config.peers.iter().find(|peer| peer.name == wanted.name)
}

/// Whether a global key means something else.
fn differs(one: &Config, other: &Config, key: &str) -> bool {
    match key {
        "key" => one.key != other.key,
        "listen" => one.listen != other.listen,
        "suite" => one.suites != other.suites,
        "kex" => one.kex != other.kex,
        "permit-bench" => one.permit_bench != other.permit_bench,
        "allow-legacy" => one.allow_legacy != other.allow_legacy,
        "pool" => one.pool != other.pool,
        "pool-budget" => one.pool_budget_bytes != other.pool_budget_bytes,
        "max-fill-cpu" => one.max_fill_cpu_percent != other.max_fill_cpu_percent,
        "require-locked" => one.require_locked != other.require_locked,
        "cipher-backend" => one.cipher_engine != other.cipher_engine,
        "congestion" => one.congestion != other.congestion,
        "spin" => one.spin != other.spin,
        "loops" => one.loops != other.loops,
        "max-forwards" => one.max_forwards != other.max_forwards,
        "connect-timeout" => one.connect_timeout != other.connect_timeout,
        "drain-timeout" => one.drain_timeout != other.drain_timeout,
        "metrics" => one.metrics != other.metrics,
        "log" => one.log != other.log,
        "log-format" => one.log_format != other.log_format,
        // Defaults of peers.
        _ => false,
    }
}

fn peer_changes(before: &Peer, after: &Peer, out: &mut Vec<String>) {
    let name = &after.name;
    let mut say = |what: &str| out.push(format!("peer {name}: {what}"));
    if before.key != after.key {
        say("public-key has changed");
    }
    if before.pool_budget_bytes != after.pool_budget_bytes {
        say("pool-budget has changed");
    }
    match (&before.incoming, &after.incoming) {
        (Some(before), Some(after)) => {
            let Incoming { permit_open, permit_listen } = after;
            if before.permit_open != *permit_open {
                say("permit-open has changed");
            }
            if before.permit_listen != *permit_listen {
                say("permit-listen has changed");
            }
        }
        (None, Some(_)) => say("may come in now"),
        (Some(_), None) => say("may not come in any more"),
        (None, None) => {}
    }
    match (&before.dialled, &after.dialled) {
        (Some(before), Some(after)) => dialled_changes(before, after, say),
        (None, Some(after)) => say(&format!("is dialled now, at {}", after.endpoint)),
        (Some(_), None) => say("is not dialled any more"),
        (None, None) => {}
    }
}

fn dialled_changes(before: &Dialled, after: &Dialled, mut say: impl FnMut(&str)) {
    if before.endpoint != after.endpoint {
        say(&format!("endpoint is {} now", after.endpoint));
    }
    if before.suite != after.suite {
        say(&format!("suite is {} now", after.suite));
    }
    if before.kex != after.kex {
        say(&format!("kex is {} now", after.kex));
    }
    let missing = |all: &[Forward], one: &Forward| !all.contains(one);
    for forward in after.forwards.iter().filter(|one| missing(&before.forwards, one)) {
        say(&format!("forward {forward} added"));
    }
    for forward in before.forwards.iter().filter(|one| missing(&after.forwards, one)) {
        say(&format!("forward {forward} removed"));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HEAD: &str = "listen = \"[::]:1\"\n[peer.in]\n\
        public-key = \"11qYAYKxCrfVS/7TyWQHOg7hcvPapiMlrwIaaPcHURo=\"\npermit-open = [\"a:1\"]\n";
    const DIALLED: &str = "[peer.out]\npublic-key = \"PUAXw+hDiVqStwqnTRt+vJyYLM8uxJaMwM1V8Sr0Zgw=\"\n\
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
        let text = format!("{HEAD}{DIALLED}");
        assert_eq!(between(&text, &text), Changes::default());
    }

    #[test]
    fn what_a_reload_applies_is_named_line_by_line() {
        let after = format!("suite = \"aes-128-gcm\"\n{HEAD}{DIALLED}")
            .replace("a:1\"]\n[peer", "a:2\"]\n[peer")
            .replace("endpoint = \"a\"", "endpoint = \"b\"")
            .replace("local = [\"1:a:1\"]", "remote = [\"2:a:1\"]");
        assert_eq!(
            between(&format!("{HEAD}{DIALLED}"), &after).applied,
            [
                "suite has changed",
                "peer in: permit-open has changed",
                "peer out: endpoint is b:4433 now",
                "peer out: suite is aes-128-gcm now",
                "peer out: forward -R 2:a:1 added",
                "peer out: forward -L 1:a:1 removed",
            ]
        );
        assert_eq!(between(&format!("{HEAD}{DIALLED}"), HEAD).applied, ["peer out removed"]);
        assert_eq!(between(HEAD, &format!("{HEAD}{DIALLED}")).applied, ["peer out added"]);
    }

    #[test]
    fn every_global_key_that_waits_for_a_restart_is_named_and_goes_on_being_named() {
        let started = read(HEAD);
        for key in KEYS.iter().filter(|key| key.reload == Reload::Restart) {
            let example = match key.name {
                "connect-timeout" => "connect-timeout = \"11s\"",
                _ => key.example,
            };
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
