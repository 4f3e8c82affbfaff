//! Why a handshake was refused, in words that both ends may see.
//!
//! quinn sends the reason of a transport error to the peer, and the tunnel reads it back out of
//! the error, so a reason names only what the peer showed or what is no secret.

use std::sync::{Arc, Mutex};

use quinn_proto::{TransportError, TransportErrorCode};
use rustls::server::{ClientHello, ResolvesServerCert};
use rustls::sign::CertifiedKey;
use rustls::{AlertDescription, CipherSuite, Error, NamedGroup, PeerIncompatible};

use crate::kx::Group;
use crate::suites::from_code_point;
use crate::verify::RefusedKey;

/// Words errors; on a server it knows what the client offered.
#[derive(Clone, Debug, Default)]
pub(crate) struct Refusal {
    allowed: Allowed,
    offered: Arc<Mutex<Offer>>,
}

/// Names of what a server accepts.
#[derive(Clone, Debug, Default)]
pub(crate) struct Allowed {
    pub(crate) suites: Vec<&'static str>,
    pub(crate) kex: Vec<&'static str>,
}

/// What a client has said that it can do.
#[derive(Debug, Default)]
struct Offer {
    suites: Vec<CipherSuite>,
    groups: Vec<NamedGroup>,
}

impl Refusal {
    /// For one handshake of a server that allows this.
    pub(crate) fn new(allowed: Allowed) -> Self {
        Self { allowed, offered: Arc::default() }
    }

    /// What quinn closes the connection with for an error of rustls, which may have raised an
    /// alert of its own. A refused key is `access_denied` (RFC 8446 section 6.2): rustls would
    /// call it an unknown certificate.
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

/// A hostile list may be long, so it is cut.
fn listed<T: Copy>(offered: &[T], name: impl Fn(T) -> String) -> String {
    const MOST: usize = 12;
    let mut names: Vec<String> = offered.iter().take(MOST).map(|&one| name(one)).collect();
    if offered.len() > MOST {
        names.push(format!("{} more", offered.len() - MOST));
    }
    names.join(", ")
}

/// Our name, or the number of what we do not know.
fn suite_name(code: CipherSuite) -> String {
    match from_code_point(code) {
        Some(suite) => suite.name().to_owned(),
        None => format!("{:#06x}", u16::from(code)),
    }
}

/// Likewise.
fn group_name(group: NamedGroup) -> String {
    match Group::from_named_group(group) {
        Some(kex) => kex.name().to_owned(),
        None => format!("{:#06x}", u16::from(group)),
    }
}

/// Presents the server's key and notes what the client offered: rustls asks for the key before it
/// chooses suite and key exchange, and says nothing of the offer when it finds none.
#[derive(Debug)]
pub(crate) struct NotesOffer {
    pub(crate) resolver: Arc<dyn ResolvesServerCert>,
    pub(crate) refusal: Refusal,
}

impl ResolvesServerCert for NotesOffer {
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
