//! Tests flows whose end is a device: what they read, write and send, and which of the connections of
//! a device does.

use std::{
    borrow::Cow,
    hash::RandomState,
    os::unix::net::UnixDatagram,
    sync::{
        Mutex,
        atomic::{AtomicUsize, Ordering::Relaxed},
    },
};

use bytes::BytesMut;
use keypadd_congestion::Control;
use keypadd_network::{Classes, DEVICE_HEADER_BYTES, PacketQueue, Shape, Signals, SuperPacket};
use quinn_proto::VarInt;
use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair, sockopt};

use super::{Asked, CONNECTION, endless, loop_sockets};
use crate::{
    flows::{
        frame::FlowFrame,
        network::{NetworkSide, Outbound, PacketDevice, PacketFilter, Ruling},
        readers::{KNOWN_FOR, PacketRole},
        *,
    },
    handed_controller::HandedController,
    splice::Sockets,
};

/// Passes packets unless they begin with `!`, and answers those with an echo.
#[derive(Debug, Default)]
struct EchoRefused {
    refused_by_device: AtomicUsize,
    paths: Mutex<Vec<PacketPath>>,
}

impl EchoRefused {
    fn rule(&self, packet: &[u8], path: PacketPath) -> Ruling {
        self.paths.lock().unwrap().push(path);
        match packet {
            [b'!', rest @ ..] => {
                Ruling { passes: false, answer: Some(Bytes::copy_from_slice(rest)) }
            }
            _ => Ruling::PASS,
        }
    }
}

impl PacketFilter for EchoRefused {
    fn outbound(&self, frame: &mut [u8], path: PacketPath) -> Outbound {
        let packet = &frame[DEVICE_HEADER_BYTES..];
        let Ruling { passes, answer } = self.rule(packet, path);
        Outbound { packets: passes.then(|| SuperPacket::whole(packet)), answer }
    }

    fn inbound(&self, packet: &mut Cow<'_, [u8]>, path: PacketPath) -> Ruling {
        if packet[..] == *b"syn" {
            packet.to_mut()[0] = b'S';
        }
        self.rule(packet, path)
    }

    fn delivered(&self, _: usize) {}

    fn refused_by_device(&self) {
        self.refused_by_device.fetch_add(1, Relaxed);
    }

    fn signaled(&self, _: Signals) {}
}

/// A device, and the socket at which the host's stack would be.
fn packet_device(filter: &Arc<EchoRefused>) -> (PacketDevice, UnixDatagram) {
    let flags = SocketFlags::NONBLOCK;
    let pair = socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None);
    let (device, host) = pair.unwrap();
    let host = UnixDatagram::from(host);
    let filter: Arc<dyn PacketFilter> = filter.clone();
    (PacketDevice::new(device, filter), host)
}

/// A network over a connection without a loop.
struct Carried {
    flows: Flows,
    asked: Arc<Asked>,
    end: oneshot::Receiver<FlowEnd>,
    /// Stands for its congestion controller.
    number: u64,
    /// The controllers of others that it has continued with.
    taken: Vec<u64>,
}

/// The stream of each of them.
fn network_stream() -> StreamId {
    StreamId::from(VarInt::from_u32(4))
}

impl Carried {
    /// Carries the packets of a device, which it reads from now on.
    fn new(device: &PacketDevice, sockets: &mut Sockets, now: Instant) -> Self {
        Self::of(0, PacketRole::Reads, device, sockets, now)
    }

    /// Carries the packets of a device as a connection of this session.
    fn of(
        session: u64,
        role: PacketRole,
        device: &PacketDevice,
        sockets: &mut Sockets,
        now: Instant,
    ) -> Self {
        let mut flows = Flows::new(Duration::from_secs(60));
        let (ended, end) = oneshot::channel();
        let side = FlowSide::Network(NetworkSide { device: device.clone(), session, role });
        let new = NewFlow { end: side, carried: device.carried(), ended };
        flows.carry(network_stream(), new, &mut sockets.registrar(CONNECTION), now);
        let (asked, taken) = (Arc::default(), Vec::new());
        let carried = Self { flows, asked, end, number: 0, taken };
        carried.asked.send_flow(FlowCommand::AskToSend(network_stream(), None));
        carried
    }

