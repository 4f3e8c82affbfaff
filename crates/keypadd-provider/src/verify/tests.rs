//! Runs whole TLS 1.3 handshakes in memory, with ring's suites, our groups and our verifiers. Each
//! test states both sides' errors, because the session maps them to QUIC's close codes.
#![allow(clippy::unwrap_used)]

use rustls::client::{AlwaysResolvesClientRawPublicKeys, ResolvesClientCert};
use rustls::crypto::ring::sign::any_eddsa_type;
use rustls::crypto::{CryptoProvider, ring};
use rustls::pki_types::PrivatePkcs8KeyDer;
use rustls::pki_types::pem::PemObject;
use rustls::server::{AlwaysResolvesServerRawPublicKeys, ResolvesServerCert};
use rustls::sign::{CertifiedKey, Signer, SigningKey};
use rustls::version::TLS13;
use rustls::{
    AlertDescription, ClientConfig, ClientConnection, Connection, ServerConfig, ServerConnection,
    SignatureAlgorithm,
};

use super::*;
use crate::identity::PrivateKey;
use crate::kx::{Group, KeyExchange};

/// A list with these keys.
#[derive(Debug)]
struct Keys {
    listed: Vec<PublicKey>,
    expired: Vec<PublicKey>,
}

impl AllowList for Keys {
    fn allows(&self, key: &PublicKey) -> bool {
        self.listed.contains(key)
    }

    fn has_expired(&self, key: &PublicKey) -> bool {
        self.expired.contains(key)
    }
}

fn key() -> PrivateKey {
    PrivateKey::generate().unwrap()
}

fn provider(kex: &[Group]) -> Arc<CryptoProvider> {
    Arc::new(CryptoProvider {
        kx_groups: kex.iter().map(|kex| kex.group()).collect(),
        ..ring::default_provider()
    })
}

/// The parties of a handshake: who presents what, who expects whom.
struct Parties {
    kex: Group,
    server_kex: Vec<Group>,
    pinned: PublicKey,
    pinned_too: Vec<PublicKey>,
    listed: Vec<PublicKey>,
    expired: Vec<PublicKey>,
    client: Option<Arc<dyn ResolvesClientCert>>,
    server: Arc<dyn ResolvesServerCert>,
}

impl Parties {
    /// A client and a server that know each other.
    fn acquainted(client: &PrivateKey, server: &PrivateKey) -> Self {
        Self {
            kex: KeyExchange::default().into(),
            server_kex: Group::all().collect(),
            pinned: server.public(),
            pinned_too: Vec::new(),
            listed: vec![client.public()],
            expired: Vec::new(),
            client: Some(client.client_resolver().unwrap()),
            server: server.server_resolver().unwrap(),
        }
    }

    fn shake_hands(self) -> Outcome {
        let pinned = PinnedServer::one_of(self.pinned, self.pinned_too);
        let keys = Keys { listed: self.listed, expired: self.expired };
        let client = ClientConfig::builder_with_provider(provider(&[self.kex]))
            .with_protocol_versions(&[&TLS13])
            .unwrap()
            .dangerous()
            .with_custom_certificate_verifier(Arc::new(pinned));
        let client = match self.client {
            Some(resolver) => client.with_client_cert_resolver(resolver),
            None => client.with_no_client_auth(),
        };
        let server = ServerConfig::builder_with_provider(provider(&self.server_kex))
            .with_protocol_versions(&[&TLS13])
            .unwrap()
            .with_client_cert_verifier(Arc::new(ListedClients::new(Arc::new(keys))))
            .with_cert_resolver(self.server);
        let name = ServerName::try_from("keypadd").unwrap();
        let client = ClientConnection::new(Arc::new(client), name).unwrap();
        Outcome::of(client, ServerConnection::new(Arc::new(server)).unwrap())
    }
}

/// How a handshake ended on each side. A client may succeed and be refused later: in TLS 1.3 it
/// finishes before the server has seen its key.
struct Outcome {
    client: Result<Connection, Error>,
    server: Result<Connection, Error>,
}

