//! Hands a daemon over to a new process: offers to be replaced, shares its sockets, and passes what
//! is held.

use std::fmt;
use std::fs::{self, File};
use std::future::pending;
use std::io;
use std::mem::ManuallyDrop;
use std::os::fd::AsFd;
use std::os::unix::fs::MetadataExt;
use std::os::unix::net::UnixStream;
use std::pin::Pin;
use std::process;
use std::sync::Arc;
use std::time::Duration;

use keypadd_cli::shutdown::Shutdown;
use keypadd_transport::HandedStream;
use keypadd_tunnel::handover::{HandedSocket, Handover, SocketFile, SocketRecord};
use keypadd_tunnel::{Client, Network, ServerHandle, SharedLimits};
use rustix::stdio::{stderr, stdin, stdout};
use tokio::net::TcpListener;
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tokio::time::timeout;

use super::channel::{Channel, unexpected};
use super::{HANDOVER_TIMEOUT, Message, Offer, PREPARE_TIMEOUT, SUSPENDED_STALL_TIMEOUT, VERSION};

/// A program file, by device and inode, which an upgrade changes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Program {
    device: u64,
    inode: u64,
}

impl Program {
    /// The program that this process runs.
    pub(crate) fn own() -> Option<Self> {
        let metadata = fs::metadata("/proc/self/exe").ok()?;
        Some(Self { device: metadata.dev(), inode: metadata.ino() })
    }

    /// Reads what `Display` writes.
    pub(crate) fn read(text: &str) -> Option<Self> {
        let (device, inode) = text.split_once(' ')?;
        Some(Self { device: device.parse().ok()?, inode: inode.parse().ok()? })
    }
}

impl fmt::Display for Program {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.device, self.inode)
    }
}

/// A request to be replaced.
#[derive(Debug)]
pub(crate) struct Request {
    pub(crate) socket: UnixStream,
    /// The program that asks: refused if it is the one already running, as nothing would change;
    /// `None` always replaces.
    pub(crate) unless: Option<Program>,
}

/// The way to a new process, once that has bound its sockets.
pub(crate) type Preparation = Pin<Box<dyn Future<Output = Option<Channel>>>>;

/// How long a replaced process stays to tell its peers.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(1);

/// Most requests to be replaced that can wait.
pub(crate) const WAITING_MAX: usize = 4;

/// What a daemon can hand over.
pub(crate) struct HandoverSource<'d> {
    pub(crate) handover: &'d Handover,
    pub(crate) limits: &'d SharedLimits,
    /// The program that it runs.
    pub(crate) program: Option<Program>,
    /// The file of this host's key.
    pub(crate) key_file: Option<Arc<File>>,
    pub(crate) servers: Vec<ServerHandle>,
    /// By name.
    pub(crate) clients: Vec<(String, &'d Client)>,
    pub(crate) metrics: Option<&'d TcpListener>,
    pub(crate) networks: Vec<Arc<Network>>,
    /// Tells the service manager which process is the service.
    pub(crate) notify_main_pid: fn(u32),
}

