//! Runs the event loops behind a UDP address: connects, accepts and closes.

use std::{
    io,
    net::SocketAddr,
    sync::{Arc, Mutex, PoisonError},
    thread,
    time::{Duration, Instant},
};

use bytes::Bytes;
use quinn_proto::{ClientConfig, ServerConfig, VarInt};
use tokio::sync::{mpsc, oneshot};
use tracing::info;

use crate::{
    admission::Refusals,
    cid::Lane,
    counters::{Counters, LoopMeter},
    datagrams::Datagrams,
    event_loop::{EventLoop, LoopSettings},
    handshake::{Accepted, Connecting},
    mailbox::{Command, Mailbox},
    settings::{EndpointSettings, Rules},
    steering::steer,
    udp::Udp,
    windows::Budget,
};

/// An endpoint; clones are one. When the last is dropped its loops end, and with them what
/// connections are left.
#[derive(Clone, Debug)]
pub struct Endpoint(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    loops: Vec<Mailbox>,
    threads: Mutex<Vec<thread::JoinHandle<()>>>,
    local_addr: SocketAddr,
    counters: Arc<Counters>,
    accepted: tokio::sync::Mutex<mpsc::UnboundedReceiver<Accepted>>,
}

impl Drop for Inner {
    fn drop(&mut self) {
        for mailbox in &self.loops {
            mailbox.send(Command::Stop);
        }
        let threads = self.threads.get_mut().unwrap_or_else(PoisonError::into_inner);
        for thread in threads.drain(..) {
            // A loop that has panicked has ended all the same.
            let _ = thread.join();
        }
    }
}

impl Endpoint {
    /// Starts the loops.
    ///
    /// # Errors
    /// What the system says of the sockets or of starting threads.
    pub fn start(mut settings: EndpointSettings) -> io::Result<Self> {
        let sockets = std::mem::take(&mut settings.sockets);
        let first = sockets.first().ok_or(io::ErrorKind::InvalidInput)?;
        let local_addr = first.local_addr()?;
        // A client's sockets have ports of their own.
        if settings.server.is_some()
            && sockets.len() > 1
            && let Err(error) = steer(first, sockets.len())
        {
            info!(%error, "cannot steer datagrams with BPF; event loops forward them to each other");
        }
        let udp = |socket| Udp::new(socket, Arc::clone(&settings.egress));
        let udp = sockets.into_iter().map(udp).collect::<io::Result<Vec<_>>>()?;
        let (this, loops) = Self::with_loops(settings, local_addr, udp, Instant::now())?;
        for one in loops {
            let thread =
                thread::Builder::new().name("transport".into()).spawn(move || one.run())?;
            this.0.threads.lock().unwrap_or_else(PoisonError::into_inner).push(thread);
        }
        Ok(this)
    }

    /// An endpoint, and its loops for the caller to run.
    pub(crate) fn with_loops<U: Datagrams>(
        settings: EndpointSettings,
        local_addr: SocketAddr,
        udp: Vec<U>,
        now: Instant,
    ) -> io::Result<(Self, Vec<EventLoop<U>>)> {
        let (accept, accepted) = mpsc::unbounded_channel();
        let counters = Arc::new(Counters::new(now));
        let budget = Arc::new(Budget::new(settings.growth));
        let rules = Arc::new(Rules {
            inspect: settings.inspect,
            cut_code: settings.cut_code,
            drop_code: settings.drop_code,
            hold_code: settings.hold_code,
            goodbye_code: settings.goodbye_code,
        });
        let mut loops = Vec::with_capacity(udp.len());
        for (number, udp) in udp.into_iter().enumerate() {
            let parts = LoopSettings {
                number: number as u8,
                config: settings.config.clone(),
                server: settings.server.clone(),
                transport: Arc::clone(&settings.transport),
                streams: settings.streams,
                windows: [
                    settings.sparse_windows,
                    settings.bulk_windows,
                    settings.far_bulk_windows,
                ],
                budget: Arc::clone(&budget),
                congestion: Arc::clone(&settings.congestion),
                flight_max: settings.flight_max,
                connections_max: settings.connections_max,
                rules: Arc::clone(&rules),
                counters: Arc::clone(&counters),
                accepted: accept.clone(),
                spin: settings.spin,
            };
            loops.push(EventLoop::new(parts, udp, now)?);
        }
        let mailboxes: Vec<_> = loops.iter().map(EventLoop::mailbox).collect();
        for one in &mut loops {
            one.set_peers(mailboxes.clone());
        }
        let inner = Inner {
            loops: mailboxes,
            threads: Mutex::default(),
            local_addr,
            counters,
            accepted: tokio::sync::Mutex::new(accepted),
        };
        Ok((Self(Arc::new(inner)), loops))
    }

