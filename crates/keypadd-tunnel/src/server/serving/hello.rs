//! Finds out from its hello what a client's connection is for: a new session, which may go on with
//! streams that are held for the client, or the bulk streams of a session. A key has a limited
//! number of sessions.

use std::sync::Arc;

use keypadd_provider::{Assertion, PublicKey, SessionToken, TokenProof};
use keypadd_share::Share;
use keypadd_transport::{Connection, ConnectionError};
use tokio::{
    sync::mpsc,
    time::{Instant, sleep},
};
use tracing::warn;

use super::ServerContext;
use crate::{
    limits::places::Places,
    permits::peers::AllowedPeer,
    server::client_log::LogLine,
    sessions::{
        carries::Carries,
        control::{Control, ControlError},
        hold::{
            HoldSettings,
            lineages::{Admitted, ClientKey},
            room::Newcomer,
        },
        proof::{Proof, proof_of},
        registry::Registration,
        session::{FRAMES_MAX, LiveSession, NewSession},
        session_end::SessionEnd,
        status::Role,
    },
    wire::{CloseCode, Frame, HoldRequest, Instance, VERSION},
};

/// What a connection is for, by the client's first frame.
pub(super) enum Purpose {
    Session(NewClient),
    /// Carries the bulk streams of this session, for as long as its control stream is open.
    Bulk(Arc<LiveSession>, Control),
}

/// A session ready to be served.
pub(super) struct NewClient {
    pub(super) registration: Registration,
    pub(super) control: Control,
    pub(super) outgoing: mpsc::Receiver<Box<Frame>>,
    /// Whether it goes on with another session's streams, which was alive.
    pub(super) renewed: bool,
}

/// Why no session was established.
pub(super) enum HelloError {
    Connection(ConnectionError),
    Control(ControlError),
}

/// Who said hello, and its place among the sessions of its key.
struct Identified<'a> {
    peer: &'a AllowedPeer,
    identity: PublicKey,
    proof: Arc<Proof>,
    instance: Instance,
    /// Its newest session.
    older: Option<Arc<LiveSession>>,
    place: Share<PublicKey>,
}

impl From<ConnectionError> for HelloError {
    fn from(error: ConnectionError) -> Self {
        Self::Connection(error)
    }
}

impl From<ControlError> for HelloError {
    fn from(error: ControlError) -> Self {
        Self::Control(error)
    }
}

impl ServerContext {
    /// Exchanges hellos.
    pub(super) async fn exchange_hellos(
        &self,
        connection: Connection,
    ) -> Result<Purpose, HelloError> {
        // The handshake has checked the same list, but it may have changed since.
        let proof = proof_of(&connection);
        let listed = proof.and_then(|proof| Some((self.peers.admitted(&proof.key)?, proof)));
        let Some(((peer, identity), proof)) = listed else {
            return Err(refuse(&connection, CloseCode::Protocol, "this key is not listed"));
        };
        let Some(_without_hello) = self.without_hello.try_take(identity, 1) else {
            return Err(self.refuse_session(&connection, identity, &peer.label()));
        };
        let mut control = Control::new(connection.accept_bi().await?);
        let (instance, request) = match hello(&mut control).await {
            Ok(Hello::Session(instance, request)) => (instance, request),
            Ok(Hello::Bulk(instance, given)) => {
                let channel = &proof.channel;
                let is_right = |token: &SessionToken| {
                    channel.is_proof(&given, token, Assertion::ClientBulk, &instance.0)
                };
                let session = self.sessions.newest_with(&identity, instance, is_right);
                return match session.filter(|it| it.attach_bulk(&connection, &proof)) {
                    Some(session) => {
                        // The list may have changed since the lookup.
                        self.end_inadmissible(&session);
                        let (token, by) = (session.token(), Assertion::ServerBulk);
                        let proof = channel.proof(token, by, &instance.0);
                        let hello = Frame::HelloBulk { version: VERSION, instance, proof };
                        control.send(&hello).await?;
                        Ok(Purpose::Bulk(session, control))
                    }
                    None => {
                        let reason = "no session has a token that this proves";
                        Err(refuse(&connection, CloseCode::Protocol, reason))
                    }
                };
            }
            Err(error) => {
                refuse(&connection, CloseCode::Protocol, &error.to_string());
                return Err(error.into());
            }
        };
        if request.as_ref().is_some_and(|request| request.proof.is_some()) {
            let label = peer.label();
            tokio::select! {
                () = self.await_resumption(identity, &label) => {}
                error = connection.closed() => return Err(error.into()),
            }
        }
        if self.handover.is_suspended() {
            let reason = SessionEnd::HandedOver.to_string();
            return Err(refuse(&connection, CloseCode::Hold, &reason));
        }
        let client = (identity, instance);
        if self.draining.is_on() {
            let (given, now) = (request.as_ref().and_then(|it| it.proof), Instant::now());
            if !self.lineages.would_resume(&client, given, &proof.channel, now.into_std()) {
                let reason = "the server is draining: it accepts no new sessions";
                return Err(refuse(&connection, CloseCode::Shutdown, reason));
            }
        }
        let older = self.sessions.newest(&identity, instance);
        let Some(place) = self.place(client, &peer.label(), older.as_deref()) else {
            return Err(self.refuse_session(&connection, identity, &peer.label()));
        };
        let request = request.filter(|_| Carries::of(&proof.handshake).may_hold());
        let identified = Identified { peer: &peer, identity, proof, instance, older, place };
        Ok(Purpose::Session(self.establish(identified, connection, control, request)))
    }

