//! Who may be at the other end: the pinned server, the listed clients.
//!
//! Both judge a raw public key (RFC 7250), and both demand the proof that the peer holds the private
//! half: the signature over the handshake (RFC 8446, section 4.4.3). There are no names, dates or
//! chains. TLS 1.2 and any scheme but Ed25519 are refused. Knows no sockets and writes no logs: a
//! refusal is an error that carries the key ([`RefusedKey`]).

use std::fmt;
use std::sync::Arc;

use keypadd_pool::Allowance;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::{WebPkiSupportedAlgorithms, ring, verify_tls13_signature_with_raw_key};
use rustls::pki_types::{CertificateDer, ServerName, SubjectPublicKeyInfoDer, UnixTime};
use rustls::server::danger::{ClientCertVerified, ClientCertVerifier};
use rustls::{
    CertificateError, DigitallySignedStruct, DistinguishedName, Error, OtherError,
    PeerIncompatible, PeerMisbehaved, SignatureScheme,
};
use thiserror::Error as ThisError;

use crate::identity::PublicKey;

/// The clients that may come in. Asked once per handshake, from the thread that drives it, so it must
/// not block; a list that changes is asked anew by the next handshake.
pub trait AllowList: fmt::Debug + Send + Sync {
    /// Whether the holder of `key` may connect.
    fn allows(&self, key: &PublicKey) -> bool;

    /// How much of the pool the connections of `key` may hold together; `None` is no limit. Asked once
    /// per connection, when the key has been proved.
    fn allowance(&self, _key: &PublicKey) -> Option<Allowance> {
        None
    }
}

/// The key that a handshake was refused for.
///
/// It travels as `Error::InvalidCertificate(CertificateError::Other(..))`; read it back with
/// [`RefusedKey::from_error`]. rustls's alert for that error is `certificate_unknown` (46); a QUIC
/// session is free to close with another, and `access_denied` (49) says it better.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ThisError)]
#[non_exhaustive]
pub enum RefusedKey {
    /// A client's key is on no list. The client has proved that the key is its own.
    #[error("key not allowed: {0}")]
    NotAllowed(PublicKey),
    /// The server is not the one that was asked for. It need not hold the key that it showed.
    #[error("the server's key is {shown}, not {pinned}")]
    NotPinned {
        /// The key that the server sent.
        shown: PublicKey,
        /// The key that was asked for.
        pinned: PublicKey,
    },
}

impl RefusedKey {
    /// The refused key in an error of rustls, if that is what ended the handshake.
    pub fn from_error(error: &Error) -> Option<&Self> {
        match error {
            Error::InvalidCertificate(CertificateError::Other(OtherError(inner))) => {
                inner.downcast_ref()
            }
            _ => None,
        }
    }
}

impl From<RefusedKey> for Error {
    fn from(refused: RefusedKey) -> Self {
        Self::InvalidCertificate(CertificateError::Other(OtherError(Arc::new(refused))))
    }
}

/// The client's judge: the server must hold the one key that the user named.
#[derive(Debug)]
pub struct PinnedServer {
    pinned: PublicKey,
    signatures: Ed25519Signatures,
}

impl PinnedServer {
    /// Accepts the holder of `pinned` and nobody else.
    pub fn new(pinned: PublicKey) -> Self {
        Self { pinned, signatures: Ed25519Signatures::new() }
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
        if shown != self.pinned {
            return Err(RefusedKey::NotPinned { shown, pinned: self.pinned }.into());
        }
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        _message: &[u8],
        _cert: &CertificateDer<'_>,
        _dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        Err(TLS12_REFUSED)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.signatures.verify(message, cert, dss)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        vec![SignatureScheme::ED25519]
    }

    fn requires_raw_public_keys(&self) -> bool {
        true
    }
}

/// The server's judge: the client must hold a key that the list allows.
///
/// The list is asked after the signature has been checked, not when the key is shown. So a stranger
/// cannot find out which keys are listed by showing them, nor make the server name someone else's key
/// in its log.
#[derive(Debug)]
pub struct ListedClients {
    allowed: Arc<dyn AllowList>,
    signatures: Ed25519Signatures,
}

impl ListedClients {
    /// Accepts the holders of the keys that `allowed` allows.
    pub fn new(allowed: Arc<dyn AllowList>) -> Self {
        Self { allowed, signatures: Ed25519Signatures::new() }
    }
}

impl ClientCertVerifier for ListedClients {
    /// No hints: there are no issuers. A client without a key is refused, by `client_auth_mandatory`,
    /// which stays true.
    fn root_hint_subjects(&self) -> &[DistinguishedName] {
        &[]
    }

    fn verify_client_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        _now: UnixTime,
    ) -> Result<ClientCertVerified, Error> {
        // Only the form: the list's turn comes with the signature.
        read_key(end_entity, intermediates)?;
        Ok(ClientCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        _message: &[u8],
        _cert: &CertificateDer<'_>,
        _dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        Err(TLS12_REFUSED)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        let valid = self.signatures.verify(message, cert, dss)?;
        let key = read_key(cert, &[])?;
        if !self.allowed.allows(&key) {
            return Err(RefusedKey::NotAllowed(key).into());
        }
        Ok(valid)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        vec![SignatureScheme::ED25519]
    }

    fn requires_raw_public_keys(&self) -> bool {
        true
    }
}

/// Never reached while the configuration offers TLS 1.3 alone; if it is, the handshake ends.
const TLS12_REFUSED: Error = Error::PeerIncompatible(PeerIncompatible::Tls13RequiredForQuic);

/// The key in a peer's Certificate message: for a raw public key one entry, the SubjectPublicKeyInfo
/// (RFC 8446, section 4.4.2). Anything else is `bad_certificate`.
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

/// The check of a CertificateVerify message, on ring.
#[derive(Debug)]
struct Ed25519Signatures(WebPkiSupportedAlgorithms);

impl Ed25519Signatures {
    fn new() -> Self {
        Self(ring::default_provider().signature_verification_algorithms)
    }

    fn verify(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        // ring's list has other schemes too, and rustls leaves it to us to hold the peer to ours.
        if dss.scheme != SignatureScheme::ED25519 {
            return Err(PeerMisbehaved::SignedHandshakeWithUnadvertisedSigScheme.into());
        }
        let spki = SubjectPublicKeyInfoDer::from(cert.as_ref());
        verify_tls13_signature_with_raw_key(message, &spki, dss, &self.0)
    }
}

#[cfg(test)]
mod tests;