    /// Does what its flow was told to, and reads the device if that is among it.
    fn run(&mut self, sockets: &mut Sockets, now: Instant) {
        let connection: Arc<dyn FlowCommands> = self.asked.clone();
        loop {
            let commands = std::mem::take(&mut *self.asked.0.lock().unwrap());
            if commands.is_empty() {
                break;
            }
            for command in commands {
                let is_turn = matches!(command, FlowCommand::Read(_));
                let mut registrar = sockets.registrar(CONNECTION);
                self.flows.on_command(command, &connection, &mut registrar, now);
                if is_turn {
                    self.follow_turn(false, now);
                }
            }
        }
        self.flows.read_sockets(now, &mut endless());
    }

    fn follow_turn(&mut self, ends: bool, now: Instant) {
        let algorithm = Control::Rate.build(now, 1_200);
        let path = (None, [127, 0, 0, 1].into());
        let (in_flight, rtt) = (self.number, Duration::ZERO);
        let own = || Some(HandedController { algorithm, path, at: now, in_flight, rtt });
        let taken = self.flows.follow_turn(network_stream(), ends, now, own);
        self.taken.extend(taken.map(|it| it.in_flight));
    }

    /// Its connection is lost.
    fn lose(&mut self, now: Instant) {
        self.follow_turn(true, now);
        self.flows.end(network_stream(), FlowEnd::Lost);
    }

    /// The system reports that the device has packets.
    fn report(&mut self) {
        self.flows.on_ready(Owner::Flow(network_stream()));
    }
}

/// The host's stack has a packet for the device.
fn give(host: &UnixDatagram, packet: &[u8]) {
    host.send(&[&[0; DEVICE_HEADER_BYTES], packet].concat()).unwrap();
}

/// What the host's stack has got.
fn received(host: &UnixDatagram) -> Vec<u8> {
    let mut frame = [0; 2_048];
    let bytes = host.recv(&mut frame).unwrap_or_default();
    frame[..bytes].get(DEVICE_HEADER_BYTES..).unwrap_or_default().to_vec()
}

/// What the other end is sent.
fn sent(flows: &mut Flows, now: Instant) -> Vec<u8> {
    let frame = flows.next_frame(1_400, now).and_then(FlowFrame::decode);
    frame.map_or_else(Vec::new, |frame| frame.bytes.to_vec())
}

/// Segments of one connection of TCP, of 1,040 bytes each.
fn segments(number: usize) -> Vec<Bytes> {
    // Four words of zeros, TCP over IPv4, to be cut after 1,000 bytes each (virtio_net_hdr).
    let mut frame =
        [&[1, 1, 40, 0, 232, 3, 20, 0, 16, 0][..], &vec![0; 40 + number * 1_000]].concat();
    let packet = &mut frame[DEVICE_HEADER_BYTES..];
    let length = (packet.len() as u16).to_be_bytes();
    (packet[0], packet[8], packet[9]) = (0x45, 64, 6);
    packet[2..4].copy_from_slice(&length);
    packet[12..20].copy_from_slice(&[10, 86, 1, 2, 10, 86, 3, 2]);
    (packet[32], packet[33]) = (5 << 4, 0x10);
    let words = packet[..20].chunks(2).map(|it| u32::from(it[0]) << 8 | u32::from(it[1]));
    let sum: u32 = words.sum();
    let checksum = !((sum & 0xffff) + (sum >> 16)) as u16;
    packet[10..12].copy_from_slice(&checksum.to_be_bytes());
    let shape = Shape::read(&mut frame).unwrap();
    let (mut queue, now) = (PacketQueue::new(RandomState::new()), Instant::now());
    queue.push(SuperPacket::new(&frame[DEVICE_HEADER_BYTES..], shape), now);
    let next = |_| {
        let mut segment = BytesMut::new();
        assert!(queue.next(Classes::ALL, usize::MAX, now, &mut segment));
        segment.freeze()
    };
    (0..number).map(next).collect()
}

