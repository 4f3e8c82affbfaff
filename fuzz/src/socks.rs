//! A SOCKS5 handshake fed as it asks to be: it ends, and wants no more than it promises.

use keypadd_tunnel::socks::{Handshake, Step};

/// Greeting, 255 methods, request, a name's length, 255 characters and a port (RFC 1928 3, 4).
const BYTES_MAX: usize = 2 + 255 + 4 + 1 + 255 + 2;

/// The claim.
pub fn holds(bytes: &[u8]) {
    let mut handshake = Handshake::default();
    let (mut rest, mut heard) = (bytes, 0);
    loop {
        let wanted = handshake.wanted();
        assert!((1..=257).contains(&wanted), "a handshake that goes on wants {wanted} bytes");
        // Shorter than wanted only where the client has ended: it must bear that too.
        let (given, after) = rest.split_at(wanted.min(rest.len()));
        let ended = given.len() < wanted;
        (rest, heard) = (after, heard + given.len());
        assert!(heard <= BYTES_MAX);
        match handshake.feed(given) {
            Step::More(answer) => assert!(!ended && answer.len() <= 2),
            Step::Connect(target) => {
                assert!(!ended && target.port != 0);
                break;
            }
            Step::Failed(answer) => {
                assert!(answer.len() <= 10);
                break;
            }
        }
    }
    assert_eq!(handshake.wanted(), 0);
}
