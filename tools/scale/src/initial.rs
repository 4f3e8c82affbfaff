//! Builds Initial packets by hand (RFC 9000 17.2.2, RFC 9001 5.2), as fast as one core can seal
//! them.
//!
//! All of them carry the same ClientHello, and therefore the same source connection ID, which the
//! ClientHello includes. Each has its own destination connection ID, so that each begins a
//! handshake.

use std::sync::Arc;

use keypadd_keystream::Suite;
use keypadd_provider::{CryptoSettings, PrivateKey, PublicKey, client_config};
use quinn_proto::crypto::Session;
use quinn_proto::transport_parameters::TransportParameters;
use quinn_proto::{ConnectionId, Side};

use crate::Outcome;

const QUIC_VERSION: u32 = 1;
/// The least size of a client's datagram (RFC 9000 14.1).
const DATAGRAM_BYTES: usize = 1_200;
const TAG_BYTES: usize = 16;
/// Length of every connection ID that we choose.
const ID_BYTES: usize = 8;
/// First byte of a long header, without the protected bits: Initial with a packet number of one
/// byte, Retry (RFC 9000 17.2).
const INITIAL: u8 = 0xc0;
const RETRY: u8 = 0xf0;
/// `initial_source_connection_id` (RFC 9000 18.2).
const INITIAL_SOURCE_ID: u8 = 0x0f;
/// A CRYPTO frame (RFC 9000 19.6).
const CRYPTO: u8 = 0x06;

/// A stranger that starts handshakes.
pub(crate) struct Stranger {
    session: Box<dyn Session>,
    source: [u8; ID_BYTES],
    /// A CRYPTO frame with the ClientHello.
    frame: Vec<u8>,
}

/// The token and ID that a server requires before it continues (RFC 9000 17.2.5).
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Retry {
    pub(crate) source: Vec<u8>,
    pub(crate) token: Vec<u8>,
}

impl Stranger {
    /// A stranger whose key is on no list.
    pub(crate) fn new(server: PublicKey) -> Outcome<Self> {
        let failed = |error: &dyn std::fmt::Display| format!("ClientHello: {error}");
        // Its ClientHello fits into one packet.
        let crypto = CryptoSettings::plain(
            Arc::new(PrivateKey::generate().map_err(|error| failed(&error))?),
            Suite::default(),
        );
        let config = client_config(&crypto, server).map_err(|error| failed(&error))?;
        let source = fastrand::u64(..).to_be_bytes();
        let parameters = [&[INITIAL_SOURCE_ID, ID_BYTES as u8][..], &source].concat();
        let parameters = TransportParameters::read(Side::Server, &mut &parameters[..])
            .map_err(|error| failed(&error))?;
        let mut session = config
            .start_session(QUIC_VERSION, "keypadd", &parameters)
            .map_err(|error| failed(&error))?;
        let mut hello = Vec::new();
        session.write_handshake(&mut hello);
        let mut frame = vec![CRYPTO, 0];
        put_length(&mut frame, hello.len());
        frame.extend(hello);
        Ok(Self { session, source, frame })
    }

    /// A datagram that begins a handshake, or continues it as a server required.
    pub(crate) fn initial(&self, retry: Option<&Retry>) -> Vec<u8> {
        let drawn = fastrand::u64(..).to_be_bytes();
        let (destination, token) = match retry {
            Some(Retry { source, token }) => (&source[..], &token[..]),
            None => (&drawn[..], &[][..]),
        };
        let mut packet = Vec::with_capacity(DATAGRAM_BYTES);
        packet.push(INITIAL);
        packet.extend(QUIC_VERSION.to_be_bytes());
        packet.push(destination.len() as u8);
        packet.extend(destination);
        packet.push(ID_BYTES as u8);
        packet.extend(self.source);
        put_length(&mut packet, token.len());
        packet.extend(token);
        let number_at = packet.len() + 2;
        put_length(&mut packet, DATAGRAM_BYTES - number_at);
        packet.push(0);
        let header_bytes = packet.len();
        packet.extend(&self.frame);
        // PADDING frames, and room for the tag.
        packet.resize(DATAGRAM_BYTES.max(packet.len() + TAG_BYTES), 0);
        let keys = self.session.initial_keys(&ConnectionId::new(destination), Side::Client);
        keys.packet.local.encrypt(0, &mut packet, header_bytes);
        keys.header.local.encrypt(number_at, &mut packet);
        packet
    }

    /// Parses a datagram if it is a Retry.
    pub(crate) fn retry(datagram: &[u8]) -> Option<Retry> {
        if datagram.first()? & 0xf0 != RETRY {
            return None;
        }
        let rest = datagram.get(5..)?;
        let (length, rest) = rest.split_first()?;
        let (length, rest) = rest.get(usize::from(*length)..)?.split_first()?;
        let (source, rest) = rest.split_at_checked(usize::from(*length))?;
        let token = rest.get(..rest.len().checked_sub(TAG_BYTES)?)?;
        Some(Retry { source: source.to_vec(), token: token.to_vec() })
    }
}

/// A length in two bytes (RFC 9000 16).
fn put_length(into: &mut Vec<u8>, length: usize) {
    into.extend((0x4000 | length as u16).to_be_bytes());
}

#[cfg(test)]
mod tests {
    use super::*;

    fn stranger() -> Stranger {
        Stranger::new(PrivateKey::generate().unwrap().public()).unwrap()
    }

    #[test]
    fn an_initial_opens_at_the_other_end_and_carries_the_hello() {
        let (stranger, retry) = (stranger(), Retry { source: vec![7; 8], token: vec![9; 40] });
        for retry in [None, Some(&retry)] {
            let mut datagram = stranger.initial(retry);
            assert_eq!(datagram.len(), DATAGRAM_BYTES);
            let destination = ConnectionId::new(&datagram[6..14]);
            let keys = stranger.session.initial_keys(&destination, Side::Server);
            let token_bytes = retry.map_or(0, |retry| retry.token.len());
            let number_at = 5 + 2 * (1 + ID_BYTES) + 2 + token_bytes + 2;
            keys.header.remote.decrypt(number_at, &mut datagram);
            let header = bytes::Bytes::copy_from_slice(&datagram[..=number_at]);
            let mut payload = bytes::BytesMut::from(&datagram[number_at + 1..]);
            keys.packet.remote.decrypt(0, &header, &mut payload).unwrap();
            assert!(payload.starts_with(&stranger.frame));
        }
    }

    #[test]
    fn a_retry_is_told_from_others_and_cut_short_is_none() {
        let retry = [&[0xf0, 0, 0, 0, 1, 1, 5, 2, 8, 9][..], b"token", &[0; TAG_BYTES]].concat();
        let read = Retry { source: vec![8, 9], token: b"token".to_vec() };
        assert_eq!(Stranger::retry(&retry), Some(read));
        assert_eq!(Stranger::retry(&retry[..20]), None);
        assert_eq!(Stranger::retry(&[]), None);
        assert_eq!(Stranger::retry(&stranger().initial(None)), None);
    }
}
