//! Logs refusals to a server's clients. Each kind of line is rate-limited per source, or per peer
//! once it has proved a key, so that no client can fill the log or hide the lines of another.

use std::{net::SocketAddr, sync::Arc, time::Instant};

use keypadd_provider::{PublicKey, Refusal};
use keypadd_share::Rates;
use keypadd_transport::ConnectionError;
use tracing::{debug, warn};

use crate::{
    addresses::{
        forward::{Destination, Listen},
        target::{Host, Protocol, Target},
    },
    error::refused_here,
    forwards::answer::Unpermitted,
    limits::SharedLimits,
    net::source::Source,
    permits::{listen::ListenPermit, peers::Peers},
    sessions::{
        session::LiveSession,
        session_end::{Shown, printable},
    },
};

/// Log lines that remote hosts can cause; each is limited to one a minute.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum LogLine {
    KeyNotAllowed(Source),
    KeyExpired(Source),
    NothingInCommon(Source),
    ServerFull(Source),
    Overload,
    KeyFull(PublicKey),
}

/// Log lines that a peer can cause with a session: each is limited to one a minute, and all of the
/// peer's lines together.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum PeerLine {
    Unpermitted,
    ListenUnpermitted,
}

/// Log lines about clients, each limited to one a minute.
#[derive(Debug)]
pub(super) struct ClientLog {
    limit: Rates<LogLine>,
    of_peers: Rates<(PublicKey, PeerLine)>,
    limits: Arc<SharedLimits>,
}

impl ClientLog {
    pub(super) fn new(limits: Arc<SharedLimits>) -> Self {
        Self { limit: Rates::log_lines(), of_peers: Rates::log_lines(), limits }
    }

    /// Whether a line may be logged now; counts it if not.
    pub(super) fn allows(&self, line: LogLine) -> bool {
        let allowed = self.limit.allow(line, Instant::now());
        if !allowed {
            self.limits.log.count_suppressed();
        }
        allowed
    }

    /// Whether a line that this session's peer has caused may be logged now; counts it if not.
    fn allows_peer(&self, session: &LiveSession, line: PeerLine) -> bool {
        let mut is_counted = false;
        let may_log = || {
            is_counted = true;
            session.may_log()
        };
        let allowed = self.of_peers.allow_if((session.identity(), line), Instant::now(), may_log);
        if !allowed && !is_counted {
            self.limits.log.count_suppressed();
        }
        allowed
    }

    /// Logs a client that did not get a session.
    pub(super) fn handshake_failure(
        &self,
        peers: &Peers,
        source: SocketAddr,
        error: &ConnectionError,
    ) {
        match refused_here(error) {
            Some(Refusal::KeyNotAllowed(key)) => {
                if self.allows(LogLine::KeyNotAllowed(Source::of(source))) {
                    warn!(
                        %source,
                        "key not allowed; to allow it: --allow {key}, or that public-key in a \
                         [peer.NAME] of the file"
                    );
                }
            }
            Some(Refusal::KeyExpired(key)) => {
                if self.allows(LogLine::KeyExpired(Source::of(source))) {
                    let peer = peers.find(&key).map(|peer| peer.label()).unwrap_or_default();
                    warn!(%source, peer, "refused: the peer's valid-until has passed");
                }
            }
            Some(lists @ (Refusal::NoCommonSuite { .. } | Refusal::NoCommonKeyExchange { .. })) => {
                if self.allows(LogLine::NothingInCommon(Source::of(source))) {
                    warn!(%source, "{}", printable(&lists.to_string()));
                }
            }
            // Servers pin no keys.
            Some(Refusal::NotPinned(_)) | None => {
                debug!(%source, error = Shown(error).to_string(), "handshake failed");
            }
        }
    }

    /// Logs a remote forward that no permit allows.
    pub(super) fn unpermitted_listen(&self, session: &LiveSession, listen: &Listen) {
        if self.allows_peer(session, PeerLine::ListenUnpermitted) {
            let (peer, permit) = (session.peer(), ListenPermit::for_listen(listen));
            warn!(peer, %listen, "not permitted; to permit it: --permit-listen {permit}");
        }
    }

