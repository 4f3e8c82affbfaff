//! Measures one arm once: TCP, packets at fixed times, and what they cost.
//!
//! All loads begin at the client. They come one after the other, except voice and echo requests
//! beside bulk. Does not know which arm it measures.

use std::fs;
use std::net::{SocketAddr, TcpListener};
use std::sync::atomic::AtomicBool;
use std::thread;
use std::time::{Duration, Instant};

use testbed::{FourHosts, Namespace, procstat};

use super::lab::Lab;
use super::load::{self, PACES};
use crate::flow::{Flow, VOICE};
use crate::load::{Bulk, Service, connect, wait_until, words};
use crate::pings::{Pings, pings};

/// Port of the service.
const PORT: u16 = 7000;

/// How long bulk runs unmeasured before anything is.
const WARM_UP: Duration = Duration::from_secs(1);

/// How long streams run before they are measured.
pub(super) const LEAD: Duration = Duration::from_millis(500);

/// Time between two echo requests.
pub(super) const PING_INTERVAL: Duration = Duration::from_millis(2);

/// Pause after each load, for queues to empty.
const SETTLE: Duration = Duration::from_millis(200);

/// Bytes of a gigabyte.
const GB: f64 = 1e9;

/// Streams at once.
#[derive(Clone, Copy, Debug)]
pub(super) struct Streams {
    pub(super) name: &'static str,
    /// From the server.
    down: usize,
    /// To it.
    up: usize,
}

/// The loads of TCP.
pub(super) const STREAMS: [Streams; 5] = [
    Streams { name: "1 down", down: 1, up: 0 },
    ONE_UP,
    Streams { name: "4 down", down: 4, up: 0 },
    Streams { name: "4 up", down: 0, up: 4 },
    Streams { name: "1 each way", down: 1, up: 1 },
];
const ONE_UP: Streams = Streams { name: "1 up", down: 0, up: 1 };

/// A sample, or what went wrong.
pub(super) type Taken = crate::series::Taken<Result<Sample, String>>;

/// What one arm did.
#[derive(Clone, Debug)]
pub(super) struct Sample {
    /// By the loads of [`STREAMS`].
    pub(super) tcp: Vec<Tcp>,
    /// Echo requests alone, and beside one stream up.
    pub(super) idle: Pings,
    pub(super) beside: Pings,
    pub(super) voice: Flow,
    /// By the flows of [`PACES`].
    pub(super) udp: Vec<Flow>,
    /// Of all cores' time, what other programs took meanwhile.
    pub(super) others_percent: f64,
}

/// What streams did at once.
#[derive(Clone, Copy, Debug)]
pub(super) struct Tcp {
    /// Payload that arrived, of all streams.
    pub(super) mbit: f64,
    /// CPU seconds a GB of that payload: of the whole machine but other programs, and of the
    /// gateways' programs.
    pub(super) machine_cpu: f64,
    /// None for the latter if they are in this process.
    pub(super) gateway_cpu: Option<f64>,
    /// Segments that the hosts sent again, and reorderings that they found, a GB.
    pub(super) sent_again: f64,
    pub(super) reordered: f64,
}

/// Counters that only rise.
#[derive(Clone, Copy, Debug)]
struct Counters {
    machine_cpu: f64,
    gateway_cpu: Option<f64>,
    sent_again: u64,
    reordered: u64,
}

impl Counters {
    fn read(lab: &Lab) -> Result<Self, String> {
        let of = |name| {
            let hosts = [&lab.hosts.client, &lab.hosts.server];
            hosts.into_iter().map(|host| tcp_counter(host, name)).sum::<Result<u64, String>>()
        };
        Ok(Self {
            machine_cpu: procstat::machine_cpu_seconds() - procstat::others_cpu_seconds(),
            gateway_cpu: lab.scripts.cpu_seconds(),
            sent_again: of("RetransSegs")?,
            reordered: of("TCPSACKReorder")?,
        })
    }
}

impl Sample {
    /// Measures with `time` for each load.
    ///
    /// # Errors
    /// One line: which load failed, and how.
    pub(super) fn take(lab: &Lab, time: Duration, stop: &AtomicBool) -> Result<Self, String> {
        let others = procstat::others_cpu_seconds();
        let start = Instant::now();
        let address = SocketAddr::from((FourHosts::SERVER, PORT));
        let listener = lab.hosts.server.inside(|| TcpListener::bind(address).map_err(words))?;
        let bench = Bench { lab, service: Service::start(listener).map_err(words)?, address, stop };
        let warm_up = bench.begin(STREAMS[4])?;
        wait_until(Instant::now() + WARM_UP, stop)?;
        bench.settle(warm_up)?;
        let tcp = STREAMS.into_iter().map(|streams| bench.tcp(streams, time));
        let tcp = tcp.collect::<Result<Vec<Tcp>, String>>()?;
        let idle = pings(&lab.hosts, PING_INTERVAL, time, stop)?;
        let (beside, voice) = bench.beside(time)?;
        let udp = PACES.iter().map(|pace| load::flow(&lab.hosts, pace, time, stop));
        let udp = udp.collect::<Result<Vec<Flow>, String>>()?;
        let cores = thread::available_parallelism().map_or(1, usize::from) as f64;
        let others = procstat::others_cpu_seconds() - others;
        let others_percent = 100.0 * others / start.elapsed().as_secs_f64() / cores;
        Ok(Self { tcp, idle, beside, voice, udp, others_percent: others_percent.max(0.0) })
    }
}

