//! Connects to the server once: makes a handshake at one of its addresses, and exchanges hellos.
//!
//! Fails after the connect timeout, or when a clock jumps: then the keys of the attempt are
//! dropped.

use std::{
    future::pending,
    net::SocketAddr,
    sync::{Arc, PoisonError},
    time::{Duration, SystemTime},
};

use futures_util::future::BoxFuture;
use keypadd_provider::{PublicKey, Refusal};
use keypadd_transport::{
    Connecting, ConnectingError, Connection, ConnectionError, Dial, Paused, Purpose, ServerId,
};
use tokio::{
    sync::{Notify, mpsc},
    time::{Instant, sleep_until, timeout, timeout_at},
};
use tracing::{debug, warn};

use super::{
    Client, ClientSession,
    bulk::BulkDialer,
    incoming::handle_incoming,
    lineage::Lineage,
    reach::{ListPlace, Reached, Search},
    resume::resume,
};
use crate::{
    clock::monitor::Jumps,
    error::{AuthError, ClientError, ConnectFailure, unreachable::Cause},
    forwards::network,
    sessions::{
        control::Control,
        draining::Leaving,
        hold::{Granted, Unproved},
        proof::{Proof, proof_of},
        session::{FRAMES_MAX, LiveSession, NewSession},
        status::Role,
    },
    transport::SERVER_NAME,
    wire::{CloseCode, Frame, VERSION},
};

/// A server that has answered with a hello.
pub(super) struct Greeting {
    connection: Connection,
    place: ListPlace,
    lineage: Arc<Lineage>,
    proof: Arc<Proof>,
    control: Control,
    granted: Option<Granted>,
}

impl Greeting {
    /// Whether the server goes on with the streams of the session before.
    pub(super) fn is_resumed(&self) -> bool {
        self.granted.as_ref().is_some_and(Granted::is_resumed)
    }

    /// Whether to go on with it would reset open connections of the session that it replaces.
    pub(super) fn resets(&self, live: &LiveSession) -> bool {
        !self.is_resumed() && live.open_connections() > 0
    }
}

