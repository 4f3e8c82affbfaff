//! Tests who makes room for whom, and what is dropped.

mod networks;

use std::{
    cell::Cell,
    fmt,
    net::{SocketAddr, UdpSocket},
    sync::{Mutex, PoisonError},
};

use quinn_proto::VarInt;
use tokio::sync::mpsc;

use super::{
    arrived::{FRAME_BYTES_WAITING_MAX, FRAMES_WAITING_MAX},
    frame::{FRAGMENT_BYTES_MIN, FlowFrame, Fragment},
    handles::NewListener,
    *,
};
use crate::splice::{Key, Sockets};

const CONNECTION: Key = Key { handle: 0, serial: 0 };

/// The sockets of an event loop that does not run.
fn loop_sockets() -> Sockets {
    let registry = mio::Poll::new().unwrap().registry().try_clone().unwrap();
    Sockets::new(Arc::new(registry), 0)
}

/// Keeps what control tasks ask for.
#[derive(Default)]
struct Asked(Mutex<Vec<FlowCommand>>);

impl fmt::Debug for Asked {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Asked").finish_non_exhaustive()
    }
}

impl FlowCommands for Asked {
    fn send_flow(&self, command: FlowCommand) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).push(command);
    }
}

#[test]
fn a_flow_makes_room_only_when_it_was_idle_for_as_long_as_asked() {
    const UNUSED: Duration = Duration::from_secs(10);
    let start = Instant::now();
    let mut sockets = loop_sockets();
    let mut registrar = sockets.registrar(CONNECTION);
    let asked = Arc::new(Asked::default());
    let connection: Arc<dyn FlowCommands> = asked.clone();
    let mut flows = Flows::new(Duration::from_secs(120));
    let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
    let entry = socket.local_addr().unwrap();
    let (sources, mut incoming) = mpsc::channel(4);
    let lease = Arc::new(());
    let new = NewListener { listener: 0, socket, lease, incoming: sources, sources_max: 4 };
    let listen = FlowCommand::Listen(new);
    flows.on_command(listen, &connection, &mut registrar, start);

    // Two flows, the second a second later.
    let senders = [(); 2].map(|()| UdpSocket::bind("127.0.0.1:0").unwrap());
    let mut carried = Vec::new();
    for (number, sender) in (0..).zip(&senders) {
        let now = start + Duration::from_secs(number);
        sender.send_to(b"first", entry).unwrap();
        flows.on_ready(Owner::Listener(0));
        flows.read_sockets(now, &mut endless());
        let id = StreamId::from(VarInt::from_u64(4 * number).unwrap());
        carried.push(incoming.try_recv().unwrap().carried_over(id));
        for command in std::mem::take(&mut *asked.0.lock().unwrap()) {
            flows.on_command(command, &connection, &mut registrar, now);
        }
    }
    let mut displace = |idle, now| {
        flows.on_command(FlowCommand::Displace { idle }, &connection, &mut registrar, now);
        flows.open.len()
    };
    assert_eq!(displace(UNUSED, start + UNUSED - Duration::from_millis(1)), 2, "both in use");
    assert_eq!(displace(UNUSED, start + UNUSED), 1, "one was idle for long enough");
    assert_eq!(displace(UNUSED, start + UNUSED), 1, "the other was not");
    assert_eq!(displace(Duration::ZERO, start + UNUSED), 0, "a flow takes any");
}

/// Notes whether its address can be bound when it is dropped.
struct Bindable(SocketAddr, Arc<Mutex<Option<bool>>>);

impl Drop for Bindable {
    fn drop(&mut self) {
        *self.1.lock().unwrap() = Some(UdpSocket::bind(self.0).is_ok());
    }
}

#[test]
fn the_lease_of_a_listening_socket_ends_once_the_socket_is_closed() {
    let now = Instant::now();
    let mut sockets = loop_sockets();
    let mut registrar = sockets.registrar(CONNECTION);
    let connection: Arc<dyn FlowCommands> = Arc::new(Asked::default());
    let mut flows = Flows::new(Duration::from_secs(120));
    for by_end_of_connection in [false, true] {
        let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
        let bound = Arc::default();
        let lease = Arc::new(Bindable(socket.local_addr().unwrap(), Arc::clone(&bound)));
        let (sources, _incoming) = mpsc::channel(4);
        let new = NewListener { listener: 0, socket, lease, incoming: sources, sources_max: 4 };
        let listen = FlowCommand::Listen(new);
        flows.on_command(listen, &connection, &mut registrar, now);
        assert_eq!(*bound.lock().unwrap(), None);
        match by_end_of_connection {
            true => flows.end_all(),
            false => {
                let unlisten = FlowCommand::Unlisten { listener: 0 };
                flows.on_command(unlisten, &connection, &mut registrar, now);
            }
        }
        assert_eq!(*bound.lock().unwrap(), Some(true));
    }
}

/// Carries a flow; returns its target's socket.
fn carry(
    flows: &mut Flows,
    stream: StreamId,
    registrar: &mut Registrar<'_>,
    now: Instant,
) -> (UdpSocket, Arc<TransferStats>) {
    let [socket, target] = [(); 2].map(|()| UdpSocket::bind("127.0.0.1:0").unwrap());
    socket.connect(target.local_addr().unwrap()).unwrap();
    target.connect(socket.local_addr().unwrap()).unwrap();
    let (carried, (ended, _)) = (Arc::new(TransferStats::for_flow()), oneshot::channel());
    let new = NewFlow { end: FlowSide::Connected(socket), carried: Arc::clone(&carried), ended };
    flows.carry(stream, new, registrar, now);
    (target, carried)
}

