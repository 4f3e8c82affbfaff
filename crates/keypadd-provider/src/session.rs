//! Runs one connection's handshake and key schedule: quinn's `crypto::Session` over rustls (RFC
//! 9001).
//!
//! rustls runs TLS 1.3; the session turns the keys that it derives into ours, with direction and
//! phase. After the handshake it drops the rustls connection, which would otherwise keep the first
//! traffic secrets for its whole life. It keeps only the ratchet (`rustls::quic::Secrets`, which
//! replaces itself at each step) and what proofs of tokens need (`session_token`). The peer has
//! proved its key by then, and only from then on does the connection use a pool.
//!
//! Initial keys are public and ring's; they never reach our suites.

use std::any::Any;
use std::sync::Arc;

use keypadd_keystream::{CipherEngine, Protection};
use quinn_proto::crypto::{
    ExportKeyingMaterialError, HeaderKey, KeyPair, Keys, PacketKey, Session,
};
use quinn_proto::transport_parameters::TransportParameters;
use quinn_proto::{ConnectionId, Side, TransportError, TransportErrorCode};
use rustls::crypto::ring::cipher_suite::TLS13_AES_128_GCM_SHA256;
use rustls::quic::{Connection, KeyChange, Secrets, Version};

use crate::calibration::opening_cost;
use crate::connection::{ConnectionKeys, HandshakeData, ProvedPeer};
use crate::fault::FaultLatch;
use crate::handshake_errors::{HandshakeErrors, Preferences};
use crate::identity::PublicKey;
use crate::key_extraction::extract;
use crate::kx::Group;
use crate::limits::KeyLimits;
use crate::meters::Meters;
use crate::open::{Inbound, OpenKey};
use crate::parameters;
use crate::phases::NewestPhase;
use crate::pool_switch::{AttachedConnection, PoolSwitch};
use crate::protection::KeyProtection;
use crate::retry;
use crate::seal::{Outbound, SealKey};
use crate::session_token::Channel;
use crate::test_hooks::TestHooks;
use crate::tickets::TicketSkipper;
use crate::verify::AllowList;
use crate::wiped_stack::with_wiped_stack;

/// Upper bound on the stack of rustls where it derives packet keys: it moves them, and wipes only
/// the last copy.
const DERIVE_STACK_BYTES: usize = 16 << 10;

/// What a session needs besides TLS.
#[derive(Clone)]
pub(crate) struct SessionContext {
    /// The key that this end proves.
    pub(crate) own: PublicKey,
    pub(crate) preferences: Arc<Preferences>,
    pub(crate) pool: PoolSwitch,
    /// On a server: the clients that may connect, and their allowances.
    pub(crate) listed: Option<Arc<dyn AllowList>>,
    pub(crate) meters: Arc<Meters>,
    pub(crate) cipher_engine: CipherEngine,
    pub(crate) hooks: TestHooks,
}

/// A QUIC session whose packet keys take pads from a pool.
pub(crate) struct PooledSession {
    side: Side,
    tls: Tls,
    context: SessionContext,
    errors: HandshakeErrors,
    /// Set once 1-RTT keys exist.
    one_rtt: Option<OneRtt>,
    /// Set once the peer has proved its key.
    attached: Option<AttachedConnection>,
    /// Whether quinn has been told that handshake data is available.
    announced: bool,
}

/// The handshake in progress, then the results that quinn still needs.
enum Tls {
    Handshaking(Box<Connection>),
    Done {
        peer: ProvedPeer,
        transport_parameters: Vec<u8>,
        tickets: TicketSkipper,
    },
    /// The peer violated the protocol: the handshake never completes.
    Failed,
}

/// The key schedule of the 1-RTT space.
struct OneRtt {
    suite: Protection,
    limits: KeyLimits,
    kex: Group,
    secrets: Secrets,
    next_phase: u64,
    keys: ConnectionKeys,
}

impl PooledSession {
    pub(crate) fn new(
        connection: Connection,
        context: SessionContext,
        errors: HandshakeErrors,
    ) -> Self {
        let side = match connection {
            Connection::Client(_) => Side::Client,
            Connection::Server(_) => Side::Server,
        };
        let tls = Tls::Handshaking(Box::new(connection));
        Self { side, tls, context, errors, one_rtt: None, attached: None, announced: false }
    }

    /// Completes the handshake: drops rustls's connection and attaches to the pool.
    fn settle(&mut self) {
        let Tls::Handshaking(connection) = &self.tls else { return };
        let Some(one_rtt) = self.one_rtt.as_ref().filter(|_| !connection.is_handshaking()) else {
            return;
        };
        let peer = connection.peer_certificates().and_then(|keys| keys.first());
        let peer = peer.and_then(|spki| PublicKey::from_spki(spki).ok());
        let peer = peer.and_then(|key| {
            Some(ProvedPeer { key, channel: Channel::of(connection, self.context.own, key)? })
        });
        let parameters = connection.quic_transport_parameters();
        self.tls = match (peer, parameters) {
            (Some(peer), Some(parameters)) => {
                let transport_parameters = parameters.to_vec();
                let listed = self.context.listed.as_ref();
                let allowance = listed.and_then(|listed| listed.allowance(&peer.key));
                self.attached = Some(self.context.pool.attach(one_rtt.keys.clone(), allowance));
                Tls::Done { peer, transport_parameters, tickets: TicketSkipper::default() }
            }
            // Unreachable while the verifiers require raw keys; otherwise there is no pool.
            _ => Tls::Failed,
        };
    }
}

