//! The connecting end: one server, local listeners, and a stream for each connection.
//!
//! [`Client::bind`] takes the local ports before anything is sent, [`Client::connect`] makes one
//! session, and [`Client::run`] serves until it is told to end: a session that is lost is followed
//! by another. The listeners belong to the client, not to a session (`entrances`); connections that
//! come in meanwhile wait for the next one (`accept`).

use std::{
    convert::Infallible,
    net::SocketAddr,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use backon::{BackoffBuilder, ExponentialBackoff, ExponentialBuilder};
use quinn::{Endpoint, TokioRuntime, TransportConfig, crypto};
use tokio::{
    io::{AsyncRead, AsyncWrite},
    sync::mpsc,
    time::{Instant, sleep, timeout, timeout_at},
};
use tracing::{debug, info, warn};

use crate::{
    accept::Accepting,
    carried::Carried,
    clock::{Jumps, Watchman},
    control::Control,
    dial::share_of,
    entrances::Entrances,
    error::{Attempt, BindError, ClientError},
    forward::{Forward, Goal, RemoteForward},
    link::{CLOCK, Link, reason},
    listen::Bound,
    lookup::{Lookups, resolve},
    peer::short,
    remotes::serve_remotes,
    server::GOODBYE_TIME,
    session::{FRAMES_MAX, Listed, LiveSession, Lost, NewSession, Sessions, proved},
    socket::{ANY_PORT, bind_udp},
    splice::{Cut, splice_pair},
    status::Role,
    stream::{OpenError, open_stream},
    target::{ServerAddress, Target},
    transport::{End, SERVER_NAME, TransportSettings, endpoint_config},
    wire::{CloseCode, Frame, Instance, ListenCode, StreamHeader, VERSION},
};

/// The shortest wait before another attempt, and half of the longest: to each wait up to as much
/// again is added at random, so that the clients of a server that was away do not all come at once.
const RETRY_MIN: Duration = Duration::from_secs(1);
const RETRY_MAX: Duration = Duration::from_secs(15);

/// A session that lived this long was a good one: after it, waits are short again.
const LIVED: Duration = Duration::from_secs(30);

/// Refusals of one outage that are remembered as logged.
const LOGGED_MAX: usize = 16;

/// What a client is made of.
pub struct ClientSettings {
    /// The server.
    pub server: ServerAddress,
    /// Packet protection, with the server's key pinned in it.
    pub crypto: Arc<dyn crypto::ClientConfig>,
    /// What the server is called in figures; without a name, its key's first characters.
    pub name: Option<String>,
    /// Forwards; may be none when only `carry` is used.
    pub forwards: Vec<Forward>,
    /// Windows and timers.
    pub transport: TransportSettings,
    /// Time from the first packet to the server's hello, over all its addresses.
    pub connect_timeout: Duration,
    /// This run of the client.
    pub instance: Instance,
}

/// A client whose local ports are bound.
pub struct Client {
    endpoint: Endpoint,
    config: Mutex<quinn::ClientConfig>,
    transport: Arc<TransportConfig>,
    server: ServerAddress,
    name: Option<String>,
    connect_timeout: Duration,
    instance: Instance,
    entrances: Entrances,
    carried: Carried,
    link: Link,
    sessions: Sessions,
    lookups: Lookups,
    watchman: Watchman,
}

/// A session with the server; dropped, it is closed.
#[derive(Debug)]
pub struct ClientSession {
    listed: Listed,
}

impl Drop for ClientSession {
    fn drop(&mut self) {
        self.listed.session.close(CloseCode::Shutdown, "the client has nothing more to do");
    }
}

impl ClientSession {
    /// The session's figures and what the handshake agreed on.
    pub fn live(&self) -> &LiveSession {
        &self.listed.session
    }

    /// Each remote forward with the TCP port that the server listens on (0 for a unix socket), or
    /// with the reason why it does not.
    pub fn remote_forwards(&self) -> Vec<(RemoteForward, Result<u16, ListenCode>)> {
        self.listed.session.remotes.outcomes()
    }

    /// Whether the server listens for all remote forwards.
    ///
    /// # Errors
    /// [`ClientError::NotListening`] for the first that it does not listen for.
    pub fn all_listening(&self) -> Result<(), ClientError> {
        self.remote_forwards().into_iter().try_for_each(|(forward, outcome)| match outcome {
            Ok(_) => Ok(()),
            Err(code) => Err(ClientError::NotListening { forward, code }),
        })
    }

    /// Completes when the session has ended, with the reason.
    pub async fn lost(&self) -> Lost {
        self.listed.session.lost().await
    }
}

impl Client {
    /// Binds the listeners of all forwards, then a UDP port. Sends nothing. What comes in from now
    /// on waits for a session. Needs a tokio runtime.
    pub async fn bind(settings: ClientSettings) -> Result<Self, BindError> {
        let (link, carried) = (Link::default(), Carried::default());
        let forwards_max = settings.transport.forwards_max as usize;
        let accepting = Accepting::new(link.clone(), forwards_max, carried.clone());
        let entrances = Entrances::new(accepting);
        if let Some(error) = entrances.set(settings.forwards).await.into_iter().next() {
            return Err(error);
        }
        let failed = |source| BindError { address: "udp port".into(), source };
        let socket = bind_udp(ANY_PORT, settings.transport.udp_buffer_bytes).map_err(failed)?;
        let endpoint = Endpoint::new(endpoint_config(), None, socket, Arc::new(TokioRuntime))
            .map_err(failed)?;
        let transport = settings.transport.quinn(End::Client);
        Ok(Self {
            endpoint,
            config: Mutex::new(configured(settings.crypto, &transport)),
            transport,
            server: settings.server,
            name: settings.name,
            connect_timeout: settings.connect_timeout,
            instance: settings.instance,
            entrances,
            carried,
            link,
            sessions: Sessions::default(),
            lookups: Lookups::default(),
            watchman: Watchman::new(settings.transport.clocks),
        })
    }

    /// Each forward with the addresses it listens on.
    pub fn forwards(&self) -> Vec<(Forward, Vec<Bound>)> {
        self.entrances.list()
    }

    /// Makes these the forwards: closes listeners that are not among them, opens those that are
    /// new, leaves the others alone. Established connections stay. What cannot be bound is left
    /// out and returned.
    pub async fn set_forwards(&self, forwards: Vec<Forward>) -> Vec<BindError> {
        let errors = self.entrances.set(forwards).await;
        if let Some(session) = self.link.now() {
            session.list_forwards(&self.forward_names());
            publish(&session, &self.remote_forwards()).await;
        }
        errors
    }

    /// From the next attempt to connect on, packet protection is this.
    pub fn set_crypto(&self, crypto: Arc<dyn crypto::ClientConfig>) {
        let config = configured(crypto, &self.transport);
        *self.config.lock().unwrap_or_else(PoisonError::into_inner) = config;
    }

    /// Whether there is a session, and how often one was lost; it outlasts the client.
    pub fn link(&self) -> Link {
        self.link.clone()
    }

    fn forward_names(&self) -> Vec<String> {
        self.entrances.list().iter().map(|(forward, _)| forward.to_string()).collect()
    }

    fn remote_forwards(&self) -> Vec<RemoteForward> {
        let remote = |forward| match forward {
            Forward::Remote(remote) => Some(remote),
            Forward::Local(_) | Forward::Dynamic(_) => None,
        };
        self.entrances.list().into_iter().filter_map(|(forward, _)| remote(forward)).collect()
    }

    /// The sessions that live: one at most, unless `connect` is called more than once.
    pub fn sessions(&self) -> Sessions {
        self.sessions.clone()
    }

    /// Resolves the server, tries its addresses in turn, and returns when it has said hello.
    ///
    /// # Errors
    /// [`ClientError::Auth`] at once when the ends do not accept each other, else
    /// [`ClientError::Unreachable`] within the time to connect.
    pub async fn connect(&self) -> Result<ClientSession, ClientError> {
        let deadline = Instant::now() + self.connect_timeout;
        let unreachable = |cause| ClientError::Unreachable { server: self.server.clone(), cause };
        let ServerAddress { host, port } = &self.server;
        let no_name = |error: std::io::Error| unreachable(format!("no such host: {error}"));
        let addresses = match timeout_at(deadline, resolve(host, *port, &self.lookups)).await {
            Ok(addresses) => addresses.map_err(no_name)?,
            Err(_) => return Err(unreachable("the name did not resolve in time".into())),
        };
        // An address that the user gave is in the message already.
        let given = self.server.to_string();
        let of = |address: SocketAddr, cause: String| match address.to_string() == given {
            true => cause,
            false => format!("{address}: {cause}"),
        };
        let mut causes = Vec::new();
        for (tried, &address) in addresses.iter().enumerate() {
            let share = share_of(deadline, addresses.len() - tried);
            let cause = match timeout(share, self.attempt(address)).await {
                Ok(Ok(session)) => return Ok(session),
                Ok(Err(Attempt::Auth(cause))) => {
                    return Err(ClientError::Auth { server: self.server.clone(), cause });
                }
                Ok(Err(Attempt::Failed(cause))) => of(address, cause),
                Err(_) => {
                    // Whole milliseconds: the share has lost some microseconds since it was given.
                    let waited = Duration::from_millis(share.as_micros().div_ceil(1000) as u64);
                    of(address, format!("no answer in {waited:?}"))
                }
            };
            causes.push(cause);
        }
        Err(unreachable(causes.join("; ")))
    }

    /// One attempt. Given up, whatever keys it has agreed on are gone.
    async fn attempt(&self, address: SocketAddr) -> Result<ClientSession, Attempt> {
        let (mut jumps, for_session) = (self.watchman.jumps(), self.watchman.jumps());
        tokio::select! {
            jump = jumps.next() => Err(Attempt::Failed(jump.to_string())),
            session = self.shake_hands(address, for_session) => session,
        }
    }

    /// Handshake and hellos.
    async fn shake_hands(
        &self,
        address: SocketAddr,
        jumps: Jumps,
    ) -> Result<ClientSession, Attempt> {
        let config = self.config.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let connecting = self
            .endpoint
            .connect_with(config, address, SERVER_NAME)
            .map_err(|error| Attempt::Failed(error.to_string()))?;
        let connection = connecting.await.map_err(|error| Attempt::of(&error))?;
        let proved = proved(&connection)
            .ok_or_else(|| Attempt::Failed("the handshake proved no key".into()))?;

        let streams = connection.open_bi().await.map_err(|error| Attempt::of(&error))?;
        let mut control = Control::new(streams);
        let hello = Frame::HelloClient { version: VERSION, instance: self.instance };
        // The server judges our key last: a refusal arrives when we are already done.
        let answer = match control.say(&hello).await {
            Ok(()) => control.hear().await,
            Err(error) => Err(error),
        };
        match answer {
            Ok(Frame::HelloServer { version: VERSION }) => {}
            Ok(Frame::HelloServer { version }) => {
                let cause = format!("the server speaks version {version} of the control protocol");
                return Err(Attempt::Failed(cause));
            }
            Ok(_) => {
                return Err(Attempt::Failed("this is not a keypadd server".into()));
            }
            Err(error) => {
                return Err(match connection.close_reason() {
                    Some(error) => Attempt::of(&error),
                    None => Attempt::Failed(error.to_string()),
                });
            }
        }
        let (frames, to_say) = mpsc::channel(FRAMES_MAX);
        let listed = self.sessions.add(NewSession {
            label: self.name.clone().unwrap_or_else(|| short(&proved.key)),
            role: Role::Client,
            instance: self.instance,
            proved,
            connection,
            to_say: frames,
            forwards: &self.forward_names(),
        });
        let session = Arc::clone(&listed.session);
        let (carried, lookups) = (self.carried.clone(), self.lookups.clone());
        tokio::spawn(async move {
            let (heard, frames) = mpsc::channel(FRAMES_MAX);
            tokio::select! {
                lost = session.supervise(control, to_say, heard, jumps) => {
                    debug!(peer = session.peer(), cause = %lost, "session ended");
                }
                () = serve_remotes(&session, frames, &carried, &lookups) => {}
            }
        });
        let made = ClientSession { listed };
        let live = &made.listed.session;
        publish(live, &self.remote_forwards()).await;
        let lost = tokio::select! {
            () = live.remotes.settled() => None,
            lost = made.lost() => Some(lost),
        };
        lost.map_or(Ok(made), |lost| Err(Attempt::Failed(lost.to_string())))
    }

    /// Serves the forwards over this session and those that follow it, until `shutdown` completes
    /// with the time that open connections may still have. Nothing new is let in then; what has not
    /// ended in that time is reset. When a session is lost its connections end with it (what had
    /// arrived by then is delivered, as long as it is taken), and another one is made, however many
    /// attempts that takes.
    pub async fn run(
        &self,
        first: Option<ClientSession>,
        shutdown: impl Future<Output = Duration>,
    ) {
        let mut current = first;
        let grace = tokio::select! {
            grace = shutdown => grace,
            never = self.stay_connected(&mut current) => match never {},
        };
        self.entrances.close().await;
        if let Some(session) = &current {
            publish(&session.listed.session, &[]).await;
        }
        let left_alone = async {
            if let Some(session) = &current {
                session.lost().await;
            }
            // Who still waits for a session waits in vain.
            self.link.over("shutting down");
            std::future::pending::<Infallible>().await
        };
        tokio::select! {
            () = self.carried.end(grace) => {}
            never = left_alone => match never {},
        }
        self.link.over("shut down");
    }

    /// Keeps a session in `current`.
    async fn stay_connected(&self, current: &mut Option<ClientSession>) -> Infallible {
        let mut waits = retries();
        let mut outage: Option<(Instant, &'static str)> = None;
        loop {
            let session = match current {
                Some(session) => session,
                None => {
                    let at_once = outage.is_none_or(|(_, reason)| reason == CLOCK);
                    let session = self.reach(&mut waits, at_once).await;
                    if let Some((began, _)) = outage {
                        let seconds = began.elapsed().as_secs_f64();
                        info!(server = %self.server, "connected again after {seconds:.1} s");
                    }
                    current.insert(session)
                }
            };
            let began = Instant::now();
            self.link.up(Arc::clone(&session.listed.session), outage.map(|(_, reason)| reason));
            // The forwards may have changed while there was no session.
            publish(&session.listed.session, &self.remote_forwards()).await;
            session.listed.session.remotes.announce();
            let lost = session.lost().await;
            warn!(server = %self.server, "lost: {lost}; trying again");
            self.link.lost(lost.to_string());
            outage = Some((Instant::now(), reason(&lost)));
            // Leaves the list, and a server that lives is told.
            *current = None;
            if began.elapsed() >= LIVED {
                waits = retries();
            }
        }
    }

    /// Tries until there is a session; waits first, unless it is to try `at_once`.
    async fn reach(&self, waits: &mut ExponentialBackoff, at_once: bool) -> ClientSession {
        let mut jumps = self.watchman.jumps();
        let mut logged = Vec::new();
        let mut cause = None;
        let mut pause = !at_once;
        loop {
            if pause {
                let time = waits.next().unwrap_or(RETRY_MAX);
                self.link.waits(time, cause.take());
                tokio::select! {
                    () = sleep(time) => {}
                    // Who wakes up wants to be there.
                    _ = jumps.next() => *waits = retries(),
                }
                self.link.tries();
            }
            pause = true;
            match self.connect().await {
                Ok(session) => return session,
                Err(error) => {
                    let text = error.to_string();
                    // A refusal is for somebody to mend, who may take days: one line for each.
                    let refused = matches!(error, ClientError::Auth { .. });
                    if refused && logged.len() < LOGGED_MAX && !logged.contains(&text) {
                        warn!("still not connected: {text}");
                        logged.push(text.clone());
                    } else {
                        debug!("still not connected: {text}");
                    }
                    cause = Some(text);
                }
            }
        }
    }

    /// Carries one connection to `target` over a reader and a writer (`-W`). The writer is shut
    /// down when the target has finished; the call returns when the reader has ended as well.
    ///
    /// # Errors
    /// [`ClientError::Refused`] when the server does not connect or the connection is reset,
    /// [`ClientError::Local`] when the reader or the writer fails, [`ClientError::Lost`].
    pub async fn carry(
        &self,
        session: &ClientSession,
        target: &Target,
        reader: impl AsyncRead + Unpin,
        writer: impl AsyncWrite + Unpin,
    ) -> Result<(), ClientError> {
        let live = &session.listed.session;
        let _open = live.forward_opened(&format!("-W {target}"));
        let refused = |code| ClientError::Refused { target: target.clone(), code };
        let header = StreamHeader::Goal(Goal::Tcp(target.clone()));
        let pair = match open_stream(live, &header).await {
            Ok(pair) => pair,
            Err(OpenError::Refused(code)) => return Err(refused(code)),
            Err(OpenError::Lost) => return Err(self.lost(session).await),
        };
        match splice_pair(reader, writer, pair).await {
            Ok(()) => Ok(()),
            Err(Cut::Remote(code)) => Err(refused(code)),
            Err(Cut::Local(error)) => Err(ClientError::Local(error)),
            Err(Cut::Lost) => Err(self.lost(session).await),
        }
    }

    /// Closes the UDP port: tells the server, and waits a few seconds at most until it knows.
    pub async fn close(self) {
        self.endpoint.close(CloseCode::Shutdown.value().into(), b"the client is shutting down");
        let _ = timeout(GOODBYE_TIME, self.endpoint.wait_idle()).await;
    }

    async fn lost(&self, session: &ClientSession) -> ClientError {
        ClientError::Lost { server: self.server.clone(), cause: session.lost().await }
    }
}

/// Makes these the remote forwards of a session.
async fn publish(session: &LiveSession, wanted: &[RemoteForward]) {
    for frame in session.remotes.set(wanted) {
        session.say(frame).await;
    }
}

/// 1 to 2 s, 2 to 4 s, and so on up to 15 to 30 s, for ever.
fn retries() -> ExponentialBackoff {
    ExponentialBuilder::new()
        .with_min_delay(RETRY_MIN)
        .with_max_delay(RETRY_MAX)
        .without_max_times()
        .with_jitter()
        .build()
}

fn configured(
    crypto: Arc<dyn crypto::ClientConfig>,
    transport: &Arc<TransportConfig>,
) -> quinn::ClientConfig {
    let mut config = quinn::ClientConfig::new(crypto);
    config.transport_config(Arc::clone(transport));
    config
}