impl Outcome {
    fn of(client: ClientConnection, server: ServerConnection) -> Self {
        let (mut client, mut server) = (Connection::from(client), Connection::from(server));
        let (mut client_error, mut server_error) = (None, None);
        while client.wants_write() || server.wants_write() {
            deliver(&mut client, &mut server, &mut server_error);
            deliver(&mut server, &mut client, &mut client_error);
        }
        Self {
            client: client_error.map_or(Ok(client), Err),
            server: server_error.map_or(Ok(server), Err),
        }
    }

    fn errors(self) -> (Option<Error>, Option<Error>) {
        (self.client.err(), self.server.err())
    }
}

/// Delivers all output of `from`; keeps the first error of `to`, which may still answer.
fn deliver(from: &mut Connection, to: &mut Connection, error: &mut Option<Error>) {
    let mut wire = Vec::new();
    while from.wants_write() {
        from.write_tls(&mut wire).unwrap();
    }
    let mut wire = wire.as_slice();
    while !wire.is_empty() && error.is_none() {
        to.read_tls(&mut wire).unwrap();
        *error = to.process_new_packets().err();
    }
}

fn peer(connection: &Connection) -> PublicKey {
    let certificates = connection.peer_certificates().unwrap();
    assert_eq!(certificates.len(), 1);
    PublicKey::from_spki(&certificates[0]).unwrap()
}

/// An impostor's key: the public key of one, the signature of another.
fn shown_but_not_held(shown: PublicKey, held: &PrivateKey) -> Arc<CertifiedKey> {
    let der = PrivatePkcs8KeyDer::from_pem_slice(held.to_pem().as_bytes()).unwrap();
    let signer = any_eddsa_type(&der).unwrap();
    Arc::new(CertifiedKey::new(vec![shown.spki().to_vec().into()], signer))
}

fn alert(description: AlertDescription) -> Error {
    Error::AlertReceived(description)
}

#[test]
fn the_right_keys_connect_over_every_key_exchange() {
    for kex in Group::all() {
        let (client, server) = (key(), key());
        let outcome = Parties { kex, ..Parties::acquainted(&client, &server) }.shake_hands();
        let (at_client, at_server) = (outcome.client.unwrap(), outcome.server.unwrap());
        assert!(!at_client.is_handshaking() && !at_server.is_handshaking());
        assert_eq!(peer(&at_client), server.public());
        assert_eq!(peer(&at_server), client.public());
        for side in [at_client, at_server] {
            let group = side.negotiated_key_exchange_group().unwrap();
            assert_eq!(Group::from_named_group(group.name(), &[kex]), Some(kex));
        }
    }
}

#[test]
fn a_client_that_is_not_listed_is_refused_by_name() {
    let (client, server) = (key(), key());
    let parties = Parties { listed: vec![key().public()], ..Parties::acquainted(&client, &server) };
    let (at_client, at_server) = parties.shake_hands().errors();
    let at_server = at_server.unwrap();
    let refused = Refusal::from_error(&at_server);
    assert_eq!(refused, Some(&Refusal::KeyNotAllowed(client.public())));
    assert_eq!(refused.unwrap().to_string(), format!("key not allowed: {}", client.public()));
    // rustls's alert for an error of ours; over QUIC the session may choose another.
    assert_eq!(at_client, Some(alert(AlertDescription::CertificateUnknown)));
}

#[test]
fn a_server_with_another_key_than_the_pinned_one_is_refused() {
    let (client, server, pinned) = (key(), key(), key().public());
    let parties = Parties { pinned, ..Parties::acquainted(&client, &server) };
    let (at_client, at_server) = parties.shake_hands().errors();
    let expected = Refusal::NotPinned(server.public());
    assert_eq!(Refusal::from_error(&at_client.unwrap()), Some(&expected));
    assert_eq!(at_server, Some(alert(AlertDescription::CertificateUnknown)));
}

