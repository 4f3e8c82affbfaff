//! Makes room for a session at a limit of its key: ends clients of the key that are away, which may
//! have crashed. Only what is live refuses another.
//!
//! Ends no more than the session needs, and never the lineage that its own client may continue.

use std::time::{Duration, Instant};

use keypadd_provider::PublicKey;
use keypadd_share::Share;
use tokio::time::timeout;
use tracing::warn;

use crate::{
    limits::{
        SharedLimits,
        descriptors::{Descriptors, Holder},
    },
    sessions::hold::{
        held_list::HeldList,
        lineages::{ClientKey, Evicted, Held, Lineages},
    },
};

/// How long streams that are being reset may take to give their descriptors back.
const RESET_TIMEOUT: Duration = Duration::from_secs(1);

/// A session of a server that needs room.
pub(crate) struct Newcomer<'a> {
    pub(crate) client: ClientKey,
    /// The peer's name in the log.
    pub(crate) peer: &'a str,
    pub(crate) lineages: &'a Lineages,
    pub(crate) limits: &'a SharedLimits,
    pub(crate) held: &'a HeldList,
}

impl Newcomer<'_> {
    /// The place of a client that is away.
    pub(crate) fn place(&self) -> Option<Share<PublicKey>> {
        self.evict(Held::Place, "place (max-sessions-per-key)")?.place
    }

    /// Sets descriptors aside. If the peer's share does not allow it, ends as many clients that are
    /// away as it takes; none if all of them are not enough.
    pub(crate) async fn descriptors(&self, count: usize) -> Option<Descriptors> {
        let (shares, holder) = (self.limits.descriptors.shares(), Holder::Peer(self.client.0));
        if let Some(granted) = shares.try_take(holder, count) {
            return Some(granted);
        }
        // One session of a key at a time: the one before may have freed enough for this one too.
        let _freeing = self.lineages.freeing.take(self.client.0, 1).await;
        loop {
            let of_away = self.lineages.evictable_descriptors(&self.client);
            if !shares.would_allow(&holder, of_away, count) {
                return None;
            }
            let mut returned = 0;
            while !shares.would_allow(&holder, returned, count) {
                returned += self.evict(Held::Descriptors, "open files")?.descriptors;
            }
            // Others may be faster.
            if let Ok(granted) = timeout(RESET_TIMEOUT, shares.take(holder, count)).await {
                return Some(granted);
            }
        }
    }

    fn evict(&self, needed: Held, shown: &str) -> Option<Evicted> {
        let now = Instant::now();
        let evicted = self.lineages.evict(&self.client, needed, now)?;
        self.held.add_reset(evicted.streams);
        if evicted.streams > 0 && self.limits.log.allow(self.client.0, self.peer, now) {
            warn!(
                peer = self.peer,
                ended = evicted.streams,
                "reset held connections: a session of this key needs their {shown}"
            );
        }
        Some(evicted)
    }
}

#[cfg(test)]
mod tests {
    use std::{os::unix::net::UnixStream, sync::Arc};

    use keypadd_provider::{PrivateKey, SESSION_TOKEN_BYTES, SessionToken};
    use keypadd_share::Shares;
    use keypadd_transport::{HandedStream, HeldStreams};
    use serde_json::json;
    use tokio::{sync::oneshot, task::JoinSet};

    use super::*;
    use crate::{
        MemoryShares,
        forwards::{adopt::adopt, splice_error::SpliceError},
        handover::{HandedToken, LineageRecord},
        limits::{descriptors::OF_CONNECTION, places::Places},
        sessions::hold::{
            HoldSettings,
            lineages::{Away, tests::hello},
        },
        wire::Instance,
    };

    const SETTINGS: HoldSettings =
        HoldSettings { time: Duration::from_secs(600), ..HoldSettings::OFF };

    /// A server with one key, whose clients come from another process.
    struct Site {
        key: PublicKey,
        lineages: Lineages,
        limits: Arc<SharedLimits>,
        held: HeldList,
        places: Shares<PublicKey>,
        streams: JoinSet<Result<(), SpliceError>>,
    }

    impl Site {
        fn new(files: usize, places_max: usize) -> Self {
            Self {
                key: PrivateKey::generate().unwrap().public(),
                lineages: Lineages::default(),
                limits: Arc::new(SharedLimits::new(files, |_| 0, &MemoryShares::default())),
                held: HeldList::default(),
                places: Shares::of_each(places_max),
                streams: JoinSet::new(),
            }
        }

        fn client(&self, number: u8) -> ClientKey {
            (self.key, Instance([number; 16]))
        }

