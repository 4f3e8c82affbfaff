//! Connects many idle clients to one server, each with its own key: none fails, and the first
//! connection is as fast as it was alone.
//!
//! The clients run in this process, with one event loop each; the server's memory is what is
//! measured.

use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use keypadd_keystream::Suite;
use keypadd_provider::{CryptoSettings, KeyExchange, PrivateKey, PublicKey, client_config};
use keypadd_tunnel::{
    Client, ClientSession, ClientSettings, ServerAddress, SpinShare, TransportSettings,
    wire::Instance,
};
use tokio::task::JoinSet;

use crate::Outcome;
use crate::cli::Cli;
use crate::daemon::{Desk, Service};
use crate::table::Row;
use crate::traffic::{Pinger, STEP_TIMEOUT, next};

/// Memory of an idle client in the server.
const MEMORY_GOAL_BYTES: f64 = 64.0 * 1024.0;
/// The first connection's round trip, as a multiple of what it was before.
const RTT_GOAL: f64 = 1.5;
/// Round trips per figure.
const PINGS: usize = 4_000;
/// Clients that connect at the same time.
const AT_ONCE: usize = 16;

/// A client and its session.
type Up = (Client, ClientSession);

pub(crate) async fn measure(cli: &Cli, keypadd: &Path) -> Outcome<Vec<Row>> {
    let count = cli.clients;
    let service = Service::start().await?;
    let desk = Desk::new(keypadd).await?;
    let no_key = |error| format!("no key: {error}");
    let keys = (0..count).map(|_| PrivateKey::generate().map(Arc::new).map_err(no_key));
    let keys = keys.collect::<Outcome<Vec<_>>>()?;
    let listed: Vec<String> = keys.iter().map(|key| key.public().to_string()).collect();
    let mut server = desk.serve(&listed, &["--pool", "off"]).await?;
    let address = server.listen()?;
    let (mut client, entrance) = desk.connect(address, service.address, &["--pool", "off"]).await?;
    let mut first = Pinger::open(entrance).await?;
    first.ping(PINGS / 4).await?;
    let alone = first.ping(PINGS).await?;
    let before = server.settled_bytes().await?;

    let server_key: PublicKey =
        desk.public_key.parse().map_err(|_| "invalid server key".to_owned())?;
    let began = Instant::now();
    let (mut connecting, mut up) = (JoinSet::new(), Vec::new());
    for key in keys {
        if connecting.len() >= AT_ONCE {
            up.extend(next(&mut connecting).await?);
        }
        connecting.spawn(connect(address, key, server_key));
    }
    while let Some(one) = next(&mut connecting).await? {
        up.push(one);
    }
    let opening = began.elapsed();
    let after = server.settled_bytes().await?;
    let beside = first.ping(PINGS).await?;
    // Longer than the time for which a silent path counts as alive.
    tokio::time::sleep(Duration::from_secs(12)).await;
    let lost = up.iter().filter(|(_, session)| session.live().has_ended()).count();
    server.must_run()?;
    client.must_run()?;
    let complaints = server.complaints() + client.complaints();
    drop(up);
    client.stop().await?;
    server.stop().await?;

    let each = after.saturating_sub(before) as f64 / f64::from(count);
    let ratio = beside.over(alone);
    Ok(vec![
        Row::judged(
            "errors",
            format!("{lost} sessions lost, {complaints} log lines"),
            "none",
            lost + complaints == 0,
        ),
        Row::stated(
            "sessions",
            format!("{:.0} a second", f64::from(count) / opening.as_secs_f64()),
        ),
        Row::judged(
            "memory each, server",
            format!("{:.1} KiB", each / 1024.0),
            "at most 64 KiB",
            each <= MEMORY_GOAL_BYTES,
        ),
        Row::stated("first connection alone", alone.text()),
        Row::stated("first connection beside the others", beside.text()),
        Row::judged("ratio of p50", format!("{ratio:.2}"), "at most 1.5", ratio <= RTT_GOAL),
    ])
}

async fn connect(server: SocketAddr, key: Arc<PrivateKey>, peer: PublicKey) -> Outcome<Up> {
    let failed = |error: &dyn std::fmt::Display| format!("a client: {error}");
    let crypto = CryptoSettings {
        kex: vec![KeyExchange::default().into()],
        ..CryptoSettings::plain(key, Suite::default())
    };
    let server: ServerAddress = server.to_string().parse().map_err(|error| failed(&error))?;
    let client = Client::bind(ClientSettings {
        server: server.into(),
        crypto: client_config(&crypto, peer).map_err(|error| failed(&error))?,
        name: None,
        forwards: Vec::new(),
        proxy_headers: <_>::default(),
        transport: TransportSettings {
            loops: 1,
            spin: SpinShare::percent(0),
            udp_buffer_bytes: 64 << 10,
            ..TransportSettings::default()
        },
        connect_timeout: STEP_TIMEOUT,
        instance: Instance::generate().map_err(|error| failed(&error))?,
    })
    .await
    .map_err(|error| failed(&error))?;
    let session = client.connect().await.map_err(|error| failed(&error))?;
    Ok((client, session))
}