#[test]
fn a_device_that_refuses_packets_together_gets_each_alone_from_then_on() {
    let (now, mut sockets) = (Instant::now(), loop_sockets());
    let (device, host) = packet_device(&Arc::default());
    let mut carried = Carried::new(&device, &mut sockets, now);
    let own = device.try_clone_device().unwrap();
    let mut received = |room: usize| {
        sockopt::set_socket_send_buffer_size(&own, room).unwrap();
        for bytes in segments(8) {
            let frame = FlowFrame { stream: network_stream(), fragment: None, bytes };
            carried.flows.arrive(frame.encode());
        }
        carried.flows.receive_some(|_| true, now, &mut endless());
        let mut frame = [0; 1 << 14];
        std::iter::from_fn(|| host.recv(&mut frame).ok()).collect::<Vec<_>>()
    };
    let alone = [DEVICE_HEADER_BYTES + 1_040; 8];
    assert_eq!(received(1 << 20), [DEVICE_HEADER_BYTES + 40 + 8_000]);
    let with_little_room = received(0);
    assert!(!with_little_room.is_empty() && alone.starts_with(&with_little_room));
    assert_eq!(received(1 << 20), alone);
}

#[test]
fn what_a_host_answers_at_once_is_read_in_the_round_that_delivers_to_it() {
    let (now, mut sockets) = (Instant::now(), loop_sockets());
    let (device, host) = packet_device(&Arc::default());
    let mut carried = Carried::new(&device, &mut sockets, now);
    carried.run(&mut sockets, now);
    let (flows, stream) = (&mut carried.flows, network_stream());
    let bytes = Bytes::from_static(b"request");
    flows.arrive(FlowFrame { stream, fragment: None, bytes }.encode());
    flows.receive_some(|_| true, now, &mut endless());
    assert_eq!(received(&host), b"request");
    give(&host, b"answer");
    flows.read_sockets(now, &mut endless());
    assert_eq!(sent(flows, now), b"answer");
}

#[test]
fn a_network_carries_what_its_filter_passes_and_answers_where_a_packet_came_from() {
    let now = Instant::now();
    let mut sockets = loop_sockets();
    let (filter, stream) = (Arc::default(), network_stream());
    let (device, host) = packet_device(&filter);
    let mut carried = Carried::new(&device, &mut sockets, now);
    let remote = "192.0.2.1:4433".parse().unwrap();
    carried.flows.set_path(1_400, "[::ffff:192.0.2.1]:4433".parse().unwrap(), Duration::ZERO);

    for packet in [&b"one"[..], b"!who", b"two"] {
        give(&host, packet);
    }
    carried.run(&mut sockets, now);
    let flows = &mut carried.flows;
    assert_eq!([sent(flows, now), sent(flows, now)], [b"one", b"two"]);
    assert_eq!((sent(flows, now), received(&host)), (Vec::new(), b"who".to_vec()));

    for packet in [&b"syn"[..], b"!why"] {
        let bytes = Bytes::from_static(packet);
        flows.arrive(FlowFrame { stream, fragment: None, bytes }.encode());
    }
    flows.receive_some(|_| true, now, &mut endless());
    assert_eq!((received(&host), received(&host)), (b"Syn".to_vec(), Vec::new()));
    assert_eq!(sent(flows, now), b"why");
    let is_known = |path: &PacketPath| (path.room, path.remote) == (1_399, Some(remote));
    assert!(filter.paths.lock().unwrap().iter().all(is_known));

    flows.expire(now + Duration::from_secs(600));
    assert!(carried.end.try_recv().is_err(), "a network is not idle");
    // As a device that was deleted.
    drop(host);
    carried.report();
    carried.run(&mut sockets, now);
    assert!(matches!(carried.end.try_recv(), Ok(FlowEnd::Local(_))));
    assert!(carried.flows.is_empty());
}

#[test]
fn only_the_newest_connection_reads_a_device_and_all_write_it() {
    let now = Instant::now();
    let mut sockets = loop_sockets();
    let (filter, stream) = (Arc::default(), network_stream());
    let (device, host) = packet_device(&filter);
    let mut both = [(); 2].map(|()| {
        let mut carried = Carried::new(&device, &mut sockets, now);
        carried.run(&mut sockets, now);
        carried
    });
    give(&host, b"packet");
    for carried in &mut both {
        carried.report();
        carried.run(&mut sockets, now);
    }
    let [old, new] = both.each_mut().map(|carried| &mut carried.flows);
    assert_eq!((sent(old, now), sent(new, now)), (Vec::new(), b"packet".to_vec()));
    for (flows, packet) in [(&mut *old, "late"), (new, "next")] {
        let bytes = Bytes::from_static(packet.as_bytes());
        flows.arrive(FlowFrame { stream, fragment: None, bytes }.encode());
        flows.receive_some(|_| true, now, &mut endless());
        assert_eq!(received(&host), packet.as_bytes());
    }
    assert!(both.iter_mut().all(|carried| carried.end.try_recv().is_err()));
}