#[test]
fn each_of_several_pinned_keys_is_accepted_and_no_other() {
    let (client, old, new) = (key(), key(), key());
    for (server, accepted) in [(&old, true), (&new, true), (&key(), false)] {
        let (pinned, pinned_too) = (old.public(), vec![new.public()]);
        let parties = Parties { pinned, pinned_too, ..Parties::acquainted(&client, server) };
        let (at_client, _) = parties.shake_hands().errors();
        assert_eq!(at_client.is_none(), accepted, "{at_client:?}");
    }
}

#[test]
fn a_listed_client_whose_time_is_over_is_refused_as_such() {
    let (client, server) = (key(), key());
    let expired = vec![client.public()];
    let parties = Parties { expired: expired.clone(), ..Parties::acquainted(&client, &server) };
    let (_, at_server) = parties.shake_hands().errors();
    let refused = Refusal::from_error(at_server.as_ref().unwrap()).cloned();
    assert_eq!(refused, Some(Refusal::KeyExpired(client.public())));
    // A stranger is not told of dates.
    let parties = Parties { listed: Vec::new(), expired, ..Parties::acquainted(&client, &server) };
    let (_, at_server) = parties.shake_hands().errors();
    let refused = Refusal::from_error(at_server.as_ref().unwrap()).cloned();
    assert_eq!(refused, Some(Refusal::KeyNotAllowed(client.public())));
}

#[test]
fn a_server_without_the_pinned_private_key_is_refused() {
    let (client, server) = (key(), key());
    let liar = shown_but_not_held(server.public(), &key());
    let liar = Arc::new(AlwaysResolvesServerRawPublicKeys::new(liar));
    let parties = Parties { server: liar, ..Parties::acquainted(&client, &server) };
    let (at_client, at_server) = parties.shake_hands().errors();
    assert_eq!(at_client, Some(CertificateError::BadSignature.into()));
    assert_eq!(at_server, Some(alert(AlertDescription::DecryptError)));
}

#[test]
fn a_client_without_the_private_key_cannot_tell_whether_a_key_is_listed() {
    let (client, server) = (key(), key());
    for listed in [vec![client.public()], vec![]] {
        let liar = shown_but_not_held(client.public(), &key());
        let liar: Arc<dyn ResolvesClientCert> =
            Arc::new(AlwaysResolvesClientRawPublicKeys::new(liar));
        let parties =
            Parties { client: Some(liar), listed, ..Parties::acquainted(&client, &server) };
        let (at_client, at_server) = parties.shake_hands().errors();
        assert_eq!(at_server, Some(CertificateError::BadSignature.into()));
        assert_eq!(at_client, Some(alert(AlertDescription::DecryptError)));
    }
}

/// Claims to have a raw public key, then presents none.
#[derive(Debug)]
struct NoRawKey;

impl ResolvesClientCert for NoRawKey {
    fn resolve(&self, _: &[&[u8]], _: &[SignatureScheme]) -> Option<Arc<CertifiedKey>> {
        None
    }

    fn only_raw_public_keys(&self) -> bool {
        true
    }

    fn has_certs(&self) -> bool {
        true
    }
}

#[test]
fn a_client_without_a_key_is_refused() {
    let (client, server) = (key(), key());
    // A client without support for raw public keys, such as any browser.
    let parties = Parties { client: None, ..Parties::acquainted(&client, &server) };
    let (at_client, at_server) = parties.shake_hands().errors();
    let expected = PeerIncompatible::IncorrectCertificateTypeExtension;
    assert_eq!(at_server, Some(Error::PeerIncompatible(expected)));
    assert_eq!(at_client, Some(alert(AlertDescription::HandshakeFailure)));

    // A client with support that withholds its key.
    let client_resolver: Option<Arc<dyn ResolvesClientCert>> = Some(Arc::new(NoRawKey));
    let parties = Parties { client: client_resolver, ..Parties::acquainted(&client, &server) };
    let (at_client, at_server) = parties.shake_hands().errors();
    assert_eq!(at_server, Some(Error::NoCertificatesPresented));
    assert_eq!(at_client, Some(alert(AlertDescription::CertificateRequired)));
}

