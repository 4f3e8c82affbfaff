//! Proves to an end of a connection that the other end was one of an earlier session.
//!
//! Both ends derive a session's token from its TLS handshake (RFC 8446 7.5), so it never travels. A
//! proof is a MAC under it that names the connection on which it is sent: by both public keys, and
//! by a value that its handshake gives in the same way (a channel binding, RFC 5056). So a proof is
//! worthless on any other connection (docs/protocol.md, "Tokens"). Knows no frames or
//! sockets.

use std::fmt;
use std::sync::Arc;

use rustls::quic::Connection;
use subtle::ConstantTimeEq;

use crate::identity::PublicKey;
use crate::secret_memory::Secret;
use crate::secret_proof::{PROOF_BYTES, prove};

/// Length of a token.
pub const SESSION_TOKEN_BYTES: usize = 32;

/// Length of a proof.
pub const TOKEN_PROOF_BYTES: usize = PROOF_BYTES;

/// A MAC under a token: not a secret.
pub type TokenProof = [u8; TOKEN_PROOF_BYTES];

const BINDING_BYTES: usize = 32;

// Labels of TLS exporters. These are for private use (RFC 5705 6).
const TOKEN_LABEL: &[u8] = b"EXPERIMENTAL keypadd token";
const BINDING_LABEL: &[u8] = b"EXPERIMENTAL keypadd binding";

/// The secret of a session, which its two ends alone have. Clones share it; it is wiped when the
/// last of them is dropped. [`fmt::Debug`] shows nothing of it.
#[derive(Clone)]
pub struct SessionToken(Arc<Secret<SESSION_TOKEN_BYTES>>);

/// What a proof asserts, and which end says so.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Assertion {
    /// The client goes on with the streams of the token's session.
    ClientResumes,
    /// The server goes on with the streams of the token's session.
    ServerResumes,
    /// The client carries bulk streams of the token's session here.
    ClientBulk,
    /// The server carries bulk streams of the token's session here.
    ServerBulk,
}

/// A connection whose ends have proved their keys, as proofs name it.
#[derive(Clone, Debug)]
pub struct Channel {
    token: SessionToken,
    client: PublicKey,
    server: PublicKey,
    binding: [u8; BINDING_BYTES],
}

impl SessionToken {
    /// A copy of these bytes; the owner of the original must wipe it.
    pub fn from_bytes(bytes: &[u8; SESSION_TOKEN_BYTES]) -> Self {
        Self(Arc::new(Secret::copied(bytes)))
    }

    /// The bytes, for the process that takes over; whoever copies them must wipe the copy.
    pub fn as_bytes(&self) -> &[u8] {
        &self.0
    }
}

impl fmt::Debug for SessionToken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SessionToken").finish_non_exhaustive()
    }
}

impl Channel {
    /// A connection with this token and binding, between the ends with these keys.
    pub fn new(
        token: SessionToken,
        binding: [u8; BINDING_BYTES],
        client: PublicKey,
        server: PublicKey,
    ) -> Self {
        Self { token, client, server, binding }
    }

    /// The connection of a handshake that is complete; `None` if it is not.
    pub(crate) fn of(tls: &Connection, own: PublicKey, peer: PublicKey) -> Option<Self> {
        let mut token = Secret::<SESSION_TOKEN_BYTES>::zeroed();
        tls.export_keying_material(&mut *token, TOKEN_LABEL, None).ok()?;
        let binding = [0; BINDING_BYTES];
        let binding = tls.export_keying_material(binding, BINDING_LABEL, None).ok()?;
        let (client, server) = match tls {
            Connection::Client(_) => (own, peer),
            Connection::Server(_) => (peer, own),
        };
        Some(Self::new(SessionToken(Arc::new(token)), binding, client, server))
    }

    /// The token of the session that begins with this connection.
    pub fn token(&self) -> &SessionToken {
        &self.token
    }

