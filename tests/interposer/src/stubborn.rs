//! Plays a peer that always seals in the first key phase but opens packets of every phase.

use std::sync::{Arc, OnceLock};

use quinn_proto::crypto::{PacketKey, Session};
use quinn_proto::{ConnectionId, Side};

use crate::{Interposer, Origin, PacketKeys};

/// The key phase bit of a short header (RFC 9000 17.3.1), before header protection.
const KEY_PHASE: u8 = 0x04;

/// Seals in the first key phase, whatever phase quinn is in. For one connection.
#[derive(Default)]
pub struct Stubborn {
    first: OnceLock<Arc<dyn PacketKey>>,
}

impl Interposer for Stubborn {
    fn made(&self, origin: Origin, key: &Arc<dyn PacketKey>) {
        if origin == Origin::Handshake(1) {
            self.first.set(Arc::clone(key)).unwrap_or_else(|_| unreachable!("made once"));
        }
    }

    /// Asking the session for the third phase would retire the first. The other end stays in the
    /// second, so later phases get placeholder keys that open nothing.
    fn next(&self, nth: usize, session: &mut dyn Session) -> Option<PacketKeys> {
        match nth {
            0 => session.next_1rtt_keys(),
            _ => Some(session.initial_keys(&ConnectionId::new(&[]), Side::Client).packet),
        }
    }

    fn seal(
        &self,
        origin: Origin,
        key: &dyn PacketKey,
        packet_number: u64,
        buf: &mut [u8],
        header_len: usize,
    ) {
        let (Origin::Next(nth), Some(first)) = (origin, self.first.get()) else {
            return key.encrypt(packet_number, buf, header_len);
        };
        // quinn seals with the keys of phase nth + 1 and has set the bit in every odd phase.
        buf[0] ^= if nth % 2 == 0 { KEY_PHASE } else { 0 };
        first.encrypt(packet_number, buf, header_len);
    }

    /// Never asks for an update either.
    fn confidentiality_limit(&self, _: &dyn PacketKey) -> u64 {
        u64::MAX
    }
}
