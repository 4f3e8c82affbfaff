//! Tests the relay between two sockets of this process.

use std::{collections::BTreeSet, time::Duration};

use tokio::time::timeout;

use super::*;
use Direction::{ToClient, ToServer};

/// Longer than anything here takes; reaching it means a hang.
const HANG: Duration = Duration::from_secs(20);

/// Maximum burst, so that no socket buffer overflows.
const BURST: u16 = 100;

struct Ends {
    client: UdpSocket,
    server: UdpSocket,
    relay: Relay,
}

impl Ends {
    async fn start(seed: u64) -> Self {
        let server = bind_beside("127.0.0.1:0".parse().unwrap()).unwrap();
        let relay = Relay::start(server.local_addr().unwrap(), seed).await.unwrap();
        let client = bind_beside(relay.address()).unwrap();
        client.connect(relay.address()).await.unwrap();
        Self { client, server, relay }
    }

    async fn send(&self, number: u16) {
        self.client.send(&number.to_be_bytes()).await.unwrap();
    }

    /// The next datagram at the server, and its source.
    async fn arrived(&self) -> (Vec<u8>, SocketAddr) {
        let mut buffer = [0; 100];
        let (bytes, from) =
            timeout(HANG, self.server.recv_from(&mut buffer)).await.unwrap().unwrap();
        (buffer[..bytes].to_vec(), from)
    }

    /// Sends a burst, then a marker without impairments; returns what arrived before the marker.
    async fn burst(&self, set: LineSettings) -> Vec<u16> {
        self.relay.set(ToServer, set);
        let before = self.relay.counts(ToServer).taken;
        for number in 0..BURST {
            self.send(number).await;
        }
        let all_in = async {
            while self.relay.counts(ToServer).taken < before + u64::from(BURST) {
                tokio::task::yield_now().await;
            }
        };
        timeout(HANG, all_in).await.unwrap();
        let settled = set.delay + set.jitter + set.hold;
        self.relay.set(ToServer, LineSettings { delay: settled, ..<_>::default() });
        self.send(u16::MAX).await;
        let mut numbers = Vec::new();
        loop {
            let number = u16::from_be_bytes(self.arrived().await.0[..].try_into().unwrap());
            if number == u16::MAX {
                return numbers;
            }
            numbers.push(number);
        }
    }
}

#[tokio::test]
async fn a_good_network_changes_nothing_either_way() {
    let ends = Ends::start(1).await;
    let numbers = ends.burst(LineSettings::default()).await;
    assert_eq!(numbers, (0..BURST).collect::<Vec<_>>());
    let sent = u64::from(BURST) + 1;
    assert_eq!(ends.relay.counts(ToServer), Counts { taken: sent, sent, ..<_>::default() });

    ends.send(7).await;
    let (_, from) = ends.arrived().await;
    ends.server.send_to(b"answer", from).await.unwrap();
    let mut buffer = [0; 100];
    let bytes = timeout(HANG, ends.client.recv(&mut buffer)).await.unwrap().unwrap();
    assert_eq!(&buffer[..bytes], b"answer");
    assert_eq!(ends.relay.counts(ToClient), Counts { taken: 1, sent: 1, ..<_>::default() });
}

#[tokio::test]
async fn the_same_seed_loses_the_same_datagrams() {
    let set = LineSettings { loss: 0.2, ..<_>::default() };
    let first = Ends::start(2).await.burst(set).await;
    let ends = Ends::start(2).await;
    let second = ends.burst(set).await;
    assert_eq!(first, second);
    assert_eq!(ends.relay.counts(ToServer).lost, u64::from(BURST) - second.len() as u64);
    assert_ne!(first, Ends::start(3).await.burst(set).await);
}

#[tokio::test]
async fn duplicates_come_twice() {
    let ends = Ends::start(4).await;
    let numbers = ends.burst(LineSettings { duplicate: 1.0, ..<_>::default() }).await;
    assert_eq!(numbers, (0..BURST).flat_map(|number| [number, number]).collect::<Vec<_>>());
    assert_eq!(ends.relay.counts(ToServer).duplicated, u64::from(BURST));
}

#[tokio::test]
async fn reordered_datagrams_are_overtaken_and_none_is_lost() {
    let ends = Ends::start(5).await;
    let hold = Duration::from_millis(100);
    let numbers = ends.burst(LineSettings { reorder: 0.3, hold, ..<_>::default() }).await;
    assert!(!numbers.is_sorted());
    assert_eq!(BTreeSet::from_iter(numbers), (0..BURST).collect());
    assert!(ends.relay.counts(ToServer).held > 0);
}

#[tokio::test]
async fn jitter_reorders_and_loses_nothing() {
    let ends = Ends::start(6).await;
    let jitter = Duration::from_millis(100);
    let numbers = ends.burst(LineSettings { jitter, ..<_>::default() }).await;
    assert!(!numbers.is_sorted());
    assert_eq!(BTreeSet::from_iter(numbers), (0..BURST).collect());
}

