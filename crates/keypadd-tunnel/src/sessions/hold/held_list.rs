//! Lists the peers whose streams are held now, and counts how held streams ended.

use std::{
    collections::BTreeMap,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    time::{Duration, SystemTime},
};

use keypadd_transport::HeldStreams;
use serde::{Deserialize, Serialize};

use crate::clock::unix_seconds;

/// A peer that is away while its streams are held.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct HeldStatus {
    /// The peer's name, or the first characters of its key.
    pub peer: String,
    /// Its streams.
    pub streams: usize,
    /// Bytes that they have sent and the peer has not confirmed.
    pub kept_bytes: usize,
    /// Since when, as seconds since 1970.
    pub since_unix_seconds: u64,
    /// When they are reset if it does not return, as seconds since 1970.
    pub until_unix_seconds: u64,
}

/// How streams ended that were held, since the daemon started.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct HeldCounts {
    /// Streams resumed over another connection after theirs was lost.
    pub streams_resumed: u64,
    /// Streams that were held and then reset.
    pub streams_reset: u64,
}

/// The peers of a daemon whose streams are held; clones share it.
#[derive(Clone, Debug, Default)]
pub struct HeldList(Arc<HeldListState>);

#[derive(Debug, Default)]
struct HeldListState {
    peers: Mutex<BTreeMap<u64, HeldPeer>>,
    next: AtomicU64,
    resumed: AtomicU64,
    reset: AtomicU64,
}

#[derive(Debug)]
struct HeldPeer {
    label: String,
    streams: HeldStreams,
    since: SystemTime,
    time: Duration,
}

/// Keeps a peer in the list until it is dropped.
#[derive(Debug)]
pub(crate) struct HeldListing {
    list: HeldList,
    id: u64,
}

impl HeldList {
    /// Lists a peer whose streams are held from now on, for up to `time`.
    pub(crate) fn add(&self, label: &str, streams: &HeldStreams, time: Duration) -> HeldListing {
        let id = self.0.next.fetch_add(1, Relaxed);
        let (label, streams, since) = (label.to_owned(), streams.clone(), SystemTime::now());
        self.listed().insert(id, HeldPeer { label, streams, since, time });
        HeldListing { list: self.clone(), id }
    }

    /// The peers that are away, longest first.
    pub fn peers(&self) -> Vec<HeldStatus> {
        let peers = self.listed();
        let status = peers.values().map(|peer| HeldStatus {
            peer: peer.label.clone(),
            streams: peer.streams.names().len(),
            kept_bytes: peer.streams.kept_bytes(),
            since_unix_seconds: unix_seconds(peer.since),
            until_unix_seconds: unix_seconds(peer.since + peer.time),
        });
        status.collect()
    }

    /// How held streams have ended.
    pub fn counts(&self) -> HeldCounts {
        HeldCounts {
            streams_resumed: self.0.resumed.load(Relaxed),
            streams_reset: self.0.reset.load(Relaxed),
        }
    }

    pub(crate) fn add_resumed(&self) {
        self.0.resumed.fetch_add(1, Relaxed);
    }

    pub(crate) fn add_reset(&self, count: usize) {
        self.0.reset.fetch_add(count as u64, Relaxed);
    }

    /// A panic cannot leave the map half changed.
    fn listed(&self) -> MutexGuard<'_, BTreeMap<u64, HeldPeer>> {
        self.0.peers.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for HeldListing {
    fn drop(&mut self) {
        let removed = self.list.listed().remove(&self.id);
        // Dropped without the lock.
        drop(removed);
    }
}
