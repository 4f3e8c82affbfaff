//! What peers may hold of the pool. A peer's sessions share one allowance whichever end dialled, and a
//! reload changes it under those that live.

use std::collections::HashMap;

use keypadd_config::{Config, Peer};
use keypadd_provider::{Allowance, PublicKey};

/// Allowances by the peers' keys: every peer has one, so that a limit that is new finds those that live.
#[derive(Default)]
pub(super) struct Allowances(HashMap<PublicKey, Allowance>);

impl Allowances {
    /// The allowance of a peer, once it is prepared.
    pub(super) fn of(&self, peer: &Peer) -> Option<Allowance> {
        self.0.get(&peer.key).cloned()
    }

    /// Makes those that are missing; changes none.
    pub(super) fn prepare(&mut self, config: &Config) {
        for peer in &config.peers {
            self.0.entry(peer.key).or_insert_with(|| Allowance::new(limit(Some(peer))));
        }
    }

    /// Brings all to what the file says; a peer of which it says nothing has no limit.
    pub(super) fn settle(&mut self, config: &Config) {
        for (key, allowance) in &self.0 {
            allowance.set(limit(config.peers.iter().find(|peer| peer.key == *key)));
        }
    }
}

fn limit(peer: Option<&Peer>) -> u64 {
    peer.and_then(|peer| peer.pool_budget_bytes).map_or(Allowance::UNLIMITED, |bytes| bytes as u64)
}
