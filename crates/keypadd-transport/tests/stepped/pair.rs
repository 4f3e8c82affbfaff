//! Provides two stepped event loops, and connections between them in virtual time.

use std::{
    cell::{Cell, RefCell},
    collections::VecDeque,
    future::Future,
    net::{Ipv4Addr, SocketAddr},
    rc::Rc,
    time::{Duration, Instant},
};

use keypadd_transport::{
    Accepted, ArrivedDatagram, ClientConfig, Connection, Dial, Endpoint, EndpointSettings, Purpose,
    SentDatagrams, ServerConfig, SteppedLoop, Stream, VarInt,
};

use crate::stepped::{Task, poll};

/// Datagrams per send.
const BATCH: usize = 8;

/// Longer than acknowledgments and pacing take.
const MOMENT: Duration = Duration::from_millis(200);

/// Closes a connection whose streams are to be held.
pub const HOLD: VarInt = VarInt::from_u32(6);

/// Two loops, and the datagrams on their way to each.
pub struct Pair {
    pub now: Instant,
    pub loops: [SteppedLoop; 2],
    pub addresses: [SocketAddr; 2],
    pub wires: Rc<RefCell<[VecDeque<Vec<u8>>; 2]>>,
    /// Which directions lose datagrams that could be marked (ECN-capable, RFC 3168).
    #[allow(dead_code, reason = "only `step_by_step` sets it")]
    pub drops_capable: Rc<Cell<[bool; 2]>>,
}

impl Pair {
    /// Two loops without a connection, with changed settings, and their endpoints.
    pub fn with(
        server: ServerConfig,
        change: impl Fn(&mut EndpointSettings),
    ) -> (Self, [Endpoint; 2]) {
        let now = Instant::now();
        let addresses = [1, 2].map(|port| SocketAddr::from((Ipv4Addr::LOCALHOST, port)));
        let wires = Rc::<RefCell<[VecDeque<Vec<u8>>; 2]>>::default();
        let drops_capable = Rc::<Cell<[bool; 2]>>::default();
        let start = |end: usize, server| {
            let (wires, drops_capable) = (Rc::clone(&wires), Rc::clone(&drops_capable));
            let outbox = Box::new(move |sent: SentDatagrams<'_>| {
                if drops_capable.get()[end] && sent.ecn.is_some() {
                    return;
                }
                let datagrams = sent.bytes.chunks(sent.segment_bytes).map(<[u8]>::to_vec);
                wires.borrow_mut()[1 - end].extend(datagrams);
            });
            let mut settings = EndpointSettings::plain(Vec::new(), server);
            settings.plan.hold_code = Some(HOLD);
            change(&mut settings);
            SteppedLoop::new(settings, addresses[end], BATCH, outbox, now).unwrap()
        };
        let (client, server) = (start(0, None), start(1, Some(server)));
        let loops = [client.0, server.0];
        (Self { now, loops, addresses, wires, drops_capable }, [client.1, server.1])
    }

    /// Lets one end do what it can with what has arrived.
    pub fn run(&mut self, end: usize) {
        let arrived = std::mem::take(&mut self.wires.borrow_mut()[end]);
        for datagram in arrived {
            self.loops[end].arrive(ArrivedDatagram::plain(self.addresses[1 - end], &datagram));
        }
        self.loops[end].run_until_idle(self.now).unwrap();
    }

    /// Lets a moment pass for these ends; what the others are sent waits.
    pub fn pass(&mut self, ends: &[usize]) {
        let until = self.now + MOMENT;
        loop {
            ends.iter().for_each(|end| self.run(*end));
            if ends.iter().any(|end| !self.wires.borrow()[*end].is_empty()) {
                continue;
            }
            let deadlines = ends.iter().filter_map(|end| self.loops[*end].deadline());
            match deadlines.min().filter(|at| *at <= until) {
                Some(at) => self.now = self.now.max(at),
                None => break,
            }
        }
        self.now = until;
    }

    /// Lets time pass until both have a result.
    pub fn until<T, U>(
        &mut self,
        one: impl Future<Output = T> + 'static,
        other: impl Future<Output = U> + 'static,
    ) -> (T, U) {
        let (mut one, mut other): (Task<T>, Task<U>) = (Box::pin(one), Box::pin(other));
        let (mut first, mut second) = (None, None);
        for _ in 0..100 {
            first = first.or_else(|| poll(&mut one));
            second = second.or_else(|| poll(&mut other));
            if first.is_some() && second.is_some() {
                break;
            }
            self.pass(&[0, 1]);
        }
        (first.expect("the client's"), second.expect("the server's"))
    }

    /// A connection's ends: the client's, the server's.
    pub fn connect(&mut self, endpoints: &[Endpoint; 2], config: ClientConfig) -> [Connection; 2] {
        self.connect_for(endpoints, config, Purpose::Sparse)
    }

    /// Connects a client for this purpose.
    pub fn connect_for(
        &mut self,
        endpoints: &[Endpoint; 2],
        config: ClientConfig,
        purpose: Purpose,
    ) -> [Connection; 2] {
        let (client, server) = (endpoints[0].clone(), endpoints[1].clone());
        let (server_name, address) = ("keypadd", self.addresses[1]);
        let dial = Dial { config, address, server_name, purpose, home: None, rtt: None };
        let connecting = async move { client.connect(dial).await.unwrap() };
        let accepting = async move {
            match server.accept().await {
                Some(Accepted::Connection(connection)) => connection,
                other => panic!("{other:?}"),
            }
        };
        self.until(connecting, accepting).into()
    }

    /// A stream's ends, once a first byte has shown it to the server.
    pub fn open(&mut self, [client, server]: &[Connection; 2]) -> [Stream; 2] {
        let (client, server) = (client.clone(), server.clone());
        let opening = async move {
            let stream = client.open_bi().await.unwrap();
            stream.send.write_all(&[7]).await.unwrap();
            stream
        };
        let accepting = async move {
            let mut stream = server.accept_bi().await.unwrap();
            stream.recv.read_exact(&mut [0]).await.unwrap();
            stream
        };
        self.until(opening, accepting).into()
    }
}