struct Bench<'a> {
    lab: &'a Lab,
    service: Service,
    address: SocketAddr,
    stop: &'a AtomicBool,
}

impl Bench<'_> {
    /// Starts streams; they end when they are dropped.
    fn begin(&self, streams: Streams) -> Result<Vec<Bulk>, String> {
        let connect = || self.lab.hosts.client.inside(|| connect(self.address).map_err(words));
        let up = |_| Bulk::up(connect()?, &self.service).map_err(words);
        let mut all = (0..streams.up).map(up).collect::<Result<Vec<Bulk>, String>>()?;
        all.iter().try_for_each(Bulk::send).map_err(words)?;
        for _ in 0..streams.down {
            all.push(Bulk::down(connect()?).map_err(words)?);
        }
        Ok(all)
    }

    /// Ends streams, and waits until their packets are gone.
    fn settle(&self, streams: Vec<Bulk>) -> Result<(), String> {
        let failure = streams.iter().find_map(|bulk| bulk.received.failure());
        drop(streams);
        wait_until(Instant::now() + SETTLE, self.stop)?;
        failure.map_or(Ok(()), Err)
    }

    fn tcp(&self, streams: Streams, time: Duration) -> Result<Tcp, String> {
        let named = |cause| format!("TCP, {}: {cause}", streams.name);
        let all = self.begin(streams).map_err(named)?;
        wait_until(Instant::now() + LEAD, self.stop)?;
        let (before, from) = (Counters::read(self.lab)?, Instant::now());
        wait_until(from + time, self.stop)?;
        let (until, after) = (Instant::now(), Counters::read(self.lab)?);
        let bytes: u64 = all.iter().map(|bulk| bulk.received.bytes(from, until)).sum();
        self.settle(all).map_err(named)?;
        let gb = bytes as f64 / GB;
        Ok(Tcp {
            mbit: bytes as f64 * 8.0 / (until - from).as_secs_f64() / 1e6,
            machine_cpu: (after.machine_cpu - before.machine_cpu) / gb,
            gateway_cpu: after
                .gateway_cpu
                .zip(before.gateway_cpu)
                .map(|(to, from)| (to - from) / gb),
            sent_again: (after.sent_again - before.sent_again) as f64 / gb,
            reordered: (after.reordered - before.reordered) as f64 / gb,
        })
    }

    /// Echo requests and voice beside one stream up, whose way they go.
    fn beside(&self, time: Duration) -> Result<(Pings, Flow), String> {
        let bulk = self.begin(ONE_UP)?;
        wait_until(Instant::now() + LEAD, self.stop)?;
        let hosts = &self.lab.hosts;
        let (pings, voice) = thread::scope(|scope| {
            let voice = scope.spawn(|| load::flow(hosts, &VOICE, time, self.stop));
            let pings = pings(hosts, PING_INTERVAL, time, self.stop);
            (pings, voice.join().unwrap_or_else(|_| Err("a sender panicked".into())))
        });
        self.settle(bulk)?;
        Ok((pings?, voice?))
    }
}

/// A counter of TCP in a namespace, from the files of proc_pid_net(5).
fn tcp_counter(host: &Namespace, name: &str) -> Result<u64, String> {
    let read = |file: &str| {
        let path = format!("/proc/thread-self/net/{file}");
        fs::read_to_string(&path).map_err(|error| format!("{path}: {error}"))
    };
    host.inside(|| {
        let text = read("snmp")? + &read("netstat")?;
        counter(&text, name).ok_or_else(|| format!("this kernel does not count {name}"))
    })
}

/// A value from pairs of lines: `Tcp: name name`, `Tcp: 1 2`.
fn counter(text: &str, name: &str) -> Option<u64> {
    let lines: Vec<&str> = text.lines().filter(|line| line.starts_with("Tcp")).collect();
    lines.chunks_exact(2).find_map(|pair| {
        let place = pair[0].split(' ').position(|it| it == name)?;
        pair[1].split(' ').nth(place)?.parse().ok()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counters_are_read_by_their_names() {
        let text = "Ip: Forwarding\nIp: 1\nTcp: MaxConn RetransSegs\nTcp: -1 7\n\
                    TcpExt: SyncookiesSent TCPSACKReorder\nTcpExt: 3 9\nIpExt: A\nIpExt: 5\n";
        assert_eq!(counter(text, "RetransSegs"), Some(7));
        assert_eq!(counter(text, "TCPSACKReorder"), Some(9));
        assert_eq!(counter(text, "Forwarding"), None);
        assert_eq!(counter(text, "A"), None);
    }
}