impl Session for PooledSession {
    fn initial_keys(&self, dst_cid: &ConnectionId, side: Side) -> Keys {
        initial_keys(dst_cid, side)
    }

    fn handshake_data(&self) -> Option<Box<dyn Any>> {
        let OneRtt { suite, kex, keys, .. } = self.one_rtt.as_ref()?;
        let opening_cost = opening_cost(*suite, self.context.cipher_engine);
        let (suite, kex, keys) = (*suite, *kex, keys.clone());
        Some(Box::new(HandshakeData { suite, kex, keys, opening_cost }))
    }

    /// The [`ProvedPeer`], once the handshake is complete.
    fn peer_identity(&self) -> Option<Box<dyn Any>> {
        match &self.tls {
            Tls::Done { peer, .. } => Some(Box::new(peer.clone())),
            _ => None,
        }
    }

    /// No 0-RTT: it could be replayed.
    fn early_crypto(&self) -> Option<(Box<dyn HeaderKey>, Box<dyn PacketKey>)> {
        None
    }

    fn early_data_accepted(&self) -> Option<bool> {
        (self.side == Side::Client).then_some(false)
    }

    fn is_handshaking(&self) -> bool {
        match &self.tls {
            Tls::Handshaking(connection) => connection.is_handshaking(),
            Tls::Done { .. } => false,
            Tls::Failed => true,
        }
    }

    fn read_handshake(&mut self, buf: &[u8]) -> Result<bool, TransportError> {
        let client = self.side == Side::Client;
        let connection = match &mut self.tls {
            Tls::Handshaking(connection) => connection,
            Tls::Done { tickets, .. } => {
                if client && tickets.skip(buf) {
                    return Ok(false);
                }
                // No post-handshake authentication, and QUIC forbids TLS key updates (RFC 9001
                // section 6): nothing else may follow the handshake.
                return Err(protocol_violation("TLS message after the handshake"));
            }
            Tls::Failed => return Err(protocol_violation("the handshake failed")),
        };
        if let Err(error) = connection.read_hs(buf) {
            return Err(self.errors.transport_error(&error, connection.alert()));
        }
        // quinn reads the data after calling `write_handshake`, which provides it.
        let complete = !connection.is_handshaking();
        Ok(complete && !std::mem::replace(&mut self.announced, true))
    }

    fn transport_parameters(&self) -> Result<Option<TransportParameters>, TransportError> {
        let (bytes, suite) = match &self.tls {
            Tls::Handshaking(connection) => {
                let suite = negotiated_suite(connection, &self.context.preferences);
                (connection.quic_transport_parameters(), suite)
            }
            Tls::Done { transport_parameters, .. } => {
                (Some(&transport_parameters[..]), self.one_rtt.as_ref().map(|keys| keys.suite))
            }
            Tls::Failed => (None, None),
        };
        // The message with the peer's parameters also settles the suite.
        let (Some(bytes), Some(suite)) = (bytes, suite) else { return Ok(None) };
        let read = |mut bytes: &[u8]| TransportParameters::read(self.side, &mut bytes);
        let parameters = match KeyLimits::of(suite).datagram_bytes_max {
            Some(most) => read(&parameters::bounded(bytes, most)),
            None => read(bytes),
        };
        Ok(Some(parameters?))
    }

    fn write_handshake(&mut self, buf: &mut Vec<u8>) -> Option<Keys> {
        let Tls::Handshaking(connection) = &mut self.tls else { return None };
        let change = with_wiped_stack::<DERIVE_STACK_BYTES, _>(|| connection.write_hs(buf));
        let Some(change) = change else {
            if buf.is_empty() {
                self.settle();
            }
            return None;
        };
        let preferences = &self.context.preferences;
        let suite = negotiated_suite(connection, preferences)
            .expect("rustls negotiates what we configured");
        let group = connection.negotiated_key_exchange_group();
        let kex = group.and_then(|group| preferences.group(group.name()));
        let limits = self.context.hooks.limits(suite);
        let (keys, (outbound, inbound)) = match change {
            // Handshake packets are few and never pooled, so they are not counted.
            KeyChange::Handshake { keys } => (keys, directions(limits, &Arc::default())),
            KeyChange::OneRtt { keys, next } => {
                let (outbound, inbound) = directions(limits, &self.context.meters);
                self.one_rtt = Some(OneRtt {
                    suite,
                    limits,
                    kex: kex.expect("rustls negotiates what we configured"),
                    secrets: next,
                    next_phase: 1,
                    keys: ConnectionKeys::new(suite, Arc::clone(&outbound), Arc::clone(&inbound)),
                });
                (keys, (outbound, inbound))
            }
        };
        let (local, remote) = (&*keys.local.packet, &*keys.remote.packet);
        let kind = (suite, limits, self.context.cipher_engine);
        let packet = key_pair(kind, 0, &outbound, &inbound, local, remote);
        let header = KeyPair {
            local: Box::new(keys.local.header) as Box<dyn HeaderKey>,
            remote: Box::new(keys.remote.header) as Box<dyn HeaderKey>,
        };
        Some(Keys { header, packet })
    }

