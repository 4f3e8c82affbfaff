//! Encodes and decodes an invitation: the one line that a person carries to the joining host.
//!
//! ```text
//! keypadd-invite: base64url of
//! u8 version = 1, u32 checksum, 32 key, 16 secret, u64 expiry, u16 pairing port,
//! u16 tunnel port, u8 length and name, u8 length and host
//! ```
//!
//! Messages never quote the line: it holds a secret.

use std::{str::FromStr, sync::Arc};

use base64ct::{Base64UrlUnpadded, Encoding};
use keypadd_provider::{PAIRING_SECRET_BYTES, PairingSecret, PublicKey};
use thiserror::Error;
use zeroize::Zeroizing;

use crate::addresses::target::{Host, ServerAddress};

/// How every line begins.
const PREFIX: &str = "keypadd-invite:";

/// The version of the line.
const VERSION: u8 = 1;

/// Longest line, and more than any valid one.
const LINE_CHARS_MAX: usize = 1024;

/// Version and checksum.
const HEAD_BYTES: usize = 5;

/// What the holder of an invitation needs to join.
#[derive(Debug)]
pub struct Invitation {
    /// The inviting host's public key.
    pub key: PublicKey,
    /// Proves that the holder was invited.
    pub secret: Arc<PairingSecret>,
    /// When the invitation expires, in seconds since 1970 by the inviting host's clock.
    pub expires: u64,
    /// Where the inviting host waits.
    pub pairing: ServerAddress,
    /// The UDP port of its tunnel, at the same host.
    pub tunnel_port: u16,
    /// The inviting host's name for itself.
    pub name: String,
}

/// Why a line is not an invitation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum InvitationError {
    /// The text is something else.
    #[error("this is not an invitation, which begins with {PREFIX}")]
    NotOne,
    /// The invitation is incomplete or mistyped.
    #[error("the invitation is damaged or incomplete")]
    Damaged,
    /// A later version made it.
    #[error("the invitation has version {0}, but this program knows version {VERSION}")]
    Version(u8),
}

impl Invitation {
    /// The line, without a newline; wiped when dropped.
    pub fn line(&self) -> Zeroizing<String> {
        let mut body = Zeroizing::new(Vec::with_capacity(LINE_CHARS_MAX));
        body.extend(self.key.as_bytes());
        body.extend(self.secret.as_bytes());
        body.extend(self.expires.to_be_bytes());
        body.extend(self.pairing.port.to_be_bytes());
        body.extend(self.tunnel_port.to_be_bytes());
        for text in [&self.name, &self.pairing.host.to_string()] {
            let bytes = u8::try_from(text.len()).expect("names and hosts are at most 255 bytes");
            body.push(bytes);
            body.extend(text.as_bytes());
        }
        let mut bytes = Zeroizing::new(Vec::with_capacity(LINE_CHARS_MAX));
        bytes.push(VERSION);
        bytes.extend(checksum(&body).to_be_bytes());
        bytes.extend(&body[..]);
        let mut line = Zeroizing::new(String::with_capacity(LINE_CHARS_MAX));
        line.push_str(PREFIX);
        line.push_str(&Zeroizing::new(Base64UrlUnpadded::encode_string(&bytes)));
        line
    }

    /// The address of its tunnel.
    pub fn tunnel(&self) -> ServerAddress {
        ServerAddress { host: self.pairing.host.clone(), port: self.tunnel_port }
    }
}

impl FromStr for Invitation {
    type Err = InvitationError;

    /// Reads a line; ignores surrounding white space. `name` is any text: the caller must check it.
    fn from_str(line: &str) -> Result<Self, InvitationError> {
        let text = line.trim().strip_prefix(PREFIX).ok_or(InvitationError::NotOne)?;
        if text.len() > LINE_CHARS_MAX {
            return Err(InvitationError::Damaged);
        }
        let mut bytes = Zeroizing::new([0; LINE_CHARS_MAX]);
        let bytes = Base64UrlUnpadded::decode(text, &mut bytes[..])
            .map_err(|_| InvitationError::Damaged)?;
        match bytes.first() {
            Some(&VERSION) => {}
            Some(&version) => return Err(InvitationError::Version(version)),
            None => return Err(InvitationError::Damaged),
        }
        read(bytes).ok_or(InvitationError::Damaged)
    }
}

/// Reads a line's bytes.
fn read(bytes: &[u8]) -> Option<Invitation> {
    let (head, body) = bytes.split_at_checked(HEAD_BYTES)?;
    if head[1..] != checksum(body).to_be_bytes() {
        return None;
    }
    let mut fields = Fields(body);
    let key = PublicKey::from_bytes(*fields.array()?).ok()?;
    let secret = Arc::new(PairingSecret::from_bytes(fields.array::<PAIRING_SECRET_BYTES>()?));
    let expires = u64::from_be_bytes(*fields.array()?);
    let (port, tunnel_port) = (fields.port()?, fields.port()?);
    let (name, host) = (fields.text()?.to_owned(), fields.text()?.parse::<Host>().ok()?);
    let pairing = ServerAddress { host, port };
    fields.0.is_empty().then_some(Invitation { key, secret, expires, pairing, tunnel_port, name })
}

