//! Opens a client's second connection to its server, which carries the session's bulk streams.
//!
//! Opened when either end first has bulk data, or on a long path any data, with the same identities
//! and permits. Without it the first connection carries all streams.

use std::{
    convert::Infallible,
    future::pending,
    sync::{Arc, Mutex, PoisonError, atomic::Ordering},
    time::Duration,
};

use keypadd_provider::Assertion;
use keypadd_transport::{ClientConfig, Connection, Dial, Endpoint, Purpose, ServerId};
use tokio::{
    sync::Notify,
    time::{sleep, timeout},
};
use tracing::{debug, warn};

use super::listed::ListedKeys;
use crate::{
    forwards::network,
    networks::Network,
    sessions::{control::Control, proof::proof_of, session::LiveSession},
    transport::{SERVER_NAME, WINDOWS_LONG_PATH},
    wire::{CloseCode, Frame, VERSION},
};

/// Timeout from the first packet to the server's hello.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);

/// Pause after a failed attempt, doubled for each in a row.
const RETRY_MIN: Duration = Duration::from_secs(5);
const RETRY_MAX: Duration = Duration::from_secs(60);

/// Opens the bulk connection.
#[derive(Clone)]
pub(super) struct BulkDialer {
    pub(super) endpoint: Endpoint,
    pub(super) config: Arc<Mutex<ClientConfig>>,
    pub(super) listed: ListedKeys,
    /// Which of the servers at the address has the session.
    pub(super) home: Option<ServerId>,
    /// The networks behind the server, if it has any.
    pub(super) network: Option<Arc<Network>>,
}

impl BulkDialer {
    /// Opens the connection when it is wanted, and supervises it. Never returns.
    pub(super) async fn run(&self, session: &LiveSession, wanted: &Notify) {
        let mut pause = RETRY_MIN;
        loop {
            tokio::select! {
                () = wanted.notified() => {}
                () = session.connection.bulk_wanted() => {}
            }
            // Without an offer the server accepts no bulk connection.
            if !session.bulk_offered.load(Ordering::Relaxed) {
                continue;
            }
            match timeout(CONNECT_TIMEOUT, self.attach(session)).await {
                Ok(Ok(_control)) => {
                    debug!(peer = session.peer(), "bulk connection attached");
                    tokio::select! {
                        () = session.supervise_bulk() => {}
                        never = self.carry_network(session) => match never {},
                    }
                    pause = RETRY_MIN;
                }
                Ok(Err(cause)) => debug!(cause, "bulk connection failed"),
                Err(_) => debug!("bulk connection failed: timeout"),
            }
            sleep(pause).await;
            pause = (2 * pause).min(RETRY_MAX);
        }
    }

    /// Lets the bulk connection carry packets of the network. Never returns.
    async fn carry_network(&self, session: &LiveSession) -> Infallible {
        match session.bulk().zip(self.network.as_deref()) {
            Some((bulk, network)) => network::keep_open_on_bulk(session, bulk, network).await,
            None => pending().await,
        }
    }

    async fn attach(&self, session: &LiveSession) -> Result<Control, String> {
        let config = self.config.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let address = session.connection.remote_address();
        let rtt = session.connection.stats().path.rtt;
        let purpose = if rtt > WINDOWS_LONG_PATH { Purpose::LongPathBulk } else { Purpose::Bulk };
        let (server_name, home, rtt) = (SERVER_NAME, self.home, Some(rtt));
        let dial = Dial { config, address, server_name, purpose, home, rtt };
        let connection = self.endpoint.connect(dial).await.map_err(|error| error.to_string())?;
        let mut unattached = Unattached { session, connection: Some(connection.clone()) };
        let proof = proof_of(&connection).ok_or("the handshake did not authenticate a key")?;
        let stream = connection.open_bi().await.map_err(|error| error.to_string())?;
        let mut control = Control::new(stream);
        let (channel, token, instance) = (&proof.channel, session.token(), session.instance());
        let own = channel.proof(token, Assertion::ClientBulk, &instance.0);
        let hello = Frame::HelloBulk { version: VERSION, instance, proof: own };
        control.send(&hello).await.map_err(|error| error.to_string())?;
        match control.receive().await {
            Ok(Frame::HelloBulk { version: VERSION, proof, .. }) => {
                if !channel.is_proof(&proof, token, Assertion::ServerBulk, &instance.0) {
                    let cause = "the server does not prove that it has the session";
                    connection.close(CloseCode::Protocol.value().into(), cause.as_bytes());
                    unattached.connection = None;
                    if session.may_log() {
                        warn!(peer = session.peer(), "bulk connection closed: {cause}");
                    }
                    return Err(cause.into());
                }
            }
            Ok(_) => return Err("the server did not answer with a hello".into()),
            Err(error) => return Err(error.to_string()),
        }
        if !session.attach_bulk(&connection, &proof) {
            return Err("the packet protection differs from the session's".into());
        }
        unattached.connection = None;
        // The list may have changed since the handshake.
        self.listed.check(session);
        Ok(control)
    }
}

/// A connection that the server may have attached already, while this end has not. There its end is
/// the session's: when dropped, it closes as the session does, so that what is held stays held.
struct Unattached<'a> {
    session: &'a LiveSession,
    connection: Option<Connection>,
}

impl Drop for Unattached<'_> {
    fn drop(&mut self) {
        if let Some(connection) = &self.connection {
            self.session.close_unattached(connection);
        }
    }
}
