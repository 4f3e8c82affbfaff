//! Counts allocations of two event loops while they carry data. Runs in its own process, whose
//! other threads allocate nothing meanwhile.
#![allow(unreachable_pub, clippy::unwrap_used)]

mod pair;

use std::{
    alloc::System,
    io::{Read, Write},
    os::unix::net::UnixStream,
    thread,
};

use keypadd_transport::{Connection, SpinShare};
use pair::Pair;
use stats_alloc::{INSTRUMENTED_SYSTEM, Region, StatsAlloc};

#[global_allocator]
static ALLOCATOR: &StatsAlloc<System> = &INSTRUMENTED_SYSTEM;

const MIB: usize = 1 << 20;

/// Transferred before counting starts.
const WARM_UP_MIB: usize = 32;
const WARM_UP_KEYSTROKES: usize = 2_000;

const BULK_MIB: usize = 64;
const KEYSTROKES: usize = 5_000;
const KEYSTROKE_BYTES: usize = 64;

/// Allocations per datagram with a keystroke, both ends together: 4.00 when measured. Ours are the
/// bytes read from the socket and the received datagram, copied because a few bytes must not keep a
/// whole batch alive. `quinn-proto` allocates the queue of its `SendBuffer`, which it frees
/// whenever everything is acknowledged, and the reference count by which a stream frame shares its
/// packet.
const KEYSTROKE_MAX: f64 = 4.2;

/// The same for bulk with its ACKs: 0.44. Most are by `quinn-proto` for its map of sent packets,
/// one node for 6 of them. One read of the socket serves some 100 packets, and received data is not
/// copied.
const BULK_MAX: f64 = 0.6;

/// Transfers this many MiB in one direction.
fn bulk([near, far]: &mut [UnixStream; 2], mib: usize, buffers: &mut [Vec<u8>; 2]) {
    let [sent, received] = buffers;
    thread::scope(|scope| {
        scope.spawn(|| (0..mib).for_each(|_| near.write_all(sent).unwrap()));
        (0..mib).for_each(|_| far.read_exact(received).unwrap());
    });
}

/// Sends keystrokes and waits for each echo.
fn type_keys([near, far]: &mut [UnixStream; 2], keystrokes: usize) {
    let mut bytes = [7; KEYSTROKE_BYTES];
    for _ in 0..keystrokes {
        near.write_all(&bytes).unwrap();
        far.read_exact(&mut bytes).unwrap();
        far.write_all(&bytes).unwrap();
        near.read_exact(&mut bytes).unwrap();
    }
}

/// Datagrams that both ends have sent.
fn datagrams(ends: &[Connection; 2]) -> u64 {
    ends.iter().map(|end| end.stats().udp_tx.datagrams).sum()
}

/// Allocations at both ends per datagram while `carry` runs.
fn per_datagram(what: &str, ends: &[Connection; 2], carry: impl FnOnce()) -> f64 {
    let (region, before) = (Region::new(ALLOCATOR), datagrams(ends));
    carry();
    let (asked, datagrams) = (region.change(), datagrams(ends) - before);
    let allocations = asked.allocations + asked.reallocations;
    let ratio = allocations as f64 / datagrams as f64;
    let kib = asked.bytes_allocated >> 10;
    println!(
        "{what}: {allocations} allocations, {kib} KiB, {datagrams} datagrams: {ratio:.3} each"
    );
    ratio
}

#[test]
fn a_packet_costs_no_more_allocations_than_are_known() {
    let pair = Pair::new(SpinShare::percent(0));
    let ends = pair.connect();
    let mut programs = pair.splice(pair.open(&ends));
    let mut buffers = [vec![7; MIB], vec![0; MIB]];
    type_keys(&mut programs, WARM_UP_KEYSTROKES);
    let keystroke = per_datagram("keystrokes", &ends, || type_keys(&mut programs, KEYSTROKES));
    assert!(keystroke <= KEYSTROKE_MAX, "{keystroke} for each datagram of a keystroke");
    bulk(&mut programs, WARM_UP_MIB, &mut buffers);
    let of_bulk = per_datagram("bulk", &ends, || bulk(&mut programs, BULK_MIB, &mut buffers));
    assert!(of_bulk <= BULK_MAX, "{of_bulk} for each datagram of bulk");
}
