use std::{hash::RandomState, time::Duration};

use etherparse::TcpHeader;
use proptest::prelude::*;

use super::*;
use crate::{
    answers::{ANSWER_BYTES_MAX, Answers, Problem},
    flows::{IDLE_MAX, TCP_IDLE_MAX},
    prefix::Prefix,
    samples::{echo, fragment, tcp, udp},
};

/// Hosts here, the gateway here, and hosts behind the peer.
const HERE: &str = "10.1.0.5";
const GATEWAY: &str = "10.1.0.1";
const THERE: &str = "10.2.0.9";
const HERE_V6: &str = "2001:db8:1::5";
const THERE_V6: &str = "2001:db8:2::9";

/// A gateway at 10.1.0.1 with the peers `berlin`, whose rules these are, `lab` and `rome`.
struct World {
    rules: Rules<&'static str>,
    flows: Flows,
    now: Instant,
}

fn world(permits: &[&str]) -> World {
    let networks = [
        ("berlin", "10.2.0.0/16"),
        ("berlin", "2001:db8:2::/48"),
        ("lab", "10.2.7.0/24"),
        ("rome", "10.3.0.0/16"),
    ];
    let networks = networks.map(|(peer, prefix)| (peer, prefix.parse().unwrap()));
    let network: Prefix = "10.1.0.0/16".parse().unwrap();
    let host = HostAddresses::new([(GATEWAY.parse().unwrap(), network)]);
    let permits = permits.iter().map(|permit| permit.parse().unwrap()).collect();
    let routes = Arc::new(Routes::new(networks).unwrap());
    let now = Instant::now();
    World {
        rules: Rules::new("berlin", routes, permits, Arc::new(host)),
        flows: Flows::new(RandomState::new(), now),
        now,
    }
}

impl World {
    fn inbound(&mut self, packet: &[u8]) -> Verdict {
        let packet = Packet::parse(packet).map_err(Reason::from)?;
        self.rules.inbound(&packet, &mut self.flows, self.now)
    }

    fn outbound(&mut self, packet: &[u8]) -> Verdict {
        let packet = Packet::parse(packet).map_err(Reason::from)?;
        self.rules.outbound(&packet, &mut self.flows, self.now)
    }
}

/// A segment of TCP from one address and port to others, with these of SYN and ACK.
fn segment(from: (&str, u16), to: (&str, u16), syn: bool, ack: bool) -> Vec<u8> {
    let mut header = TcpHeader::new(from.1, to.1, 1, 1000);
    (header.syn, header.ack) = (syn, ack);
    tcp(from.0, to.0, header)
}

/// The error that a router at `from` answers a packet with.
fn error_about(packet: &[u8], from: &str) -> Vec<u8> {
    let mut buffer = [0; ANSWER_BYTES_MAX];
    let mut answers = Answers::new(vec![from.parse().unwrap()]);
    let packet = Packet::parse(packet).unwrap();
    let problem = Problem::Prohibited;
    answers.answer(&packet, problem, Instant::now(), &mut buffer).unwrap().to_vec()
}

#[test]
fn by_default_a_peer_begins_nothing_and_answers_pass() {
    let mut world = world(&[]);
    for (here, there) in [(HERE, THERE), (HERE_V6, THERE_V6)] {
        let client = (here, 50_000);
        assert_eq!(
            world.inbound(&segment((there, 22), client, true, true)),
            Err(Reason::Destination)
        );
        assert_eq!(world.outbound(&segment(client, (there, 22), true, false)), Ok(()));
        assert_eq!(world.inbound(&segment((there, 22), client, true, true)), Ok(()));
        assert_eq!(world.inbound(&segment((there, 22), client, false, true)), Ok(()));
        for other in [segment((there, 23), client, false, true), udp(there, 22, here, 50_000)] {
            assert_eq!(world.inbound(&other), Err(Reason::Destination));
        }

        assert_eq!(world.inbound(&udp(there, 53, here, 40_000)), Err(Reason::Destination));
        assert_eq!(world.outbound(&udp(here, 40_000, there, 53)), Ok(()));
        assert_eq!(world.inbound(&udp(there, 53, here, 40_000)), Ok(()));

        assert_eq!(world.inbound(&echo(there, here, false, 7)), Err(Reason::Destination));
        assert_eq!(world.outbound(&echo(here, there, true, 7)), Ok(()));
        assert_eq!(world.inbound(&echo(there, here, false, 7)), Ok(()));
        assert_eq!(world.inbound(&echo(there, here, false, 8)), Err(Reason::Destination));
        assert_eq!(world.inbound(&echo(there, here, true, 7)), Err(Reason::Destination));
    }
}

