//! Limits the pool memory of each peer and what is sent to it. All sessions of a peer share its
//! limits, whichever end connected, and a reload changes them for open sessions too.

use std::collections::HashMap;

use keypadd_config::{Config, Peer};
use keypadd_provider::{PoolAllowance, PublicKey};
use keypadd_tunnel::RateCap;

/// Allowances by public key. Peers without limits have one too, so that a new limit applies to open
/// sessions.
#[derive(Default)]
pub(super) struct Allowances(HashMap<PublicKey, Allowance>);

/// What one peer may use.
#[derive(Clone)]
pub(super) struct Allowance {
    pub(super) pool: PoolAllowance,
    pub(super) rate: RateCap,
}

impl Allowances {
    /// The allowance of a prepared peer.
    pub(super) fn of(&self, peer: &Peer) -> Option<&Allowance> {
        peer.keys.iter().find_map(|key| self.0.get(key))
    }

    /// Adds missing allowances; changes none.
    pub(super) fn prepare(&mut self, config: &Config) {
        for peer in &config.peers {
            let own = self.of(peer).cloned().unwrap_or_else(|| Allowance {
                pool: PoolAllowance::new(pool_limit(Some(peer))),
                rate: RateCap::new(peer.max_rate),
            });
            for key in &peer.keys {
                self.0.entry(*key).or_insert_with(|| own.clone());
            }
        }
    }

    /// Sets all limits to the file's; peers not in the file have none.
    pub(super) fn settle(&mut self, config: &Config) {
        for (key, allowance) in &self.0 {
            let peer = config.peers.iter().find(|peer| peer.keys.contains(key));
            allowance.pool.set(pool_limit(peer));
            allowance.rate.set(peer.and_then(|peer| peer.max_rate));
        }
    }
}

fn pool_limit(peer: Option<&Peer>) -> u64 {
    peer.and_then(|peer| peer.pool_budget_bytes)
        .map_or(PoolAllowance::UNLIMITED, |bytes| bytes as u64)
}
