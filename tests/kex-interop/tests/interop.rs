//! Tests our key exchange groups against those of rustls's aws-lc-rs provider, which no shipped
//! crate depends on: first the groups alone, then whole TLS 1.3 handshakes with raw public keys,
//! with ours on either side.
#![allow(clippy::unwrap_used)]

use std::sync::Arc;

use keypadd_provider::{KeyExchange, ListedClients, PinnedServer, PrivateKey, PublicKey};
use rustls::client::AlwaysResolvesClientRawPublicKeys;
use rustls::crypto::{CryptoProvider, SupportedKxGroup, aws_lc_rs, ring};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{PrivatePkcs8KeyDer, ServerName};
use rustls::server::AlwaysResolvesServerRawPublicKeys;
use rustls::sign::CertifiedKey;
use rustls::version::TLS13;
use rustls::{
    ClientConfig, ClientConnection, Connection, NamedGroup, ServerConfig, ServerConnection,
};

/// Pairs of our group and the same group in aws-lc-rs.
fn groups() -> [(KeyExchange, &'static dyn SupportedKxGroup); 3] {
    [
        (KeyExchange::X25519MlKem768, aws_lc_rs::kx_group::X25519MLKEM768),
        (KeyExchange::X25519, aws_lc_rs::kx_group::X25519),
        (KeyExchange::Secp384r1, aws_lc_rs::kx_group::SECP384R1),
    ]
}

/// Rounds per pairing: enough to catch a coefficient that is only occasionally misencoded.
const ROUNDS: usize = 50;

fn assert_agree(client: &dyn SupportedKxGroup, server: &dyn SupportedKxGroup) {
    for _ in 0..ROUNDS {
        let at_client = client.start().unwrap();
        let at_server = server.start_and_complete(at_client.pub_key()).unwrap();
        let secret = at_client.complete(&at_server.pub_key).unwrap();
        assert_eq!(secret.secret_bytes(), at_server.secret.secret_bytes());
    }
}

#[test]
fn groups_agree_with_aws_lc_rs_in_both_roles() {
    for (ours, theirs) in groups() {
        assert_eq!(ours.group().name(), theirs.name());
        assert_agree(ours.group(), theirs);
        assert_agree(theirs, ours.group());
    }
}

#[test]
fn the_classical_half_of_either_hybrid_stands_alone() {
    let (hybrid, classical) = (KeyExchange::X25519MlKem768.group(), KeyExchange::X25519.group());
    let pairs =
        [(hybrid, aws_lc_rs::kx_group::X25519), (aws_lc_rs::kx_group::X25519MLKEM768, classical)];
    for (client, server) in pairs {
        let at_client = client.start().unwrap();
        let (group, share) = at_client.hybrid_component().unwrap();
        assert_eq!(group, NamedGroup::X25519);
        let at_server = server.start_and_complete(share).unwrap();
        let secret = at_client.complete_hybrid_component(&at_server.pub_key).unwrap();
        assert_eq!(secret.secret_bytes(), at_server.secret.secret_bytes());
    }
}

#[test]
fn a_changed_ciphertext_gives_no_common_secret_with_either() {
    let (ours, theirs) = groups()[0];
    for (client, server) in [(ours.group(), theirs), (theirs, ours.group())] {
        let at_client = client.start().unwrap();
        let mut at_server = server.start_and_complete(at_client.pub_key()).unwrap();
        at_server.pub_key[0] ^= 1;
        let secret = at_client.complete(&at_server.pub_key).unwrap();
        assert_ne!(secret.secret_bytes(), at_server.secret.secret_bytes());
    }
}

/// ring's suites with our group.
fn our_provider(kex: KeyExchange) -> Arc<CryptoProvider> {
    Arc::new(CryptoProvider { kx_groups: vec![kex.group()], ..ring::default_provider() })
}

/// aws-lc-rs throughout: suites, group, randomness.
fn their_provider(group: &'static dyn SupportedKxGroup) -> Arc<CryptoProvider> {
    Arc::new(CryptoProvider { kx_groups: vec![group], ..aws_lc_rs::default_provider() })
}

/// Loads one of our keys into aws-lc-rs from its PEM text.
fn their_certified_key(key: &PrivateKey) -> Arc<CertifiedKey> {
    let der = PrivatePkcs8KeyDer::from_pem_slice(key.to_pem().as_bytes()).unwrap();
    let signer = aws_lc_rs::sign::any_eddsa_type(&der).unwrap();
    let spki = signer.public_key().expect("an Ed25519 key has its public half").into_owned();
    assert_eq!(spki.as_ref(), key.public().spki());
    Arc::new(CertifiedKey::new(vec![spki.as_ref().to_vec().into()], signer))
}

fn client_connection(
    provider: Arc<CryptoProvider>,
    resolver: Arc<dyn rustls::client::ResolvesClientCert>,
    pinned: PublicKey,
) -> Connection {
    let config = ClientConfig::builder_with_provider(provider)
        .with_protocol_versions(&[&TLS13])
        .unwrap()
        .dangerous()
        .with_custom_certificate_verifier(Arc::new(PinnedServer::new(pinned)))
        .with_client_cert_resolver(resolver);
    let name = ServerName::try_from("keypadd").unwrap();
    ClientConnection::new(Arc::new(config), name).unwrap().into()
}

fn server_connection(
    provider: Arc<CryptoProvider>,
    resolver: Arc<dyn rustls::server::ResolvesServerCert>,
    listed: PublicKey,
) -> Connection {
    let config = ServerConfig::builder_with_provider(provider)
        .with_protocol_versions(&[&TLS13])
        .unwrap()
        .with_client_cert_verifier(Arc::new(ListedClients::new(Arc::new(listed))))
        .with_cert_resolver(resolver);
    ServerConnection::new(Arc::new(config)).unwrap().into()
}

/// Delivers everything that `from` has to send.
fn deliver(from: &mut Connection, to: &mut Connection) {
    let mut wire = Vec::new();
    while from.wants_write() {
        from.write_tls(&mut wire).unwrap();
    }
    let mut wire = wire.as_slice();
    while !wire.is_empty() {
        to.read_tls(&mut wire).unwrap();
        to.process_new_packets().unwrap();
    }
}

fn assert_handshake(mut client: Connection, mut server: Connection, group: NamedGroup) {
    while client.wants_write() || server.wants_write() {
        deliver(&mut client, &mut server);
        deliver(&mut server, &mut client);
    }
    for side in [client, server] {
        assert!(!side.is_handshaking());
        assert_eq!(side.negotiated_key_exchange_group().unwrap().name(), group);
    }
}

#[test]
fn tls_handshakes_with_aws_lc_rs_succeed_in_both_roles() {
    let (ours, theirs) = (PrivateKey::generate().unwrap(), PrivateKey::generate().unwrap());
    for (kex, group) in groups() {
        let client =
            client_connection(our_provider(kex), ours.client_resolver().unwrap(), theirs.public());
        let resolver = AlwaysResolvesServerRawPublicKeys::new(their_certified_key(&theirs));
        let server = server_connection(their_provider(group), Arc::new(resolver), ours.public());
        assert_handshake(client, server, group.name());

        let resolver = AlwaysResolvesClientRawPublicKeys::new(their_certified_key(&theirs));
        let client = client_connection(their_provider(group), Arc::new(resolver), ours.public());
        let server =
            server_connection(our_provider(kex), ours.server_resolver().unwrap(), theirs.public());
        assert_handshake(client, server, group.name());
    }
}