#[test]
fn a_peer_begins_no_connection_from_the_port_of_one_that_began_here() {
    let mut world = world(&[]);
    let (client, server) = ((HERE, 50_000), (THERE, 22));
    assert_eq!(world.outbound(&segment(client, server, true, false)), Ok(()));
    assert_eq!(world.inbound(&segment(server, client, true, false)), Err(Reason::Destination));
    assert_eq!(world.inbound(&segment(server, client, true, true)), Ok(()));
}

#[test]
fn an_answer_from_here_begins_no_flow() {
    let mut world = world(&[]);
    assert_eq!(world.outbound(&echo(HERE, THERE, false, 7)), Ok(()));
    assert_eq!(world.outbound(&error_about(&udp(THERE, 1, HERE, 2), HERE)), Ok(()));
    assert!(world.flows.is_empty());
}

#[test]
fn what_is_permitted_begins_and_its_answers_take_no_memory() {
    let mut world = world(&["10.1.0.0/16:443", "10.1.0.53/32:udp:53", "10.1.0.0/16:icmp"]);
    let (client, server) = ((THERE, 50_000), (HERE, 443));
    assert_eq!(world.inbound(&segment(client, server, true, false)), Ok(()));
    assert_eq!(world.outbound(&segment(server, client, true, true)), Ok(()));
    assert_eq!(world.inbound(&udp(THERE, 50_000, "10.1.0.53", 53)), Ok(()));
    assert_eq!(world.outbound(&udp("10.1.0.53", 53, THERE, 50_000)), Ok(()));
    assert_eq!(world.inbound(&echo(THERE, HERE, true, 7)), Ok(()));
    assert_eq!(world.outbound(&echo(HERE, THERE, false, 7)), Ok(()));
    assert!(world.flows.is_empty());
    for refused in [
        segment(client, (HERE, 22), true, false),
        segment(client, ("10.4.0.5", 443), true, false),
        udp(THERE, 50_000, HERE, 53),
        udp(THERE, 50_000, HERE, 443),
    ] {
        assert_eq!(world.inbound(&refused), Err(Reason::Destination));
    }
}

#[test]
fn a_source_that_is_not_behind_the_peer_is_refused() {
    let mut world = world(&["0.0.0.0/0", "::/0"]);
    assert_eq!(world.inbound(&udp(THERE, 1, HERE, 2)), Ok(()));
    // Behind nobody, behind another peer, behind another peer by a longer prefix, a host here.
    for source in ["10.9.0.1", "10.3.0.1", "10.2.7.1", HERE] {
        assert_eq!(world.inbound(&udp(source, 1, HERE, 2)), Err(Reason::Source), "{source}");
    }
    assert_eq!(world.inbound(&udp("2001:db8:3::1", 1, HERE_V6, 2)), Err(Reason::Source));
}

#[test]
fn a_packet_from_this_host_does_not_come_from_a_peer() {
    let mut world = world(&["0.0.0.0/0"]);
    let own: Prefix = "10.2.0.1/32".parse().unwrap();
    world.rules.host = Arc::new(HostAddresses::new([(own.first(), own)]));
    assert_eq!(world.inbound(&udp("10.2.0.1", 1, HERE, 2)), Err(Reason::Source));
    assert_eq!(world.inbound(&udp("10.2.0.2", 1, HERE, 2)), Ok(()));
}

#[test]
fn only_a_permit_for_the_address_alone_reaches_this_host() {
    let begin = |to| udp(THERE, 50_000, to, 53);
    let mut wide = world(&["10.1.0.0/16", "0.0.0.0/0:udp:53"]);
    assert_eq!(wide.inbound(&begin(HERE)), Ok(()));
    for own in [GATEWAY, "10.1.255.255", "10.1.0.0"] {
        assert_eq!(wide.inbound(&begin(own)), Err(Reason::Destination), "{own}");
    }
    let mut listed = world(&["10.1.0.1/32:udp:53"]);
    assert_eq!(listed.inbound(&begin(GATEWAY)), Ok(()));
    assert_eq!(listed.inbound(&udp(THERE, 50_000, GATEWAY, 54)), Err(Reason::Destination));
    // What this host asks is answered, as for any other host here.
    assert_eq!(wide.outbound(&udp(GATEWAY, 40_000, THERE, 53)), Ok(()));
    assert_eq!(wide.inbound(&udp(THERE, 53, GATEWAY, 40_000)), Ok(()));
}