    /// Logs a destination that no permit allows.
    pub(super) fn unpermitted(&self, session: &LiveSession, unpermitted: &Unpermitted) {
        let Unpermitted { destination: target, inward } = unpermitted;
        if self.allows_peer(session, PeerLine::Unpermitted) {
            let peer = session.peer();
            let named = match target {
                Destination::Tcp(named) => Some((named, Protocol::Tcp)),
                Destination::Udp(named) => Some((named, Protocol::Udp)),
                Destination::Unix(_) => None,
            };
            match (named, inward) {
                (Some((Target { host, port }, protocol)), Some(address)) if host.is_dns_name() => {
                    let permit = Target { host: Host::Address(*address), port: *port };
                    let permit = match protocol {
                        Protocol::Tcp => Destination::Tcp(permit),
                        Protocol::Udp => Destination::Udp(permit),
                    };
                    warn!(
                        peer, %target,
                        "not permitted: the name leads to this host, its link or its cloud, which \
                         names and wildcards do not admit; to permit it: --permit-open {permit}"
                    );
                }
                _ => warn!(peer, %target, "not permitted; to permit it: --permit-open {target}"),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::{io, sync::Mutex};

    use keypadd_transport::TransportErrorCode;

    use super::*;
    use crate::permits::peers::AllowedPeer;

    /// A public key.
    const KEY: &str = "11qYAYKxCrfVS/7TyWQHOg7hcvPapiMlrwIaaPcHURo=";

    /// Collects log lines.
    #[derive(Clone, Default)]
    struct Lines(Arc<Mutex<Vec<u8>>>);

    impl io::Write for Lines {
        fn write(&mut self, line: &[u8]) -> io::Result<usize> {
            self.0.lock().unwrap().extend_from_slice(line);
            Ok(line.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    /// What the log says of a handshake that this server has failed with this reason.
    fn logged(reason: &str) -> String {
        let mut error = ConnectionError::TransportError(TransportErrorCode::crypto(49).into());
        if let ConnectionError::TransportError(error) = &mut error {
            error.reason = reason.replace("{key}", KEY);
        }
        let lab = AllowedPeer {
            name: Some("lab".into()),
            keys: vec![KEY.parse().unwrap()],
            permits: crate::Permits::default(),
            listen_permits: crate::ListenPermits::default(),
            allowance: None,
            rate_cap: None,
            hold: None,
            valid_until: None,
            network: None,
        };
        let (peers, lines) = (Peers::new([lab]).unwrap(), Lines::default());
        let writer = lines.clone();
        let subscriber = tracing_subscriber::fmt()
            .with_max_level(tracing::Level::DEBUG)
            .with_ansi(false)
            .without_time()
            .with_target(false)
            .with_writer(move || writer.clone());
        tracing::subscriber::with_default(subscriber.finish(), || {
            let log = ClientLog::new(Arc::default());
            log.handshake_failure(&peers, "192.0.2.1:9".parse().unwrap(), &error);
        });
        let lines = String::from_utf8(lines.0.lock().unwrap().clone()).unwrap();
        lines.trim().replace(KEY, "{key}")
    }

    #[test]
    fn what_the_log_says_of_a_failed_handshake_is_as_recorded() {
        for (reason, expected) in [
            (
                "key not allowed: {key}",
                "WARN key not allowed; to allow it: --allow {key}, or that public-key in a \
                 [peer.NAME] of the file source=192.0.2.1:9",
            ),
            (
                "key expired: {key}",
                "WARN refused: the peer's valid-until has passed source=192.0.2.1:9 peer=\"lab\"",
            ),
            (
                "no common suite: offered aes-128-gcm, 0x1234; allowed aes-256-gcm",
                "WARN no common suite: offered aes-128-gcm, 0x1234; allowed aes-256-gcm \
                 source=192.0.2.1:9",
            ),
            (
                "no common key exchange: offered x25519; allowed secp384r1",
                "WARN no common key exchange: offered x25519; allowed secp384r1 source=192.0.2.1:9",
            ),
            (
                "a reason",
                "DEBUG handshake failed source=192.0.2.1:9 \
                 error=\"the cryptographic handshake failed: error 49: a reason\"",
            ),
        ] {
            assert_eq!(logged(reason), expected);
        }
    }
}
