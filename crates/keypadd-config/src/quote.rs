//! Quotes untrusted text for messages: truncated, on one line, control and bidirectional characters
//! escaped, private keys redacted wherever they were pasted.

use std::borrow::Cow;

use keypadd_tunnel::is_printable;

/// Longest quoted value, in characters.
const SHOWN_CHARS: usize = 80;

/// First characters of unencrypted Ed25519 keys in PKCS#8, in base64 (RFC 8410 section 7, versions
/// 1 and 2), as far as they are the same for every key.
const PKCS8_STARTS: [&str; 2] = ["MC4CAQAwBQYDK2Vw", "CAQEwBQYDK2Vw"];

/// A base64 run of this length is part of a key rather than a word.
const BASE64_RUN: usize = 13;

/// Quotes a value: truncated, unprintable characters escaped, omitted if it may hold a private key.
pub fn shown(value: impl AsRef<str>) -> String {
    let value = value.as_ref();
    if is_private(value) {
        return "a private key (not shown)".to_owned();
    }
    let mut text: String = value.chars().take(SHOWN_CHARS).flat_map(escaped).collect();
    if value.chars().nth(SHOWN_CHARS).is_some() {
        text.push_str("...");
    }
    format!("`{text}`")
}

/// Whether the text looks like a private key in PEM or its bare base64.
pub fn is_private(value: &str) -> bool {
    value.contains("PRIVATE KEY") || PKCS8_STARTS.iter().any(|start| value.contains(start))
}

/// Makes a message, which may quote another error, one line without a private key.
pub fn one_line(text: &str) -> String {
    redacted(text).chars().flat_map(escaped).collect()
}

/// Cuts a message where it quotes a private key. PEM's first line alone, which a hint may mention,
/// is not a key; base64 after it is.
fn redacted(text: &str) -> Cow<'_, str> {
    let markers = PKCS8_STARTS.iter().chain(&["PRIVATE KEY"]);
    let quotes = |at: &usize| {
        let mut runs =
            text[*at..].split(|c: char| !(c.is_ascii_alphanumeric() || "+/=".contains(c)));
        runs.any(|run| run.len() >= BASE64_RUN)
    };
    let starts = markers.filter_map(|marker| text.find(marker)).filter(quotes);
    match starts.min() {
        Some(at) => format!("{}(a private key)", &text[..at]).into(),
        None => text.into(),
    }
}

/// What cannot be printed in Rust's escapes, everything else as it is.
fn escaped(character: char) -> impl Iterator<Item = char> {
    let plain = is_printable(character).then_some(character);
    let unprintable = plain.is_none().then(|| character.escape_default());
    unprintable.into_iter().flatten().chain(plain)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pasted_private_key_is_not_repeated() {
        for pasted in [
            "-----BEGIN PRIVATE KEY-----\nMC4CAQAwBQYDK2VwBCIEIAAAAAAA\n-----END PRIVATE KEY-----",
            "MC4CAQAwBQYDK2VwBCIEIAAAAAAA",
            "--peer=MFMCAQEwBQYDK2VwBCIEIAAAAAAA",
        ] {
            assert!(!shown(pasted).contains("AAAA"), "{}", shown(pasted));
        }
    }

    #[test]
    fn a_private_key_is_cut_from_whatever_quotes_it() {
        for (message, kept) in [
            ("cannot reach MC4CAQAwBQYDK2VwBCIEIAAAAAAA:4433: no", "cannot reach (a private key)"),
            ("'x=MFMCAQEwBQYDK2VwBCIEIAAAAAAA'", "'x=MFM(a private key)"),
            ("-----BEGIN PRIVATE KEY-----\nQUFBAAAAAAAAAAAAAAAA", "-----BEGIN (a private key)"),
            (
                "(it begins with -----BEGIN PRIVATE KEY-----)",
                "(it begins with -----BEGIN PRIVATE KEY-----)",
            ),
        ] {
            assert_eq!(one_line(message), kept);
        }
    }

    #[test]
    fn text_cannot_move_the_cursor_or_turn_around() {
        assert_eq!(one_line("a\u{1b}[2J\n\u{202e}b"), "a\\u{1b}[2J\\n\\u{202e}b");
    }

    #[test]
    fn a_long_value_is_cut() {
        assert!(shown("x".repeat(1000)).len() < 100);
    }
}
