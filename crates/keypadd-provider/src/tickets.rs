//! Discards TLS session tickets, the one TLS message that a server may send after the handshake
//! (RFC 8446 4.6.1).
//!
//! A keypadd server sends none and no client resumes, but other QUIC implementations may send some.
//! Knows only the framing of handshake messages (RFC 8446 section 4).

const NEW_SESSION_TICKET: u8 = 4;
const HEADER_BYTES: usize = 4;

/// The position in the stream of messages.
#[derive(Debug, Default)]
pub(crate) struct TicketSkipper {
    header: Vec<u8>,
    body_left: usize,
}

impl TicketSkipper {
    /// Consumes bytes; false as soon as a message is anything but a ticket.
    #[must_use]
    pub(crate) fn skip(&mut self, mut bytes: &[u8]) -> bool {
        while !bytes.is_empty() {
            if self.body_left > 0 {
                let skipped = self.body_left.min(bytes.len());
                self.body_left -= skipped;
                bytes = &bytes[skipped..];
                continue;
            }
            self.header.push(bytes[0]);
            bytes = &bytes[1..];
            if self.header[0] != NEW_SESSION_TICKET {
                return false;
            }
            if let [_, length @ ..] = &self.header[..]
                && self.header.len() == HEADER_BYTES
            {
                self.body_left = length.iter().fold(0, |sum, &byte| sum << 8 | usize::from(byte));
                self.header.clear();
            }
        }
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_tickets_pass_in_pieces_of_any_size() {
        let two_tickets = [&[4, 0, 0, 3, 1, 2, 3][..], &[4, 0, 0, 0], &[4, 0, 0, 1, 9]].concat();
        for size in 1..=two_tickets.len() {
            let mut skipper = TicketSkipper::default();
            assert!(two_tickets.chunks(size).all(|piece| skipper.skip(piece)));
            // A key update (24) is forbidden in QUIC.
            assert!(!skipper.skip(&[24, 0, 0, 1, 0]));
        }
    }
}
