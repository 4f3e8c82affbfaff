//! Emulates a path between two network namespaces: IP packets pass through a [`Line`] in each
//! direction.
//!
//! Packets enter and leave through a TUN device at each end, so kernel TCP, UDP and whole programs
//! use the path unchanged. A thread for each direction wakes up at most every [`GRAIN`] while
//! packets flow: packets may be late by that much. The line makes all decisions; its rate counts
//! bytes of IP packets.

mod packet;
#[cfg(test)]
mod tests;

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::io;
use std::net::Ipv4Addr;
use std::num::NonZeroU64;
use std::os::fd::AsFd;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use tappers::{Interface, Tun};

use crate::line::{Line, LineCounts, LineSettings};
use crate::namespace::Namespace;

/// One of the two hosts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    /// Where load is generated and tunnels listen.
    Near,
    /// Where the traffic service runs.
    Far,
}

/// How often a direction's thread wakes up while packets flow.
pub const GRAIN: Duration = Duration::from_micros(100);

/// How long one entry of a trace is.
pub const MOMENT: Duration = Duration::from_millis(10);

/// How soon a thread without packets notices that its path is gone.
const LOOK_UP: Duration = Duration::from_millis(50);

/// Most packets in transit at once; further ones are lost. 150 ms at 1 Gbit/s are about 12,500.
const UNDER_WAY_MAX: usize = 1 << 16;

/// Packets that the kernel queues until a thread reads them: only the line may lose packets.
const KERNEL_QUEUE_PACKETS: u32 = 20_000;

/// Packets to read before writing those that are due.
const BATCH: usize = 64;

/// Name of the path's device on every host.
pub const DEVICE: &str = "path";

/// Highest scheduling priority: the emulation must not wait for the programs it carries.
const PRIORITY: i32 = -20;

/// A TUN device in a namespace; removed when dropped.
pub(crate) struct Device(Tun);

impl Device {
    /// Opens one and gives it an address and a /24.
    pub(crate) fn open(namespace: &Namespace, address: Ipv4Addr, mtu: u32) -> Result<Self, String> {
        let failed = |error: io::Error| format!("a TUN device: {error}");
        let tun = namespace.inside(|| {
            let tun = Tun::new_named(Interface::new(DEVICE).map_err(failed)?).map_err(failed)?;
            Ok(Self(tun))
        })?;
        let mut tun = tun;
        tun.0.set_nonblocking(true).map_err(failed)?;
        namespace.ip(&format!(
            "link set {DEVICE} mtu {mtu} txqueuelen {KERNEL_QUEUE_PACKETS} addrgenmode none\n\
             addr add {address}/24 dev {DEVICE}\nlink set {DEVICE} up\n"
        ))?;
        Ok(tun)
    }
}

/// A running path. If dropped, it ends, and packets in transit are lost.
#[derive(Debug)]
pub struct Path {
    shared: Arc<PathState>,
    threads: Vec<JoinHandle<()>>,
}

#[derive(Debug)]
struct PathState {
    is_over: AtomicBool,
    /// The near host's direction, and the far host's.
    ways: [Way; 2],
}

#[derive(Debug)]
struct Way(Mutex<State>);

#[derive(Debug)]
struct State {
    line: Line,
    /// Incremented for each new line: packets in transit on an earlier one are dropped.
    generation: u64,
    /// Origin of the trace's moments.
    epoch: Instant,
    trace: Vec<Moment>,
    ecn: Ecn,
    ecn_counts: EcnCounts,
}

/// What a direction does with packets whose sender understands marks (ECN-capable, RFC 3168 5).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Ecn {
    /// Lets the line mark them.
    #[default]
    Pass,
    /// Clears their ECN bits before the line.
    Clear,
    /// Drops them before the line.
    Drop,
}

/// What happened to the ECN-capable packets of one direction.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct EcnCounts {
    /// Packets that entered ECN-capable.
    pub capable: u64,
    /// Packets that arrive marked.
    pub marked: u64,
}

