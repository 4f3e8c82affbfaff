//! Waits for the host that has an invitation: lets anyone complete a handshake, but does nothing
//! for them except check a proof.
//!
//! Wrong proofs do not end the wait: nobody can guess the secret, and a stranger must not be able
//! to use up the invitation. The caller decides when it ends, by time or by a signal.

use std::{net::SocketAddr, sync::Arc, time::Duration};

use futures_util::future::BoxFuture;
use keypadd_provider::{PAIRING_PROOF_BYTES, PairingSecret, PairingStep, PublicKey};
use keypadd_share::Waiting;
use keypadd_transport::{
    Accepted, Connection, Endpoint, HandshakeFailed, ServerConfig, Stream, crypto,
};
use thiserror::Error;
use tokio::{sync::oneshot, task::JoinSet, time::timeout};
use tracing::{debug, warn};

use super::{DONE, JOIN_BYTES, JOINED, MESSAGE_TIMEOUT, VERSION};
use crate::{
    addresses::forward::Forward,
    clock::monitor::ClockMonitor,
    error::{BindAddress, BindError},
    net::{
        bind::bind_udp,
        source::{Source, plain},
    },
    sessions::{proof::proof_of, session_end::Shown},
    transport::{CLOSE_TIMEOUT, End, TransportSettings},
    wire::CloseCode,
};

/// Most wrong proofs to log; a stranger must not fill the log.
const WRONG_PROOFS_LOGGED: u32 = 3;

/// Timeout from the end of a handshake to the proof.
const PROOF_TIMEOUT: Duration = Duration::from_secs(5);

/// Strangers served at once; more are refused.
const CONNECTIONS_MAX: usize = 64;

/// Strangers served at once that have sent no proof; the oldest of the busiest source makes room
/// for another.
pub(crate) const CLAIMS_MAX: usize = CONNECTIONS_MAX / 2;

/// Receive window of a connection: strangers may send no more than a proof.
const WINDOW_BYTES: u32 = 4 << 10;

/// The settings of an inviting end.
pub struct InviterSettings {
    /// UDP address to wait at; port 0 for any free one.
    pub listen: SocketAddr,
    /// Packet protection of an inviting end.
    pub crypto: Arc<dyn crypto::ServerConfig>,
    /// This host's key, which is in the invitation.
    pub key: PublicKey,
    /// The secret that is in the invitation.
    pub secret: Arc<PairingSecret>,
}

/// An end that waits for the host that has an invitation.
#[derive(Debug)]
pub struct Inviter {
    endpoint: Endpoint,
    key: PublicKey,
    secret: Arc<PairingSecret>,
    _clock_monitor: ClockMonitor,
}

/// A host that has proved the secret, and waits to be accepted.
#[derive(Debug)]
pub struct Joiner {
    /// Its key, which TLS has proved.
    pub key: PublicKey,
    /// Its UDP address.
    pub remote: SocketAddr,
    /// The answer to its proof.
    acceptance: [u8; PAIRING_PROOF_BYTES],
    connection: Connection,
    stream: Stream,
}

/// Why an invitation failed.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum InviteError {
    /// The joining end has not confirmed that its files are written.
    #[error("{0}")]
    NotConfirmed(String),
    /// The event loop has ended.
    #[error("the event loop ended")]
    Ended,
}

/// A connection with the proof that it has sent.
struct Claim {
    key: PublicKey,
    proof: [u8; PAIRING_PROOF_BYTES],
    connection: Connection,
    stream: Stream,
}

impl Inviter {
    /// Binds the UDP address. Answers nobody before [`wait`](Self::wait). Needs a tokio runtime.
    pub fn bind(settings: InviterSettings) -> Result<Self, BindError> {
        let InviterSettings { listen, crypto, key, secret } = settings;
        let failed = |source| BindError { address: BindAddress::Udp(listen), source };
        let transport = TransportSettings {
            receive_window_bytes: WINDOW_BYTES,
            stream_receive_window_bytes: WINDOW_BYTES,
            forwards_max: 1,
            ..super::transport()
        };
        let socket = bind_udp(listen, transport.udp_buffer_bytes).map_err(failed)?;
        let clock_monitor = ClockMonitor::new(Arc::clone(&transport.clocks));
        let (config, gate) = (ServerConfig::with_crypto(crypto), clock_monitor.gate());
        let endpoint = transport
            .endpoint(End::Server, vec![socket], Some(config), None, CONNECTIONS_MAX, gate)
            .map_err(failed)?;
        Ok(Self { endpoint, key, secret, _clock_monitor: clock_monitor })
    }

    /// The bound UDP address.
    pub fn local_addr(&self) -> SocketAddr {
        self.endpoint.local_addr()
    }

