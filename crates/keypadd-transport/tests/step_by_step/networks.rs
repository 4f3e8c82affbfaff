//! Tests that no packet of a network is lost when another connection takes the place of the one that
//! carries them.

use std::{borrow::Cow, os::unix::net::UnixDatagram, sync::Arc};

use keypadd_keystream::Suite;
use keypadd_network::{DEVICE_HEADER_BYTES, Signals, SuperPacket};
use keypadd_transport::{
    Connection, Flow, Outbound, PacketDevice, PacketFilter, PacketPath, PacketRole, Ruling, Stream,
};
use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};

use crate::{
    pair::{HOLD, Pair},
    stepped::{Task, configs, poll},
};

/// More than are sent at once on a new path.
const PACKETS: u8 = 60;

const FRAME_BYTES: usize = DEVICE_HEADER_BYTES + 1_000;

#[derive(Debug)]
struct PassAll;

impl PacketFilter for PassAll {
    fn outbound(&self, frame: &mut [u8], _: PacketPath) -> Outbound {
        let packet = SuperPacket::whole(&frame[DEVICE_HEADER_BYTES..]);
        Outbound { packets: Some(packet), answer: None }
    }

    fn inbound(&self, _: &mut Cow<'_, [u8]>, _: PacketPath) -> Ruling {
        Ruling::PASS
    }

    fn delivered(&self, _: usize) {}

    fn refused_by_device(&self) {
        panic!("the test has more packets than fit into a device");
    }

    fn signaled(&self, signals: Signals) {
        panic!("{signals:?}: the test has more packets than may wait");
    }
}

/// A device, and the socket at which its host's stack would be.
struct Site {
    device: PacketDevice,
    host: UnixDatagram,
}

impl Site {
    fn new() -> Self {
        let flags = SocketFlags::NONBLOCK;
        let pair = socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None);
        let (device, host) = pair.unwrap();
        Self { device: PacketDevice::new(device, Arc::new(PassAll)), host: host.into() }
    }

    /// The first bytes of the packets that have come.
    fn received(&self) -> Vec<u8> {
        let mut frame = [0; FRAME_BYTES];
        let next = || {
            let is_whole = self.host.recv(&mut frame).ok()? == FRAME_BYTES;
            is_whole.then_some(frame[DEVICE_HEADER_BYTES])
        };
        std::iter::from_fn(next).collect()
    }
}

/// Lets both ends of a connection carry the packets of these devices.
fn carry(pair: &mut Pair, ends: &[Connection; 2], sites: &[Site; 2]) -> Vec<(Stream, Flow)> {
    // The first stream's number is that of frames about the path.
    let _first = pair.open(ends);
    let streams = pair.open(ends);
    let carry = |((end, stream), site): ((&Connection, Stream), &Site)| {
        let flow = end.carry_packets(&stream, site.device.clone(), 0, PacketRole::Reads);
        flow.send_packets(None);
        (stream, flow)
    };
    let carried = ends.iter().zip(streams).zip(sites).map(carry).collect();
    pair.pass(&[0, 1]);
    carried
}

/// Two sites that a connection joins, whose client has sent some of its packets and no more.
struct Busy {
    pair: Pair,
    sites: [Site; 2],
    old: [Connection; 2],
    new: [Connection; 2],
    _carried: Vec<(Stream, Flow)>,
}

impl Busy {
    fn new() -> Self {
        let (config, server) = configs(Suite::AES_128_GCM);
        let (mut pair, endpoints) = Pair::new(server);
        let [old, new] = [(); 2].map(|()| pair.connect(&endpoints, config.clone()));
        let sites = [(); 2].map(|()| Site::new());
        let carried = carry(&mut pair, &old, &sites);
        for number in 0..PACKETS {
            let mut frame = [number; FRAME_BYTES];
            frame[..DEVICE_HEADER_BYTES].fill(0);
            sites[0].host.send(&frame).unwrap();
        }
        pair.run(0);
        let sent = pair.wires.borrow()[1].len();
        assert!((1..usize::from(PACKETS)).contains(&sent), "{sent}");
        Self { pair, sites, old, new, _carried: carried }
    }

    /// What arrives in all once the other connection carries the packets.
    fn received_over_the_next(mut self, mut before: Vec<u8>) -> Vec<u8> {
        let _carried = carry(&mut self.pair, &self.new, &self.sites);
        for _ in 0..10 {
            self.pair.pass(&[0, 1]);
        }
        before.extend(self.sites[1].received());
        before
    }
}

#[test]
fn packets_that_a_closed_connection_has_not_sent_go_over_the_next_one() {
    let mut busy = Busy::new();
    busy.old[0].close(HOLD, b"");
    busy.pair.run(0);
    // What was sent arrives in one round with the close.
    busy.pair.run(1);
    assert!(busy.old[1].close_reason().is_some());
    let before = busy.sites[1].received();
    assert!(!before.is_empty());
    let all = busy.received_over_the_next(before);
    assert_eq!(all, (0..PACKETS).collect::<Vec<_>>());
}

#[test]
fn once_a_paused_connections_packets_are_acknowledged_the_peer_may_close_it() {
    let mut busy = Busy::new();
    let paused = busy.sites[0].device.pause();
    let client = busy.old[0].clone();
    let mut acknowledged: Task<_> = Box::pin(async move { client.acknowledged().await });
    for _ in 0..3 {
        assert!(poll(&mut acknowledged).is_none());
        busy.pair.run(0);
    }
    busy.pair.pass(&[0, 1]);
    assert!(poll(&mut acknowledged).is_some());
    busy.old[1].close(HOLD, b"");
    paused.keep();
    busy.pair.pass(&[0, 1]);
    let before = busy.sites[1].received();
    assert!((1..usize::from(PACKETS)).contains(&before.len()), "{before:?}");
    let all = busy.received_over_the_next(before);
    assert_eq!(all, (0..PACKETS).collect::<Vec<_>>());
}