/// What one direction did in [`MOMENT`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Moment {
    /// When it began.
    pub from: Instant,
    /// Bytes of IP packets that arrived.
    pub arrived_bytes: u64,
    /// The longest wait for the bottleneck of any packet that entered.
    pub wait: Duration,
    /// Packets dropped by a full queue or a policer.
    pub dropped: u64,
}

impl Path {
    /// Joins two devices by lines that pass everything immediately.
    pub(crate) fn start(near: Device, far: Device, seed: u64) -> Result<Self, String> {
        let way = |seed| {
            let line = Line::new(LineSettings::default(), seed);
            let epoch = Instant::now();
            Way(Mutex::new(State {
                line,
                generation: 0,
                epoch,
                trace: Vec::new(),
                ecn: Ecn::default(),
                ecn_counts: EcnCounts::default(),
            }))
        };
        let ways = [way(seed), way(seed.wrapping_add(1))];
        let shared = Arc::new(PathState { is_over: AtomicBool::new(false), ways });
        let devices = Arc::new([near.0, far.0]);
        let mut path = Self { shared: Arc::clone(&shared), threads: Vec::new() };
        for way in 0..2 {
            let (shared, devices) = (Arc::clone(&shared), Arc::clone(&devices));
            let work = move || {
                let [near, far] = &*devices;
                let (from, to) = if way == 0 { (near, far) } else { (far, near) };
                Carrier { from, to, way: &shared.ways[way], under_way: BinaryHeap::new(), read: 0 }
                    .run(&shared.is_over);
            };
            let thread = thread::Builder::new().name("path".into()).spawn(work);
            path.threads.push(thread.map_err(|error| format!("a thread: {error}"))?);
        }
        Ok(path)
    }

    /// Changes the line for what this end sends; packets that have entered arrive as already
    /// decided.
    pub fn set(&self, from: End, settings: LineSettings) {
        self.state(from).line.set(settings);
    }

    /// Replaces the line for what this end sends; packets in transit are lost, and counts and trace
    /// start over. The same seed and packets give the same losses.
    pub fn renew(&self, from: End, settings: LineSettings, seed: u64) {
        let mut state = self.state(from);
        state.line = Line::new(settings, seed);
        state.generation += 1;
        state.trace.clear();
        state.ecn_counts = EcnCounts::default();
    }

    /// Changes what happens to ECN-capable packets that this end sends.
    pub fn set_ecn(&self, from: End, ecn: Ecn) {
        self.state(from).ecn = ecn;
    }

    /// What happened to the ECN-capable packets that this end has sent.
    pub fn ecn_counts(&self, from: End) -> EcnCounts {
        self.state(from).ecn_counts
    }

    /// What happened to the packets that this end has sent.
    pub fn counts(&self, from: End) -> LineCounts {
        self.state(from).line.counts()
    }

    /// What happened to the packets of this end, moment by moment since the last call; moments
    /// without packets are left out. The reader must call it often enough: it grows by some 4 KiB a
    /// second.
    pub fn take_trace(&self, from: End) -> Vec<Moment> {
        std::mem::take(&mut self.state(from).trace)
    }

    fn state(&self, from: End) -> MutexGuard<'_, State> {
        self.shared.ways[usize::from(from == End::Far)].lock()
    }
}

impl Drop for Path {
    fn drop(&mut self) {
        self.shared.is_over.store(true, Relaxed);
        for thread in self.threads.drain(..) {
            let _ = thread.join();
        }
    }
}

