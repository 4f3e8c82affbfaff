//! Finds networks of peers that overlap those that this host is in: an address in both has two
//! ways, of which packets take one.

use keypadd_config::{Config, Networks};

use super::addresses::{Addresses, Connected};

/// What to do about an overlap.
pub(crate) const OVERLAP_HINT: &str = "leave it out of `networks`, renumber one of the two, or \
    translate addresses: docs/operations.md, \"Overlapping networks\"";

/// A line for each network of a peer that overlaps some that this host is in. None where the system
/// does not list those.
pub(crate) fn overlaps(config: &Config) -> Vec<String> {
    let networks_of = config.peers.iter().filter_map(|peer| {
        let networks = peer.networks.as_ref()?;
        Some((peer.name.as_str(), networks))
    });
    let peers: Vec<_> = networks_of.collect();
    if peers.is_empty() {
        return Vec::new();
    }
    Addresses::of_this_host().map_or_else(|_| Vec::new(), |here| lines(&peers, &here.connected))
}

fn lines(peers: &[(&str, &Networks)], connected: &[Connected]) -> Vec<String> {
    let is_a_peers = |one: &&Connected| {
        let mut devices = peers.iter().map(|(_, networks)| &networks.device);
        devices.any(|device| *device == one.interface)
    };
    let here: Vec<_> = connected.iter().filter(|one| !is_a_peers(one)).collect();
    let mut lines = Vec::new();
    for (peer, networks) in peers {
        // Everything is behind a peer that has a default route, except what this host is in.
        for prefix in networks.prefixes.iter().filter(|prefix| prefix.bits() > 0) {
            let both = here.iter().filter(|Connected { network, .. }| {
                prefix.covers(network) || network.covers(prefix)
            });
            let mut both: Vec<_> = both
                .map(|Connected { network, interface }| format!("{network} ({interface})"))
                .collect();
            both.dedup();
            if !both.is_empty() {
                lines.push(format!(
                    "peer {peer}: {prefix} of its networks overlaps {} of this host: addresses in \
                     both reach only one of them",
                    both.join(", ")
                ));
            }
        }
    }
    lines
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_network_of_a_peer_that_this_host_is_in_is_told_with_its_interface() {
        let peer = |name: &str, key: &str, networks: &str| {
            format!("[peer.{name}]\npublic-key = \"{key}\"\nnetworks = [{networks}]\n")
        };
        let file = "listen = \"[::]:4433\"\n".to_owned()
            + &peer(
                "b",
                "11qYAYKxCrfVS/7TyWQHOg7hcvPapiMlrwIaaPcHURo=",
                "\"10.2.0.0/16\", \"10.3.4.0/24\", \"fd02::/48\", \"10.255.0.0/32\"",
            )
            + &peer(
                "all",
                "PUAXw+hDiVqStwqnTRt+vJyYLM8uxJaMwM1V8Sr0Zgw=",
                "\"0.0.0.0/0\", \"::/0\"",
            );
        let config = Config::read(&file, u64::MAX).unwrap();
        let networks = |peer: usize| config.peers[peer].networks.as_ref().unwrap();
        let peers = [("b", networks(0)), ("all", networks(1))];
        let connected = |networks: &[(&str, &str)]| -> Vec<Connected> {
            let one = |(network, interface): &(&str, &str)| Connected {
                network: network.parse().unwrap(),
                interface: (*interface).to_owned(),
            };
            networks.iter().map(one).collect()
        };
        // Another network, another family, and the device's own.
        let apart = connected(&[
            ("10.1.0.0/16", "eth0"),
            ("10.20.0.0/16", "eth0"),
            ("fd01::/48", "eth0"),
            ("10.255.0.0/31", "kp-b"),
        ]);
        assert_eq!(lines(&peers, &apart), Vec::<String>::new());
        // The host's within the peer's, twice, and the other way around.
        let both = connected(&[
            ("10.2.1.0/24", "eth0"),
            ("10.2.1.0/24", "eth0"),
            ("10.2.2.0/24", "docker0"),
            ("10.3.0.0/16", "eth1"),
            ("fd02::/48", "eth0"),
        ]);
        let line = |prefix: &str, here: &str| {
            format!(
                "peer b: {prefix} of its networks overlaps {here} of this host: addresses in both \
                 reach only one of them"
            )
        };
        assert_eq!(
            lines(&peers, &both),
            [
                line("10.2.0.0/16", "10.2.1.0/24 (eth0), 10.2.2.0/24 (docker0)"),
                line("10.3.4.0/24", "10.3.0.0/16 (eth1)"),
                line("fd02::/48", "fd02::/48 (eth0)"),
            ]
        );
    }
}
