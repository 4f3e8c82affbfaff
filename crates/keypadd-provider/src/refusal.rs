//! Why a handshake was refused, in words that both ends may see.
//!
//! quinn sends the reason of a transport error to the peer, and the tunnel reads it back out of
//! the error, so a reason names only what the peer showed or what is no secret.

use std::sync::{Arc, Mutex};

use quinn_proto::{TransportError, TransportErrorCode};
use rustls::server::{ClientHello, ResolvesServerCert};
use rustls::sign::CertifiedKey;
use rustls::{AlertDescription, CipherSuite, Error, PeerIncompatible};

use crate::suites::from_code_point;
use crate::verify::RefusedKey;

/// Words errors; on a server it knows which suites the client offered.
#[derive(Clone, Debug, Default)]
pub(crate) struct Refusal {
    allowed: Vec<&'static str>,
    offered: Arc<Mutex<Vec<CipherSuite>>>,
}

impl Refusal {
    /// For one handshake of a server that allows these suites.
    pub(crate) fn new(allowed: Vec<&'static str>) -> Self {
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

    fn reason(&self, error: &Error) -> String {
        match (RefusedKey::from_error(error), error) {
            (Some(RefusedKey::NotPinned { shown, .. }), _) => {
                format!("server key not pinned: {shown}")
            }
            (Some(refused), _) => refused.to_string(),
            (None, Error::PeerIncompatible(PeerIncompatible::NoCipherSuitesInCommon)) => {
                let offered = self.offered.lock().map(|suites| names(&suites)).unwrap_or_default();
                format!("no common suite: offered {offered}; allowed {}", self.allowed.join(", "))
            }
            (None, error) => error.to_string(),
        }
    }
}

/// Names where we know them; a hostile list may be long, so it is cut.
fn names(suites: &[CipherSuite]) -> String {
    const MOST: usize = 12;
    let name = |&code: &CipherSuite| match from_code_point(code) {
        Some(suite) => suite.name().to_owned(),
        None => format!("{:#06x}", u16::from(code)),
    };
    let mut names: Vec<String> = suites.iter().take(MOST).map(name).collect();
    if suites.len() > MOST {
        names.push(format!("{} more", suites.len() - MOST));
    }
    names.join(", ")
}

/// Presents the server's key and notes what the client offered: rustls asks for the key before it
/// chooses a suite, and says nothing of the offer when it finds none.
#[derive(Debug)]
pub(crate) struct NotesOffer {
    pub(crate) resolver: Arc<dyn ResolvesServerCert>,
    pub(crate) refusal: Refusal,
}

impl ResolvesServerCert for NotesOffer {
    fn resolve(&self, client_hello: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        if let Ok(mut offered) = self.refusal.offered.lock() {
            *offered = client_hello.cipher_suites().to_vec();
        }
        self.resolver.resolve(client_hello)
    }

    fn only_raw_public_keys(&self) -> bool {
        true
    }
}
