//! Invitations and what the inviting end suggests: any line is read or refused without being quoted, a line
//! that is written again reads the same, and a suggestion is a forward that a shell leaves alone.

use keypadd_tunnel::{Invitation, suggested};

/// Panics if the property does not hold.
pub fn holds(text: &str) {
    match text.parse::<Invitation>() {
        Ok(invitation) => {
            let again: Invitation = invitation.line().parse().expect("what it writes it reads");
            assert_eq!(fields(&again), fields(&invitation));
            assert_eq!(again.secret.as_bytes(), invitation.secret.as_bytes());
        }
        Err(error) => {
            let said = error.to_string();
            let quotes = text.split_whitespace().any(|word| word.len() > 20 && said.contains(word));
            assert!(!quotes && !said.chars().any(char::is_control), "{said:?}");
        }
    }
    if let Some(forward) = suggested(text) {
        let shown = forward.to_string();
        assert!(shown.chars().all(|c| c.is_ascii_graphic() || c == ' '), "{shown:?}");
        assert!(!shown.contains(['$', '`', ';', '&', '|', '<', '>', '*', '?', '\'', '"', '\\']));
        assert_eq!(suggested(&shown), Some(forward));
    }
}

/// All of an invitation but the secret.
fn fields(invitation: &Invitation) -> impl PartialEq + std::fmt::Debug {
    let Invitation { key, expires, pairing, tunnel_port, name, .. } = invitation;
    (*key, *expires, pairing.clone(), *tunnel_port, name.clone())
}
