//! Checks SOCKS5 handshakes: fed the wanted bytes, a handshake ends, and never wants more than documented.

use keypadd_tunnel::socks::{Handshake, Step};

/// Greeting, 255 methods, request, a name's length, 255 characters and a port (RFC 1928 3, 4).
const BYTES_MAX: usize = 2 + 255 + 4 + 1 + 255 + 2;

/// Panics if the property does not hold.
pub fn holds(bytes: &[u8]) {
    let mut handshake = Handshake::default();
    let (mut rest, mut read) = (bytes, 0);
    loop {
        let wanted = handshake.wanted();
        assert!((1..=257).contains(&wanted), "an unfinished handshake wants {wanted} bytes");
        // Fewer than wanted if the client has closed the connection.
        let (given, after) = rest.split_at(wanted.min(rest.len()));
        let ended = given.len() < wanted;
        (rest, read) = (after, read + given.len());
        assert!(read <= BYTES_MAX);
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
            Step::OtherProtocol(_) => {
                assert!(!ended && read == 2);
                break;
            }
        }
    }
    assert_eq!(handshake.wanted(), 0);
}
