//! What peers may hold of the pool. A peer's sessions share one allowance whichever end dialled, and a
//! reload changes it under those that live.

use std::collections::HashMap;

use keypadd_config::{Config, Peer};
use keypadd_provider::{Allowance, PublicKey};

/// Allowances by the peers' keys.
#[derive(Default)]
pub(super) struct Allowances(HashMap<PublicKey, Allowance>);

impl Allowances {
    /// The allowance of a peer that has one.
    pub(super) fn of(&self, peer: &Peer) -> Option<Allowance> {
        peer.pool_budget_bytes.and_then(|_| self.0.get(&peer.key).cloned())
    }

    /// Makes those that are missing; changes none.
    pub(super) fn prepare(&mut self, config: &Config) {
        for peer in &config.peers {
            if let Some(bytes) = peer.pool_budget_bytes {
                self.0.entry(peer.key).or_insert_with(|| Allowance::new(bytes as u64));
            }
        }
    }

    /// Brings all to what the file says; a peer of which it says nothing has no limit.
    pub(super) fn settle(&mut self, config: &Config) {
        for (key, allowance) in &self.0 {
            let peer = config.peers.iter().find(|peer| peer.key == *key);
            let bytes = peer.and_then(|peer| peer.pool_budget_bytes);
            allowance.set(bytes.map_or(u64::MAX, |bytes| bytes as u64));
        }
    }
}
