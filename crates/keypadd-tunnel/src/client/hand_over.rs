//! Passes a client's held streams to the process that replaces it, and continues those received
//! from the one before.

use std::{io, sync::Arc, time::Duration};

use keypadd_provider::PublicKey;
use keypadd_transport::ServerId;
use tokio::time::Instant;

use super::{
    Client,
    lineage::{HeldSession, Lineage},
    reach::ListPlace,
};
use crate::{
    forwards::{adopt::adopt, carrier::AdoptedConnection, splice_error::SpliceError},
    handover::{ClientRecord, HandedClient, HandedSocket},
    sessions::session_end::SessionEnd,
    wire::{Instance, StreamCode},
};

impl Client {
    /// The client's instance number, which it keeps in another process.
    pub fn instance(&self) -> Instance {
        self.lineage().instance
    }

    /// The listeners of the client with this name, for the process that takes over.
    ///
    /// # Errors
    /// There are too few descriptors.
    pub fn hand_over_sockets(&self, name: &str) -> io::Result<Vec<HandedSocket>> {
        self.listeners.hand_over(name)
    }

    /// Ends the sessions of a [suspended](crate::handover::Handover::suspend) daemon so that their
    /// streams are held, and describes them, those of each server. They stay held here until the
    /// daemon is resumed or exits. [`run`](Client::run) must be running, and the daemon's limits
    /// [settled](crate::SharedLimits::settled).
    ///
    /// # Errors
    /// The system is out of descriptors.
    pub async fn hand_over(&self) -> io::Result<Vec<HandedClient>> {
        let is_held =
            || self.link.current().is_none() && self.lineages.all().iter().all(|one| one.is_held());
        self.sessions.end_all(&SessionEnd::HandedOver, is_held).await;
        let all = self.lineages.all();
        all.iter().filter_map(|lineage| lineage.hand_over()).collect()
    }

    /// Completes when the server has been told that another process takes over.
    pub async fn wait_closed(&self) {
        self.endpoint.wait_idle().await;
    }

    /// Continues the streams of another process, before [`run`](Client::run). The instance number
    /// bound here must be that client's. If its server has none of these `keys`, its streams are
    /// reset: only that server may resume them. Returns the connections of other processes, for the
    /// caller to carry on.
    #[must_use]
    pub fn adopt(&self, handed: HandedClient, keys: &[PublicKey]) -> Vec<AdoptedConnection> {
        let HandedClient { record, streams } = handed;
        let instance = Instance(record.instance);
        let Some(key) = keys.iter().copied().find(|key| record.server.parse() == Ok(*key)) else {
            return Vec::new();
        };
        let time = Duration::from_millis(record.remaining_millis);
        let count = streams.len();
        let current = self.lineage();
        let is_current = instance == current.instance;
        let lineage = if is_current { current } else { current.beside(instance) };
        lineage.hold.adopt(record.token);
        let held = lineage.hold.streams();
        let listed = self.held.add(&record.name, &held, time);
        let mut place = ListPlace::UNKNOWN;
        place.home = record.home.map(ServerId);
        let name = record.name;
        *lineage.away() = Some(HeldSession {
            name: name.clone(),
            key,
            count,
            time,
            until: Instant::now() + time,
            at: (place, record.address),
            rtt: Duration::from_micros(record.rtt_micros),
            _listed: listed.into(),
        });
        if !is_current {
            self.lineages.insert(Arc::clone(&lineage));
            self.left.add(Arc::clone(&lineage));
        }
        // The programs of this host have one share, whichever process accepted their connections.
        let (holder, places) = (self.listeners.holder(), self.listeners.places());
        let mut carried = Vec::new();
        for stream in streams {
            let descriptors = Arc::clone(&stream.descriptors);
            let peer = (&*name, holder);
            // The server's take places there.
            let slot = (!stream.name().is_of_server()).then(|| places.occupy());
            let adopted = adopt(stream, &held, &lineage.hold.counts, &self.limits, peer, slot);
            if descriptors.is_empty() {
                self.tasks.spawn(async {
                    let _ = adopted.await;
                });
                continue;
            }
            let handover = self.handover.clone();
            let going_on = async move {
                // Until the handover is complete, the old process may continue with it.
                handover.resumed().await;
                adopted.await.map_err(|error| match error {
                    SpliceError::Remote(code) => code,
                    SpliceError::Local(_) | SpliceError::Lost => StreamCode::Reset,
                })
            };
            carried.push(AdoptedConnection { carried: Box::pin(going_on), descriptors });
        }
        carried
    }
}

