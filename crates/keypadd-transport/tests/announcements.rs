//! Tests that a peer which says again and again that a stream continues, and resets what it said so
//! on, takes no memory. Runs in its own process, whose other threads allocate nothing meanwhile.
#![allow(unreachable_pub, clippy::unwrap_used)]

mod configs;

use std::{
    alloc::System,
    cell::RefCell,
    mem,
    net::{IpAddr, Ipv4Addr, SocketAddr},
    rc::Rc,
    sync::Arc,
    time::{Duration, Instant},
};

use configs::configs;
use keypadd_keystream::Suite;
use keypadd_transport::{
    ArrivedDatagram, Endpoint, EndpointSettings, SentDatagrams, SteppedLoop, VarInt,
};
use quinn_proto::{ConnectionHandle, DatagramEvent, Dir, EndpointConfig, StreamId};
use stats_alloc::{INSTRUMENTED_SYSTEM, Region, StatsAlloc};

#[global_allocator]
static ALLOCATOR: &StatsAlloc<System> = &INSTRUMENTED_SYSTEM;

const CLIENT: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), 1);
const SERVER: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), 2);

/// As long as acknowledgments take.
const MOMENT: Duration = Duration::from_millis(50);

/// A client that sends what it likes, and its server.
struct Hostile {
    now: Instant,
    endpoint: quinn_proto::Endpoint,
    handle: ConnectionHandle,
    connection: quinn_proto::Connection,
    server: SteppedLoop,
    sent: Rc<RefCell<Vec<Vec<u8>>>>,
    _server_endpoint: Endpoint,
}

impl Hostile {
    fn connect() -> Self {
        let (client, server) = configs(Suite::AES_128_GCM);
        let (now, sent) = (Instant::now(), Rc::<RefCell<Vec<Vec<u8>>>>::default());
        let wire = Rc::clone(&sent);
        let outbox = Box::new(move |sent: SentDatagrams<'_>| {
            wire.borrow_mut().extend(sent.bytes.chunks(sent.segment_bytes).map(<[u8]>::to_vec));
        });
        let settings = EndpointSettings::plain(Vec::new(), Some(server));
        let (server, _server_endpoint) =
            SteppedLoop::new(settings, SERVER, 1, outbox, now).unwrap();
        let config = Arc::new(EndpointConfig::default());
        let mut endpoint = quinn_proto::Endpoint::new(config, None, false, None);
        let (handle, connection) = endpoint.connect(now, client, SERVER, "keypadd").unwrap();
        let mut this = Self { now, endpoint, handle, connection, server, sent, _server_endpoint };
        (0..10).for_each(|_| this.pass());
        assert!(!this.connection.is_handshaking() && !this.connection.is_closed());
        this
    }

    /// Lets a moment pass, in which packets arrive.
    fn pass(&mut self) {
        let mut buffer = Vec::new();
        for _ in 0..4 {
            while let Some(transmit) = self.connection.poll_transmit(self.now, 1, &mut buffer) {
                self.server.arrive(ArrivedDatagram::plain(CLIENT, &buffer[..transmit.size]));
                buffer.clear();
            }
            self.server.run_until_idle(self.now).unwrap();
            for datagram in mem::take(&mut *self.sent.borrow_mut()) {
                let bytes = datagram.as_slice().into();
                let event = self.endpoint.handle(self.now, SERVER, None, None, bytes, &mut buffer);
                if let Some(DatagramEvent::ConnectionEvent(_, event)) = event {
                    self.connection.handle_event(event);
                }
                buffer.clear();
            }
            while let Some(event) = self.connection.poll_endpoint_events() {
                if let Some(event) = self.endpoint.handle_event(self.handle, event) {
                    self.connection.handle_event(event);
                }
            }
            while self.connection.poll().is_some() {}
            self.now += MOMENT / 4;
            if self.connection.poll_timeout().is_some_and(|at| at <= self.now) {
                self.connection.handle_timeout(self.now);
            }
        }
    }

    /// Says on as many streams as there may be that they continue others, and returns them.
    fn announce(&mut self) -> Vec<StreamId> {
        let mut announced = Vec::new();
        while let Some(id) = self.connection.streams().open(Dir::Uni) {
            let [continued, offset] = [4 * id.index(), 16];
            let head = [continued.to_be_bytes(), offset.to_be_bytes()].concat();
            assert_eq!(self.connection.send_stream(id).write(&head), Ok(head.len()));
            announced.push(id);
        }
        announced
    }
}

#[test]
fn what_a_peer_resets_before_there_is_a_sibling_takes_no_memory() {
    let mut hostile = Hostile::connect();
    let mut announce = |count: usize| {
        let mut announced = 0;
        while announced < count {
            let streams = hostile.announce();
            announced += streams.len();
            hostile.pass();
            for id in streams {
                hostile.connection.send_stream(id).reset(VarInt::from_u32(1)).unwrap();
            }
            hostile.pass();
            assert!(!hostile.connection.is_closed());
        }
    };
    announce(2_000);
    let region = Region::new(ALLOCATOR);
    announce(20_000);
    let change = region.change();
    let kept = change.bytes_allocated as i64 - change.bytes_deallocated as i64;
    // Those of one moment, at most.
    assert!(kept < 100_000, "{kept} bytes are kept");
}