impl HandoverSource<'_> {
    /// Answers requests until a new process has everything; this one then
    /// [exits](Self::exit_replaced). Answers none during a shutdown.
    pub(crate) async fn give(&self, requests: &mut mpsc::Receiver<Request>, shutdown: &Shutdown) {
        let giving = async {
            while let Some(request) = requests.recv().await {
                if self.answer(request).await {
                    return;
                }
            }
            pending().await
        };
        tokio::select! {
            biased;
            _ = shutdown.requested() => pending().await,
            () = giving => {}
        }
    }

    /// Answers one request; returns whether a new process has everything.
    async fn answer(&self, request: Request) -> bool {
        match self.offer(request).await {
            Some(channel) => self.hand_over_to(channel).await,
            None => false,
        }
    }

    /// Offers to be replaced, shares the sockets that this process listens on now, and waits until
    /// a new process has bound its own; none if it does not, or nothing would change.
    pub(crate) fn offer(&self, Request { socket, unless }: Request) -> Preparation {
        let same = unless.is_some() && unless == self.program;
        let key_file = self.key_file.clone();
        let sockets = if same { Ok(Vec::new()) } else { self.sockets() };
        let clients = self.clients.iter();
        let instances = clients.map(|(name, client)| (name.clone(), client.instance().0)).collect();
        let bound = async move {
            let (mut channel, sockets) = (Channel::new(socket)?, sockets?);
            let key_file: Vec<_> = key_file.iter().map(|file| file.as_fd()).collect();
            channel.send(&Message::Offer(offer(same)), &[], &key_file).await?;
            if same {
                return Ok(None);
            }
            expect(&channel, |frame| matches!(frame, Message::Begin)).await?;
            for socket in sockets {
                share(&mut channel, socket).await?;
            }
            channel.tell(&Message::Sockets(instances)).await?;
            expect(&channel, |frame| matches!(frame, Message::Bound)).await?;
            Ok(Some(channel))
        };
        let bound = timeout(PREPARE_TIMEOUT, bound);
        let bound = async { bound.await.map_err(|_| io::ErrorKind::TimedOut)? };
        Box::pin(async { done(bound.await).flatten() })
    }

    /// Hands over to a process that has bound its sockets; returns whether it has everything.
    pub(crate) async fn hand_over_to(&self, channel: Channel) -> bool {
        let replaced = done(self.give_to(channel).await);
        if let Some(pid) = replaced {
            tracing::info!(pid, "replaced: a new process has taken over");
        }
        replaced.is_some()
    }

    /// Ends a replaced process, without removing its control socket. First lets the event loops
    /// tell the peers, who would otherwise wait for a timeout. Does not close sockets in order: the
    /// new process shares them, so shutting them down, or removing unix socket files, would affect
    /// it.
    pub(crate) async fn exit_replaced(&self, watching: &mut JoinSet<()>) -> ! {
        watching.shutdown().await;
        let goodbyes = async {
            for server in &self.servers {
                server.wait_closed().await;
            }
            for (_, client) in &self.clients {
                client.wait_closed().await;
            }
        };
        let _ = timeout(CLOSE_TIMEOUT, goodbyes).await;
        process::exit(0)
    }

    async fn give_to(&self, channel: Channel) -> io::Result<u32> {
        let mut suspension = Suspension::begin(self, channel);
        let handing = timeout(HANDOVER_TIMEOUT, self.hand_over(&mut suspension.channel));
        let pid = handing.await.unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into()))?;
        // The new process serves now.
        let _suspended = ManuallyDrop::new(suspension);
        Ok(pid)
    }

    /// The sockets that this process listens on itself.
    fn sockets(&self) -> io::Result<Vec<HandedSocket>> {
        let mut sockets = Vec::new();
        for server in &self.servers {
            sockets.extend(server.hand_over_sockets()?);
        }
        for (name, client) in &self.clients {
            sockets.extend(client.hand_over_sockets(name)?);
        }
        if let Some(listener) = self.metrics {
            let record = SocketRecord::Tcp(listener.local_addr()?);
            sockets.push(HandedSocket { record, socket: listener.as_fd().try_clone_to_owned()? });
        }
        for network in &self.networks {
            sockets.push(network.hand_over()?);
        }
        Ok(sockets)
    }

    /// Ends all sessions and sends what is held; returns the new process's ID. If this completes
    /// without an error, the new process serves.
    async fn hand_over(&self, channel: &mut Channel) -> io::Result<u32> {
        self.limits.settled().await;
        for server in &self.servers {
            let draining = server.draining();
            if draining.is_on() {
                let left = draining.left().map(|left| left.as_millis() as u64);
                channel.tell(&Message::Draining(left)).await?;
            }
            let (lineages, listeners) = server.hand_over().await?;
            for listener in listeners {
                share(channel, listener).await?;
            }
            for lineage in lineages {
                channel.tell(&Message::Lineage(lineage.record)).await?;
                send_streams(channel, lineage.streams).await?;
            }
        }
        for (name, client) in &self.clients {
            for held in client.hand_over().await? {
                channel.tell(&Message::Client(name.clone(), held.record)).await?;
                send_streams(channel, held.streams).await?;
            }
        }
        channel.tell(&Message::End).await?;
        let frame = timeout(SUSPENDED_STALL_TIMEOUT, channel.receive()).await??.frame;
        let Message::Done(pid, unnamed) = frame else { return Err(unexpected(&frame)) };
        let streams = [stdin(), stdout(), stderr()];
        channel.send(&Message::Bye, &[], &streams).await?;
        // The new process cannot say so itself, nor could this one take it back (NotifyAccess=main,
        // systemd.service(5)).
        (self.notify_main_pid)(pid);
        unnamed.iter().for_each(SocketFile::remove);
        Ok(pid)
    }
}