impl Client {
    /// Resolves the server, tries its addresses, and returns when the server has answered for each
    /// remote forward. Other connections do not wait for that: a server may first have to find out
    /// that an earlier session of this client, which has a port, is gone.
    ///
    /// Boxed, as [`bind`](Self::bind): else each crate that awaits it compiles it again.
    ///
    /// # Errors
    /// [`ClientError::Expired`] if the peer's time is over, [`ClientError::Auth`] if the ends do
    /// not accept each other, [`ClientError::TooManySessions`] if the server has too many of this
    /// key, else [`ClientError::Unreachable`] within the connect timeout.
    pub fn connect(&self) -> BoxFuture<'_, Result<ClientSession, ClientError>> {
        Box::pin(async move {
            let deadline = Instant::now() + self.connect_timeout;
            let session = self.say_hello(self.everywhere(self.connect_timeout), None).await?;
            let live = &session.registration.session;
            self.link.up(Arc::clone(live), None);
            self.request_forwards(live);
            let cause = tokio::select! {
                () = live.remote_forwards.settled() => return Ok(session),
                lost = session.ended() => Cause::Ended(lost),
                () = sleep_until(deadline) => Cause::Silent(self.connect_timeout),
            };
            self.link.record_loss(cause.to_string());
            Err(ClientError::unreachable(self.server.clone(), cause))
        })
    }

    /// Tries the server's addresses until the server's hello. Once that has come this completes
    /// without another wait: streams that were held go on, and must not be cut short by a timeout.
    pub(super) async fn say_hello(
        &self,
        search: Search,
        rtt: Option<Duration>,
    ) -> Result<ClientSession, ClientError> {
        let (jumps, lineage) = (&self.clock_monitor.jumps(), &self.lineage());
        let greet = |reached| async move {
            let greeting = self.greet(reached, lineage).await?;
            Ok(self.establish(greeting, jumps.clone()))
        };
        self.search(search, rtt, greet).await
    }

    /// Makes handshakes at the server's addresses, over a path with this round trip if that is
    /// known, and finishes one at a time.
    pub(super) async fn search<T, F: Future<Output = Result<T, ConnectFailure>>>(
        &self,
        search: Search,
        rtt: Option<Duration>,
        finish: impl Fn(Reached) -> F,
    ) -> Result<T, ClientError> {
        if self.has_expired(SystemTime::now()) {
            return Err(ClientError::Expired { server: self.server.clone() });
        }
        let searching = async {
            self.handover.resumed().await;
            self.reach(search, |address| self.open(address, rtt, None), finish).await
        };
        let interrupted = |cause| Err(ClientError::unreachable(self.server.clone(), cause));
        self.guarded(searching).await.unwrap_or_else(interrupted)
    }

    /// Connects to one address, which was found at this place, over a path with this round trip if
    /// that is known; gives up if nothing of the server has arrived by `silent_until`. When
    /// dropped, the keys agreed on are dropped as well. Takes the place of the lineage's session
    /// that is `live` only if that resets none of its connections.
    pub(super) async fn attempt(
        &self,
        (place, address): (ListPlace, SocketAddr),
        rtt: Option<Duration>,
        silent_until: Option<Instant>,
        (lineage, live): (&Arc<Lineage>, Option<&LiveSession>),
    ) -> Result<ClientSession, ConnectFailure> {
        if self.has_expired(SystemTime::now()) {
            return Err(ConnectFailure::Unreachable(Cause::Expired));
        }
        let jumps = self.clock_monitor.jumps();
        let handshake = async {
            self.handover.resumed().await;
            let connecting = self.dial(address, rtt, place.home);
            let connection = answered(connecting, silent_until).await?;
            let networked = live.zip(self.network.get()).filter(|_| !lineage.is_left());
            let paused = match networked {
                Some((live, network)) => Some(network::pause(live, network).await),
                None => None,
            };
            let reached = Reached { connection, place, hello_timeout: None };
            let greeting = self.greet(reached, lineage).await?;
            if live.is_some_and(|live| greeting.resets(live)) {
                return Err(ConnectFailure::Unreachable(Cause::OtherServer));
            }
            if let Some((live, _)) = networked {
                network::last_packets(live).await;
            }
            paused.into_iter().for_each(Paused::keep);
            Ok(self.establish(greeting, jumps))
        };
        let interrupted = |cause| Err(ConnectFailure::Unreachable(cause));
        self.guarded(handshake).await.unwrap_or_else(interrupted)
    }

    /// Drops an attempt when a clock jumps or another process is about to go on.
    async fn guarded<T>(&self, attempt: impl Future<Output = T>) -> Result<T, Cause> {
        let mut jumps = self.clock_monitor.jumps();
        tokio::select! {
            jump = jumps.next() => Err(Cause::Clock(jump)),
            () = self.replaced() => Err(Cause::Suspended),
            made = attempt => Ok(made),
        }
    }

    /// Completes when another process is about to go on, after this client could dial.
    async fn replaced(&self) {
        self.handover.resumed().await;
        self.handover.suspended().await;
    }

    /// Performs the handshake with one of the servers at the address, over a path with this round
    /// trip if that is known.
    pub(super) async fn open(
        &self,
        address: SocketAddr,
        rtt: Option<Duration>,
        home: Option<ServerId>,
    ) -> Result<Connection, ConnectFailure> {
        answered(self.dial(address, rtt, home), None).await
    }

    /// Begins a handshake with the server at this address, without its result.
    fn dial(
        &self,
        address: SocketAddr,
        rtt: Option<Duration>,
        home: Option<ServerId>,
    ) -> Connecting {
        let config = self.config.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let (server_name, purpose) = (SERVER_NAME, Purpose::Sparse);
        let dial = Dial { config, address, server_name, purpose, home, rtt };
        self.endpoint.connect(dial)
    }

    /// Exchanges hellos, to go on with the lineage.
    pub(super) async fn greet(
        &self,
        reached: Reached,
        lineage: &Arc<Lineage>,
    ) -> Result<Greeting, ConnectFailure> {
        let Reached { connection, mut place, hello_timeout } = reached;
        let proof = proof_of(&connection).ok_or(ConnectFailure::Unreachable(Cause::NoKey))?;
        // Checked before the hello, which makes the server end the older session.
        if !self.listed.contains(&proof.key) {
            return Err(ConnectFailure::Auth(AuthError::Refused(Refusal::NotPinned(proof.key))));
        }

        let stream = connection.open_bi().await.map_err(|error| ConnectFailure::of(&error))?;
        let mut control = Control::new(stream);
        let (channel, last, instance) = (&proof.channel, lineage.hold.token(), lineage.instance);
        let hold = lineage.hold.request(channel, instance, last.as_ref());
        let hello = Frame::HelloClient { version: VERSION, instance, hold };
        // The server checks our key last: its refusal can arrive after our handshake is complete.
        let asked = async {
            control.send(&hello).await?;
            control.receive().await
        };
        let answer = match hello_timeout {
            Some(time) => timeout(time, asked)
                .await
                .map_err(|_| ConnectFailure::Unreachable(Cause::NoHello))?,
            None => asked.await,
        };
        match answer {
            Ok(Frame::HelloServer { version: VERSION, hold, home }) => {
                place.home = home;
                let verify = |grant| Granted::verified(grant, channel, instance, last.as_ref());
                let granted = hold.map(verify).transpose().map_err(|Unproved| {
                    let cause = AuthError::NotResumed;
                    let code = CloseCode::Protocol.value().into();
                    connection.close(code, cause.to_string().as_bytes());
                    ConnectFailure::Auth(cause)
                })?;
                let lineage = Arc::clone(lineage);
                Ok(Greeting { connection, place, lineage, proof, control, granted })
            }
            Ok(Frame::HelloServer { version, .. }) => {
                Err(ConnectFailure::Unreachable(Cause::OtherVersion(version)))
            }
            Ok(_) => Err(ConnectFailure::Unreachable(Cause::NotKeypadd)),
            Err(error) => Err(match connection.close_reason() {
                Some(error) => ConnectFailure::of(&error),
                None => ConnectFailure::Unreachable(Cause::Control(error)),
            }),
        }
    }

    /// The name in the status of a server with this key.
    pub(super) fn label(&self, key: PublicKey) -> String {
        self.name.clone().unwrap_or_else(|| key.short())
    }

    /// Begins the session, which takes the place of the one before.
    pub(super) fn establish(&self, greeting: Greeting, jumps: Jumps) -> ClientSession {
        let resumed = greeting.is_resumed();
        let Greeting { connection, place, lineage, proof, control, granted } = greeting;
        let Lineage { instance, hold: of_lineage, .. } = &*lineage;
        let identity = *self.identity.get_or_init(|| proof.key);
        let older = self.sessions.newest(&identity, *instance);
        let older = older.filter(|older| !older.has_ended() || older.is_held());
        let which = of_lineage.counts.shown();
        let (hold, ended) = of_lineage.granted(granted);
        if !resumed {
            self.listeners.places().forget_peer_limit();
        }
        let (sender, outgoing) = mpsc::channel(FRAMES_MAX);
        let registration = self.sessions.add(NewSession {
            label: self.label(proof.key),
            role: Role::Client,
            instance: *instance,
            proof,
            identity,
            connection,
            outgoing: sender,
            limits: Arc::clone(&self.limits),
            held: self.held.clone(),
            forwards: &self.forward_names(),
            places: self.listeners.places(),
            counts: match hold {
                Some(_) => Arc::clone(&of_lineage.counts),
                None => Arc::default(),
            },
            hold,
            lineages: None,
            lifetimes: self.key_lifetimes.clone(),
            rate_cap: self.rate_cap.clone(),
            renews: older.as_deref().filter(|_| resumed),
            place: None,
            target: place.target.as_deref().cloned(),
        });
        let session = Arc::clone(&registration.session);
        if lineage.is_left() {
            session.leaving.send_replace(Leaving::Done);
        }
        self.held.add_reset(ended);
        if ended > 0 && session.may_log() {
            let (peer, key) = (session.peer(), session.key());
            warn!(
                peer,
                %key, "held connections reset: {ended} ({which}); this server does not hold them"
            );
        }
        // The list may have changed since the handshake.
        self.listed.check(&session);
        self.sessions.replace_by(&session, resumed);
        let wants_bulk = older.as_ref().is_some_and(|older| older.has_bulk());
        if let Some(older) = &older {
            session.remote_forwards.continue_from(&older.remote_forwards);
        }
        let (tasks, lookups) = (self.tasks.clone(), self.lookups.clone());
        let network = self.network.get().cloned();
        let dialer = BulkDialer {
            endpoint: self.endpoint.clone(),
            config: Arc::clone(&self.config),
            listed: self.listed.clone(),
            home: place.home,
            network: network.clone(),
        };
        tokio::spawn(async move {
            let (incoming, frames) = mpsc::channel(FRAMES_MAX);
            let bulk_wanted = Notify::new();
            let carrying = async {
                match &network {
                    Some(network) => tokio::select! {
                        never = network::keep_open(&session, network) => never,
                        () = session.until(Leaving::Done) => pending().await,
                    },
                    None => pending().await,
                }
            };
            let bulk = (&bulk_wanted, wants_bulk);
            tokio::select! {
                lost = session.supervise(control, outgoing, incoming, jumps) => {
                    debug!(peer = session.peer(), cause = %lost, "session ended");
                }
                () = handle_incoming(&session, frames, &tasks, &lookups, bulk) => {}
                () = resume(&session, older) => {}
                () = dialer.run(&session, &bulk_wanted) => {}
                never = carrying => match never {},
            }
        });
        ClientSession { registration, place, lineage }
    }
}