impl Way {
    /// The guarded state is consistent at any moment.
    fn lock(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    /// The trace entry for a moment. Entries begin whole moments apart, so that any interval of
    /// whole moments has the same number of them.
    fn moment(&mut self, now: Instant) -> &mut Moment {
        let last = self.trace.last().map(|last| last.from);
        let is_over = last.is_none_or(|last| now >= last + MOMENT);
        if is_over {
            let since = now.saturating_duration_since(self.epoch).as_nanos() / MOMENT.as_nanos();
            let from = self.epoch + MOMENT * u32::try_from(since).unwrap_or(u32::MAX);
            self.trace.push(Moment { from, arrived_bytes: 0, wait: Duration::ZERO, dropped: 0 });
        }
        self.trace.last_mut().expect("one was pushed if there was none")
    }
}

/// A packet in transit; of two due at the same time, the one that entered first goes first.
type Due = Reverse<(Instant, u64, u64, Vec<u8>)>;

/// One direction's thread.
struct Carrier<'a> {
    from: &'a Tun,
    to: &'a Tun,
    way: &'a Way,
    under_way: BinaryHeap<Due>,
    read: u64,
}

impl Carrier<'_> {
    fn run(mut self, is_over: &AtomicBool) {
        // Both improve precision; a thread that may not have them is less precise.
        let _ = rustix::thread::set_current_timer_slack(NonZeroU64::new(1));
        let _ = rustix::process::setpriority_process(None, PRIORITY);
        let mut buffer = vec![0; 1 << 16];
        while !is_over.load(Relaxed) {
            let has_read = self.read(&mut buffer);
            let has_written = self.write();
            if has_read || has_written {
                thread::sleep(GRAIN);
            } else {
                self.wait();
            }
        }
    }

    /// Reads packets that have arrived.
    fn read(&mut self, buffer: &mut [u8]) -> bool {
        let mut has_read = false;
        for _ in 0..BATCH {
            let Ok(len) = self.from.recv(buffer) else { break };
            has_read = true;
            let now = Instant::now();
            let mut state = self.way.lock();
            let packet = &mut buffer[..len];
            let is_capable = packet::is_ecn_capable(packet);
            state.ecn_counts.capable += u64::from(is_capable);
            match state.ecn {
                Ecn::Drop if is_capable => continue,
                Ecn::Clear => packet::clear_ecn(packet),
                Ecn::Pass | Ecn::Drop => {}
            }
            let wait = state.line.queue(now).wait;
            let offered = state.line.offer(now, len);
            let generation = state.generation;
            let moment = state.moment(now);
            moment.wait = moment.wait.max(wait);
            let Ok(arrivals) = offered else {
                moment.dropped += u64::from(packet::is_dropped(offered));
                continue;
            };
            let is_marked = arrivals.packet.marked && packet::is_ecn_capable(packet);
            state.ecn_counts.marked += u64::from(is_marked);
            drop(state);
            for arrival in arrivals {
                if self.under_way.len() < UNDER_WAY_MAX {
                    let packet = packet::arriving(packet, arrival);
                    self.under_way.push(Reverse((arrival.at, self.read, generation, packet)));
                    self.read += 1;
                }
            }
        }
        has_read
    }

    /// Writes packets that are due.
    fn write(&mut self) -> bool {
        let now = Instant::now();
        let mut has_written = false;
        while self.under_way.peek().is_some_and(|Reverse((due, ..))| *due <= now)
            && let Some(Reverse((.., generation, packet))) = self.under_way.pop()
        {
            has_written = true;
            let mut state = self.way.lock();
            if generation == state.generation {
                state.moment(now).arrived_bytes += packet.len() as u64;
                drop(state);
                // What the kernel does not accept is lost, as on any host.
                let _ = self.to.send(&packet);
            }
        }
        has_written
    }

    /// Waits until there is something to read, or something is due.
    fn wait(&self) {
        let until = self.under_way.peek().map(|Reverse((due, ..))| *due);
        let wait = until.map_or(LOOK_UP, |due| due.saturating_duration_since(Instant::now()));
        let timeout = Timespec::try_from(wait.min(LOOK_UP)).ok();
        let _ = poll(
            &mut [PollFd::from_borrowed_fd(self.from.as_fd(), PollFlags::IN)],
            timeout.as_ref(),
        );
    }
}