    /// The bound UDP address.
    pub fn local_addr(&self) -> SocketAddr {
        self.0.local_addr
    }

    /// Begins to shake hands. `rtt` is the path's round trip as far as it is known (RFC 9002 6.2.2): the
    /// first packet is repeated after three of them.
    pub fn connect(
        &self,
        mut config: ClientConfig,
        address: SocketAddr,
        server_name: &str,
        lane: Lane,
        rtt: Option<Duration>,
    ) -> Connecting {
        config.initial_dst_cid_provider(Arc::new(move || lane.first_cid()));
        let (reply, opened) = oneshot::channel();
        // What comes in on a socket of both families bears mapped addresses (RFC 4291 2.5.5.2), by
        // which the connection knows its peer.
        let address = match address {
            SocketAddr::V4(v4) if self.0.local_addr.is_ipv6() => {
                (v4.ip().to_ipv6_mapped(), v4.port()).into()
            }
            address => address,
        };
        let (config, server_name) = (Box::new(config), server_name.to_owned());
        self.0.loops[lane.first_loop(self.0.loops.len())].send(Command::Connect {
            config,
            address,
            server_name,
            lane,
            rtt,
            reply,
        });
        Connecting::new(opened)
    }

    /// What happens next to clients that want to come in; `None` when the loops have ended.
    pub async fn accept(&self) -> Option<Accepted> {
        self.0.accepted.lock().await.recv().await
    }

    /// Handshakes that begin from now on go by this.
    pub fn set_server_config(&self, config: ServerConfig) {
        let config = Arc::new(config);
        self.send_all(|| Command::SetServerConfig(Arc::clone(&config)));
    }

    /// Refuses new clients from now on.
    pub fn refuse(&self) {
        self.send_all(|| Command::Refuse);
    }

    /// Leaves what arrives from now on to another process that has the same sockets, or no more. Goes on
    /// sending.
    pub fn suspend(&self, suspended: bool) {
        self.send_all(|| Command::Suspend(suspended));
    }

    /// Closes all connections and refuses new ones.
    pub fn close(&self, code: VarInt, reason: &[u8]) {
        let reason = Bytes::copy_from_slice(reason);
        self.send_all(|| Command::CloseAll { code, reason: reason.clone() });
    }

    /// Connections that are not over, those included that wait for their peers' last packets.
    pub fn open_connections(&self) -> usize {
        self.0.counters.connections()
    }

    /// Completes when there are none.
    pub async fn wait_idle(&self) {
        loop {
            let idle = self.0.counters.idle();
            tokio::pin!(idle);
            idle.as_mut().enable();
            if self.open_connections() == 0 {
                return;
            }
            idle.await;
        }
    }

    /// Handshakes that came to nothing here.
    pub fn refusals(&self) -> Refusals {
        self.0.counters.refusals()
    }

    /// How many loops there are.
    pub fn loops(&self) -> usize {
        self.0.loops.len()
    }

    /// CPU time that they have spent on polling for nothing.
    pub fn spun(&self) -> Duration {
        self.meter().spun()
    }

    /// The same, without keeping the endpoint open.
    pub fn meter(&self) -> LoopMeter {
        LoopMeter::new(self.loops(), Arc::clone(&self.0.counters))
    }

    fn send_all(&self, command: impl Fn() -> Command) {
        for mailbox in &self.0.loops {
            mailbox.send(command());
        }
    }
}
