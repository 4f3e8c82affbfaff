//! Tests emulated paths between namespaces. As root: `cargo test -p testbed --lib path --
//! --ignored`.

use std::net::UdpSocket;

use super::*;
use crate::hosts::TwoHosts;
use crate::line::LossPlace;

const SECOND: Duration = Duration::from_secs(1);

fn bind(namespace: &Namespace, address: Ipv4Addr) -> UdpSocket {
    let socket =
        namespace.inside(|| UdpSocket::bind((address, 0)).map_err(|error| error.to_string()));
    let socket = socket.unwrap();
    socket.set_read_timeout(Some(5 * SECOND)).unwrap();
    socket
}

fn sockets(hosts: &TwoHosts) -> (UdpSocket, UdpSocket) {
    let (near, far) = (bind(&hosts.near, TwoHosts::NEAR), bind(&hosts.far, TwoHosts::FAR));
    near.connect(far.local_addr().unwrap()).unwrap();
    far.connect(near.local_addr().unwrap()).unwrap();
    (near, far)
}

#[test]
#[ignore = "needs root"]
fn a_path_measures_the_delay_that_it_was_given() {
    let (hosts, path) = TwoHosts::by_path(1500, 1).unwrap();
    let (near, far) = sockets(&hosts);
    let delay = Duration::from_millis(10);
    for end in [End::Near, End::Far] {
        path.renew(end, LineSettings { delay, ..<_>::default() }, 1);
    }
    let mut times: Vec<Duration> = (0..50)
        .map(|_| {
            let start = Instant::now();
            near.send(b"ping").unwrap();
            far.recv(&mut [0; 64]).unwrap();
            far.send(b"pong").unwrap();
            near.recv(&mut [0; 64]).unwrap();
            start.elapsed()
        })
        .collect();
    times.sort();
    println!("round trips of 20 ms: {:?} to {:?}, median {:?}", times[0], times[49], times[25]);
    assert!(times[0] >= 2 * delay, "{times:?}");
    assert!(times[25] < 2 * delay + Duration::from_millis(1), "{times:?}");
}

#[test]
#[ignore = "needs root"]
fn a_path_measures_the_rate_and_the_loss_that_it_was_given() {
    let (hosts, path) = TwoHosts::by_path(1500, 1).unwrap();
    let (near, far) = sockets(&hosts);
    let settings = LineSettings {
        bits_per_second: NonZeroU64::new(300_000_000),
        loss: 0.1,
        loss_place: LossPlace::AfterBottleneck,
        ..<_>::default()
    };
    path.renew(End::Near, settings, 1);
    // Faster than the line: a payload of 1,472 bytes is a packet of 1,500.
    let sender = thread::spawn(move || {
        let until = Instant::now() + SECOND;
        while Instant::now() < until {
            for _ in 0..20 {
                let _ = near.send(&[7; 1472]);
            }
            thread::sleep(Duration::from_micros(500));
        }
    });
    let (start, mut packets) = (Instant::now(), 0);
    while start.elapsed() < SECOND * 4 / 5 {
        far.recv(&mut [0; 2048]).unwrap();
        packets += 1;
    }
    let mbit = f64::from(packets) * 12_000.0 / start.elapsed().as_secs_f64() / 1e6;
    sender.join().unwrap();
    let (counts, trace) = (path.counts(End::Near), path.take_trace(End::Near));
    println!("{mbit:.1} Mbit/s of 270; {counts:?}");
    assert!((255.0..272.0).contains(&mbit), "{mbit}");
    assert!(counts.queue_full > 0);
    let longest = trace.iter().map(|moment| moment.wait).max().unwrap();
    assert!((39..=41).contains(&longest.as_millis()), "a thousand packets: {longest:?}");
}
