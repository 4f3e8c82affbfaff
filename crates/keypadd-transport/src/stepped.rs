//! Runs an event loop without a thread, a UDP socket or a clock, for tests.
//!
//! The test supplies the time and carries the datagrams. The rest is the production loop: its
//! endpoint and connections, the decisions about what to send and when, and the TCP and unix
//! sockets that streams are spliced to. The daemon never creates one.

use std::{
    collections::VecDeque,
    io,
    net::{IpAddr, SocketAddr},
    sync::Arc,
    time::{Duration, Instant},
};

use mio::{Events, Registry, Token};
use quinn_proto::EcnCodepoint;
use quinn_udp::RecvMeta;

use crate::{
    datagrams::{Datagrams, ReceivedDatagrams},
    endpoint::Endpoint,
    event_loop::EventLoop,
    intake::{Clocks, handling_cost::CostMeter},
    not_sent::NotSent,
    receive_buffers::Batch,
    settings::EndpointSettings,
    udp::Egress,
};

/// Datagrams that a loop has sent in one call.
#[derive(Debug)]
pub struct SentDatagrams<'a> {
    /// The destination.
    pub destination: SocketAddr,
    /// The datagrams, concatenated.
    pub bytes: &'a [u8],
    /// The length of each but the last.
    pub segment_bytes: usize,
    /// Their ECN codepoint (RFC 3168), `None` for not capable.
    pub ecn: Option<EcnCodepoint>,
}

/// A datagram that arrives.
#[derive(Clone, Copy, Debug)]
pub struct ArrivedDatagram<'a> {
    /// Its source.
    pub from: SocketAddr,
    /// The host's address that it was sent to, if the system tells.
    pub to: Option<IpAddr>,
    /// Its ECN codepoint.
    pub ecn: Option<EcnCodepoint>,
    /// Its payload.
    pub bytes: &'a [u8],
}

impl<'a> ArrivedDatagram<'a> {
    /// Without ECN, to an unknown address.
    pub const fn plain(from: SocketAddr, bytes: &'a [u8]) -> Self {
        Self { from, to: None, ecn: None, bytes }
    }
}

/// Receives what a loop sends.
pub type Outbox = Box<dyn FnMut(SentDatagrams<'_>)>;

/// The replacement of a UDP socket.
struct Memory {
    arrived: VecDeque<ReceivedDatagrams>,
    outbox: Outbox,
    batch: usize,
    egress: Arc<dyn Egress>,
    epoch: u64,
}

impl Datagrams for Memory {
    fn register(&mut self, _: &Arc<Registry>, _: Token) -> io::Result<()> {
        Ok(())
    }

    fn may_fragment(&self) -> bool {
        false
    }

    fn batch(&self, _: u16) -> usize {
        self.batch
    }

    fn is_full(&self) -> bool {
        false
    }

    fn epoch(&self) -> u64 {
        self.epoch
    }

    fn begin_epoch(&mut self) -> bool {
        std::mem::replace(&mut self.epoch, self.egress.epoch()) != self.epoch
    }

    fn flush(&mut self) {}

    fn send(&mut self, transmit: quinn_proto::Transmit, bytes: &[u8]) {
        let segment_bytes = transmit.segment_size.unwrap_or(transmit.size).max(1);
        let (destination, ecn, bytes) =
            (transmit.destination, transmit.ecn, &bytes[..transmit.size]);
        if self.egress.may_send(self.epoch) {
            (self.outbox)(SentDatagrams { destination, bytes, segment_bytes, ecn });
        }
    }

    fn take_not_sent(&mut self) -> Option<NotSent> {
        None
    }

    fn on_readable(&mut self) {}

    fn has_unread(&self) -> bool {
        !self.arrived.is_empty()
    }

    fn receive(&mut self) -> Option<ReceivedDatagrams> {
        self.arrived.pop_front()
    }
}

/// An endpoint's only loop.
pub struct SteppedLoop {
    inner: EventLoop<Memory>,
    events: Events,
}

impl SteppedLoop {
    /// A loop that sends up to `batch` datagrams at once into `outbox`, with its endpoint. Ignores
    /// the sockets of the settings.
    ///
    /// # Errors
    /// The system's error about polling.
    pub fn new(
        settings: EndpointSettings,
        address: SocketAddr,
        batch: usize,
        outbox: Outbox,
        now: Instant,
    ) -> io::Result<(Self, Endpoint)> {
        let egress = Arc::clone(&settings.egress);
        let (arrived, epoch) = (VecDeque::new(), egress.epoch());
        let memory = Memory { arrived, outbox, batch, egress, epoch };
        let (endpoint, loops) = Endpoint::with_loops(settings, address, vec![memory], now)?;
        let inner = loops.into_iter().next().ok_or(io::ErrorKind::InvalidInput)?;
        Ok((Self { inner, events: Events::with_capacity(1_024) }, endpoint))
    }

    /// Limits what the datagrams of a connection cost by a clock of CPU time, until `until`, and
    /// how long what it handles and delivers in a round may take by another clock.
    pub fn use_clocks(&mut self, cpu: fn() -> Duration, until: Instant, shares: fn() -> Instant) {
        self.inner.use_clocks(Clocks { costs: CostMeter::new(cpu, Some(until)), shares });
    }

    /// Queues a datagram that has arrived for the next round.
    pub fn arrive(&mut self, datagram: ArrivedDatagram<'_>) {
        let ArrivedDatagram { from, to, ecn, bytes } = datagram;
        let ecn = ecn.and_then(|ecn| quinn_udp::EcnCodepoint::from_bits(ecn as u8));
        let meta = RecvMeta { addr: from, len: bytes.len(), stride: bytes.len(), ecn, dst_ip: to };
        self.inner.udp().arrived.push_back(ReceivedDatagrams {
            datagrams: Batch::of(bytes),
            meta,
            read_at: None,
        });
    }

    /// Runs rounds at `now` until the loop would wait.
    ///
    /// # Errors
    /// The system's error about polling.
    pub fn run_until_idle(&mut self, now: Instant) -> io::Result<()> {
        while self.run_round(now)? {}
        Ok(())
    }

    /// Runs a round at `now`, unless the loop would wait; returns whether it did.
    ///
    /// # Errors
    /// The system's error about polling.
    pub fn run_round(&mut self, now: Instant) -> io::Result<bool> {
        self.inner.poll(&mut self.events, Some(Duration::ZERO))?;
        let is_due = !self.events.is_empty() || self.inner.is_due(now);
        if is_due {
            self.inner.round(&self.events, now);
        }
        Ok(is_due)
    }

    /// When the next work is due.
    pub fn deadline(&self) -> Option<Instant> {
        self.inner.deadline()
    }
}
