//! Provides two quinn-proto endpoints on a virtual clock and a lossless network.

use std::collections::VecDeque;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::BytesMut;
use interposer::{Interposer, Stubborn};
use keypadd_keystream::{CipherEngine, Suite};
use keypadd_provider::{
    CryptoSettings, KeyExchange, Meters, PoolSwitch, PrivateKey, PublicKey, client_config,
    server_config,
};
use quinn_proto::{
    ClientConfig, Connection, ConnectionHandle, DatagramEvent, Endpoint, EndpointConfig,
    ServerConfig, crypto,
};

use super::record::Record;

/// Half a round trip.
const TICK: Duration = Duration::from_millis(1);

pub(crate) struct Pair {
    now: Instant,
    pub(crate) ends: [End; 2],
}

pub(crate) struct End {
    pub(crate) record: Arc<Record>,
    pub(crate) meters: Arc<Meters>,
    endpoint: Endpoint,
    pub(crate) connection: Option<(ConnectionHandle, Connection)>,
    inbox: VecDeque<Vec<u8>>,
}

/// Cryptography of a client and a server that know each other, with hooks for a test.
pub(crate) struct Crypto {
    pub(crate) client: Arc<dyn crypto::ClientConfig>,
    pub(crate) server: Arc<dyn crypto::ServerConfig>,
    pub(crate) keys: [PublicKey; 2],
    meters: [Arc<Meters>; 2],
}

impl Crypto {
    pub(crate) fn new(suite: Suite, switches: [PoolSwitch; 2]) -> Self {
        Self::with_suites([&[suite], &[suite]], switches)
    }

    /// Suites to offer and to accept, in order of preference.
    pub(crate) fn with_suites(suites: [&[Suite]; 2], switches: [PoolSwitch; 2]) -> Self {
        let key = || Arc::new(PrivateKey::generate().expect("randomness"));
        let keys = [key(), key()];
        let ends = keys.iter().zip(switches).zip(suites);
        let mut ends = ends.map(|((key, pool), suites)| CryptoSettings {
            key: Arc::clone(key),
            suites: suites.iter().copied().map(Into::into).collect(),
            kex: vec![KeyExchange::X25519.into()],
            pool,
            cipher_engine: CipherEngine::default(),
            meters: Arc::new(Meters::default()),
        });
        let settings = [ends.next(), ends.next()].map(|end| end.expect("two ends"));
        Self {
            client: client_config(&settings[0], keys[1].public()).expect("settings"),
            server: server_config(&settings[1], Arc::new(keys[0].public())).expect("settings"),
            keys: keys.each_ref().map(|key| key.public()),
            meters: settings.map(|settings| settings.meters),
        }
    }
}

fn address(end: usize) -> SocketAddr {
    SocketAddr::from((Ipv4Addr::LOCALHOST, 1000 + end as u16))
}

impl Pair {
    /// A client and a server at the start of their handshake, with the limits reported to quinn.
    pub(crate) fn new(suite: Suite, limits: [Option<u64>; 2]) -> Self {
        let records = limits.map(|limit| Arc::new(Record::new(limit)));
        let by = Arc::clone(&records[1]);
        Self::interposed(suite, &PoolSwitch::default(), records, by)
    }

    /// Like [`Self::new`], without such limits; both ends use this pool switch.
    pub(crate) fn switched(suite: Suite, switch: &PoolSwitch) -> Self {
        let records = [(); 2].map(|()| Arc::new(Record::new(None)));
        let by = Arc::clone(&records[1]);
        Self::interposed(suite, switch, records, by)
    }

    /// Like [`Self::new`], but the server never leaves the first key phase and records nothing.
    pub(crate) fn with_a_stubborn_server(suite: Suite, limit: u64) -> Self {
        let records = [Some(limit), None].map(|limit| Arc::new(Record::new(limit)));
        Self::interposed(suite, &PoolSwitch::default(), records, Arc::new(Stubborn::default()))
    }

    fn interposed(
        suite: Suite,
        switch: &PoolSwitch,
        records: [Arc<Record>; 2],
        of_server: Arc<dyn Interposer>,
    ) -> Self {
        let switches = [switch.clone(), switch.clone()];
        let Crypto { client, server, meters, .. } = Crypto::new(suite, switches);
        let client = interposer::client_config(client, Arc::clone(&records[0]) as _);
        let server = interposer::server_config(server, of_server);
        let server = Arc::new(ServerConfig::with_crypto(server));
        let now = Instant::now();
        let endpoint =
            |server| Endpoint::new(Arc::new(EndpointConfig::default()), server, true, None);
        let mut ends = [None, Some(server)].map(endpoint).into_iter().zip(records).zip(meters).map(
            |((endpoint, record), meters)| End {
                record,
                meters,
                endpoint,
                connection: None,
                inbox: VecDeque::new(),
            },
        );
        let mut ends = [ends.next(), ends.next()].map(|end| end.expect("two ends"));
        let client = ClientConfig::new(client);
        ends[0].connection =
            Some(ends[0].endpoint.connect(now, client, address(1), "x").expect("a connection"));
        Self { now, ends }
    }

    /// Runs for this many milliseconds; in each, every permitted end sends something.
    pub(crate) fn run(&mut self, millis: usize, talks: [bool; 2]) {
        for _ in 0..millis {
            self.now += TICK;
            for (end, talks) in self.ends.iter_mut().zip(talks) {
                if let Some((_, connection)) = end.connection.as_mut().filter(|_| talks) {
                    connection.ping();
                }
            }
            for at in 0..2 {
                let sent = self.ends[at].turn(self.now, address(1 - at));
                self.ends[1 - at].inbox.extend(sent);
            }
        }
    }
}

impl End {
    /// Handles what has arrived and what is due; returns what to send.
    fn turn(&mut self, now: Instant, peer: SocketAddr) -> Vec<Vec<u8>> {
        let mut sent = Vec::new();
        let mut answer = Vec::new();
        for datagram in std::mem::take(&mut self.inbox) {
            let data = BytesMut::from(&datagram[..]);
            match self.endpoint.handle(now, peer, None, None, data, &mut answer) {
                Some(DatagramEvent::NewConnection(incoming)) => {
                    let accepted = self.endpoint.accept(incoming, now, &mut answer, None);
                    self.connection = Some(accepted.map_err(|e| e.cause).expect("accepted"));
                }
                Some(DatagramEvent::ConnectionEvent(_, event)) => {
                    if let Some((_, connection)) = &mut self.connection {
                        connection.handle_event(event);
                    }
                }
                Some(DatagramEvent::Response(_)) | None => {}
            }
        }
        let Some((handle, connection)) = &mut self.connection else { return sent };
        if connection.poll_timeout().is_some_and(|due| due <= now) {
            connection.handle_timeout(now);
        }
        while connection.poll().is_some() {}
        while let Some(event) = connection.poll_endpoint_events() {
            if let Some(event) = self.endpoint.handle_event(*handle, event) {
                connection.handle_event(event);
            }
        }
        let mut datagram = Vec::new();
        while let Some(transmit) = connection.poll_transmit(now, 1, &mut datagram) {
            datagram.truncate(transmit.size);
            sent.push(std::mem::take(&mut datagram));
        }
        sent
    }
}