/// FNV-1a: detects a line that was cut off or mistyped. It proves nothing; the secret does.
fn checksum(bytes: &[u8]) -> u32 {
    bytes.iter().fold(0x811c_9dc5, |sum, &byte| (sum ^ u32::from(byte)).wrapping_mul(0x0100_0193))
}

/// The rest of a line's bytes.
struct Fields<'a>(&'a [u8]);

impl<'a> Fields<'a> {
    fn array<const BYTES: usize>(&mut self) -> Option<&'a [u8; BYTES]> {
        let (field, rest) = self.0.split_first_chunk()?;
        self.0 = rest;
        Some(field)
    }

    /// A port that packets can be sent to.
    fn port(&mut self) -> Option<u16> {
        self.array().copied().map(u16::from_be_bytes).filter(|&port| port > 0)
    }

    /// Text with its length in one byte before it.
    fn text(&mut self) -> Option<&'a str> {
        let [bytes] = *self.array()?;
        let (text, rest) = self.0.split_at_checked(bytes.into())?;
        self.0 = rest;
        str::from_utf8(text).ok()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::addresses::target::HOST_BYTES_MAX;

    fn invitation(host: &str, name: &str) -> Invitation {
        Invitation {
            key: "11qYAYKxCrfVS/7TyWQHOg7hcvPapiMlrwIaaPcHURo=".parse().unwrap(),
            secret: Arc::new(PairingSecret::from_bytes(&[7; PAIRING_SECRET_BYTES])),
            expires: 1_800_000_000,
            pairing: ServerAddress { host: host.parse().unwrap(), port: 40_000 },
            tunnel_port: 4433,
            name: name.into(),
        }
    }

    fn read(line: &str) -> Result<Invitation, InvitationError> {
        line.parse()
    }

    #[test]
    fn a_line_reads_as_what_was_written() {
        for host in ["lab.example", "192.0.2.7", "2001:db8::7"] {
            let written = invitation(host, "lab");
            let line = written.line();
            let invitation = read(&format!(" {}\r\n", *line)).unwrap();
            assert_eq!(invitation.key, written.key);
            assert_eq!(invitation.secret.as_bytes(), written.secret.as_bytes());
            assert_eq!(invitation.expires, written.expires);
            assert_eq!(invitation.pairing, written.pairing);
            assert_eq!(invitation.tunnel().to_string(), written.tunnel().to_string());
            assert_eq!(invitation.name, "lab");
        }
    }

    #[test]
    fn the_longest_line_fits() {
        let line = invitation(&"h".repeat(HOST_BYTES_MAX), &"n".repeat(255)).line();
        assert!(line.len() < LINE_CHARS_MAX, "{}", line.len());
        assert!(read(&line).is_ok());
    }

    #[test]
    fn a_line_is_one_word_that_no_shell_changes() {
        let line = invitation("lab.example", "lab").line();
        assert!(line.chars().all(|c| c.is_ascii_alphanumeric() || "-_:".contains(c)));
    }

    #[test]
    fn a_line_that_was_cut_off_or_mistyped_is_damaged() {
        let line = invitation("lab.example", "lab").line();
        for cut in PREFIX.len()..line.len() {
            assert_eq!(read(&line[..cut]).err(), Some(InvitationError::Damaged), "{cut}");
        }
        // Not the first two characters, which hold the version.
        for at in PREFIX.len() + 2..line.len() {
            for other in ["A", "b", "_"] {
                let mut changed = line.to_string();
                changed.replace_range(at..=at, other);
                if changed != *line {
                    assert_eq!(read(&changed).err(), Some(InvitationError::Damaged), "{at}");
                }
            }
        }
        assert_eq!(read(&format!("{}A", *line)).err(), Some(InvitationError::Damaged));
        let long = format!("{PREFIX}{}", "A".repeat(1 << 16));
        assert_eq!(read(&long).err(), Some(InvitationError::Damaged));
    }

    #[test]
    fn other_text_and_later_versions_are_told_apart() {
        for text in
            ["", "keypadd", "11qYAYKxCrfVS/7TyWQHOg7hcvPapiMlrwIaaPcHURo=", "Keypadd-invite:"]
        {
            assert_eq!(read(text).err(), Some(InvitationError::NotOne), "{text}");
        }
        assert_eq!(read(&format!("{PREFIX}Ag")).err(), Some(InvitationError::Version(2)));
    }

    #[test]
    fn debug_shows_no_secret() {
        let shown = format!("{:?}", invitation("lab.example", "lab"));
        assert!(shown.contains("secret: PairingSecret { .. }"), "{shown}");
    }

    proptest! {
        #[test]
        fn no_text_panics(text in "(keypadd-invite:)?[A-Za-z0-9_-]{0,300}", bytes: Vec<u8>) {
            let _ = read(&text);
            let _ = super::read(&bytes);
            let line = format!("{PREFIX}{}", Base64UrlUnpadded::encode_string(&bytes));
            let _ = read(&line);
        }
    }
}