        /// Adds a client that is away; a lower number is given up earlier.
        fn add_away(&mut self, number: u8, streams: u64) {
            let token = SessionToken::from_bytes(&[number; SESSION_TOKEN_BYTES]);
            let record = LineageRecord {
                key: self.key.to_string(),
                instance: [number; 16],
                tokens: (HandedToken(token), None),
                epoch: 0,
                remaining_millis: 60_000 * u64::from(number),
            };
            let away = |streams: &HeldStreams| Away {
                place: self.places.try_take(self.key, 1),
                _listed: self.held.add("peer", streams, SETTINGS.time),
                _over: oneshot::channel().0,
            };
            let now = Instant::now();
            let assets = self.lineages.adopt(
                self.client(number),
                &record,
                &SETTINGS,
                &Places::new(8),
                away,
                now,
            );
            for stream in 0..streams {
                let splice = json!({
                    "to_stream_done": true, "to_socket_done": false, "shut": false, "given": 0,
                    "got": 0,
                });
                let record = json!({
                    "epoch": 0, "stream": 4 * stream, "label": "", "unix": true, "unbounded": false,
                    "splice": splice, "to_stream": null,
                });
                let record = serde_json::from_value(record).unwrap();
                let socket = UnixStream::pair().unwrap().0.into();
                let handed = HandedStream {
                    record,
                    unreceipted: Vec::new(),
                    socket,
                    descriptors: Arc::new([]),
                };
                let holder = ("peer", Holder::Peer(self.key));
                self.streams.spawn(adopt(
                    handed,
                    &assets.streams,
                    &assets.counts,
                    &self.limits,
                    holder,
                    None,
                ));
            }
        }

        fn newcomer(&self, number: u8) -> Newcomer<'_> {
            let (lineages, limits, held) = (&self.lineages, &self.limits, &self.held);
            Newcomer { client: self.client(number), peer: "peer", lineages, limits, held }
        }

        /// Whether a client that was away goes on with its streams.
        fn resumes(&self, number: u8) -> bool {
            let (client, now) = (self.client(number), Instant::now());
            let (request, channel) = hello(&client, Some(number), 99);
            let places = Places::new(8);
            let admitted = self.lineages.hello(client, request, &SETTINGS, &channel, &places, now);
            admitted.unwrap().grant.proof.is_some()
        }
    }

    #[tokio::test]
    async fn connections_at_the_limit_end_no_more_clients_than_they_need_together() {
        // What the key's share allows.
        let mut site = Site::new(48, 16);
        (1..=3).for_each(|number| site.add_away(number, 4));
        let newcomer = site.newcomer(9);
        let take = || newcomer.descriptors(OF_CONNECTION);
        let taken = tokio::join!(take(), take(), take(), take());
        assert!(matches!(taken, (Some(_), Some(_), Some(_), Some(_))));
        assert_eq!(site.held.counts().streams_reset, 4);
        assert_eq!(site.limits.counts().descriptors, 24);
        assert!(!site.resumes(1) && site.resumes(2) && site.resumes(3));
    }

    #[tokio::test]
    async fn a_client_that_has_nothing_to_give_is_left_alone() {
        let mut site = Site::new(8, 1);
        site.add_away(1, 0);
        site.add_away(2, 2);
        let newcomer = site.newcomer(9);
        assert!(newcomer.descriptors(OF_CONNECTION).await.is_some());
        assert!(site.resumes(1) && !site.resumes(2));

        let mut site = Site::new(usize::MAX, 0);
        site.add_away(1, 1);
        site.places = Shares::of_each(1);
        site.add_away(2, 1);
        assert!(site.newcomer(9).place().is_some());
        assert!(site.newcomer(9).place().is_none(), "the other one has no place");
        assert!(site.resumes(1) && !site.resumes(2));
    }

    #[tokio::test]
    async fn no_client_is_ended_where_all_of_them_are_not_enough() {
        let mut site = Site::new(12, 16);
        site.add_away(1, 2);
        let other = Holder::Peer(PrivateKey::generate().unwrap().public());
        let _other = site.limits.descriptors.shares().try_take(other, 4).unwrap();
        assert!(site.newcomer(9).descriptors(5).await.is_none());
        assert!(site.newcomer(9).descriptors(4).await.is_some(), "one that is enough is");
        assert!(!site.resumes(1));
    }

    #[tokio::test]
    async fn a_client_that_comes_back_makes_no_room_by_ending_its_own_lineage() {
        // Fewer places than the clients of the process before had.
        let mut site = Site::new(8, 0);
        site.add_away(1, 2);
        assert!(site.newcomer(1).place().is_none());
        site.places = Shares::of_each(1);
        site.add_away(2, 1);
        assert_eq!(site.limits.counts().descriptors, 6, "what is open counts beyond the share");
        assert!(site.newcomer(1).place().is_some());
        assert!(site.newcomer(1).descriptors(OF_CONNECTION).await.is_none());
        assert!(site.resumes(1) && !site.resumes(2));
    }
}
