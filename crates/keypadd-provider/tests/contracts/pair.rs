//! Two quinn-proto endpoints on a virtual clock and a network that loses nothing.

use std::collections::VecDeque;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::BytesMut;
use keypadd_keystream::{CipherEngine, Suite};
use keypadd_provider::{
    AllowList, CryptoSettings, KeyExchange, Meters, PrivateKey, PublicKey, Supply, client_config,
    server_config,
};
use quinn_proto::{
    ClientConfig, Connection, ConnectionHandle, DatagramEvent, Endpoint, EndpointConfig,
    ServerConfig,
};

use super::record::Record;

/// The round trip is two of these.
const TICK: Duration = Duration::from_millis(1);

pub(crate) struct Pair {
    now: Instant,
    pub(crate) ends: [End; 2],
}

pub(crate) struct End {
    pub(crate) record: Arc<Record>,
    endpoint: Endpoint,
    pub(crate) connection: Option<(ConnectionHandle, Connection)>,
    inbox: VecDeque<Vec<u8>>,
    /// Datagrams to this end are lost.
    pub(crate) is_deaf: bool,
}

#[derive(Debug)]
struct Anybody;

impl AllowList for Anybody {
    fn allows(&self, _: &PublicKey) -> bool {
        true
    }
}

fn address(end: usize) -> SocketAddr {
    SocketAddr::from((Ipv4Addr::LOCALHOST, 1000 + end as u16))
}

impl Pair {
    /// A client and a server that have just begun to shake hands.
    pub(crate) fn new(suite: Suite, limit: Option<u64>) -> Self {
        Self::drawing(suite, limit, &Supply::default())
    }

    /// Likewise; both draw on this.
    pub(crate) fn drawing(suite: Suite, limit: Option<u64>, supply: &Supply) -> Self {
        let key = || Arc::new(PrivateKey::generate().expect("randomness"));
        let keys = [key(), key()];
        let settings = |end: usize| CryptoSettings {
            key: Arc::clone(&keys[end]),
            suites: vec![suite.into()],
            kex: vec![KeyExchange::X25519.into()],
            supply: supply.clone(),
            cipher_engine: CipherEngine::default(),
            meters: Arc::new(Meters::default()),
        };
        let records = [(); 2].map(|()| Arc::new(Record::new(limit)));
        let by = |end: usize| Arc::clone(&records[end]) as _;
        let inner = client_config(&settings(0), keys[1].public()).expect("settings");
        let client = interposer::client_config(inner, by(0));
        let inner = server_config(&settings(1), Arc::new(Anybody)).expect("settings");
        let server = interposer::server_config(inner, by(1));
        let server = Arc::new(ServerConfig::with_crypto(server));
        let now = Instant::now();
        let endpoint =
            |server| Endpoint::new(Arc::new(EndpointConfig::default()), server, true, None);
        let mut ends = [None, Some(server)].map(endpoint).into_iter().zip(records).map(
            |(endpoint, record)| End {
                record,
                endpoint,
                connection: None,
                inbox: VecDeque::new(),
                is_deaf: false,
            },
        );
        let mut ends = [ends.next(), ends.next()].map(|end| end.expect("two ends"));
        let client = ClientConfig::new(client);
        ends[0].connection =
            Some(ends[0].endpoint.connect(now, client, address(1), "x").expect("a connection"));
        Self { now, ends }
    }

    /// Runs for so many milliseconds; each end that may says something in each of them.
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
                let other = &mut self.ends[1 - at];
                if !other.is_deaf {
                    other.inbox.extend(sent);
                }
            }
        }
    }
}

impl End {
    /// Takes in what has come and whatever is due; what is to be sent.
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
