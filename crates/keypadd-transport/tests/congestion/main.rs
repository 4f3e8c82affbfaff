//! Congestion control, in virtual time over emulated lines: what is proved is what ships.
#![allow(unreachable_pub, clippy::unwrap_used)]

mod world;

use std::{sync::Arc, time::Duration};

use keypadd_transport::congestion::RateConfig;
use world::{Traffic, World, line};

const MS: Duration = Duration::from_millis(1);
const SECOND: Duration = Duration::from_secs(1);

#[test]
#[ignore]
fn explore() {
    let var = |name: &str, default: f64| {
        std::env::var(name).ok().map_or(default, |text| text.parse().unwrap())
    };
    let (rate, rtt) = (var("RATE", 100.0), MS.mul_f64(var("RTT", 20.0)));
    let mut there = line(rate, rtt);
    there.loss = var("LOSS", 0.0);
    if var("AFTER", 0.0) > 0.0 {
        there.loss_place = testbed::line::LossPlace::AfterBottleneck;
    }
    there.queue.packets = var("QUEUE", 1000.0) as usize;
    let mut back = line(rate, rtt);
    back.loss = var("BACKLOSS", 0.0);
    let mut world = World::new(there, back, var("SEED", 1.0) as u64);
    world.compress_acks(MS.mul_f64(var("COMPRESS", 0.0)));
    let cubic = || Arc::new(keypadd_transport::congestion::CubicConfig::default());
    let traffic = if var("BOTH", 0.0) > 0.0 { Traffic::Both } else { Traffic::Up };
    let bulk = if var("CUBIC", 0.0) > 0.0 {
        world.add(cubic(), traffic)
    } else {
        world.add(Arc::new(RateConfig), traffic)
    };
    let ping = world.add(Arc::new(RateConfig), Traffic::Ping);
    let join = var("JOIN", 0.0);
    let mut other = None;
    let seconds = var("TIME", 10.0) as u64;
    let mut last = (0, 0, 0, 0);
    let mut middle = 0;
    for tick in 0..seconds * 4 {
        if tick == 12 && join > 0.0 {
            other = Some(match join {
                1.0 => world.add(Arc::new(RateConfig), Traffic::Up),
                _ => world.add(cubic(), Traffic::Up),
            });
        }
        if tick == 16 {
            let change = var("CHANGE", 1.0);
            world.change(|line| line.bits_per_second = world::mbit(rate * change));
        }
        if tick == seconds * 2 {
            middle = world.received(bulk);
        }
        let mut queue = Vec::new();
        world.watch(SECOND / 4, MS, |world| queue.push(world.queue()));
        queue.sort();
        let now = (
            world.received(bulk),
            world.offered(),
            other.map_or(0, |other| world.received(other)),
            world.received_back(bulk),
        );
        let rate = |bytes: u64| bytes as f64 * 8.0 / 0.25 / 1e6;
        let (_, rtt) = *world.flows[ping].round_trips.last().unwrap_or(&(world.now(), MS));
        let stats = world.connection(bulk).stats().path;
        println!(
            "{:5.2} s: {:6.1} Mbit/s, back {:6.1}, other {:6.1}, offered {:6.1}, queue {:5.1} {:5.1} ms, ping {:5.1} ms, lost {} cwnd {} rtt {:?}",
            tick as f64 / 4.0,
            rate(now.0 - last.0),
            rate(now.3 - last.3),
            rate(now.2 - last.2),
            rate(now.1 - last.1),
            queue[queue.len() / 2].as_secs_f64() * 1e3,
            queue[queue.len() - 1].as_secs_f64() * 1e3,
            rtt.as_secs_f64() * 1e3,
            stats.lost_packets,
            stats.cwnd,
            stats.rtt,
        );
        last = now;
    }
    let mut trips: Vec<_> = world.flows[ping].round_trips.iter().map(|(_, rtt)| *rtt).collect();
    trips.drain(..trips.len() / 4);
    trips.sort();
    let total = world.received(bulk) as f64 * 8.0 / seconds as f64 / 1e6;
    let half = (world.received(bulk) - middle) as f64 * 16.0 / seconds as f64 / 1e6;
    println!("mean {total:.1}, of the second half {half:.1}");
    println!("p50 {:?} p99 {:?}", trips[trips.len() / 2], trips[trips.len() * 99 / 100]);
}
