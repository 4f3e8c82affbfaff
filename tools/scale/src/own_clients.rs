//! Runs many clients in this process, each with its own key and one event loop.
//!
//! All have a thread for their timers and sessions, and with their loops come after the server and
//! what measures it: else it would wait for hundreds of threads that on a gateway are elsewhere.

use std::future::pending;
use std::net::SocketAddr;
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use keypadd_keystream::Suite;
use keypadd_provider::{CryptoSettings, KeyExchange, PrivateKey, PublicKey, client_config};
use keypadd_tunnel::{
    Client, ClientSession, ClientSettings, Forward, HoldSettings, LinkState, LocalForward,
    ServerAddress, SpinShare, TransportSettings, wire::Instance,
};
use rustix::process::nice;
use tokio::runtime::Builder;
use tokio::sync::oneshot;
use tokio::task::JoinSet;

use crate::Outcome;
use crate::traffic::{STEP_TIMEOUT, next};

/// Clients that connect at the same time.
const AT_ONCE: usize = 16;
/// How long clients hold connections: longer than a measurement.
const HOLD: Duration = Duration::from_secs(600);
/// Of each client's sockets.
const UDP_BUFFER_BYTES: usize = 256 << 10;

/// The least priority that a user can give (nice(1)).
const NICE: i32 = 19;

/// A client and its first session.
type Up = (Arc<Client>, ClientSession);

/// Clients that connect again whenever they lose their session, until this is dropped.
pub(crate) struct Fleet {
    /// In the order in which they have connected.
    pub(crate) clients: Vec<Arc<Client>>,
    _running: oneshot::Sender<()>,
}

/// What each client is.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Kind {
    pub(crate) server: SocketAddr,
    pub(crate) server_key: PublicKey,
    /// Where its only forward leads; without one it has none, and holds nothing.
    pub(crate) target: Option<SocketAddr>,
}

/// Keys of so many clients.
pub(crate) fn new_keys(count: u32) -> Outcome<Vec<Arc<PrivateKey>>> {
    let new = || PrivateKey::generate().map(Arc::new).map_err(|error| format!("no key: {error}"));
    (0..count).map(|_| new()).collect()
}

/// The public keys, for a server to list.
pub(crate) fn listed(keys: &[Arc<PrivateKey>]) -> Vec<String> {
    keys.iter().map(|key| key.public().to_string()).collect()
}

impl Fleet {
    /// Connects a client with each key.
    pub(crate) async fn connect(keys: Vec<Arc<PrivateKey>>, kind: Kind) -> Outcome<Self> {
        let (connected, all) = oneshot::channel();
        let (running, dropped) = oneshot::channel();
        thread::spawn(move || {
            // Of this thread, and of those that it starts.
            let _ = nice(NICE);
            let runtime = Builder::new_current_thread().enable_all().build();
            let runtime = match runtime {
                Ok(runtime) => runtime,
                Err(error) => return drop(connected.send(Err(error.to_string()))),
            };
            runtime.block_on(async {
                let up = match connect_all(keys, kind).await {
                    Ok(up) => up,
                    Err(error) => return drop(connected.send(Err(error))),
                };
                let _ =
                    connected.send(Ok(up.iter().map(|(client, _)| Arc::clone(client)).collect()));
                let mut all = JoinSet::new();
                for (client, session) in up {
                    all.spawn(async move { client.run(Some(session), pending()).await });
                }
                let _ = dropped.await;
            });
            runtime.shutdown_background();
        });
        let clients = all.await.map_err(|error| format!("clients: {error}"))??;
        Ok(Self { clients, _running: running })
    }

    /// How many are not connected, or have not been all the time.
    pub(crate) fn lost(&self) -> usize {
        let status = self.clients.iter().map(|client| client.link().status());
        status.filter(|it| it.state != LinkState::Connected || !it.reconnects.is_empty()).count()
    }
}

async fn connect_all(keys: Vec<Arc<PrivateKey>>, kind: Kind) -> Outcome<Vec<Up>> {
    let (mut connecting, mut up) = (JoinSet::new(), Vec::new());
    for key in keys {
        if connecting.len() >= AT_ONCE {
            up.extend(next(&mut connecting).await?);
        }
        connecting.spawn(connect(key, kind));
    }
    while let Some(one) = next(&mut connecting).await? {
        up.push(one);
    }
    Ok(up)
}

async fn connect(key: Arc<PrivateKey>, kind: Kind) -> Outcome<Up> {
    let failed = |error: &dyn std::fmt::Display| format!("a client: {error}");
    let crypto = CryptoSettings {
        kex: vec![KeyExchange::default().into()],
        ..CryptoSettings::plain(key, Suite::default())
    };
    let server: ServerAddress = kind.server.to_string().parse().map_err(|error| failed(&error))?;
    let forward = kind.target.map(|target| format!("127.0.0.1:0:{target}").parse());
    let forward: Option<LocalForward> = forward.transpose().map_err(|error| failed(&error))?;
    let client = Client::bind(ClientSettings {
        server: server.into(),
        crypto: client_config(&crypto, kind.server_key).map_err(|error| failed(&error))?,
        name: None,
        forwards: forward.into_iter().map(Forward::Local).collect(),
        proxy_headers: <_>::default(),
        transport: TransportSettings {
            loops: 1,
            spin: SpinShare::percent(0),
            udp_buffer_bytes: UDP_BUFFER_BYTES,
            hold: match kind.target {
                Some(_) => HoldSettings { time: HOLD, ..HoldSettings::OFF },
                None => HoldSettings::OFF,
            },
            ..TransportSettings::default()
        },
        connect_timeout: STEP_TIMEOUT,
        instance: Instance::generate().map_err(|error| failed(&error))?,
    })
    .await
    .map_err(|error| failed(&error))?;
    let session = client.connect().await.map_err(|error| failed(&error))?;
    Ok((Arc::new(client), session))
}
