//! Checks handshakes under attack: whatever arrives between or instead of the messages of the other end, a session
//! gives an error or goes on, none that read a changed message completes, and after its end a client takes
//! tickets and nothing else (RFC 8446 4.6.1), a server nothing at all.

use keypadd_keystream::Suite;
use keypadd_provider::{KeyExchange, PoolSwitch};
use quinn_proto::ConnectionId;
use quinn_proto::crypto::Session;

use super::input::Input;
use super::sessions::sessions;

const NEW_SESSION_TICKET: u8 = 4;

/// One end.
struct End {
    session: Box<dyn Session>,
    /// Something was read before the end of the handshake that the other end did not write.
    is_misled: bool,
    /// It has refused something; a connection closes then.
    has_refused: bool,
    /// Nothing was read since the handshake ended: what comes now begins a message.
    at_first_message: bool,
}

impl End {
    fn is_complete(&self) -> bool {
        !self.session.is_handshaking()
    }

    /// Whether TLS is gone and what comes now is for the session alone, as quinn has it at once.
    fn is_settled(&self) -> bool {
        self.session.peer_identity().is_some()
    }

    fn read(&mut self, message: &[u8], is_genuine: bool) {
        if self.has_refused || message.is_empty() {
            return;
        }
        let (was_complete, was_settled) = (self.is_complete(), self.is_settled());
        self.is_misled |= !is_genuine && !was_complete;
        self.has_refused = self.session.read_handshake(message).is_err();
        let _ = self.session.transport_parameters();
        if was_settled && self.at_first_message {
            assert!(self.has_refused || message[0] == NEW_SESSION_TICKET, "{:#x}", message[0]);
        }
        self.at_first_message &= !was_complete;
    }

    /// What it has to say next.
    fn write(&mut self) -> Vec<u8> {
        let mut message = Vec::new();
        if !self.has_refused {
            // Keys come without a message too.
            while self.session.write_handshake(&mut message).is_some() && message.is_empty() {}
        }
        assert!(!(self.is_misled && self.is_complete()), "it took a changed message for genuine");
        message
    }
}

/// Panics if the property does not hold.
pub fn holds(bytes: &[u8]) {
    let mut input = Input::new(bytes);
    let Some(kind) = input.byte().map(usize::from) else { return };
    let suite = Suite::ALL[kind % Suite::ALL.len()];
    let kex = KeyExchange::ALL[kind / Suite::ALL.len() % KeyExchange::ALL.len()];
    let sessions = sessions(suite.into(), kex.into(), PoolSwitch::default(), &Default::default());
    let mut ends = sessions.map(|session| End {
        session,
        is_misled: false,
        has_refused: false,
        at_first_message: true,
    });
    while let Some(operation) = input.byte() {
        let to = usize::from(operation & 1);
        match operation >> 1 & 7 {
            // What no session wrote.
            0 => {
                let count = usize::from(input.byte().unwrap_or(0));
                ends[to].read(input.bytes(count), false);
            }
            // A message with a bit flipped, or cut short, if there is one.
            1 => {
                let mut message = ends[1 - to].write();
                let bit = input.short().unwrap_or(0);
                if let Some(byte) = message.get_mut(bit / 8) {
                    *byte ^= 1 << (bit % 8);
                    ends[to].read(&message, false);
                }
            }
            2 => {
                let message = ends[1 - to].write();
                let kept = input.short().unwrap_or(0).min(message.len());
                ends[to].read(&message[..kept], kept == message.len());
            }
            3 => {
                let id = ConnectionId::new(input.bytes(8));
                let (header, tag) = (input.bytes(usize::from(operation >> 4)), input.bytes(16));
                let is_valid = ends[to].session.is_valid_retry(&id, header, tag);
                assert!(!is_valid, "nobody made this tag");
            }
            _ => {
                let message = ends[1 - to].write();
                ends[to].read(&message, true);
            }
        }
    }
    for end in &mut ends {
        end.write();
    }
}