#[test]
fn datagrams_that_find_no_room_to_wait_are_counted() {
    let (mut flows, now) = (Flows::new(Duration::from_secs(60)), Instant::now());
    let mut sockets = loop_sockets();
    let mut registrar = sockets.registrar(CONNECTION);
    let stream = StreamId::from(VarInt::from_u32(0));
    let (_, carried) = carry(&mut flows, stream, &mut registrar, now);

    let datagram = |stream, fragment| {
        let bytes = Bytes::from_static(&[7; FRAGMENT_BYTES_MIN]);
        FlowFrame { stream, fragment, bytes }.encode()
    };
    for _ in 0..FRAMES_WAITING_MAX {
        flows.arrive(Bytes::new());
    }
    assert_eq!(carried.dropped(), 0);
    flows.arrive(datagram(stream, None));
    for offset in [0, FRAGMENT_BYTES_MIN as u16] {
        let fragment = Fragment { number: 0, total: 2 * FRAGMENT_BYTES_MIN as u16, offset };
        flows.arrive(datagram(stream, Some(fragment)));
    }
    flows.arrive(datagram(StreamId::from(VarInt::from_u32(4)), None));
    flows.arrive(Bytes::new());
    assert_eq!(carried.dropped(), 2, "one that is whole and one in two fragments");

    flows.receive_some(|_| true, now, &mut endless());
    flows.arrive(Bytes::from(vec![0; FRAME_BYTES_WAITING_MAX]));
    flows.arrive(datagram(stream, None));
    assert_eq!(carried.dropped(), 3, "too many bytes");

    // The first fragment finds no room, the other one does.
    for offset in [0, FRAGMENT_BYTES_MIN as u16] {
        while flows.receive_some(|_| true, now, &mut endless()) {}
        if offset == 0 {
            flows.arrive(Bytes::from(vec![0; FRAME_BYTES_WAITING_MAX]));
        }
        let fragment = Fragment { number: 1, total: 2 * FRAGMENT_BYTES_MIN as u16, offset };
        flows.arrive(datagram(stream, Some(fragment)));
    }
    while flows.receive_some(|_| true, now, &mut endless()) {}
    assert_eq!(carried.dropped(), 4);
    flows.expire(now + Duration::from_secs(10));
    assert_eq!(carried.dropped(), 4, "counted when its first fragment was dropped");
}

fn endless() -> TimeShare {
    TimeShare::new(None, Duration::ZERO)
}

/// Is used up when the clock is first read.
fn short() -> TimeShare {
    TimeShare::new(Some(Instant::now), Duration::ZERO)
}

#[test]
fn the_frames_of_one_peer_are_handled_a_few_at_a_time() {
    thread_local! {
        static NOW: Cell<Instant> = Cell::new(Instant::now());
    }
    const EACH: Duration = Duration::from_micros(5);
    let (mut flows, now) = (Flows::new(Duration::from_secs(60)), Instant::now());
    let stream = StreamId::from(VarInt::from_u32(0));
    let frame = FlowFrame { stream, fragment: None, bytes: Bytes::new() }.encode();
    for _ in 0..10 * FRAMES_WAITING_MAX {
        flows.arrive(frame.clone());
    }
    let handled = Cell::new(0);
    let handle = |_| {
        handled.set(handled.get() + 1);
        NOW.set(NOW.get() + EACH);
        true
    };
    let mut more = true;
    while more {
        let before = handled.get();
        let mut share = TimeShare::new(Some(|| NOW.get()), 100 * EACH);
        more = flows.receive_some(handle, now, &mut share);
        let round = handled.get() - before;
        assert!(round < 125 && (round >= 100 || !more), "{round}");
    }
    assert_eq!(handled.get(), FRAMES_WAITING_MAX);
}

#[test]
fn sockets_are_read_in_turn_a_few_datagrams_at_a_time() {
    const SENT: u64 = 32;
    let (mut flows, now) = (Flows::new(Duration::from_secs(60)), Instant::now());
    let mut sockets = loop_sockets();
    let carried = [0, 4].map(|id| {
        let stream = StreamId::from(VarInt::from_u32(id));
        let (target, carried) = carry(&mut flows, stream, &mut sockets.registrar(CONNECTION), now);
        for _ in 0..SENT {
            target.send(b"datagram").unwrap();
        }
        carried
    });
    let read = || carried.each_ref().map(|of| of.datagrams().0);
    let mut rounds = Vec::new();
    loop {
        let more = flows.read_sockets(now, &mut short());
        rounds.push(read());
        if !more {
            break;
        }
    }
    assert_eq!(rounds[..4], [[8, 0], [8, 8], [16, 8], [16, 16]]);
    assert_eq!(read(), [SENT, SENT]);
}

#[test]
fn the_flows_of_a_lost_connection_end_a_few_at_a_time() {
    let (mut flows, now) = (Flows::new(Duration::from_secs(60)), Instant::now());
    let mut sockets = loop_sockets();
    for id in [0, 4, 8] {
        let stream = StreamId::from(VarInt::from_u32(id));
        carry(&mut flows, stream, &mut sockets.registrar(CONNECTION), now);
    }
    for left in [2, 1, 0] {
        flows.end_some(&mut short());
        assert_eq!(flows.open.len(), left);
    }
    assert!(flows.is_empty());
}
