//! Runs the event loops behind a UDP address: connects, accepts and closes.
//!
//! Knows addresses, TLS configurations and loops; no peers, permits or forwards.

use std::{
    io,
    net::SocketAddr,
    sync::{Arc, Mutex, PoisonError},
    thread,
    time::{Duration, Instant},
};

use bytes::Bytes;
use quinn_proto::{ServerConfig, VarInt};
use tokio::sync::{mpsc, oneshot};
use tracing::info;

use crate::{
    admission::Refusals,
    cid::LoopIds,
    counters::{Counters, LoopMeter},
    datagrams::Datagrams,
    dial::Dial,
    event_loop::{EndpointShared, EventLoop},
    handshake::{Accepted, Connecting},
    mailbox::{Command, Mailbox},
    settings::EndpointSettings,
    spin::Spin,
    steering::steer,
    token_key::TokenKey,
    udp::Udp,
};

/// An endpoint. Clones share it; dropping the last one ends its loops and all connections.
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
            // A loop that panicked has ended, too.
            let _ = thread.join();
        }
    }
}

impl Endpoint {
    /// Starts the loops.
    ///
    /// # Errors
    /// The system's error about a socket or a thread.
    pub fn start(mut settings: EndpointSettings) -> io::Result<Self> {
        let sockets = std::mem::take(&mut settings.sockets);
        let first = sockets.first().ok_or(io::ErrorKind::InvalidInput)?;
        let local_addr = first.local_addr()?;
        // Each socket of a client has its own port.
        if settings.server.is_some()
            && sockets.len() > 1
            && let Err(error) = steer(first, sockets.len())
        {
            info!(
                %error,
                "cannot steer datagrams with BPF; event loops forward them to each other"
            );
        }
        let udp =
            |socket| Udp::new(socket, Arc::clone(&settings.egress), settings.plan.of_loop.buffers);
        let udp = sockets.into_iter().map(udp).collect::<io::Result<Vec<_>>>()?;
        let (this, loops) = Self::with_loops(settings, local_addr, udp, Instant::now())?;
        for one in loops {
            let thread =
                thread::Builder::new().name("transport".into()).spawn(move || one.run())?;
            this.0.threads.lock().unwrap_or_else(PoisonError::into_inner).push(thread);
        }
        Ok(this)
    }

    /// Creates an endpoint, and its loops for the caller to run.
    pub(crate) fn with_loops<U: Datagrams>(
        settings: EndpointSettings,
        local_addr: SocketAddr,
        udp: Vec<U>,
        now: Instant,
    ) -> io::Result<(Self, Vec<EventLoop<U>>)> {
        let (accept, accepted) = mpsc::unbounded_channel();
        let EndpointSettings {
            suspended,
            config,
            server,
            server_id,
            memory,
            egress,
            spin,
            plan,
            ..
        } = settings;
        let counters = Arc::new(Counters::new(now));
        let shared = EndpointShared {
            plan: Arc::new(plan),
            memory,
            counters: Arc::clone(&counters),
            accepted: accept,
            token_key: Arc::new(TokenKey::new(egress)),
        };
        let count = udp.len();
        let mut loops = Vec::with_capacity(count);
        for (number, udp) in udp.into_iter().enumerate() {
            let ids = LoopIds { number: number as u8, loops: count, server: server_id };
            let mut one =
                EventLoop::new(ids, config.clone(), shared.clone(), udp, Spin::new(spin, now))?;
            one.set_server(server.clone());
            one.suspend(suspended);
            loops.push(one);
        }
        let mailboxes: Vec<_> = loops.iter().map(EventLoop::mailbox).collect();
        // A client's sockets have their own ports, so what one receives belongs to its loop; even a
        // reset, which begins with random bytes.
        if server.is_some() {
            for one in &mut loops {
                one.set_peers(mailboxes.clone());
            }
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

    /// Begins a handshake.
    pub fn connect(&self, mut dial: Dial) -> Connecting {
        let (purpose, home) = (dial.purpose, dial.home);
        dial.config.initial_dst_cid_provider(Arc::new(move || purpose.first_cid(home)));
        let (reply, opened) = oneshot::channel();
        // A dual-stack socket reports mapped addresses (RFC 4291 2.5.5.2), so the connection must
        // know its peer by that form.
        if let SocketAddr::V4(v4) = dial.address
            && self.0.local_addr.is_ipv6()
        {
            dial.address = (v4.ip().to_ipv6_mapped(), v4.port()).into();
        }
        let dial = Box::new(dial);
        self.0.loops[purpose.first_loop(self.0.loops.len())].send(Command::Connect { dial, reply });
        Connecting::new(opened)
    }

    /// Waits for the next event about a client; `None` once the loops have ended.
    pub async fn accept(&self) -> Option<Accepted> {
        self.0.accepted.lock().await.recv().await
    }

    /// Changes the configuration for handshakes that begin from now on.
    pub fn set_server_config(&self, config: ServerConfig) {
        let config = Arc::new(config);
        self.send_all(|| Command::SetServerConfig(Arc::clone(&config)));
    }

    /// Refuses new clients from now on.
    pub fn refuse(&self) {
        self.send_all(|| Command::Refuse);
    }

    /// Stops or resumes reading: while suspended, another process that shares the sockets receives
    /// what arrives. Sending continues.
    pub fn suspend(&self, suspended: bool) {
        self.send_all(|| Command::Suspend(suspended));
    }

    /// Closes all connections and refuses new ones.
    pub fn close(&self, code: VarInt, reason: &[u8]) {
        let reason = Bytes::copy_from_slice(reason);
        self.send_all(|| Command::CloseAll { code, reason: reason.clone() });
    }

    /// Connections that have not ended, including those still waiting for their peers' last
    /// packets; not handshakes that have been given up.
    pub fn open_connections(&self) -> usize {
        self.0.counters.connections.count()
    }

    /// Waits until there are none.
    pub async fn wait_idle(&self) {
        self.0.counters.connections.none().await;
    }

    /// Handshakes that failed here.
    pub fn refusals(&self) -> Refusals {
        self.0.counters.refusals()
    }

    /// The number of loops.
    pub fn loops(&self) -> usize {
        self.0.loops.len()
    }

    /// CPU time that they have spent polling in vain.
    pub fn polling_time(&self) -> Duration {
        self.meter().polling_time()
    }

    /// The loops' costs, in a handle that does not keep the endpoint open.
    pub fn meter(&self) -> LoopMeter {
        LoopMeter::new(self.loops(), Arc::clone(&self.0.counters))
    }

    fn send_all(&self, command: impl Fn() -> Command) {
        for mailbox in &self.0.loops {
            mailbox.send(command());
        }
    }
}
