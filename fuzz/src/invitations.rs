//! Invitations and what the inviting end suggests: any line is read or refused without being quoted, one that
//! is written again reads the same, and a suggestion is a forward that a shell leaves alone.

use base64ct::{Base64UrlUnpadded, Encoding};
use keypadd_tunnel::{Invitation, suggested};

/// Panics if the property does not hold.
pub fn holds(bytes: &[u8]) {
    // As a line's content, behind its version and checksum, which no fuzzer guesses.
    let sum = bytes
        .iter()
        .fold(0x811c_9dc5_u32, |sum, &byte| (sum ^ u32::from(byte)).wrapping_mul(0x0100_0193));
    let content = [&[1], &sum.to_be_bytes()[..], bytes].concat();
    is_read_or_refused(&format!("keypadd-invite:{}", Base64UrlUnpadded::encode_string(&content)));
    let Ok(text) = str::from_utf8(bytes) else { return };
    is_read_or_refused(text);
    if let Some(forward) = suggested(text) {
        let shown = forward.to_string();
        assert!(shown.chars().all(|c| c.is_ascii_graphic() || c == ' '), "{shown:?}");
        assert!(!shown.contains(['$', '`', ';', '&', '|', '<', '>', '*', '?', '\'', '"', '\\']));
        assert_eq!(suggested(&shown), Some(forward));
    }
}

fn is_read_or_refused(line: &str) {
    match line.parse::<Invitation>() {
        Ok(invitation) => {
            let again: Invitation = invitation.line().parse().expect("what it writes it reads");
            assert_eq!(fields(&again), fields(&invitation));
            assert_eq!(again.secret.as_bytes(), invitation.secret.as_bytes());
        }
        Err(error) => {
            let said = error.to_string();
            let quotes = line.split_whitespace().any(|word| word.len() > 20 && said.contains(word));
            assert!(!quotes && !said.chars().any(char::is_control), "{said:?}");
        }
    }
}

/// All of an invitation but the secret.
fn fields(invitation: &Invitation) -> impl PartialEq + std::fmt::Debug {
    let Invitation { key, expires, pairing, tunnel_port, name, .. } = invitation;
    (*key, *expires, pairing.clone(), *tunnel_port, name.clone())
}
