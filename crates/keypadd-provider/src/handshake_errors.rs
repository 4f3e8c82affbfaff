//! Turns rustls's errors into those with which quinn closes a connection, and records what a client
//! offered, which rustls does not report.
//!
//! quinn sends the reason to the peer: it is a [`Refusal`], or rustls's own text.

use std::sync::{Arc, Mutex};

use keypadd_keystream::Protection;
use quinn_proto::{TransportError, TransportErrorCode};
use rustls::server::{ClientHello, ResolvesServerCert};
use rustls::sign::CertifiedKey;
use rustls::{AlertDescription, CipherSuite, Error, NamedGroup, PeerIncompatible};

use crate::kx::Group;
use crate::refusal::Refusal;
use crate::suites::from_code_point;

/// Formats handshake errors; on a server it knows what the client offered.
#[derive(Clone, Debug, Default)]
pub(crate) struct HandshakeErrors {
    allowed: Arc<Preferences>,
    offered: Arc<Mutex<Offer>>,
}

/// What an end offers or accepts, in order of preference.
#[derive(Debug, Default)]
pub(crate) struct Preferences {
    pub(crate) suites: Vec<Protection>,
    pub(crate) kex: Vec<Group>,
}

impl Preferences {
    /// The suite with this code point, if it is one of these or users can choose it.
    pub(crate) fn suite(&self, code: CipherSuite) -> Option<Protection> {
        from_code_point(code, &self.suites)
    }

    /// The key exchange of this name, if it is one of these or users can choose it.
    pub(crate) fn group(&self, name: NamedGroup) -> Option<Group> {
        Group::from_named_group(name, &self.kex)
    }
}

/// What a client offered.
#[derive(Debug, Default)]
struct Offer {
    suites: Vec<CipherSuite>,
    groups: Vec<NamedGroup>,
}

impl HandshakeErrors {
    /// Formats the errors of one handshake of a server that accepts this.
    pub(crate) fn new(allowed: Arc<Preferences>) -> Self {
        Self { allowed, offered: Arc::default() }
    }

    /// The error with which quinn closes the connection for an error of rustls, which may have set
    /// an alert. A refused key is `access_denied` (RFC 8446 section 6.2); rustls would call it an
    /// unknown certificate.
    pub(crate) fn transport_error(
        &self,
        error: &Error,
        alert: Option<AlertDescription>,
    ) -> TransportError {
        let refused = Refusal::from_error(error).map(|_| AlertDescription::AccessDenied);
        let code = refused.or(alert).map_or(TransportErrorCode::PROTOCOL_VIOLATION, |alert| {
            TransportErrorCode::crypto(alert.into())
        });
        let reason = self.refusal(error).map_or_else(|| error.to_string(), |it| it.to_string());
        TransportError { code, frame: None, reason }
    }

    fn offered(&self, list: impl FnOnce(&Offer) -> String) -> String {
        self.offered.lock().map(|offer| list(&offer)).unwrap_or_default()
    }

    /// The refusal for which the handshake failed, if it was one.
    fn refusal(&self, error: &Error) -> Option<Refusal> {
        match error {
            Error::PeerIncompatible(PeerIncompatible::NoCipherSuitesInCommon) => {
                let name = |code| self.allowed.suite(code).map(Protection::name);
                Some(Refusal::NoCommonSuite {
                    offered: self.offered(|offer| listed(&offer.suites, name)).into(),
                    allowed: joined(&self.allowed.suites, Protection::name).into(),
                })
            }
            Error::PeerIncompatible(PeerIncompatible::NoKxGroupsInCommon) => {
                let name = |group| self.allowed.group(group).map(Group::name);
                Some(Refusal::NoCommonKeyExchange {
                    offered: self.offered(|offer| listed(&offer.groups, name)).into(),
                    allowed: joined(&self.allowed.kex, Group::name).into(),
                })
            }
            error => Refusal::from_error(error).cloned(),
        }
    }
}

fn joined<T: Copy>(accepted: &[T], name: fn(T) -> &'static str) -> String {
    accepted.iter().map(|&one| name(one)).collect::<Vec<_>>().join(", ")
}

/// Lists our names, or the code points of what is unknown here; truncated, because a hostile list
/// may be long.
fn listed<T: Copy + Into<u16>>(offered: &[T], name: impl Fn(T) -> Option<&'static str>) -> String {
    const MOST: usize = 12;
    let known = |&one: &T| name(one).map_or_else(|| format!("{:#06x}", one.into()), str::to_owned);
    let mut names: Vec<String> = offered.iter().take(MOST).map(known).collect();
    if offered.len() > MOST {
        names.push(format!("{} more", offered.len() - MOST));
    }
    names.join(", ")
}

/// Resolves the server's key and records the client's offer: rustls resolves the key before it
/// chooses suite and key exchange, and does not report the offer if it finds nothing in common.
#[derive(Debug)]
pub(crate) struct OfferRecorder {
    pub(crate) resolver: Arc<dyn ResolvesServerCert>,
    pub(crate) errors: HandshakeErrors,
}

impl ResolvesServerCert for OfferRecorder {
    fn resolve(&self, client_hello: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        if let Ok(mut offered) = self.errors.offered.lock() {
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
