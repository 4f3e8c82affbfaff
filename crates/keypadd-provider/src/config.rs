//! Builds quinn's crypto configurations for clients and servers.
//!
//! TLS 1.3 alone, mutual raw public keys, ALPN `keypadd/1` required, no tickets, no 0-RTT, no
//! SNI. The client offers its suites and groups in the order given.

use std::sync::Arc;

use keypadd_keystream::{CipherEngine, Protection, Suite};
use quinn_proto::crypto::{self, Keys, Session, UnsupportedVersion};
use quinn_proto::transport_parameters::TransportParameters;
use quinn_proto::{ConnectError, ConnectionId, Side};
use rustls::client::Resumption;
use rustls::crypto::{
    CryptoProvider, GetRandomFailed, KeyProvider, SecureRandom, WebPkiSupportedAlgorithms,
};
use rustls::pki_types::{PrivateKeyDer, ServerName};
use rustls::quic::{ClientConnection, Connection, ServerConnection, Version};
use rustls::server::{NoServerSessionStorage, ResolvesServerCert};
use rustls::sign::SigningKey;
use rustls::version::TLS13;

use crate::calibration::opening_cost;
use crate::handshake_errors::{HandshakeErrors, OfferRecorder, Preferences};
use crate::identity::{PrivateKey, PublicKey};
use crate::kx::{Group, KeyExchange};
use crate::meters::Meters;
use crate::pool_switch::PoolSwitch;
use crate::retry;
use crate::session::{PooledSession, SessionContext, initial_keys};
use crate::suites::tls_suite;
use crate::test_hooks::TestHooks;
use crate::verify::{AllowList, ListedClients, PinnedServer};

/// The application protocol, in ALPN's form (RFC 7301).
pub const ALPN: &[u8] = b"keypadd/1";

/// The protocol of pairings, so that an end of a session never talks to an end of a pairing.
const PAIRING_ALPN: &[u8] = b"keypadd-pair/1";

/// TLS wants a server name; with SNI off and keys pinned it is never sent nor compared.
const SERVER_NAME: &str = "keypadd";

const CHACHA20_POLY1305: Protection = Suite::CHACHA20_POLY1305.protection();

/// QUIC version 1 (RFC 9000) alone.
const QUIC_VERSION: u32 = 1;

/// Settings of either end.
#[derive(Clone, Debug)]
pub struct CryptoSettings {
    /// This host's key.
    pub key: Arc<PrivateKey>,
    /// Suites to offer or accept, in order of preference.
    pub suites: Vec<Protection>,
    /// Key exchanges to offer or accept, in order of preference.
    pub kex: Vec<Group>,
    /// The pool that pads come from, if any.
    pub pool: PoolSwitch,
    /// The cipher implementation.
    pub cipher_engine: CipherEngine,
    /// Counts packets.
    pub meters: Arc<Meters>,
}