    /// Waits for the first host that proves the secret; from then on no other host is let in.
    ///
    /// # Errors
    /// [`InviteError::Ended`].
    pub fn wait(&self) -> BoxFuture<'_, Result<Joiner, InviteError>> {
        Box::pin(self.first_right())
    }

    async fn first_right(&self) -> Result<Joiner, InviteError> {
        let mut claims = JoinSet::new();
        let mut claiming = Waiting::default();
        let mut wrong = 0;
        loop {
            tokio::select! {
                accepted = self.endpoint.accept() => match accepted {
                    Some(Accepted::Connection(connection)) => {
                        if claiming.count() >= CLAIMS_MAX {
                            claiming.displace();
                        }
                        let evicted = claiming.add(Source::of(connection.remote_address()));
                        claims.spawn(claim_in_time(connection, evicted));
                    }
                    Some(Accepted::Failed(HandshakeFailed { remote, error })) => {
                        let error = Shown(&error);
                        debug!(source = %plain(remote), %error, "handshake failed");
                    }
                    Some(Accepted::Refused(remote, refusal)) => {
                        debug!(source = %plain(remote), ?refusal, "handshake dropped");
                    }
                    None => return Err(InviteError::Ended),
                },
                Some(claimed) = claims.join_next() => {
                    // A host that sends no proof has made no attempt.
                    let Ok(Some(claim)) = claimed else { continue };
                    if let Some(joiner) = self.judge(claim, &mut wrong) {
                        self.endpoint.refuse();
                        return Ok(joiner);
                    }
                }
            }
        }
    }

    /// The host, if its proof is right; otherwise turns it away and counts the attempt.
    fn judge(&self, claim: Claim, wrong: &mut u32) -> Option<Joiner> {
        let Claim { key, proof, connection, stream } = claim;
        let remote = plain(connection.remote_address());
        if !self.secret.is_proof(&proof, PairingStep::Join, &self.key, &key) {
            if *wrong < WRONG_PROOFS_LOGGED {
                warn!(source = %remote, "a host tried to join with another invitation");
            }
            *wrong = wrong.saturating_add(1);
            let reason = "this is not the invitation that the host is waiting for";
            connection.close(CloseCode::NotPaired.value().into(), reason.as_bytes());
            return None;
        }
        let acceptance = self.secret.proof(PairingStep::Accept, &self.key, &key);
        Some(Joiner { key, remote, acceptance, connection, stream })
    }

    /// Closes all connections that are not [`done`](Joiner::done), and the UDP port. Waits at most
    /// a few seconds for the other ends to learn of it.
    pub fn close(self) -> BoxFuture<'static, ()> {
        Box::pin(async move {
            let reason = b"the invitation is over";
            self.endpoint.close(CloseCode::NotPaired.value().into(), reason);
            let _ = timeout(CLOSE_TIMEOUT, self.endpoint.wait_idle()).await;
        })
    }
}

/// Reads a connection's proof; `None` if there is none in time, or before others need its place.
async fn claim_in_time(connection: Connection, evicted: oneshot::Receiver<()>) -> Option<Claim> {
    tokio::select! {
        claim = timeout(PROOF_TIMEOUT, claim(connection.clone())) => claim.ok()?,
        Ok(()) = evicted => {
            let reason = b"others try to join at the same time: try again";
            connection.close(CloseCode::Shutdown.value().into(), reason);
            None
        }
    }
}

/// Reads a connection's proof; `None` if there is none.
async fn claim(connection: Connection) -> Option<Claim> {
    let key = proof_of(&connection)?.key;
    let mut stream = connection.accept_bi().await.ok()?;
    let mut message = [0; JOIN_BYTES];
    stream.recv.read_exact(&mut message).await.ok()??;
    let (&version, proof) = message.split_first()?;
    if version != VERSION {
        let reason = format!("this host uses pairing version {VERSION}, not {version}");
        connection.close(CloseCode::NotPaired.value().into(), reason.as_bytes());
        return None;
    }
    let proof = proof.try_into().ok()?;
    Some(Claim { key, proof, connection, stream })
}

impl Joiner {
    /// Tells the other end that this one is ready to add it, and suggests a forward; returns when
    /// the other end's files are written.
    ///
    /// # Errors
    /// [`InviteError::NotConfirmed`]: they may or may not be.
    pub fn accept(
        &mut self,
        suggestion: Option<&Forward>,
    ) -> BoxFuture<'_, Result<(), InviteError>> {
        let text = suggestion.map(Forward::to_string).unwrap_or_default();
        // A longer one is of no use to a person.
        let text = u8::try_from(text.len()).map_or("", |_| &*text);
        let message = [&self.acceptance, &[text.len() as u8][..], text.as_bytes()].concat();
        Box::pin(async move {
            let mut answer = [0];
            let exchanged = timeout(MESSAGE_TIMEOUT, async {
                self.stream.send.write_all(&message).await.ok()?;
                self.stream.recv.read_exact(&mut answer).await.ok()?
            });
            Err(InviteError::NotConfirmed(match exchanged.await {
                Ok(Some(())) if answer == [JOINED] => return Ok(()),
                Ok(_) => match self.connection.close_reason() {
                    Some(error) => Shown(&error).to_string(),
                    None => "it sent something else".into(),
                },
                Err(_) => format!("no answer in {MESSAGE_TIMEOUT:?}"),
            }))
        })
    }

    /// Tells the other end that this end's files are written, too; returns when it knows, or a few
    /// seconds later.
    pub fn done(self) -> BoxFuture<'static, ()> {
        Box::pin(async move {
            if self.stream.send.write_all(&[DONE]).await.is_ok() {
                let _ = timeout(CLOSE_TIMEOUT, self.connection.closed()).await;
            }
            // Any other code would tell the other end that nothing was written here, if the byte
            // arrives late.
            self.connection.close(CloseCode::Shutdown.value().into(), b"paired");
        })
    }

    /// Tells the other end that this one cannot continue and has written nothing; the other end
    /// then keeps nothing either.
    pub fn refuse(self, reason: &str) {
        self.connection.close(CloseCode::NotPaired.value().into(), reason.as_bytes());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_oldest_of_the_busiest_source_makes_room() {
        let strangers = ["10.0.0.1:7", "[2001:db8::1]:1", "[2001:db8::2]:1"];
        let strangers = strangers.map(|address| Source::of(address.parse().unwrap()));
        for (strangers, oldest) in [(&strangers[..], 1), (&strangers[..2], 0)] {
            let mut claiming = Waiting::default();
            let mut evicted: Vec<_> = strangers.iter().map(|one| claiming.add(*one)).collect();
            assert!(claiming.displace());
            assert!(evicted[oldest].try_recv().is_ok());
        }
    }
}
