//! What a command says when it fails: one line with the cause, one with the way out, one exit code.
//! Everything a user typed passes through [`shown`] before it is printed, so that a private key
//! pasted in the wrong place, a control character or a page of text never reaches the terminal.
//! Knows nothing of keys, sockets or clap.

use std::borrow::Cow;
use std::fmt;
use std::io::{self, ErrorKind, Write};
use std::process::ExitCode;

/// The exit codes of the command line (docs/DESIGN.md, "Command line"). 0 is success.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Exit {
    /// Something failed while running.
    Runtime = 1,
    /// The command line is wrong.
    Usage = 2,
    /// A file that configures the program, such as the private key, cannot be used.
    Config = 3,
    /// One end refused the other: its key, its suites or its key exchange.
    Authentication = 4,
    /// The other end did not answer.
    Unreachable = 5,
    /// A local address could not be bound.
    BindFailed = 6,
}

/// The one error type of the command line.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Error {
    exit: Exit,
    cause: String,
    hint: Option<String>,
}

impl Error {
    /// An error whose cause names the thing and the value.
    pub(crate) fn new(exit: Exit, cause: impl Into<String>) -> Self {
        Self { exit, cause: cause.into(), hint: None }
    }

    /// Adds the way out: what to type, set or look at.
    pub(crate) fn hint(mut self, hint: impl Into<String>) -> Self {
        self.hint = Some(hint.into());
        self
    }

    /// Prints at most two lines on standard error. A closed standard error is not a second error.
    pub(crate) fn report(&self) -> ExitCode {
        let _ = write!(io::stderr().lock(), "{self}");
        ExitCode::from(self.exit as u8)
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "keypadd: {}", one_line(&redacted(&self.cause)))?;
        match &self.hint {
            Some(hint) => writeln!(f, "  hint: {}", one_line(&redacted(hint))),
            None => Ok(()),
        }
    }
}

impl std::error::Error for Error {}

/// An error of the operating system without its number, to stand at the end of a cause.
pub(crate) fn system(error: &io::Error) -> String {
    let text = error.to_string();
    let mut text = text.split(" (os error").next().unwrap_or_default().to_owned();
    if let Some(first) = text.get_mut(..1) {
        first.make_ascii_lowercase();
    }
    text
}

/// The way out where a local address could not be bound; `example` is a flag with a good value.
pub(crate) fn bind_hint(error: &io::Error, example: &str) -> String {
    match error.kind() {
        ErrorKind::AddrInUse => {
            format!("another program listens there; choose a free port, as in {example}")
        }
        ErrorKind::PermissionDenied => {
            format!(
                "ports below 1024 are reserved for the system; choose a higher one, as in {example}"
            )
        }
        ErrorKind::AddrNotAvailable => {
            format!("this host does not have that address; choose one that it has, as in {example}")
        }
        _ => format!("choose an address of this host and a free port, as in {example}"),
    }
}

/// Longest value repeated back to the user, in characters.
const SHOWN_CHARS: usize = 80;

/// What unencrypted Ed25519 keys in PKCS#8 begin with in base64 (RFC 8410 section 7, versions 1
/// and 2), as far as the text is the same for every key.
const PKCS8_STARTS: [&str; 2] = ["MC4CAQAwBQYDK2Vw", "CAQEwBQYDK2Vw"];

/// Base64 of this length is part of a key and not a word.
const BASE64_RUN: usize = 13;

/// A value from outside as it may be repeated: quoted, cut, control characters escaped, and anything
/// that may hold a private key left out.
pub(crate) fn shown(value: impl AsRef<str>) -> String {
    let value = value.as_ref();
    if is_private(value) {
        return "a private key (not repeated here)".to_owned();
    }
    let mut text: String = value.chars().take(SHOWN_CHARS).flat_map(escaped).collect();
    if value.chars().nth(SHOWN_CHARS).is_some() {
        text.push_str("...");
    }
    format!("`{text}`")
}

/// Whether the text looks like a private key in PEM or its bare base64.
pub(crate) fn is_private(value: &str) -> bool {
    value.contains("PRIVATE KEY") || PKCS8_STARTS.iter().any(|start| value.contains(start))
}

/// The last line of defence: a cause or hint that quotes a private key ends where the key begins.
/// Naming PEM's first line, as a hint does, quotes nothing; base64 after it does.
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

/// A cause or hint may quote another error's text: whatever that holds, it stays one line.
fn one_line(text: &str) -> String {
    text.chars().flat_map(escaped).collect()
}

/// Control characters in Rust's escapes, everything else as it is.
fn escaped(character: char) -> impl Iterator<Item = char> {
    let control = character.is_control().then(|| character.escape_default());
    let plain = (!character.is_control()).then_some(character);
    control.into_iter().flatten().chain(plain)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_error_is_at_most_two_lines_whatever_it_quotes() {
        let error = Error::new(Exit::Runtime, "a\nb\x1b[31m").hint("c\r\nd");
        let text = error.to_string();
        assert_eq!(text.lines().count(), 2, "{text}");
        assert!(!text.contains('\x1b'));
    }

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
        for (cause, kept) in [
            ("cannot reach MC4CAQAwBQYDK2VwBCIEIAAAAAAA:4433: no", "cannot reach (a private key)"),
            ("'x=MFMCAQEwBQYDK2VwBCIEIAAAAAAA'", "'x=MFM(a private key)"),
            ("-----BEGIN PRIVATE KEY-----\nQUFBAAAAAAAAAAAAAAAA", "-----BEGIN (a private key)"),
            (
                "(it begins with -----BEGIN PRIVATE KEY-----)",
                "(it begins with -----BEGIN PRIVATE KEY-----)",
            ),
        ] {
            let error = Error::new(Exit::Runtime, cause).hint(cause);
            assert_eq!(error.to_string(), format!("keypadd: {kept}\n  hint: {kept}\n"));
        }
    }

    #[test]
    fn a_long_value_is_cut() {
        assert!(shown("x".repeat(1000)).len() < 100);
    }
}
