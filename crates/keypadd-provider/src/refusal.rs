//! Explains why a handshake was refused, in terms that both ends may see.
//!
//! quinn sends the reason of a transport error to the peer, and the tunnel parses it, so a reason names
//! only what the peer sent or what is not secret.

use std::sync::{Arc, Mutex};

use quinn_proto::{TransportError, TransportErrorCode};
use rustls::server::{ClientHello, ResolvesServerCert};
use rustls::sign::CertifiedKey;
use rustls::{AlertDescription, CipherSuite, Error, NamedGroup, PeerIncompatible};

use crate::kx::Group;
use crate::suites::from_code_point;
use crate::verify::RefusedKey;

/// Formats handshake errors; on a server it knows what the client offered.
#[derive(Clone, Debug, Default)]
pub(crate) struct Refusal {
    allowed: Allowed,
    offered: Arc<Mutex<Offer>>,
}

/// The names of what a server accepts.
#[derive(Clone, Debug, Default)]
pub(crate) struct Allowed {
    pub(crate) suites: Vec<&'static str>,
    pub(crate) kex: Vec<&'static str>,
}

/// What a client offered.
#[derive(Debug, Default)]
struct Offer {
    suites: Vec<CipherSuite>,
    groups: Vec<NamedGroup>,
}

impl Refusal {
    /// Formats the errors of one handshake of a server that accepts this.
    pub(crate) fn new(allowed: Allowed) -> Self {
        Self { allowed, offered: Arc::default() }
    }

    /// The error with which quinn closes the connection for an error of rustls, which may have set an
    /// alert. A refused key is `access_denied` (RFC 8446 section 6.2); rustls would call it an unknown
    /// certificate.
    pub(crate) fn transport_error(
        &self,
        error: &Error,
        alert: Option<AlertDescription>,
    ) -> TransportError {
        let refused = RefusedKey::from_error(error).map(|_| AlertDescription::AccessDenied);
        let code = refused.or(alert).map_or(TransportErrorCode::PROTOCOL_VIOLATION, |alert| {
            TransportErrorCode::crypto(alert.into())
        });
        TransportError { code, frame: None, reason: self.reason(error) }
    }

    fn offered(&self, list: impl FnOnce(&Offer) -> String) -> String {
        self.offered.lock().map(|offer| list(&offer)).unwrap_or_default()
    }

    fn reason(&self, error: &Error) -> String {
        match (RefusedKey::from_error(error), error) {
            (Some(RefusedKey::NotPinned { shown, .. }), _) => {
                format!("server key not pinned: {shown}")
            }
            (Some(refused), _) => refused.to_string(),
            (None, Error::PeerIncompatible(PeerIncompatible::NoCipherSuitesInCommon)) => {
                let offered = self.offered(|offer| listed(&offer.suites, suite_name));
                let allowed = self.allowed.suites.join(", ");
                format!("no common suite: offered {offered}; allowed {allowed}")
            }
            (None, Error::PeerIncompatible(PeerIncompatible::NoKxGroupsInCommon)) => {
                let offered = self.offered(|offer| listed(&offer.groups, group_name));
                let allowed = self.allowed.kex.join(", ");
                format!("no common key exchange: offered {offered}; allowed {allowed}")
            }
            (None, error) => error.to_string(),
        }
    }
}

/// Lists names; truncated, because a hostile list may be long.
fn listed<T: Copy>(offered: &[T], name: impl Fn(T) -> String) -> String {
    const MOST: usize = 12;
    let mut names: Vec<String> = offered.iter().take(MOST).map(|&one| name(one)).collect();
    if offered.len() > MOST {
        names.push(format!("{} more", offered.len() - MOST));
    }
    names.join(", ")
}

/// Our name for a suite, or the code point of an unknown one.
fn suite_name(code: CipherSuite) -> String {
    match from_code_point(code) {
        Some(suite) => suite.name().to_owned(),
        None => format!("{:#06x}", u16::from(code)),
    }
}

/// Our name for a group, or the code point of an unknown one.
fn group_name(group: NamedGroup) -> String {
    match Group::from_named_group(group) {
        Some(kex) => kex.name().to_owned(),
        None => format!("{:#06x}", u16::from(group)),
    }
}

/// Resolves the server's key and records the client's offer: rustls resolves the key before it chooses
/// suite and key exchange, and does not report the offer if it finds nothing in common.
#[derive(Debug)]
pub(crate) struct OfferRecorder {
    pub(crate) resolver: Arc<dyn ResolvesServerCert>,
    pub(crate) refusal: Refusal,
}

impl ResolvesServerCert for OfferRecorder {
    fn resolve(&self, client_hello: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        if let Ok(mut offered) = self.refusal.offered.lock() {
            *offered = Offer {
                suites: client_hello.cipher_suites().to_vec(),
                groups: client_hello.named_groups().unwrap_or_default().to_vec(),
            };
        }
        self.resolver.resolve(client_hello)
    }

    fn only_raw_public_keys(&self) -> bool {
        true
    }
}
