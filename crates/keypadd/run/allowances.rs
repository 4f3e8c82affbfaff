//! Limits the pool memory of each peer. All sessions of a peer share one allowance, whichever end
//! connected, and a reload changes it for open sessions too.

use std::collections::HashMap;

use keypadd_config::{Config, Peer};
use keypadd_provider::{Allowance, PublicKey};

/// Allowances by public key. Peers without a limit have one too, so that a new limit applies to
/// open sessions.
#[derive(Default)]
pub(super) struct Allowances(HashMap<PublicKey, Allowance>);

impl Allowances {
    /// The allowance of a prepared peer.
    pub(super) fn of(&self, peer: &Peer) -> Option<Allowance> {
        self.0.get(&peer.key).cloned()
    }

    /// Adds missing allowances; changes none.
    pub(super) fn prepare(&mut self, config: &Config) {
        for peer in &config.peers {
            self.0.entry(peer.key).or_insert_with(|| Allowance::new(limit(Some(peer))));
        }
    }

    /// Sets all limits to the file's; peers not in the file have none.
    pub(super) fn settle(&mut self, config: &Config) {
        for (key, allowance) in &self.0 {
            allowance.set(limit(config.peers.iter().find(|peer| peer.key == *key)));
        }
    }
}

fn limit(peer: Option<&Peer>) -> u64 {
    peer.and_then(|peer| peer.pool_budget_bytes).map_or(Allowance::UNLIMITED, |bytes| bytes as u64)
}
