//! Tests clients whose address changes under way.

use std::{net::Ipv4Addr, time::Duration};

use crate::{
    MS, SECOND, bulk_of, queue_p99, share,
    world::{HEADERS, MOST, Traffic, World, mbit},
};

const ELSEWHERE: Ipv4Addr = Ipv4Addr::new(127, 0, 0, 2);

/// The largest datagram that every path carries (RFC 9000 14).
const LEAST: usize = 1_200;

/// A client that only receives sends nothing but keep-alives.
const KEEP_ALIVE: Duration = Duration::from_secs(3);

#[test]
fn data_flows_within_a_round_trip_of_the_first_packet_from_a_new_address() {
    for rtt in [20 * MS, 150 * MS] {
        for traffic in [Traffic::Up, Traffic::Down] {
            let at = format!("{traffic:?}, {rtt:?}");
            let mut world = bulk_of(traffic, 50.0, rtt);
            world.run(4 * SECOND);
            // What was on its way to the old address is lost.
            world.move_client(0, ELSEWHERE);
            let began = world.now();
            while world.client_address(0) != ELSEWHERE {
                world.run(MS);
                assert!(world.now() - began < KEEP_ALIVE + rtt, "{at}: the client is silent");
            }
            // What the line's queue holds arrives. Then the client has proved its address; what the
            // server sends needs half as long.
            let queue = 5 * MS;
            world.run(queue);
            let first = if traffic == Traffic::Up { rtt } else { rtt + rtt / 2 };
            assert!(share(&mut world, 0, 50.0, first) > 0.0, "{at}");
            world.run(SECOND + 10 * rtt);
            let share = share(&mut world, 0, 50.0, SECOND);
            assert!(share >= 0.9, "{at}: {share:.3} of the line");
        }
    }
}

#[test]
fn a_client_that_moves_to_a_slow_distant_line_fills_it_and_its_queue_is_short() {
    for traffic in [Traffic::Up, Traffic::Down] {
        let mut world = bulk_of(traffic, 100.0, 20 * MS);
        world.run(3 * SECOND);
        world.move_client(0, ELSEWHERE);
        world.change_both(|line| (line.bits_per_second, line.delay) = (mbit(10.0), 30 * MS));
        world.run(KEEP_ALIVE + SECOND);
        let queue = queue_p99(&mut world, 2 * SECOND);
        let share = share(&mut world, 0, 10.0, 2 * SECOND);
        assert!(share >= 0.9 && queue <= 9 * MS, "{traffic:?}: {share:.3} of the line, {queue:?}");
    }
}

#[test]
fn a_server_keeps_little_for_a_client_that_has_not_proved_its_new_address() {
    let mut world = bulk_of(Traffic::Down, 50.0, 20 * MS);
    world.run(4 * SECOND);
    world.move_client(0, ELSEWHERE);
    while world.client_address(0) != ELSEWHERE {
        world.run(MS);
    }
    // What it has taken and the client has not received: before, some 150 KB were in flight.
    let kept = world.written_back(0) - world.received_back(0);
    assert!(kept <= 256 << 10, "{kept} bytes");
}

#[test]
fn data_flows_as_soon_on_a_new_path_that_carries_only_what_every_path_must() {
    for rtt in [20 * MS, 150 * MS] {
        for traffic in [Traffic::Up, Traffic::Down, Traffic::Both] {
            let at = format!("{traffic:?}, {rtt:?}");
            let mut world = bulk_of(traffic, 50.0, rtt);
            world.run(4 * SECOND);
            assert_eq!(world.datagram_bytes(0), [MOST; 2], "{at}");
            world.move_client(0, ELSEWHERE);
            world.change_both(|line| line.bytes_max = Some(LEAST + HEADERS));
            while world.client_address(0) != ELSEWHERE {
                world.run(MS);
            }
            let received = |world: &World| [world.received(0), world.received_back(0)];
            let before = received(&world);
            // The client's data as soon as it has learned of its new address, the server's once
            // that is proved. With both, the server hears from the client before probes have told
            // what was lost, and a round trip more goes by before it is sent again.
            let queue = 5 * MS;
            world.run(
                queue
                    + match traffic {
                        Traffic::Up => rtt,
                        Traffic::Down => rtt + rtt / 2,
                        _ => 2 * rtt + rtt / 2,
                    },
            );
            let after = received(&world);
            let [up, down] = [0, 1].map(|way| after[way] > before[way]);
            assert!(up || traffic == Traffic::Down, "{at}: nothing from the client");
            assert!(down || traffic == Traffic::Up, "{at}: nothing from the server");
            assert_eq!(world.datagram_bytes(0), [LEAST as u16; 2], "{at}");
            world.run(SECOND + 10 * rtt);
            let ways = if traffic == Traffic::Both { 2.0 } else { 1.0 };
            let share = share(&mut world, 0, 50.0 * ways, SECOND);
            assert!(share >= 0.9, "{at}: {share:.3} of the line");
        }
    }
}