#[test]
fn a_paused_device_keeps_its_packets_for_the_connection_that_attaches_it_next() {
    let now = Instant::now();
    let mut sockets = loop_sockets();
    let filter = Arc::default();
    let (device, host) = packet_device(&filter);
    let mut old = Carried::new(&device, &mut sockets, now);
    old.run(&mut sockets, now);
    for kept in [false, true] {
        let paused = device.pause();
        give(&host, b"packet");
        old.report();
        old.run(&mut sockets, now);
        assert!(sent(&mut old.flows, now).is_empty());
        if kept {
            paused.keep();
            old.run(&mut sockets, now);
            assert!(sent(&mut old.flows, now).is_empty());
        } else {
            drop(paused);
            // The device says no second time that it has a packet.
            old.run(&mut sockets, now);
            assert_eq!(sent(&mut old.flows, now), b"packet");
        }
    }
    let mut new = Carried::new(&device, &mut sockets, now);
    for carried in [&mut old, &mut new] {
        carried.run(&mut sockets, now);
    }
    assert!(sent(&mut old.flows, now).is_empty());
    assert_eq!(sent(&mut new.flows, now), b"packet");
}

#[test]
fn when_the_connection_that_reads_a_device_is_gone_the_one_before_reads_it_at_once() {
    let now = Instant::now();
    let mut sockets = loop_sockets();
    let filter = Arc::default();
    let (device, host) = packet_device(&filter);
    let [mut old, mut new] = [(); 2].map(|()| Carried::new(&device, &mut sockets, now));
    for carried in [&mut old, &mut new] {
        carried.run(&mut sockets, now);
    }
    for packet in [b"read", b"left"] {
        give(&host, packet);
        if packet == b"read" {
            new.report();
            new.run(&mut sockets, now);
        }
    }
    // The device has told the old one as well, which was not to read it then.
    old.report();
    old.run(&mut sockets, now);
    assert!(sent(&mut old.flows, now).is_empty());
    new.flows.end(network_stream(), FlowEnd::Lost);
    old.run(&mut sockets, now);
    assert_eq!([sent(&mut old.flows, now), sent(&mut old.flows, now)], [b"read", b"left"]);
}

#[test]
fn a_pause_keeps_what_was_read_and_not_sent_and_is_over_when_the_last_one_is() {
    let now = Instant::now();
    let mut sockets = loop_sockets();
    let filter = Arc::default();
    let (device, host) = packet_device(&filter);
    let mut carried = Carried::new(&device, &mut sockets, now);
    give(&host, b"one");
    carried.run(&mut sockets, now);
    let pauses = [device.pause(), device.pause()];
    give(&host, b"two");
    for paused in pauses {
        carried.run(&mut sockets, now);
        assert!(sent(&mut carried.flows, now).is_empty());
        drop(paused);
    }
    carried.run(&mut sockets, now);
    let flows = &mut carried.flows;
    assert_eq!([sent(flows, now), sent(flows, now)], [b"one", b"two"]);
}

/// A device, and the connections that may send its packets.
struct Senders {
    host: UnixDatagram,
    device: PacketDevice,
    sockets: Sockets,
    connections: Vec<Carried>,
}

impl Senders {
    fn add(&mut self, session: u64, role: PacketRole, now: Instant) {
        let new = Carried::of(session, role, &self.device, &mut self.sockets, now);
        self.connections.push(Carried { number: self.connections.len() as u64, ..new });
    }

    /// The controllers that each has continued with since this was last asked.
    fn taken(&mut self, now: Instant) -> Vec<Vec<u64>> {
        self.run(now);
        self.connections.iter_mut().map(|it| std::mem::take(&mut it.taken)).collect()
    }

    /// Which of them send a packet of so many bytes.
    fn send(&mut self, bytes: usize, now: Instant) -> Vec<usize> {
        self.run(now);
        give(&self.host, &vec![7; bytes]);
        self.connections.iter_mut().for_each(Carried::report);
        self.run(now);
        self.sending(now)
    }

    fn run(&mut self, now: Instant) {
        // Twice: a message of one may be for one before it.
        for _ in 0..2 {
            self.connections.iter_mut().for_each(|it| it.run(&mut self.sockets, now));
        }
    }