    /// Called once when 1-RTT keys appear and then at each key update: call k derives phase k when
    /// phase k-1 has just come into use, so sending phases before that are over.
    fn next_1rtt_keys(&mut self) -> Option<KeyPair<Box<dyn PacketKey>>> {
        let one_rtt = self.one_rtt.as_mut()?;
        let phase = one_rtt.next_phase;
        one_rtt.next_phase += 1;
        let next_keys = || one_rtt.secrets.next_packet_keys();
        let keys = with_wiped_stack::<DERIVE_STACK_BYTES, _>(next_keys);
        let (outbound, inbound) = one_rtt.keys.directions();
        if let Ok(mut sending) = outbound.sending.lock() {
            sending.phases.retire_before(phase - 1);
        }
        let kind = (one_rtt.suite, one_rtt.limits, self.context.cipher_engine);
        Some(key_pair(kind, phase, outbound, inbound, &*keys.local, &*keys.remote))
    }

    fn is_valid_retry(&self, orig_dst_cid: &ConnectionId, header: &[u8], payload: &[u8]) -> bool {
        retry::is_valid(orig_dst_cid, header, payload)
    }

    /// Always fails: an exporter would keep a secret of the handshake alive. What is derived from
    /// that is in the [`ProvedPeer`].
    fn export_keying_material(
        &self,
        _: &mut [u8],
        _: &[u8],
        _: &[u8],
    ) -> Result<(), ExportKeyingMaterialError> {
        Err(ExportKeyingMaterialError)
    }
}

/// The suite, once negotiated.
fn negotiated_suite(connection: &Connection, ours: &Preferences) -> Option<Protection> {
    ours.suite(connection.negotiated_cipher_suite()?.suite())
}

/// The two directions of a packet number space with its own keys.
fn directions(limits: KeyLimits, meters: &Arc<Meters>) -> (Arc<Outbound>, Arc<Inbound>) {
    let ahead = NewestPhase::default();
    let fault = Arc::new(FaultLatch::default());
    (
        Arc::new(Outbound::new(limits, ahead.clone(), fault, Arc::clone(meters))),
        Arc::new(Inbound::new(limits, ahead, Arc::clone(meters))),
    )
}

fn protocol_violation(reason: &str) -> TransportError {
    let code = TransportErrorCode::PROTOCOL_VIOLATION;
    TransportError { code, frame: None, reason: reason.into() }
}

/// Our keys for one phase, from the extractable keys that rustls returned.
fn key_pair(
    (suite, limits, engine): (Protection, KeyLimits, CipherEngine),
    phase: u64,
    outbound: &Arc<Outbound>,
    inbound: &Arc<Inbound>,
    local: &dyn rustls::quic::PacketKey,
    remote: &dyn rustls::quic::PacketKey,
) -> KeyPair<Box<dyn PacketKey>> {
    let derive = |key| {
        extract(key, |material| KeyProtection::derive(suite, material, engine))
            .expect("a fresh key of our suite has its material")
    };
    let (protection, keystream) = derive(local);
    if let Ok(mut sending) = outbound.sending.lock() {
        sending.phases.add(phase, keystream);
    }
    let seal = SealKey::new(Arc::clone(outbound), phase, protection, limits);
    let (protection, keystream) = derive(remote);
    if let Ok(mut receiving) = inbound.receiving.lock() {
        receiving.phases.add(phase, keystream);
    }
    let open = OpenKey::new(Arc::clone(inbound), phase, protection, limits);
    KeyPair { local: Box::new(seal), remote: Box::new(open) }
}

/// Keys of the Initial space (RFC 9001 section 5.2): AES-128-GCM from public material, by ring.
pub(crate) fn initial_keys(dst_cid: &ConnectionId, side: Side) -> Keys {
    let suite = TLS13_AES_128_GCM_SHA256.tls13().and_then(|suite| suite.quic_suite());
    let suite = suite.expect("ring's AES-128-GCM does QUIC");
    let keys = suite.keys(dst_cid, side.into(), Version::V1);
    Keys {
        header: KeyPair {
            local: Box::new(keys.local.header),
            remote: Box::new(keys.remote.header),
        },
        packet: KeyPair {
            local: Box::new(keys.local.packet),
            remote: Box::new(keys.remote.packet),
        },
    }
}
