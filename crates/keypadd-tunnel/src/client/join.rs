//! Joins a host that has invited this one: proves the invitation's secret, and checks that the
//! other end knows it too.
//!
//! The client's packet protection must be that of a joining end, with the inviting host's key
//! pinned.

use std::sync::Arc;
use std::time::Duration;

use futures_util::future::BoxFuture;
use keypadd_provider::{PAIRING_PROOF_BYTES, PairingStep, PublicKey};
use keypadd_transport::{Connection, ConnectionError, Stream, crypto};
use thiserror::Error;
use tokio::time::timeout;

use super::{Client, ClientSettings, reach::Reached};
use crate::{
    addresses::forward::{Forward, ProxyHeaders},
    error::{ClientError, ConnectFailure, unreachable::Cause},
    pairing::{DONE, Invitation, JOINED, MESSAGE_TIMEOUT, VERSION, suggested, transport},
    sessions::session_end::{Shown, printable},
    wire::{CloseCode, Instance},
};

/// The inviting host is ready to add this one, and waits to hear that this end's files are written.
#[derive(Debug)]
pub struct Joined {
    /// A forward that it permits, as an example.
    pub suggestion: Option<Forward>,
    connection: Connection,
    stream: Stream,
}

/// Why the inviting host has not confirmed.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum NotConfirmed {
    /// The inviting host says that it has written nothing.
    #[error("{0}")]
    Refused(String),
    /// The inviting host may have written its files.
    #[error("{0}")]
    Unknown(String),
}

impl ClientSettings {
    /// The settings of a joining end.
    pub fn joining(
        invitation: &Invitation,
        crypto: Arc<dyn crypto::ClientConfig>,
        connect_timeout: Duration,
        instance: Instance,
    ) -> Self {
        Self {
            server: invitation.pairing.clone().into(),
            crypto,
            name: None,
            forwards: Vec::new(),
            proxy_headers: ProxyHeaders::default(),
            transport: transport(),
            connect_timeout,
            instance,
        }
    }
}

impl Client {
    /// Resolves the inviting host and proves the secret to it. `own` is this host's key.
    ///
    /// # Errors
    /// [`ClientError::Auth`] if that host has another key, [`ClientError::NotPaired`] if it
    /// refuses, else [`ClientError::Unreachable`] within the connect timeout.
    pub fn join<'a>(
        &'a self,
        invitation: &'a Invitation,
        own: PublicKey,
    ) -> BoxFuture<'a, Result<Joined, ClientError>> {
        Box::pin(async move {
            let open = |address| self.open(address, None, None);
            let join = |reached| join_over(reached, invitation, own);
            self.reach(self.everywhere(self.connect_timeout), open, join).await
        })
    }
}

/// Proves the secret over a new connection.
async fn join_over(
    Reached { connection, .. }: Reached,
    invitation: &Invitation,
    own: PublicKey,
) -> Result<Joined, ConnectFailure> {
    let mut stream = connection.open_bi().await.map_err(|error| not_paired(&error))?;
    let Invitation { key, secret, .. } = invitation;
    let proof = secret.proof(PairingStep::Join, key, &own);
    let mut answer = [0; PAIRING_PROOF_BYTES];
    let mut text = Vec::new();
    let exchanged = async {
        stream.send.write_all(&[&[VERSION][..], &proof].concat()).await.ok()?;
        stream.recv.read_exact(&mut answer).await.ok()??;
        let mut length = [0];
        stream.recv.read_exact(&mut length).await.ok()??;
        text.resize(length[0].into(), 0);
        stream.recv.read_exact(&mut text).await.ok()?
    };
    if exchanged.await.is_none() {
        let broken = || ConnectFailure::Unreachable(Cause::NotInviting);
        return Err(connection.close_reason().map_or_else(broken, |error| not_paired(&error)));
    }
    if !secret.is_proof(&answer, PairingStep::Accept, key, &own) {
        let cause = "the other end does not know the secret of the invitation";
        connection.close(CloseCode::NotPaired.value().into(), cause.as_bytes());
        return Err(ConnectFailure::NotPaired(cause.into()));
    }
    let suggestion = str::from_utf8(&text).ok().and_then(suggested);
    Ok(Joined { suggestion, connection, stream })
}

/// Why there is no answer.
fn not_paired(error: &ConnectionError) -> ConnectFailure {
    match error {
        ConnectionError::ApplicationClosed(close)
            if close.error_code == CloseCode::NotPaired.value().into() =>
        {
            ConnectFailure::NotPaired(printable(&String::from_utf8_lossy(&close.reason)))
        }
        error => ConnectFailure::of(error),
    }
}

impl Joined {
    /// Tells the other end that this end's files are written; returns when the other end's are.
    ///
    /// # Errors
    /// Why the other end has not confirmed that.
    pub fn confirm(mut self) -> BoxFuture<'static, Result<(), NotConfirmed>> {
        Box::pin(async move {
            let mut answer = [0];
            let exchanged = timeout(MESSAGE_TIMEOUT, async {
                self.stream.send.write_all(&[JOINED]).await.ok()?;
                self.stream.recv.read_exact(&mut answer).await.ok()?
            });
            match exchanged.await {
                Ok(Some(())) if answer == [DONE] => {
                    self.connection.close(CloseCode::Shutdown.value().into(), b"paired");
                    Ok(())
                }
                Ok(_) => Err(match self.connection.close_reason() {
                    Some(error) => match not_paired(&error) {
                        ConnectFailure::NotPaired(cause) => NotConfirmed::Refused(cause),
                        _ => NotConfirmed::Unknown(Shown(&error).to_string()),
                    },
                    None => NotConfirmed::Unknown("it sent something else".into()),
                }),
                Err(_) => Err(NotConfirmed::Unknown(format!("no answer in {MESSAGE_TIMEOUT:?}"))),
            }
        })
    }

    /// Tells the other end that this end cannot continue; it then writes nothing.
    pub fn abandon(self, reason: &str) {
        self.connection.close(CloseCode::NotPaired.value().into(), reason.as_bytes());
    }
}