impl Lineage {
    /// Describes what is held, for the process that takes over; `None` if that is nothing.
    fn hand_over(&self) -> Option<io::Result<HandedClient>> {
        let HeldSession { name, key, until, at: (place, address), rtt, .. } =
            self.away().clone()?;
        let record = ClientRecord {
            instance: self.instance.0,
            server: key.to_string(),
            token: self.hold.hand_over(),
            name,
            address,
            home: place.home.map(|ServerId(id)| id),
            rtt_micros: rtt.as_micros() as u64,
            remaining_millis: until.saturating_duration_since(Instant::now()).as_millis() as u64,
        };
        let streams = self.hold.streams().hand_over();
        Some(streams.map(|streams| HandedClient { record, streams }))
    }
}

#[cfg(test)]
mod tests {
    use std::{iter, os::unix::net::UnixStream};

    use keypadd_provider::PrivateKey;
    use keypadd_transport::HandedStream;
    use serde_json::json;
    use tokio::{task::yield_now, time::timeout};

    use super::*;
    use crate::{
        ClientSettings, MemoryShares, SharedLimits, TransportSettings,
        limits::descriptors::OF_CONNECTION,
    };

    /// A client of a server with this key.
    async fn client(server: PublicKey, transport: TransportSettings) -> Client {
        let own = Arc::new(PrivateKey::generate().unwrap());
        let settings = ClientSettings::bare("127.0.0.1:9", &own, server);
        Client::bind(ClientSettings { transport, ..settings }).await.unwrap()
    }

    #[tokio::test(start_paused = true)]
    async fn clients_are_handed_over_without_a_wait_for_each() {
        let transport = TransportSettings::default();
        let server = PrivateKey::generate().unwrap().public();
        let limits = Arc::clone(&transport.limits);
        // Some peer does not answer.
        let _opening = limits.opening();
        let client = client(server, transport).await;
        let began = Instant::now();
        for _ in 0..9 {
            assert!(client.hand_over().await.unwrap().is_empty());
        }
        assert_eq!(began.elapsed(), Duration::ZERO);
    }

    /// What another process held: streams with these IDs.
    fn handed(server: PublicKey, ids: &[u64]) -> HandedClient {
        let streams = ids.iter().map(|id| {
            let splice = json!({
                "to_stream_done": true, "to_socket_done": false, "shut": false,
                "given": 0, "got": 0,
            });
            let record = json!({
                "epoch": 0, "stream": id, "label": "", "unix": true, "unbounded": false,
                "splice": splice, "to_stream": null,
            });
            HandedStream {
                record: serde_json::from_value(record).unwrap(),
                unreceipted: Vec::new(),
                socket: UnixStream::pair().unwrap().0.into(),
                descriptors: Arc::new([]),
            }
        });
        let record = ClientRecord {
            instance: [1; 16],
            server: server.to_string(),
            token: None,
            name: "lab".into(),
            address: "127.0.0.1:9".parse().unwrap(),
            home: None,
            rtt_micros: 0,
            remaining_millis: 60_000,
        };
        HandedClient { record, streams: streams.collect() }
    }

    #[tokio::test]
    async fn connections_of_another_process_take_places_until_they_end_if_it_accepted_them() {
        let server = PrivateKey::generate().unwrap().public();
        let transport = TransportSettings { forwards_max: 4, ..<_>::default() };
        let client = client(server, transport).await;
        // The server accepted the last one.
        assert!(client.adopt(handed(server, &[0, 4, 8, 1]), &[server]).is_empty());
        let places = client.listeners.places();
        let free = || iter::from_fn(|| places.try_take()).collect::<Vec<_>>().len();
        assert_eq!(free(), 1);
        client.lineage().hold.streams().close();
        timeout(Duration::from_secs(30), async {
            while free() < 4 {
                yield_now().await;
            }
        })
        .await
        .unwrap();
    }

    #[tokio::test]
    async fn connections_of_another_process_count_in_the_share_of_the_programs_of_this_host() {
        let server = PrivateKey::generate().unwrap().public();
        let limits = Arc::new(SharedLimits::new(100, |_| 0, &MemoryShares::default()));
        let transport =
            TransportSettings { limits: Arc::clone(&limits), ..TransportSettings::default() };
        let client = client(server, transport).await;
        let ids = [0, 4, 8];
        assert!(client.adopt(handed(server, &ids), &[server]).is_empty());
        let held = ids.len() * OF_CONNECTION;
        assert_eq!(limits.counts().descriptors, held);
        let programs = client.listeners.holder();
        assert!(limits.descriptors.shares().would_allow(&programs, held, (100 - held) / 2));
        assert!(!limits.descriptors.shares().would_allow(&programs, 0, (100 - held) / 2));
    }
}
