//! Limits the pool memory of each peer. All sessions of a peer share one allowance, whichever end
//! connected, and a reload changes it for open sessions too.

use std::collections::HashMap;

use keypadd_config::{Config, Peer};
use keypadd_provider::{PoolAllowance, PublicKey};

/// Allowances by public key. Peers without a limit have one too, so that a new limit applies to
/// open sessions.
#[derive(Default)]
pub(super) struct Allowances(HashMap<PublicKey, PoolAllowance>);

impl Allowances {
    /// The allowance of a prepared peer.
    pub(super) fn of(&self, peer: &Peer) -> Option<PoolAllowance> {
        peer.keys.iter().find_map(|key| self.0.get(key)).cloned()
    }

    /// Adds missing allowances; changes none.
    pub(super) fn prepare(&mut self, config: &Config) {
        for peer in &config.peers {
            let own = self.of(peer).unwrap_or_else(|| PoolAllowance::new(limit(Some(peer))));
            for key in &peer.keys {
                self.0.entry(*key).or_insert_with(|| own.clone());
            }
        }
    }

    /// Sets all limits to the file's; peers not in the file have none.
    pub(super) fn settle(&mut self, config: &Config) {
        for (key, allowance) in &self.0 {
            allowance.set(limit(config.peers.iter().find(|peer| peer.keys.contains(key))));
        }
    }
}

fn limit(peer: Option<&Peer>) -> u64 {
    peer.and_then(|peer| peer.pool_budget_bytes)
        .map_or(PoolAllowance::UNLIMITED, |bytes| bytes as u64)
}