/// What was done towards a replacement; logs an error.
fn done<T>(result: io::Result<T>) -> Option<T> {
    result.inspect_err(|error| tracing::warn!(%error, "not replaced: this process continues")).ok()
}

/// Suspends a daemon. If dropped, as by a shutdown during the handover, the daemon continues, and
/// the new process does not.
struct Suspension<'s, 'd> {
    source: &'s HandoverSource<'d>,
    channel: Channel,
}

impl<'s, 'd> Suspension<'s, 'd> {
    fn begin(source: &'s HandoverSource<'d>, channel: Channel) -> Self {
        source.handover.suspend();
        Self { source, channel: channel.suspended() }
    }
}

impl Drop for Suspension<'_, '_> {
    fn drop(&mut self) {
        self.channel.end_with(&Message::Continues);
        self.source.handover.resume();
        self.source.servers.iter().for_each(ServerHandle::resume);
    }
}

async fn share(channel: &mut Channel, handed: HandedSocket) -> io::Result<()> {
    let HandedSocket { record, socket } = handed;
    channel.send(&Message::Socket(record), &[], &[socket.as_fd()]).await
}

async fn send_streams(channel: &mut Channel, streams: Vec<HandedStream>) -> io::Result<()> {
    for HandedStream { record, unreceipted, socket, descriptors } in streams {
        let frame = match descriptors.is_empty() {
            true => Message::Stream(record),
            false => Message::Carried(record),
        };
        let attached: Vec<_> =
            [&socket].into_iter().chain(&*descriptors).map(AsFd::as_fd).collect();
        let data: Vec<_> = unreceipted.iter().map(|piece| &**piece).collect();
        channel.send(&frame, &data, &attached).await?;
    }
    Ok(())
}

async fn expect(channel: &Channel, comes: impl Fn(&Message) -> bool) -> io::Result<()> {
    let frame = channel.receive().await?.frame;
    if comes(&frame) { Ok(()) } else { Err(unexpected(&frame)) }
}