    fn sending(&mut self, now: Instant) -> Vec<usize> {
        let sends = |carried: &mut Carried| {
            std::iter::from_fn(|| carried.flows.next_frame(1_400, now)).count() > 0
        };
        let all = self.connections.iter_mut().enumerate();
        all.filter_map(|(nth, carried)| sends(carried).then_some(nth)).collect()
    }

    fn wants_bulk(&mut self) -> Vec<bool> {
        self.connections.iter_mut().map(|it| it.flows.take_wants_bulk()).collect()
    }
}

#[test]
fn bulk_packets_go_over_the_bulk_connection_of_the_session_that_reads() {
    use PacketRole::{Reads, SendsBulk};
    const BULK: usize = 20_000;
    let now = Instant::now();
    let (device, host) = packet_device(&Arc::default());
    let mut all = Senders { host, device, sockets: loop_sockets(), connections: Vec::new() };
    all.add(7, Reads, now);
    all.add(6, SendsBulk, now);
    assert_eq!((all.send(100, now), all.wants_bulk()), (vec![0], vec![false; 2]));
    assert_eq!((all.send(BULK, now), all.wants_bulk()), (vec![0], vec![true, false]));
    all.add(7, SendsBulk, now);
    let paused = all.device.pause_bulk();
    assert_eq!((all.send(BULK, now), all.wants_bulk()), (vec![], vec![false; 3]));
    drop(paused);
    all.run(now);
    assert_eq!(all.sending(now), [2]);
    assert_eq!((all.send(BULK, now), all.wants_bulk()), (vec![2], vec![false; 3]));
    // What waits while none may send goes where it belongs.
    let paused = all.device.pause();
    assert_eq!(all.send(BULK, now), []);
    drop(paused);
    all.run(now);
    assert_eq!(all.sending(now), [2]);
    let later = now + Duration::from_secs(5);
    assert_eq!(all.send(100, later), [0], "the flow has paused");
    // Another session's bulk connection takes over with the one that reads.
    all.add(6, Reads, later);
    assert_eq!((all.send(100, later), all.send(BULK, later)), (vec![3], vec![1]));
    all.connections[1].flows.end(network_stream(), FlowEnd::Lost);
    assert_eq!(
        (all.send(BULK, later), all.wants_bulk()),
        (vec![3], [false, false, false, true].to_vec())
    );
    all.connections[3].flows.end(network_stream(), FlowEnd::Lost);
    assert_eq!(all.send(BULK, later), [2]);
    // Its pause is over when a new one reads, and a bulk connection changes nothing about that.
    let paused = all.device.pause();
    all.add(7, SendsBulk, later);
    assert_eq!(all.send(BULK, later), []);
    drop(paused);
    all.run(later);
    assert_eq!(all.sending(later), [4]);
}

#[test]
fn the_congestion_controller_goes_with_the_packets_of_bulk_flows() {
    use PacketRole::{Reads, SendsBulk};
    let now = Instant::now();
    let (device, host) = packet_device(&Arc::default());
    let mut all = Senders { host, device, sockets: loop_sockets(), connections: Vec::new() };
    all.add(7, Reads, now);
    assert_eq!(all.taken(now), [[]], "there was none before");
    all.add(7, SendsBulk, now);
    assert_eq!(all.taken(now), [vec![], vec![0]]);
    // Fresh keys: another session reads, and has a bulk connection a little later.
    let paused = all.device.pause();
    assert_eq!(all.taken(now), [[], []]);
    all.add(8, Reads, now);
    drop(paused);
    assert_eq!(all.taken(now), [vec![], vec![], vec![1]]);
    let paused = all.device.pause_bulk();
    all.run(now);
    all.add(8, SendsBulk, now);
    drop(paused);
    assert_eq!(all.taken(now), [vec![], vec![], vec![], vec![2]]);
    // Its own it has.
    drop(all.device.pause());
    assert_eq!(all.taken(now), [[], [], [], []]);
    // The session before carries them again.
    all.connections[3].lose(now);
    all.connections[2].lose(now);
    assert_eq!(all.taken(now), [vec![], vec![3], vec![], vec![]]);
    let paused = all.device.pause();
    all.run(now);
    let later = now + KNOWN_FOR;
    all.add(9, Reads, later);
    all.run(later);
    drop(paused);
    assert_eq!(all.taken(later), [[], [], [], [], []], "the path may have changed");
}
