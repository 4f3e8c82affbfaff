//! Authenticates the peer: the pinned server, or a listed client.
//!
//! Both verifiers check a raw public key (RFC 7250) and the proof that the peer holds its private
//! half: the signature over the handshake (RFC 8446, section 4.4.3). There are no names, dates or
//! chains. Refuses TLS 1.2 and any scheme but Ed25519. A refusal is an error that carries the key
//! ([`Refusal`]).

use std::fmt;
use std::sync::Arc;

use keypadd_pool::PoolAllowance;
use ring::signature::{ED25519, UnparsedPublicKey};
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::server::danger::{ClientCertVerified, ClientCertVerifier};
use rustls::{
    CertificateError, DigitallySignedStruct, DistinguishedName, Error, PeerIncompatible,
    PeerMisbehaved, SignatureScheme,
};

use crate::identity::PublicKey;
use crate::refusal::Refusal;

/// The clients that may connect; a key allows its holder. Queried once per handshake, by the thread
/// that drives it, so it must not block.
pub trait AllowList: fmt::Debug + Send + Sync {
    /// Whether the holder of `key` may connect.
    fn allows(&self, key: &PublicKey) -> bool;

    /// Whether the time of a listed key is over, so that its holder may no longer connect.
    fn has_expired(&self, _key: &PublicKey) -> bool {
        false
    }

    /// How much of the pool the connections of `key` may hold together; `None` is no limit. Queried
    /// once per connection, after the client has proved its key.
    fn allowance(&self, _key: &PublicKey) -> Option<PoolAllowance> {
        None
    }
}

impl AllowList for PublicKey {
    fn allows(&self, key: &PublicKey) -> bool {
        self == key
    }
}

/// The methods that both verifiers implement alike: TLS 1.3 only, raw public keys only, Ed25519
/// only.
macro_rules! raw_keys_over_tls13 {
    () => {
        /// Never called while the configuration offers only TLS 1.3; fails the handshake otherwise.
        fn verify_tls12_signature(
            &self,
            _message: &[u8],
            _cert: &CertificateDer<'_>,
            _dss: &DigitallySignedStruct,
        ) -> Result<HandshakeSignatureValid, Error> {
            Err(Error::PeerIncompatible(PeerIncompatible::Tls13RequiredForQuic))
        }

        fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
            vec![SignatureScheme::ED25519]
        }

        fn requires_raw_public_keys(&self) -> bool {
            true
        }
    };
}

/// Verifies on the client that the server holds a key that the user pinned: the only one, or one of
/// several while the server's key is being replaced.
#[derive(Clone, Debug)]
pub struct PinnedServer {
    pinned: PublicKey,
    others: Vec<PublicKey>,
}

impl PinnedServer {
    /// Accepts only the holder of `pinned`.
    pub fn new(pinned: PublicKey) -> Self {
        Self { pinned, others: Vec::new() }
    }

    /// Accepts the holders of `pinned` and of `others`.
    pub fn one_of(pinned: PublicKey, others: impl IntoIterator<Item = PublicKey>) -> Self {
        Self { pinned, others: others.into_iter().collect() }
    }
}

impl From<PublicKey> for PinnedServer {
    fn from(pinned: PublicKey) -> Self {
        Self::new(pinned)
    }
}

impl ServerCertVerifier for PinnedServer {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        _server_name: &ServerName<'_>,
        _ocsp_response: &[u8],
        _now: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        let shown = read_key(end_entity, intermediates)?;
        if shown != self.pinned && !self.others.contains(&shown) {
            return Err(Refusal::NotPinned(shown).into());
        }
        Ok(ServerCertVerified::assertion())
    }

    raw_keys_over_tls13!();

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        verify_signature(message, &read_key(cert, &[])?, dss)
    }
}

/// Verifies on the server that the client holds a listed key.
///
/// Queries the list after checking the signature, not when the key is presented. So a stranger can
/// neither probe which keys are listed nor make the server log someone else's key.
#[derive(Debug)]
pub struct ListedClients {
    allowed: Arc<dyn AllowList>,
}

impl ListedClients {
    /// Accepts holders of the keys that `allowed` lists.
    pub fn new(allowed: Arc<dyn AllowList>) -> Self {
        Self { allowed }
    }
}

impl ClientCertVerifier for ListedClients {
    /// Empty, because there are no issuers. `client_auth_mandatory` stays true, so a client without
    /// a key is refused.
    fn root_hint_subjects(&self) -> &[DistinguishedName] {
        &[]
    }

    fn verify_client_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        _now: UnixTime,
    ) -> Result<ClientCertVerified, Error> {
        // Checks only the encoding: the list is queried with the signature.
        read_key(end_entity, intermediates)?;
        Ok(ClientCertVerified::assertion())
    }

    raw_keys_over_tls13!();

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        let key = read_key(cert, &[])?;
        let valid = verify_signature(message, &key, dss)?;
        if !self.allowed.allows(&key) {
            return Err(Refusal::KeyNotAllowed(key).into());
        }
        if self.allowed.has_expired(&key) {
            return Err(Refusal::KeyExpired(key).into());
        }
        Ok(valid)
    }
}

/// The key in a peer's Certificate message: for a raw public key one entry, the
/// SubjectPublicKeyInfo (RFC 8446, section 4.4.2). Anything else is a `bad_certificate`.
fn read_key(
    end_entity: &CertificateDer<'_>,
    intermediates: &[CertificateDer<'_>],
) -> Result<PublicKey, Error> {
    let malformed = Error::InvalidCertificate(CertificateError::BadEncoding);
    if !intermediates.is_empty() {
        return Err(malformed);
    }
    PublicKey::from_spki(end_entity).map_err(|_| malformed)
}

/// Verifies the signature of a CertificateVerify message under the key that was presented.
fn verify_signature(
    message: &[u8],
    key: &PublicKey,
    dss: &DigitallySignedStruct,
) -> Result<HandshakeSignatureValid, Error> {
    // rustls leaves it to us to enforce the scheme.
    if dss.scheme != SignatureScheme::ED25519 {
        return Err(PeerMisbehaved::SignedHandshakeWithUnadvertisedSigScheme.into());
    }
    let key = UnparsedPublicKey::new(&ED25519, key.as_bytes());
    key.verify(message, dss.signature()).map_err(|_| CertificateError::BadSignature)?;
    Ok(HandshakeSignatureValid::assertion())
}

#[cfg(test)]
mod tests;
