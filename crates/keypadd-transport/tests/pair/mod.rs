//! Provides two endpoints of one loop each in this process, over loopback, and connections between
//! them.

#[path = "../configs/mod.rs"]
mod configs;

use std::net::{Ipv4Addr, SocketAddr, UdpSocket};
use std::os::unix::net::UnixStream;
use std::sync::Arc;

use configs::configs;
use keypadd_keystream::Suite;
use keypadd_transport::{
    Accepted, ClientConfig, Connection, Delivery, Dial, Endpoint, EndpointSettings, Plan, Purpose,
    ServerConfig, SpinShare, Stream, TransportConfig, VarInt, Windows,
};
use tokio::runtime::Runtime;

/// Windows of a stream and of a connection, as a tunnel has them.
const WINDOWS: Windows =
    Windows { stream: 2 << 20, first: 64 << 20, connection: 64 << 20, connection_max: 64 << 20 };
const SEND_WINDOW_BYTES: u32 = 16 << 20;

/// A close with this code holds streams.
pub const HOLD: VarInt = VarInt::from_u32(6);

fn endpoint(server: Option<ServerConfig>, spin: SpinShare) -> Endpoint {
    let transport = |_| {
        let mut transport = TransportConfig::default();
        transport.send_window(2 * u64::from(SEND_WINDOW_BYTES));
        transport
    };
    let sockets = vec![UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).unwrap()];
    let endpoint = Endpoint::start(EndpointSettings {
        spin,
        plan: Plan {
            transport: Arc::new(transport),
            sparse_windows: WINDOWS,
            bulk_windows: WINDOWS,
            long_path_bulk_windows: WINDOWS,
            flight_max: SEND_WINDOW_BYTES.into(),
            connections_max: 64,
            hold_code: Some(HOLD),
            ..Plan::plain()
        },
        ..EndpointSettings::plain(sockets, server)
    });
    endpoint.unwrap()
}

/// A client and a server, with AES-256-GCM and no pool.
pub struct Pair {
    /// Runs control tasks.
    pub control: Runtime,
    pub client: Endpoint,
    pub server: Endpoint,
    config: ClientConfig,
}

impl Pair {
    /// Their loops poll for at most `spin` of a core.
    pub fn new(spin: SpinShare) -> Self {
        let control =
            tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_time().build();
        let (config, server) = configs(Suite::AES_256_GCM);
        let server = endpoint(Some(server), spin);
        Self { control: control.unwrap(), client: endpoint(None, spin), server, config }
    }

    /// A connection's ends: the client's, the server's.
    pub fn connect(&self) -> [Connection; 2] {
        self.connect_to(self.server.local_addr())
    }

    /// The same through another address.
    pub fn connect_to(&self, address: SocketAddr) -> [Connection; 2] {
        let config = self.config.clone();
        let (server_name, purpose) = ("keypadd", Purpose::Sparse);
        let connect = self.client.connect(Dial {
            config,
            address,
            server_name,
            purpose,
            home: None,
            rtt: None,
        });
        let accept = async {
            match self.server.accept().await {
                Some(Accepted::Connection(connection)) => connection,
                other => panic!("{other:?}"),
            }
        };
        let (connected, accepted) = self.control.block_on(async { tokio::join!(connect, accept) });
        [connected.unwrap(), accepted]
    }

    /// A stream's ends, once a first byte has shown it to the server, which has read it.
    pub fn open(&self, [client, server]: &[Connection; 2]) -> [Stream; 2] {
        self.control.block_on(async {
            let opened = client.open_bi().await.unwrap();
            opened.send.write_all(&[0]).await.unwrap();
            let mut accepted = server.accept_bi().await.unwrap();
            accepted.recv.read_exact(&mut [0]).await.unwrap();
            [opened, accepted]
        })
    }

    /// Splices both ends of a stream; the programs' ends of both sockets.
    pub fn splice(&self, streams: [Stream; 2]) -> [UnixStream; 2] {
        streams.map(|stream| {
            let (program, spliced) = UnixStream::pair().unwrap();
            self.control.spawn(stream.splice(spliced.into(), Delivery::Unbounded, "".into()));
            program
        })
    }
}