/// This process's offer to be replaced.
fn offer(same: bool) -> Offer {
    let release = env!("CARGO_PKG_VERSION").into();
    Offer { version: VERSION, pid: process::id(), release, same }
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;
    use std::io::Write;
    use std::sync::Arc;

    use keypadd_keystream::Suite;
    use keypadd_provider::{CryptoSettings, PrivateKey, client_config};
    use keypadd_tunnel::wire::Instance;
    use keypadd_tunnel::{ClientSettings, TransportSettings};
    use serde::Serialize;
    use serde_json::to_vec;
    use tokio::task::yield_now;
    use tokio::time::Instant;

    use super::*;

    fn frame(frame: &impl Serialize) -> Vec<u8> {
        let text = to_vec(frame).unwrap();
        let length = u32::try_from(text.len()).unwrap();
        [&length.to_be_bytes()[..], &[0; 4], &text].concat()
    }

    thread_local! {
        /// What the service manager was told.
        static MAIN_PIDS: RefCell<Vec<u32>> = const { RefCell::new(Vec::new()) };
    }

    fn source<'d>(handover: &'d Handover, limits: &'d SharedLimits) -> HandoverSource<'d> {
        HandoverSource {
            handover,
            limits,
            program: None,
            key_file: None,
            servers: Vec::new(),
            clients: Vec::new(),
            metrics: None,
            networks: Vec::new(),
            notify_main_pid: |pid| MAIN_PIDS.with_borrow_mut(|told| told.push(pid)),
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_new_process_that_stops_with_everything_does_not_keep_the_old_one_from_serving() {
        let (handover, limits) = (Handover::default(), Arc::new(SharedLimits::default()));
        let source = source(&handover, &limits);
        let (socket, mut new) = UnixStream::pair().unwrap();
        new.write_all(&[frame(&Message::Begin), frame(&Message::Bound)].concat()).unwrap();
        let began = Instant::now();
        assert!(!source.answer(Request { socket, unless: None }).await);
        assert!(!handover.is_suspended());
        assert_eq!(began.elapsed(), SUSPENDED_STALL_TIMEOUT);
    }

    #[tokio::test(start_paused = true)]
    async fn a_connection_that_is_being_opened_delays_a_handover_once_and_not_for_each_client() {
        /// How long it is waited for.
        const SETTLE: Duration = Duration::from_secs(2);
        let transport = TransportSettings::default();
        let server = PrivateKey::generate().unwrap().public();
        let crypto =
            CryptoSettings::plain(PrivateKey::generate().unwrap().into(), Suite::AES_128_GCM);
        let client = Client::bind(ClientSettings {
            server: "127.0.0.1:9".parse().unwrap(),
            crypto: client_config(&crypto, server).unwrap(),
            name: None,
            forwards: Vec::new(),
            proxy_headers: <_>::default(),
            transport: transport.clone(),
            connect_timeout: Duration::from_secs(1),
            instance: Instance([1; 16]),
        });
        let client = client.await.unwrap();
        let clients = (0..9).map(|number| (number.to_string(), &client)).collect();
        let source = HandoverSource { clients, ..source(&transport.handover, &transport.limits) };
        // Some peer does not answer.
        let _opening = transport.limits.opening();
        let (socket, new) = UnixStream::pair().unwrap();
        let mut new = Channel::new(new).unwrap();
        let taking = async {
            new.tell(&Message::Begin).await.unwrap();
            new.tell(&Message::Bound).await.unwrap();
            let began = Instant::now();
            while !matches!(new.receive().await.unwrap().frame, Message::End) {}
            let elapsed = began.elapsed();
            new.tell(&Message::Done(7, Vec::new())).await.unwrap();
            elapsed
        };
        let (given, elapsed) =
            tokio::join!(source.answer(Request { socket, unless: None }), taking);
        assert!(given);
        assert_eq!(elapsed, SETTLE);
    }

    #[tokio::test(start_paused = true)]
    async fn a_handover_that_is_cut_in_its_last_frame_leaves_the_old_process_the_service() {
        const NEW: u32 = 7;
        let (handover, limits) = (Handover::default(), Arc::new(SharedLimits::default()));
        let source = source(&handover, &limits);
        let (socket, new) = UnixStream::pair().unwrap();
        let mut of_old = socket.try_clone().unwrap();
        let mut new = Channel::new(new).unwrap();
        let mut answering = Box::pin(source.answer(Request { socket, unless: None }));
        let taking = async {
            new.tell(&Message::Begin).await.unwrap();
            new.tell(&Message::Bound).await.unwrap();
            while !matches!(new.receive().await.unwrap().frame, Message::End) {}
            // Leaves no room for another frame.
            while of_old.write(&[0; 4096]).is_ok() {}
            new.tell(&Message::Done(NEW, Vec::new())).await.unwrap();
            for _ in 0..100 {
                yield_now().await;
            }
        };
        tokio::select! {
            answered = &mut answering => panic!("{answered}"),
            () = taking => {}
        }
        assert!(handover.is_suspended());
        // As by a shutdown, or the end of the time for a handover.
        drop(answering);
        assert!(!handover.is_suspended());
        assert_eq!(MAIN_PIDS.take(), [0; 0]);
    }
}