#[test]
fn martians_pass_neither_way_whatever_is_permitted() {
    let mut world = world(&["0.0.0.0/0", "::/0", "127.0.0.1/32"]);
    for destination in ["127.0.0.1", "0.0.0.0", "224.0.0.5", "255.255.255.255", "169.254.169.254"] {
        assert_eq!(world.inbound(&udp(THERE, 1, destination, 2)), Err(Reason::Martian));
        assert_eq!(world.outbound(&udp(HERE, 1, destination, 2)), Err(Reason::Martian));
    }
    for destination in ["::1", "::", "fe80::1", "ff02::1", "::ffff:10.1.0.5"] {
        assert_eq!(world.inbound(&udp(THERE_V6, 1, destination, 2)), Err(Reason::Martian));
        assert_eq!(world.outbound(&udp(HERE_V6, 1, destination, 2)), Err(Reason::Martian));
    }
    assert_eq!(world.inbound(&udp("127.0.0.1", 1, HERE, 2)), Err(Reason::Martian));
}

#[test]
fn what_is_not_behind_the_peer_does_not_go_to_it() {
    let mut world = world(&[]);
    for destination in ["10.9.0.1", "10.3.0.1", "10.2.7.1", GATEWAY] {
        assert_eq!(world.outbound(&udp(HERE, 1, destination, 2)), Err(Reason::NoRoute));
    }
    assert!(world.flows.is_empty());
}

#[test]
fn an_error_passes_if_it_is_about_a_packet_that_went_to_the_peer() {
    let mut world = world(&["10.1.0.0/16:443"]);
    let sent = udp(HERE, 40_000, THERE, 53);
    let router = "10.2.0.1";
    assert_eq!(world.inbound(&error_about(&sent, router)), Err(Reason::Destination));
    assert_eq!(world.outbound(&sent), Ok(()));
    assert_eq!(world.inbound(&error_about(&sent, router)), Ok(()));
    // An answer of a server that the peer may reach, of which no flow is kept.
    let answer = segment((HERE, 443), (THERE, 50_000), false, true);
    assert_eq!(world.inbound(&error_about(&answer, router)), Ok(()));
    // It must come from behind the peer, be about what went there, and go to whoever sent that.
    assert_eq!(world.inbound(&error_about(&sent, "10.3.0.1")), Err(Reason::Source));
    let elsewhere = udp(HERE, 40_000, "10.3.0.9", 53);
    assert_eq!(world.inbound(&error_about(&elsewhere, router)), Err(Reason::Destination));
    let mut redirected = error_about(&sent, router);
    redirected[19] = 6;
    crate::samples::seal(&mut redirected);
    assert_eq!(world.inbound(&redirected), Err(Reason::Destination));
    let mut cut = error_about(&sent, router);
    cut.truncate(28 + 20 + 3);
    cut[3] = cut.len() as u8;
    crate::samples::seal(&mut cut);
    assert_eq!(world.inbound(&cut), Err(Reason::Destination), "no ports are quoted");
}

#[test]
fn an_error_about_ipv6_passes_as_well() {
    let mut world = world(&[]);
    let sent = udp(HERE_V6, 40_000, THERE_V6, 53);
    let router = "2001:db8:2::1";
    assert_eq!(world.inbound(&error_about(&sent, router)), Err(Reason::Destination));
    assert_eq!(world.outbound(&sent), Ok(()));
    assert_eq!(world.inbound(&error_about(&sent, router)), Ok(()));
}

#[test]
fn a_permit_for_icmp_admits_no_error_that_is_about_nothing() {
    let mut world = world(&["10.1.0.0/16:icmp"]);
    let never_sent = udp(HERE, 40_000, THERE, 53);
    assert_eq!(world.inbound(&error_about(&never_sent, "10.2.0.1")), Err(Reason::Destination));
}

