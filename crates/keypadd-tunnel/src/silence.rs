//! A UDP socket that says nothing from a jump of time on until no connection of before is left.
//!
//! After a jump this process may be a copy, and its original may have sent other bytes under the
//! packet numbers that come next here. Not even a goodbye may leave then: it would be sealed with
//! keystream that was used already. So the clocks are asked before every datagram, since a look
//! twice a second comes too late for the first of them. Knows no connections but their number.

use std::{
    io::{self, IoSliceMut},
    net::{SocketAddr, UdpSocket},
    pin::Pin,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    task::{Context, Poll},
    time::{Duration, Instant},
};

use keypadd_provider::{Meters, SAMPLED_ONE_IN};
use quinn::{
    AsyncUdpSocket, Endpoint, Runtime, ServerConfig, UdpPoller,
    udp::{RecvMeta, Transmit},
};
use tokio::{sync::Notify, time::sleep};

use crate::{
    clock::{Clocks, Jump, Readings, jump},
    transport::endpoint_config,
    turns::TurnRuntime,
};

/// How often connections are counted while a silence lasts.
const GLANCE: Duration = Duration::from_millis(20);

/// Whether anything may be sent; clones are one.
#[derive(Clone, Debug)]
pub(crate) struct Silence(Arc<State>);

#[derive(Debug)]
struct State {
    clocks: Arc<dyn Clocks>,
    /// The clocks at the last look.
    last: Mutex<Readings>,
    silent: AtomicBool,
    fell: Notify,
}

impl Silence {
    pub(crate) fn new(clocks: Arc<dyn Clocks>) -> Self {
        let last = Mutex::new(clocks.read());
        Self(Arc::new(State { clocks, last, silent: AtomicBool::new(false), fell: Notify::new() }))
    }

    /// Looks at the clocks. When they have jumped since the last look, silence falls.
    pub(crate) fn look(&self) -> Option<Jump> {
        let mut last = self.last();
        let now = self.0.clocks.read();
        let jump = self.compare(&last, &now);
        *last = now;
        jump
    }

    /// Completes when silence has fallen between two looks: it is time for the next.
    pub(crate) async fn fell(&self) {
        self.0.fell.notified().await;
    }

    /// Whether it is silent.
    pub(crate) fn holds(&self) -> bool {
        self.0.silent.load(Ordering::Acquire)
    }

    /// Returns when it is not silent, or not any more: what was sealed before is gone with the last
    /// connection of this endpoint. Whoever has connections must have ended them.
    pub(crate) async fn outlast(&self, endpoint: &Endpoint) {
        while self.holds() {
            match endpoint.open_connections() {
                0 => self.0.silent.store(false, Ordering::Release),
                _ => sleep(GLANCE).await,
            }
        }
    }

    /// Asked before each datagram.
    fn may_send(&self) -> bool {
        if self.holds() {
            return false;
        }
        let last = self.last();
        let jumped = self.compare(&last, &self.0.clocks.read()).is_some();
        if jumped {
            self.0.fell.notify_one();
        }
        !jumped
    }

    /// Silent after a jump.
    fn compare(&self, last: &Readings, now: &Readings) -> Option<Jump> {
        let jump = jump(last, now);
        if jump.is_some() {
            self.0.silent.store(true, Ordering::Release);
        }
        jump
    }

    /// Held until the clocks were read and compared, so that no reading is compared with a later one.
    /// Readings are plain numbers, which no panic can leave half changed.
    fn last(&self) -> MutexGuard<'_, Readings> {
        self.0.last.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// An endpoint on this socket, silent when it must be.
pub(crate) fn endpoint_on(
    socket: UdpSocket,
    config: Option<ServerConfig>,
    silence: Silence,
    meters: Option<Arc<Meters>>,
) -> io::Result<Endpoint> {
    let runtime = Arc::new(TurnRuntime::default());
    let socket = runtime.wrap_udp_socket(socket)?;
    let socket = Arc::new(Silenced { socket, silence, meters, sends: AtomicU64::new(0) });
    Endpoint::new_with_abstract_socket(endpoint_config(), config, socket, runtime)
}

/// A socket that loses what must not be sent.
#[derive(Debug)]
struct Silenced {
    socket: Arc<dyn AsyncUdpSocket>,
    silence: Silence,
    meters: Option<Arc<Meters>>,
    /// Calls so far: one in some is timed.
    sends: AtomicU64,
}

impl Silenced {
    /// Sends, and notes what a packet of it took if this call is one that is timed.
    fn send(&self, transmit: &Transmit<'_>) -> io::Result<()> {
        let Some(meters) = self
            .meters
            .as_ref()
            .filter(|_| self.sends.fetch_add(1, Ordering::Relaxed).is_multiple_of(SAMPLED_ONE_IN))
        else {
            return self.socket.try_send(transmit);
        };
        let started = Instant::now();
        let sent = self.socket.try_send(transmit);
        if sent.is_ok() {
            let segment = transmit.segment_size.unwrap_or(transmit.contents.len()).max(1);
            let packets = transmit.contents.len().div_ceil(segment).max(1);
            meters.observe_udp_send(started.elapsed() / packets as u32);
        }
        sent
    }
}

impl AsyncUdpSocket for Silenced {
    fn create_io_poller(self: Arc<Self>) -> Pin<Box<dyn UdpPoller>> {
        Arc::clone(&self.socket).create_io_poller()
    }

    fn try_send(&self, transmit: &Transmit<'_>) -> io::Result<()> {
        match self.silence.may_send() {
            true => self.send(transmit),
            // As the network may lose it. An error would be logged and come again.
            false => Ok(()),
        }
    }

    fn poll_recv(
        &self,
        context: &mut Context<'_>,
        buffers: &mut [IoSliceMut<'_>],
        meta: &mut [RecvMeta],
    ) -> Poll<io::Result<usize>> {
        self.socket.poll_recv(context, buffers, meta)
    }

    fn local_addr(&self) -> io::Result<SocketAddr> {
        self.socket.local_addr()
    }

    fn max_transmit_segments(&self) -> usize {
        self.socket.max_transmit_segments()
    }

    fn max_receive_segments(&self) -> usize {
        self.socket.max_receive_segments()
    }

    fn may_fragment(&self) -> bool {
        self.socket.may_fragment()
    }
}