    /// The proof, on this connection, that an end has the token of an earlier session. `run` is
    /// that of the client. All parts have fixed lengths.
    pub fn proof(&self, token: &SessionToken, assertion: Assertion, run: &[u8; 16]) -> TokenProof {
        let label = match assertion {
            Assertion::ClientResumes => b"keypadd token 1 client resumes",
            Assertion::ServerResumes => b"keypadd token 1 server resumes",
            Assertion::ClientBulk => b"keypadd token 1 client bulk   ",
            Assertion::ServerBulk => b"keypadd token 1 server bulk   ",
        };
        let [client, server] = [&self.client, &self.server].map(PublicKey::as_bytes);
        prove(token.as_bytes(), &[label, client, server, &self.binding, run])
    }

    /// Whether a proof is right; compares in constant time.
    pub fn is_proof(
        &self,
        given: &TokenProof,
        token: &SessionToken,
        assertion: Assertion,
        run: &[u8; 16],
    ) -> bool {
        self.proof(token, assertion, run).ct_eq(given).into()
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use crate::identity::PrivateKey;

    const ALL: [Assertion; 4] = [
        Assertion::ClientResumes,
        Assertion::ServerResumes,
        Assertion::ClientBulk,
        Assertion::ServerBulk,
    ];

    const RUN: [u8; 16] = [7; 16];

    fn token(byte: u8) -> SessionToken {
        SessionToken::from_bytes(&[byte; SESSION_TOKEN_BYTES])
    }

    fn keys() -> [PublicKey; 2] {
        [(); 2].map(|()| PrivateKey::generate().unwrap().public())
    }

    #[test]
    fn a_proof_is_right_for_its_token_assertion_run_and_connection_alone() {
        let ([client, server], [other, _]) = (keys(), keys());
        // The token of the connection itself is not in a proof.
        let on = |binding, client, server| Channel::new(token(9), [binding; 32], client, server);
        let here = on(1, client, server);
        for assertion in ALL {
            let proof = here.proof(&token(1), assertion, &RUN);
            let is_right = |channel: &Channel| channel.is_proof(&proof, &token(1), assertion, &RUN);
            assert!(is_right(&here));
            assert!(!here.is_proof(&proof, &token(2), assertion, &RUN));
            assert!(!here.is_proof(&proof, &token(1), assertion, &[8; 16]));
            let others = ALL.into_iter().filter(|other| *other != assertion);
            for other in others {
                assert!(!here.is_proof(&proof, &token(1), other, &RUN), "{other:?}");
            }
            let elsewhere = [
                on(2, client, server),
                on(1, other, server),
                on(1, client, other),
                on(1, server, client),
            ];
            assert!(!elsewhere.iter().any(is_right));
        }
    }

    #[test]
    fn a_proof_with_any_bit_changed_is_wrong() {
        let [client, server] = keys();
        let channel = Channel::new(token(9), [1; 32], client, server);
        let proof = channel.proof(&token(1), Assertion::ServerResumes, &RUN);
        for bit in 0..8 * TOKEN_PROOF_BYTES {
            let mut changed = proof;
            changed[bit / 8] ^= 1 << (bit % 8);
            let right = channel.is_proof(&changed, &token(1), Assertion::ServerResumes, &RUN);
            assert!(!right, "{bit}");
        }
    }

    #[test]
    fn a_proof_is_that_of_an_independent_description() {
        // As docs/protocol.md has it: of label, client's key, server's key, binding and run.
        let [client, server] = keys();
        let channel = Channel::new(token(9), [3; 32], client, server);
        let message = [
            &b"keypadd token 1 client resumes"[..],
            client.as_bytes(),
            server.as_bytes(),
            &[3; 32],
            &RUN,
        ];
        let key = ring::hmac::Key::new(ring::hmac::HMAC_SHA256, &[1; 32]);
        let expected = ring::hmac::sign(&key, &message.concat());
        let proof = channel.proof(&token(1), Assertion::ClientResumes, &RUN);
        assert_eq!(proof, expected.as_ref());
    }

    #[test]
    fn debug_shows_no_token() {
        assert_eq!(format!("{:?}", token(0x5a)), "SessionToken { .. }");
    }
}