#[tokio::test]
async fn a_delayed_datagram_is_not_early() {
    let ends = Ends::start(7).await;
    let delay = Duration::from_millis(50);
    ends.relay.set_both(LineSettings { delay, ..<_>::default() });
    let before = std::time::Instant::now();
    ends.send(1).await;
    ends.arrived().await;
    assert!(before.elapsed() >= delay);
}

#[tokio::test]
async fn corruption_flips_one_bit() {
    let ends = Ends::start(8).await;
    ends.relay.set(ToServer, LineSettings { corrupt: 1.0, ..<_>::default() });
    for _ in 0..BURST {
        ends.client.send(&[0; 40]).await.unwrap();
        let ones: u32 = ends.arrived().await.0.iter().map(|byte| byte.count_ones()).sum();
        assert_eq!(ones, 1);
    }
    assert_eq!(ends.relay.counts(ToServer).corrupted, u64::from(BURST));
}

#[tokio::test]
async fn a_cut_direction_passes_nothing_and_the_other_one_goes_on() {
    let ends = Ends::start(9).await;
    ends.send(1).await;
    let (_, from) = ends.arrived().await;
    let numbers = ends.burst(LineSettings { cut: true, ..<_>::default() }).await;
    assert_eq!(numbers, []);
    assert_eq!(ends.relay.counts(ToServer).cut, u64::from(BURST));
    ends.server.send_to(b"still here", from).await.unwrap();
    let mut buffer = [0; 100];
    let bytes = timeout(HANG, ends.client.recv(&mut buffer)).await.unwrap().unwrap();
    assert_eq!(&buffer[..bytes], b"still here");
}

/// What each of these gets.
async fn all_receive<const N: usize>(sockets: [&UdpSocket; N]) -> [Vec<u8>; N] {
    let mut all = [const { Vec::new() }; N];
    for (socket, got) in sockets.into_iter().zip(&mut all) {
        let mut buffer = [0; 100];
        let bytes = timeout(HANG, socket.recv(&mut buffer)).await.unwrap().unwrap();
        *got = buffer[..bytes].to_vec();
    }
    all
}

#[tokio::test]
async fn each_of_two_clients_has_its_own_answers_before_and_after_a_rebind() {
    let ends = Ends::start(12).await;
    let other = bind_beside(ends.relay.address()).unwrap();
    other.connect(ends.relay.address()).await.unwrap();
    let mut ports = BTreeSet::new();
    for _ in 0..2 {
        // Both have sent before the first answer.
        let mut from = Vec::new();
        for client in [&ends.client, &other] {
            client.send(b"hello").await.unwrap();
            from.push(ends.arrived().await.1);
        }
        for (port, answer) in from.iter().zip([b"one", b"two"]) {
            ends.server.send_to(answer, port).await.unwrap();
        }
        assert_eq!(all_receive([&ends.client, &other]).await, [b"one", b"two"]);
        ports.extend(from);
        ends.relay.rebind().unwrap();
    }
    assert_eq!(ports.len(), 4, "a port per client, and others after the rebind");
}

#[tokio::test]
async fn a_rebound_client_has_another_port_and_gets_what_is_sent_there() {
    let ends = Ends::start(10).await;
    ends.send(1).await;
    let (_, before) = ends.arrived().await;
    ends.relay.rebind().unwrap();
    ends.send(2).await;
    let (_, after) = ends.arrived().await;
    assert_ne!(before, after);
    // The old port is unused now, or reused by others; only the new one leads to the client.
    ends.server.send_to(b"old", before).await.unwrap();
    ends.server.send_to(b"new", after).await.unwrap();
    let mut buffer = [0; 100];
    let bytes = timeout(HANG, ends.client.recv(&mut buffer)).await.unwrap().unwrap();
    assert_eq!(&buffer[..bytes], b"new");
}

#[tokio::test]
async fn an_attacker_on_the_path_has_copies_and_sends_what_it_likes() {
    let ends = Ends::start(11).await;
    let client = ends.client.local_addr().unwrap();
    let forged = Datagram { client, bytes: b"forged".to_vec() };
    assert!(ends.relay.inject(ToClient, &forged).is_err(), "too early");
    ends.relay.record(ToServer, 3);
    for number in 0..5 {
        ends.send(number).await;
        ends.arrived().await;
    }
    let copies = ends.relay.recorded(ToServer);
    let sent = |number: u16| Datagram { client, bytes: number.to_be_bytes().to_vec() };
    assert_eq!(copies, [2, 3, 4].map(sent));

    let before = ends.relay.counts(ToServer);
    ends.relay.set(ToServer, LineSettings { cut: true, ..<_>::default() });
    ends.relay.inject(ToServer, &copies[0]).unwrap();
    assert_eq!(ends.arrived().await.0, copies[0].bytes);
    assert_eq!(ends.relay.counts(ToServer), before);
    ends.relay.inject(ToClient, &forged).unwrap();
    let mut buffer = [0; 100];
    let bytes = timeout(HANG, ends.client.recv(&mut buffer)).await.unwrap().unwrap();
    assert_eq!(&buffer[..bytes], b"forged");

    ends.relay.record(ToServer, 0);
    assert!(ends.relay.recorded(ToServer).is_empty());
}
