//! Logs refusals to a server's clients. Each kind of line is rate-limited per source, or per peer once it
//! has proved a key, so that no client can fill the log or hide the lines of another.

use std::{net::SocketAddr, sync::Arc, time::Instant};

use keypadd_provider::PublicKey;
use keypadd_share::Rates;
use keypadd_transport::ConnectionError;
use tracing::{debug, warn};

use crate::{
    addresses::{
        forward::{Destination, Listen},
        target::{Host, Protocol, Target},
    },
    error::HandshakeFailure,
    forwards::answer::Unpermitted,
    limits::Limits,
    net::source::Source,
    permits::{listen::ListenPermit, peers::Peers},
    sessions::session::LiveSession,
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

/// Log lines that a peer can cause with a session: each is limited to one a minute, and all of the peer's
/// lines together.
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
    limits: Arc<Limits>,
}

impl ClientLog {
    pub(super) fn new(limits: Arc<Limits>) -> Self {
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

    /// The same for a line that this session's peer has caused.
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
        match HandshakeFailure::of(error) {
            HandshakeFailure::KeyNotAllowed(key) => {
                if self.allows(LogLine::KeyNotAllowed(Source::of(source))) {
                    warn!(%source, "key not allowed; to allow it: --allow {key}");
                }
            }
            HandshakeFailure::KeyExpired(key) => {
                if self.allows(LogLine::KeyExpired(Source::of(source))) {
                    let peer = key.parse().ok().and_then(|key| peers.find(&key));
                    let peer = peer.map(|peer| peer.label()).unwrap_or_default();
                    warn!(%source, peer, "refused: the peer's valid-until has passed");
                }
            }
            HandshakeFailure::NothingInCommon(lists) => {
                if self.allows(LogLine::NothingInCommon(Source::of(source))) {
                    warn!(%source, "{lists}");
                }
            }
            HandshakeFailure::Other(error) => debug!(%source, error, "handshake failed"),
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
                        "not permitted: the name leads to this host or its link, which names and \
                         wildcards do not admit; to permit it: --permit-open {permit}"
                    );
                }
                _ => warn!(peer, %target, "not permitted; to permit it: --permit-open {target}"),
            }
        }
    }
}