    /// A client's place among the sessions of its key; `None` if there is none left.
    fn place(
        &self,
        client: ClientKey,
        peer: &str,
        older: Option<&LiveSession>,
    ) -> Option<Share<PublicKey>> {
        // A client that comes back, or that replaces a live session, needs no other place.
        let own = self.lineages.take_place(&client).or_else(|| older?.take_place());
        let place = own.or_else(|| self.of_key.try_take(client.0, 1));
        let (lineages, limits, held) = (&self.lineages, &self.limits, &self.held);
        place.or_else(|| Newcomer { client, peer, lineages, limits, held }.place())
    }

    /// Adds the session, which may go on with the streams of another. From here on it is served,
    /// even if its connection is lost: the end of that ends what was admitted. Nothing waits here.
    /// So on a runtime of one thread, as the daemon's is, the hellos of a client reach its lineage
    /// and the registry in the same order, and both agree on which session is the newest.
    fn establish(
        &self,
        client: Identified<'_>,
        connection: Connection,
        control: Control,
        request: Option<HoldRequest>,
    ) -> NewClient {
        let Identified { peer, identity, proof, instance, older, place } = client;
        let new_places = Places::new(self.forwards_max);
        let settings = HoldSettings { time: peer.hold.unwrap_or(self.hold.time), ..self.hold };
        let (of_run, now) = ((identity, instance), Instant::now().into_std());
        let admitted =
            self.lineages.hello(of_run, request, &settings, &proof.channel, &new_places, now);
        let (grant, hold, counts, places) = match admitted {
            Some(Admitted { grant, hold, counts, places }) => {
                (Some(grant), Some(hold), counts, places)
            }
            None => (None, None, Arc::default(), new_places),
        };
        let resumed = grant.as_ref().is_some_and(|grant| grant.proof.is_some());
        let renews = older.as_deref().filter(|older| resumed && !older.has_ended());
        let (sender, outgoing) = mpsc::channel(FRAMES_MAX);
        let hello = Frame::HelloServer { version: VERSION, hold: grant, home: self.server_id };
        let _ = sender.try_send(hello.into());
        let registration = self.sessions.add(NewSession {
            label: peer.label(),
            role: Role::Server,
            instance,
            proof,
            identity,
            connection,
            outgoing: sender,
            limits: Arc::clone(&self.limits),
            held: self.held.clone(),
            forwards: &[],
            places,
            counts,
            hold,
            lineages: Some(Arc::clone(&self.lineages)),
            lifetimes: self.key_lifetimes.clone(),
            rate_cap: peer.rate_cap.clone(),
            renews,
            place: Some(place),
            target: None,
        });
        // The list may have changed since the lookup.
        self.end_inadmissible(&registration.session);
        self.sessions.replace_by(&registration.session, resumed);
        registration.session.try_send(Frame::BulkOffer);
        NewClient { registration, control, outgoing, renewed: renews.is_some() }
    }

    /// Refuses a connection of a key that has as many as it may.
    fn refuse_session(
        &self,
        connection: &Connection,
        identity: PublicKey,
        peer: &str,
    ) -> HelloError {
        let max = self.sessions_per_key;
        self.limits.count_refused_session();
        if self.log.allows(LogLine::KeyFull(identity)) {
            warn!(peer, max, "refused: too many sessions of this key (max-sessions-per-key)");
        }
        let noun = if max == 1 { "session" } else { "sessions" };
        let reason = format!("this key already has {max} {noun} (max-sessions-per-key)");
        refuse(connection, CloseCode::KeyFull, &reason)
    }

    /// Waits until a client of this key may resume a session: what it would resume is held
    /// meanwhile, or goes on.
    async fn await_resumption(&self, key: PublicKey, peer: &str) {
        let mut is_told = false;
        loop {
            let now = Instant::now().into_std();
            let Err(wait) = self.resumptions.take(key, now) else { return };
            if !std::mem::replace(&mut is_told, true) && self.limits.log.allow(key, peer, now) {
                warn!(peer, "sessions of this key are resumed too often: this one waits");
            }
            sleep(wait).await;
        }
    }
}

/// A client's first frame.
enum Hello {
    Session(Instance, Option<HoldRequest>),
    Bulk(Instance, TokenProof),
}

async fn hello(control: &mut Control) -> Result<Hello, ControlError> {
    match control.receive().await? {
        Frame::HelloClient { version: VERSION, instance, hold } => {
            Ok(Hello::Session(instance, hold))
        }
        Frame::HelloBulk { version: VERSION, instance, proof } => Ok(Hello::Bulk(instance, proof)),
        Frame::HelloClient { version, .. } | Frame::HelloBulk { version, .. } => {
            Err(ControlError::Version(version))
        }
        _ => Err(ControlError::NoHello),
    }
}

/// Closes a connection.
fn refuse(connection: &Connection, code: CloseCode, reason: &str) -> HelloError {
    connection.close(code.value().into(), reason.as_bytes());
    ConnectionError::LocallyClosed.into()
}