#[test]
fn later_fragments_pass_where_a_permit_or_a_flow_joins_the_hosts() {
    let first = |from, port: u16, to, to_port: u16| {
        let ports = [port.to_be_bytes(), to_port.to_be_bytes(), [0, 99], [0, 0]].concat();
        fragment(from, to, 17, (0, true), &[ports.as_slice(), &[0; 24]].concat())
    };
    let later = |from, to| fragment(from, to, 17, (32, false), &[0; 30]);
    let mut closed = world(&[]);
    assert_eq!(closed.inbound(&later(THERE, HERE)), Err(Reason::Destination));
    assert_eq!(closed.outbound(&udp(HERE, 40_000, THERE, 53)), Ok(()));
    assert_eq!(closed.inbound(&first(THERE, 53, HERE, 40_000)), Ok(()));
    assert_eq!(closed.inbound(&first(THERE, 54, HERE, 40_000)), Err(Reason::Destination));
    assert_eq!(closed.inbound(&later(THERE, HERE)), Ok(()));
    assert_eq!(closed.inbound(&later("10.2.0.8", HERE)), Err(Reason::Destination));
    assert_eq!(closed.inbound(&later(THERE, "10.1.0.6")), Err(Reason::Destination));
    // The first fragment of a later answer keeps the others passing.
    closed.now += IDLE_MAX;
    assert_eq!(closed.inbound(&first(THERE, 53, HERE, 40_000)), Ok(()));
    closed.now += IDLE_MAX;
    assert_eq!(closed.inbound(&later(THERE, HERE)), Ok(()));
    let mut open = world(&["10.1.0.0/16:udp:53"]);
    assert_eq!(open.inbound(&first(THERE, 40_000, HERE, 53)), Ok(()));
    assert_eq!(open.inbound(&first(THERE, 40_000, HERE, 54)), Err(Reason::Destination));
    assert_eq!(open.inbound(&later(THERE, HERE)), Ok(()));
    assert_eq!(open.inbound(&later(THERE, "10.4.0.5")), Err(Reason::Destination));
}

#[test]
fn answers_stop_passing_when_the_flow_was_idle() {
    let mut world = world(&[]);
    assert_eq!(world.outbound(&udp(HERE, 40_000, THERE, 53)), Ok(()));
    assert_eq!(world.outbound(&segment((HERE, 50_000), (THERE, 22), true, false)), Ok(()));
    world.now += IDLE_MAX + Duration::from_secs(1);
    assert_eq!(world.inbound(&udp(THERE, 53, HERE, 40_000)), Err(Reason::Destination));
    let answer = segment((THERE, 22), (HERE, 50_000), false, true);
    assert_eq!(world.inbound(&answer), Ok(()));
    world.now += TCP_IDLE_MAX + Duration::from_secs(1);
    assert_eq!(world.inbound(&answer), Err(Reason::Destination));
}

#[test]
fn a_packet_takes_no_memory_of_the_allocator() {
    let mut world = world(&["10.1.0.0/16:443"]);
    let asked = udp(HERE, 40_000, THERE, 53);
    let packets = [
        udp(THERE, 53, HERE, 40_000),
        segment((THERE, 50_000), (HERE, 443), true, false),
        segment((THERE, 50_000), (HERE, 22), true, false),
        error_about(&asked, "10.2.0.1"),
    ];
    // The flow is new, and the table grows.
    assert_eq!(world.outbound(&asked), Ok(()));
    let memory = allocation_counter::measure(|| {
        let passed = packets.iter().filter(|packet| world.inbound(packet).is_ok()).count();
        assert_eq!((passed, world.outbound(&asked)), (3, Ok(())));
    });
    assert_eq!(memory.count_total, 0);
}

proptest! {
    /// Whatever a peer sends and is sent, without a permit only answers pass: what has the
    /// addresses and ports of a packet that went to it, the other way.
    #[test]
    fn without_permits_only_the_reverse_of_what_was_sent_passes(
        packets in prop::collection::vec((any::<bool>(), 0..3u8, 0..3u16, 0..3u8, 0..3u16), 1..40),
    ) {
        let mut world = world(&[]);
        let mut sent = Vec::new();
        for (out, here, port_here, there, port_there) in packets {
            let flow = (format!("10.1.0.{}", here + 5), port_here, format!("10.2.0.{there}"), port_there);
            if out {
                prop_assert_eq!(world.outbound(&udp(&flow.0, flow.1, &flow.2, flow.3)), Ok(()));
                sent.push(flow);
            } else {
                let passes = world.inbound(&udp(&flow.2, flow.3, &flow.0, flow.1)).is_ok();
                prop_assert_eq!(passes, sent.contains(&flow));
            }
        }
    }
}