/// rustls rejected the settings.
#[derive(Debug, thiserror::Error)]
#[error("the TLS library refused the settings")]
pub struct ConfigError(#[from] rustls::Error);

impl CryptoSettings {
    /// One suite, X25519 and no pool, for callers to change field by field.
    pub fn plain(key: Arc<PrivateKey>, suite: impl Into<Protection>) -> Self {
        Self {
            key,
            suites: vec![suite.into()],
            kex: vec![KeyExchange::X25519.into()],
            pool: PoolSwitch::default(),
            cipher_engine: CipherEngine::default(),
            meters: Arc::new(Meters::default()),
        }
    }

    fn provider(&self) -> Arc<CryptoProvider> {
        Arc::new(CryptoProvider {
            cipher_suites: self.suites.iter().map(|&suite| tls_suite(suite)).collect(),
            kx_groups: self.kex.iter().map(|kex| kex.group()).collect(),
            // Our verifiers check signatures.
            signature_verification_algorithms: WebPkiSupportedAlgorithms { all: &[], mapping: &[] },
            secure_random: &System,
            key_provider: &System,
        })
    }

    fn context(&self, listed: Option<Arc<dyn AllowList>>, hooks: &TestHooks) -> SessionContext {
        // Now, rather than in a handshake.
        for &suite in &self.suites {
            opening_cost(suite, self.cipher_engine);
        }
        SessionContext {
            own: self.key.public(),
            preferences: Arc::new(Preferences {
                suites: self.suites.clone(),
                kex: self.kex.clone(),
            }),
            pool: self.pool.clone(),
            listed,
            meters: Arc::clone(&self.meters),
            cipher_engine: self.cipher_engine,
            hooks: hooks.clone(),
        }
    }
}

/// What rustls needs of a provider besides suites and groups: the system's randomness, and key
/// files, which rustls does not read here. ring's own provider would link RSA, P-256 and ChaCha20,
/// which nothing uses.
#[derive(Debug)]
struct System;

impl SecureRandom for System {
    fn fill(&self, bytes: &mut [u8]) -> Result<(), GetRandomFailed> {
        getrandom::fill(bytes).map_err(|_| GetRandomFailed)
    }
}

impl KeyProvider for System {
    fn load_private_key(
        &self,
        _: PrivateKeyDer<'static>,
    ) -> Result<Arc<dyn SigningKey>, rustls::Error> {
        Err(rustls::Error::General("private keys are not read by the TLS library".into()))
    }
}

/// A client that connects only to the holder of a key that `server` pins.
///
/// # Errors
/// If rustls rejects the settings, such as an empty list of suites or key exchanges.
pub fn client_config(
    settings: &CryptoSettings,
    server: impl Into<PinnedServer>,
) -> Result<Arc<dyn crypto::ClientConfig>, ConfigError> {
    client_config_with(settings, server, &TestHooks::default())
}

/// As [`client_config`], with test hooks.
///
/// # Errors
/// As for [`client_config`].
pub fn client_config_with(
    settings: &CryptoSettings,
    server: impl Into<PinnedServer>,
    hooks: &TestHooks,
) -> Result<Arc<dyn crypto::ClientConfig>, ConfigError> {
    client(settings, server.into(), ALPN, hooks)
}

/// The joining end of a pairing: connects only to the holder of `inviter`, and only to pair.
///
/// # Errors
/// As for [`client_config`].
pub fn joiner_config(
    settings: &CryptoSettings,
    inviter: PublicKey,
) -> Result<Arc<dyn crypto::ClientConfig>, ConfigError> {
    client(settings, inviter.into(), PAIRING_ALPN, &TestHooks::default())
}

fn client(
    settings: &CryptoSettings,
    server: PinnedServer,
    alpn: &[u8],
    hooks: &TestHooks,
) -> Result<Arc<dyn crypto::ClientConfig>, ConfigError> {
    let mut tls = rustls::ClientConfig::builder_with_provider(settings.provider())
        .with_protocol_versions(&[&TLS13])?
        .dangerous()
        .with_custom_certificate_verifier(Arc::new(server))
        .with_client_cert_resolver(settings.key.client_resolver()?);
    tls.alpn_protocols = vec![alpn.to_vec()];
    tls.enable_sni = false;
    tls.resumption = Resumption::disabled();
    tls.key_log = Arc::clone(&hooks.key_log);
    Ok(Arc::new(PooledClient { tls: Arc::new(tls), context: settings.context(None, hooks) }))
}

/// A server that accepts only holders of keys that `allowed` lists. It follows the client's order
/// of suites, which begins with the client's cheapest, unless its own begins with ChaCha20: then
/// the server is the end without AES instructions (as BoringSSL and OpenSSL do).
///
/// # Errors
/// As for [`client_config`].
pub fn server_config(
    settings: &CryptoSettings,
    allowed: Arc<dyn AllowList>,
) -> Result<Arc<dyn crypto::ServerConfig>, ConfigError> {
    server_config_with(settings, allowed, &TestHooks::default())
}

/// As [`server_config`], with test hooks.
///
/// # Errors
/// As for [`client_config`].
pub fn server_config_with(
    settings: &CryptoSettings,
    allowed: Arc<dyn AllowList>,
    hooks: &TestHooks,
) -> Result<Arc<dyn crypto::ServerConfig>, ConfigError> {
    server(settings, allowed, ALPN, hooks)
}

/// The inviting end of a pairing: accepts every client that proves a key of its own, and only to
/// pair.
///
/// # Errors
/// As for [`client_config`].
pub fn inviter_config(
    settings: &CryptoSettings,
) -> Result<Arc<dyn crypto::ServerConfig>, ConfigError> {
    server(settings, Arc::new(AllowAll), PAIRING_ALPN, &TestHooks::default())
}

/// Lists every key: a pairing peer is not listed yet.
#[derive(Debug)]
struct AllowAll;

impl AllowList for AllowAll {
    fn allows(&self, _: &PublicKey) -> bool {
        true
    }
}

fn server(
    settings: &CryptoSettings,
    allowed: Arc<dyn AllowList>,
    alpn: &[u8],
    hooks: &TestHooks,
) -> Result<Arc<dyn crypto::ServerConfig>, ConfigError> {
    let resolver = settings.key.server_resolver()?;
    let mut tls = rustls::ServerConfig::builder_with_provider(settings.provider())
        .with_protocol_versions(&[&TLS13])?
        .with_client_cert_verifier(Arc::new(ListedClients::new(Arc::clone(&allowed))))
        .with_cert_resolver(Arc::clone(&resolver));
    tls.ignore_client_order = settings.suites.first() == Some(&CHACHA20_POLY1305);
    tls.alpn_protocols = vec![alpn.to_vec()];
    tls.session_storage = Arc::new(NoServerSessionStorage {});
    tls.send_tls13_tickets = 0;
    tls.max_early_data_size = 0;
    tls.key_log = Arc::clone(&hooks.key_log);
    let context = settings.context(Some(allowed), hooks);
    Ok(Arc::new(PooledServer { tls, resolver, context }))
}

struct PooledClient {
    tls: Arc<rustls::ClientConfig>,
    context: SessionContext,
}

impl crypto::ClientConfig for PooledClient {
    fn start_session(
        self: Arc<Self>,
        version: u32,
        _: &str,
        params: &TransportParameters,
    ) -> Result<Box<dyn Session>, ConnectError> {
        if version != QUIC_VERSION {
            return Err(ConnectError::UnsupportedVersion);
        }
        let invalid = || ConnectError::InvalidServerName(SERVER_NAME.into());
        let name = ServerName::try_from(SERVER_NAME).map_err(|_| invalid())?;
        let tls = Arc::clone(&self.tls);
        let connection =
            ClientConnection::new(tls, Version::V1, name, encode(params)).map_err(|_| invalid())?;
        let connection = Connection::Client(connection);
        let errors = HandshakeErrors::default();
        Ok(Box::new(PooledSession::new(connection, self.context.clone(), errors)))
    }
}

struct PooledServer {
    tls: rustls::ServerConfig,
    resolver: Arc<dyn ResolvesServerCert>,
    context: SessionContext,
}

impl crypto::ServerConfig for PooledServer {
    fn initial_keys(
        &self,
        version: u32,
        dst_cid: &ConnectionId,
    ) -> Result<Keys, UnsupportedVersion> {
        if version != QUIC_VERSION {
            return Err(UnsupportedVersion);
        }
        Ok(initial_keys(dst_cid, Side::Server))
    }

    fn retry_tag(&self, _: u32, orig_dst_cid: &ConnectionId, packet: &[u8]) -> [u8; 16] {
        retry::tag(orig_dst_cid, packet)
    }

    fn start_session(self: Arc<Self>, _: u32, params: &TransportParameters) -> Box<dyn Session> {
        let errors = HandshakeErrors::new(Arc::clone(&self.context.preferences));
        let mut tls = self.tls.clone();
        let resolver = Arc::clone(&self.resolver);
        tls.cert_resolver = Arc::new(OfferRecorder { resolver, errors: errors.clone() });
        let connection = ServerConnection::new(Arc::new(tls), Version::V1, encode(params))
            .expect("a configuration with QUIC suites for TLS 1.3 and no early data");
        Box::new(PooledSession::new(connection.into(), self.context.clone(), errors))
    }
}

fn encode(params: &TransportParameters) -> Vec<u8> {
    let mut bytes = Vec::new();
    params.write(&mut bytes);
    bytes
}
