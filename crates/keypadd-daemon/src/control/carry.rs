//! Carries a connection of `keypadd connect @NAME -W` in a running daemon, over its control socket.
//!
//! The request names both public keys, the suites and key exchange it accepts, and the target. Once
//! the target is connected, the daemon makes a pair of unix sockets, forwards one and passes the
//! other to the command. A unix socket has no reset, so each process also keeps a copy of the
//! other's end: an end of file is then always intentional. If a process dies, the control socket
//! closes; it stays open until the outcome is reported. Both sockets go with the connection to a
//! process that replaces the daemon.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream as StdUnixStream;
use std::sync::Arc;

use keypadd_keystream::Suite;
use keypadd_provider::{KeyExchange, PublicKey};
use keypadd_tunnel::handover::HandedClient;
use keypadd_tunnel::wire::StreamCode;
use keypadd_tunnel::{AdoptedConnection, Carrier, CarrierSlot, Client, ClientError, Target};
use serde::{Deserialize, Serialize};

use crate::replacement::OF_COMMAND;
use crate::replacement::channel::Channel;
use crate::status::sources::Sources;

/// What a command asks for.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct CarryRequest {
    /// The key of this host.
    pub(crate) own: PublicKey,
    /// The peer's keys; any of them will do.
    pub(crate) peers: Vec<PublicKey>,
    /// The suites that the command would offer.
    pub(crate) suites: Vec<Suite>,
    /// The key exchange that it would offer.
    pub(crate) kex: KeyExchange,
    pub(crate) target: Target,
}

/// What a daemon tells the command.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum CarryReply {
    /// No session here matches, or none has room for a connection.
    NotHere,
    /// The server was request to connect to the target, over a session with this suite.
    Connecting(String),
    /// The target is connected. Attached: the command's end of the pair and the daemon's end.
    Connected,
    /// The server could not connect to the target, or the target's connection was reset, with this
    /// code.
    Refused(u64),
    /// Both directions have finished.
    Closed,
    /// The connection failed otherwise.
    Lost(String),
}

impl CarryRequest {
    /// The request, without its verb.
    pub(crate) fn line(&self) -> String {
        let Self { own, peers, suites, kex, target } = self;
        let peers: Vec<_> = peers.iter().map(PublicKey::to_string).collect();
        let suites: Vec<_> = suites.iter().map(|suite| suite.name()).collect();
        format!("{own} {} {} {kex} {target}", peers.join(","), suites.join(","))
    }

    fn read(line: &str) -> Option<Self> {
        let mut words = line.splitn(5, ' ');
        let mut next = || words.next();
        Some(Self {
            own: next()?.parse().ok()?,
            peers: next()?.split(',').map(|key| key.parse().ok()).collect::<Option<_>>()?,
            suites: next()?.split(',').map(|name| name.parse().ok()).collect::<Option<_>>()?,
            kex: next()?.parse().ok()?,
            target: next()?.parse().ok()?,
        })
    }

    /// A slot on a session that matches the request.
    fn slot(&self, sources: &Sources) -> Option<(Carrier, CarrierSlot)> {
        if sources.public_key() != self.own {
            return None;
        }
        sources.dialed().into_iter().find_map(|dialing| {
            let slot = dialing.carrier.slot(|live| {
                let agreed = live.handshake();
                let has_suite = |suite: &Suite| agreed.suite == (*suite).into();
                self.peers.contains(&live.key())
                    && agreed.kex == self.kex.into()
                    && self.suites.iter().any(has_suite)
            })?;
            Some((dialing.carrier, slot))
        })
    }
}

/// Answers a request. The connection then runs as one of the client's own.
pub(crate) async fn answer(socket: StdUnixStream, line: &str, sources: &Sources) -> io::Result<()> {
    let mut command = Channel::new(socket)?;
    let request = CarryRequest::read(line);
    let found = request.and_then(|request| Some((request.slot(sources)?, request.target)));
    let Some(((carrier, slot), target)) = found else {
        return command.tell(&CarryReply::NotHere).await;
    };
    let suite = slot.live().handshake().suite.to_string();
    command.tell(&CarryReply::Connecting(suite)).await?;
    carrier.spawn(async move {
        // On an error the command sees its socket close.
        let _ = carry(command, slot, target).await;
    });
    Ok(())
}

/// Carries the connection to its end. If the command exits first, the connection is reset.
async fn carry(mut command: Channel, slot: CarrierSlot, target: Target) -> io::Result<()> {
    let connected = tokio::select! {
        connected = slot.connect(target) => connected,
        _ = command.receive_as::<CarryReply>() => return Ok(()),
    };
    let connected = match connected {
        Ok(connected) => connected,
        Err(error) => return command.tell(&failure(&error)).await,
    };
    let (own, other) = StdUnixStream::pair()?;
    command.send(&CarryReply::Connected, &[], &[other.as_fd(), own.as_fd()]).await?;
    let control = command.as_fd().try_clone_to_owned()?;
    let of_command: [OwnedFd; OF_COMMAND] = [control, other.into()];
    let carried = connected.carry(own, Arc::new(of_command));
    follow(command, async { carried.await.map_err(|error| failure(&error)) }).await
}

/// Resumes what the process before this one held for a client, and what it carried for commands.
pub(crate) fn adopt(client: &Client, held: HandedClient, keys: &[PublicKey]) {
    let carrier = client.carrier();
    for AdoptedConnection { carried, descriptors } in client.adopt(held, keys) {
        carrier.spawn(async move {
            // On an error the command sees its socket close.
            let Ok(control) = descriptors[0].try_clone() else { return };
            drop(descriptors);
            let Ok(command) = Channel::new(control.into()) else { return };
            let refused = |code: StreamCode| CarryReply::Refused(code.value());
            let _ = follow(command, async { carried.await.map_err(refused) }).await;
        });
    }
}

/// Tells the command how its connection has ended. If it exits first, the connection is reset.
async fn follow(
    mut command: Channel,
    carried: impl Future<Output = Result<(), CarryReply>>,
) -> io::Result<()> {
    let outcome = tokio::select! {
        outcome = carried => outcome,
        // The command sends nothing here, so this means that it has exited.
        _ = command.receive_as::<CarryReply>() => return Ok(()),
    };
    command.tell(&outcome.err().unwrap_or(CarryReply::Closed)).await
}

fn failure(error: &ClientError) -> CarryReply {
    match error {
        ClientError::Refused { code, .. } => CarryReply::Refused(code.value()),
        error => CarryReply::Lost(error.to_string()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_round_trips_and_fits_its_limit() {
        let key: PublicKey = "11qYAYKxCrfVS/7TyWQHOg7hcvPapiMlrwIaaPcHURo=".parse().unwrap();
        let request = CarryRequest {
            own: key,
            peers: vec![key, key],
            suites: keypadd_config::offered(None),
            kex: KeyExchange::default(),
            target: format!("{}.example:65535", "x".repeat(247)).parse().unwrap(),
        };
        let line = request.line();
        assert!(line.len() < 500, "{}", line.len());
        assert_eq!(CarryRequest::read(&line), Some(request));
        for end in 0..line.len() - "65535".len() {
            assert_eq!(CarryRequest::read(&line[..end]), None);
        }
    }
}