/// The outcome of a handshake; a timeout if nothing of the server has arrived by then. One that has
/// said anything is there: it may be busy with others, whose attempts all began when it did.
async fn answered(
    mut connecting: Connecting,
    silent_until: Option<Instant>,
) -> Result<Connection, ConnectFailure> {
    let connected = match silent_until {
        None => connecting.await,
        Some(until) => match timeout_at(until, &mut connecting).await {
            Ok(connected) => connected,
            Err(_) if connecting.has_heard() => connecting.await,
            Err(_) => Err(ConnectionError::TimedOut.into()),
        },
    };
    connected.map_err(|error| match error {
        ConnectingError::Failed(error) => ConnectFailure::of(&error),
        ConnectingError::NotSent(error) => ConnectFailure::Unreachable(Cause::NotSent(error)),
        ConnectingError::NotTried(error) => ConnectFailure::Unreachable(Cause::BadAddress(error)),
    })
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

    use keypadd_keystream::Suite;
    use keypadd_provider::{CryptoSettings, PrivateKey, PublicKey, server_config};
    use tokio::net::UdpSocket;

    use super::*;
    use crate::{
        AllowedPeer, ClientSettings, ListenPermits, Peers, Permits, Server, ServerHandle,
        ServerSettings, TransportSettings, sessions::session_end::SessionEnd,
    };

    const PATIENCE: Duration = Duration::from_secs(30);

    fn list(keys: &[PublicKey]) -> Peers {
        Peers::new([AllowedPeer {
            name: None,
            keys: keys.to_vec(),
            permits: Permits::default(),
            listen_permits: ListenPermits::default(),
            allowance: None,
            rate_cap: None,
            hold: None,
            valid_until: None,
            network: None,
        }])
        .unwrap()
    }

    fn new_key() -> Arc<PrivateKey> {
        Arc::new(PrivateKey::generate().unwrap())
    }

    /// A server that lists these keys, and a client with the first.
    async fn ends(keys: [&Arc<PrivateKey>; 2]) -> (ServerHandle, Client, SocketAddr, PublicKey) {
        let own = new_key();
        let crypto = CryptoSettings::plain(Arc::clone(&own), Suite::AES_128_GCM);
        let peers = Arc::new(list(&keys.map(|key| key.public())));
        let server = Server::bind(ServerSettings {
            listen: "[::1]:0".parse().unwrap(),
            crypto: server_config(&crypto, Arc::<Peers>::clone(&peers)).unwrap(),
            reset_keys: own.reset_keys(b"host"),
            peers,
            transport: TransportSettings::default(),
            connections_max: 9,
            sessions_per_key: 9,
            bench: None,
        });
        let server = server.unwrap();
        let (address, handle) = (server.local_addr(), server.handle());
        tokio::spawn(server.run(std::future::pending()));
        let settings = ClientSettings::bare(&address.to_string(), keys[0], own.public());
        let client = Client::bind(settings);
        (handle, client.await.unwrap(), address, own.public())
    }

    async fn reached(client: &Client, address: SocketAddr) -> Reached {
        let connection = client.open(address, None, None).await.unwrap();
        Reached { connection, place: ListPlace::UNKNOWN, hello_timeout: None }
    }

    #[tokio::test]
    async fn a_server_key_that_leaves_the_list_during_a_handshake_makes_no_session() {
        let (_server, client, address, server_key) = ends([&new_key(), &new_key()]).await;
        let other = new_key().public();
        let jumps = || client.clock_monitor.jumps();

        let before_hello = reached(&client, address).await;
        client.end_unlisted(&[other]);
        let failure = client.greet(before_hello, &client.lineage()).await.err().unwrap();
        let expected = AuthError::Refused(Refusal::NotPinned(server_key));
        assert!(matches!(&failure, ConnectFailure::Auth(cause) if *cause == expected), "{failure}");

        client.end_unlisted(&[server_key, other]);
        let greeting =
            client.greet(reached(&client, address).await, &client.lineage()).await.ok().unwrap();
        client.end_unlisted(&[other]);
        let session = client.establish(greeting, jumps());
        assert!(session.live().has_ended());
        assert!(matches!(session.ended().await, SessionEnd::Unlisted));

        client.end_unlisted(&[server_key]);
        let greeting =
            client.greet(reached(&client, address).await, &client.lineage()).await.ok().unwrap();
        assert!(!client.establish(greeting, jumps()).live().has_ended());
    }

    #[tokio::test]
    async fn a_server_that_forgets_a_handshake_is_asked_again_until_the_timeout() {
        let (_server, client, address, _) = ends([&new_key(), &new_key()]).await;
        let (client, asked) = (&client, &AtomicUsize::new(0));
        let forgotten = |times| {
            move |to| async move {
                assert_eq!(to, address);
                match asked.fetch_add(1, Relaxed) < times {
                    true => Err(ConnectFailure::Unreachable(Cause::Forgotten)),
                    false => client.open(to, None, None).await,
                }
            }
        };
        let finish = |_| async { Ok(()) };
        client.reach(client.everywhere(PATIENCE), forgotten(2), finish).await.unwrap();
        assert_eq!(asked.load(Relaxed), 3);

        let time = Duration::from_millis(600);
        let failed = client.reach(client.everywhere(time), forgotten(usize::MAX), finish).await;
        let expected = format!("cannot reach {address}: {}", Cause::Forgotten);
        assert_eq!(failed.unwrap_err().to_string(), expected);
    }

    /// Passes a client's datagrams to a server, and holds the answers back for so long; meanwhile
    /// some pass with a wrong tag, unless it is silent. Returns where.
    async fn relay(server: SocketAddr, is_silent: bool, held_for: Duration) -> SocketAddr {
        let [front, back] = [UdpSocket::bind("[::1]:0"), UdpSocket::bind("[::1]:0")];
        let (front, back) = (front.await.unwrap(), back.await.unwrap());
        back.connect(server).await.unwrap();
        let (address, until) = (front.local_addr().unwrap(), Instant::now() + held_for);
        tokio::spawn(async move {
            let (mut sent, mut answer) = ([0; 2048], [0; 2048]);
            let (mut client, mut held, mut is_open) = (address, Vec::new(), false);
            loop {
                let passed = tokio::select! {
                    Ok((bytes, from)) = front.recv_from(&mut sent) => {
                        client = from;
                        back.send(&sent[..bytes]).await.unwrap();
                        continue;
                    }
                    Ok(bytes) = back.recv(&mut answer) => {
                        let mut answer = answer[..bytes].to_vec();
                        if !is_open {
                            held.push(answer.clone());
                            answer[bytes - 1] ^= 1;
                        }
                        if is_open || !is_silent { vec![answer] } else { Vec::new() }
                    }
                    () = sleep_until(until), if !is_open => {
                        is_open = true;
                        std::mem::take(&mut held)
                    }
                };
                for answer in passed {
                    front.send_to(&answer, client).await.unwrap();
                }
            }
        });
        address
    }

    #[tokio::test]
    async fn an_attempt_that_the_server_has_answered_is_not_given_up_as_a_silent_one_is() {
        let (_server, client, address, _) = ends([&new_key(), &new_key()]).await;
        let time = Duration::from_millis(300);
        let through = async |is_silent, held_for| {
            let relay = relay(address, is_silent, held_for).await;
            let began = Instant::now();
            let connected = answered(client.dial(relay, None, None), Some(began + time)).await;
            (connected, began.elapsed())
        };
        let (connected, took) = through(false, 3 * time).await;
        assert!(connected.is_ok() && took >= 3 * time, "{took:?}");
        let (failed, took) = through(true, PATIENCE).await;
        assert!(failed.is_err() && took < PATIENCE, "{took:?}");
    }

    #[tokio::test]
    async fn a_server_that_names_no_limit_has_not_that_of_the_server_before() {
        let (key, other) = (new_key(), new_key());
        let (_server, client, address, _) = ends([&key, &other]).await;
        let greeting =
            client.greet(reached(&client, address).await, &client.lineage()).await.ok().unwrap();
        let places = client.listeners.places();
        places.set_peer_limit(1);
        let _session = client.establish(greeting, client.clock_monitor.jumps());
        // Nothing is received before the next wait.
        assert_eq!(places.limit(), places.max);
    }

    #[tokio::test]
    async fn a_client_key_that_leaves_the_list_during_a_handshake_makes_no_session() {
        let (key, other) = (new_key(), new_key());
        let (server, client, address, _) = ends([&key, &other]).await;
        let reached = reached(&client, address).await;
        server.set_peers(list(&[other.public()]));
        // Whether the server has finished the handshake, or greeted, before.
        match client.greet(reached, &client.lineage()).await.err().unwrap() {
            ConnectFailure::Auth(cause) => {
                assert_eq!(cause, AuthError::Refused(Refusal::KeyNotAllowed(key.public())));
            }
            failure => {
                let text = failure.to_string();
                let told = ["removed from the list", "this key is not listed"];
                assert!(told.iter().any(|words| text.contains(words)), "{text}");
            }
        }
    }
}