#[test]
fn no_common_key_exchange_is_an_error_of_its_own() {
    let (client, server) = (key(), key());
    let mut parties = Parties::acquainted(&client, &server);
    parties.server_kex = vec![KeyExchange::Secp384r1.into()];
    let (at_client, at_server) = parties.shake_hands().errors();
    let expected = PeerIncompatible::NoKxGroupsInCommon;
    assert_eq!(at_server, Some(Error::PeerIncompatible(expected)));
    assert_eq!(at_client, Some(alert(AlertDescription::HandshakeFailure)));
}

#[test]
fn a_certificate_other_than_an_ed25519_key_is_refused() {
    let (client, server) = (key(), key());
    let mut weak = client.public().spki();
    weak[12..].fill(0);
    for shown in [weak.to_vec(), weak[1..].to_vec(), vec![0]] {
        let der = PrivatePkcs8KeyDer::from_pem_slice(client.to_pem().as_bytes()).unwrap();
        let odd = CertifiedKey::new(vec![shown.into()], any_eddsa_type(&der).unwrap());
        let odd: Arc<dyn ResolvesClientCert> =
            Arc::new(AlwaysResolvesClientRawPublicKeys::new(Arc::new(odd)));
        let parties = Parties { client: Some(odd), ..Parties::acquainted(&client, &server) };
        let (at_client, at_server) = parties.shake_hands().errors();
        assert_eq!(at_server, Some(CertificateError::BadEncoding.into()));
        assert_eq!(at_client, Some(alert(AlertDescription::BadCertificate)));
    }
}

#[test]
fn a_chain_behind_a_raw_key_is_refused() {
    let (client, server) = (key(), key());
    let der = PrivatePkcs8KeyDer::from_pem_slice(client.to_pem().as_bytes()).unwrap();
    let entry = || client.public().spki().to_vec().into();
    let chain = CertifiedKey::new(vec![entry(), entry()], any_eddsa_type(&der).unwrap());
    let chain: Arc<dyn ResolvesClientCert> =
        Arc::new(AlwaysResolvesClientRawPublicKeys::new(Arc::new(chain)));
    let parties = Parties { client: Some(chain), ..Parties::acquainted(&client, &server) };
    let (at_client, at_server) = parties.shake_hands().errors();
    assert_eq!(at_server, Some(CertificateError::BadEncoding.into()));
    assert_eq!(at_client, Some(alert(AlertDescription::BadCertificate)));
}

/// Signs with a scheme that was not offered.
#[derive(Debug)]
struct UnofferedScheme;

impl SigningKey for UnofferedScheme {
    fn choose_scheme(&self, _: &[SignatureScheme]) -> Option<Box<dyn Signer>> {
        Some(Box::new(Self))
    }

    fn algorithm(&self) -> SignatureAlgorithm {
        SignatureAlgorithm::ECDSA
    }
}

impl Signer for UnofferedScheme {
    fn sign(&self, _: &[u8]) -> Result<Vec<u8>, Error> {
        Ok(vec![0; 64])
    }

    fn scheme(&self) -> SignatureScheme {
        SignatureScheme::ECDSA_NISTP256_SHA256
    }
}

#[test]
fn a_signature_under_another_scheme_is_refused() {
    let (client, server) = (key(), key());
    let odd =
        CertifiedKey::new(vec![client.public().spki().to_vec().into()], Arc::new(UnofferedScheme));
    let odd: Arc<dyn ResolvesClientCert> =
        Arc::new(AlwaysResolvesClientRawPublicKeys::new(Arc::new(odd)));
    let parties = Parties { client: Some(odd), ..Parties::acquainted(&client, &server) };
    let (at_client, at_server) = parties.shake_hands().errors();
    let expected = PeerMisbehaved::SignedHandshakeWithUnadvertisedSigScheme;
    assert_eq!(at_server, Some(Error::PeerMisbehaved(expected)));
    assert_eq!(at_client, Some(alert(AlertDescription::IllegalParameter)));
}
