//! What a command says when it fails: one line with the cause, one with the way out, one exit code; a
//! configuration file that has several faults gets all of them said.
//! Everything a user typed passes through [`shown`] before it is printed, so that a private key
//! pasted in the wrong place, a control character or a page of text never reaches the terminal.
//! Knows nothing of keys, sockets or clap.

use std::fmt;
use std::io::{self, ErrorKind, Write};
use std::process::ExitCode;

pub use keypadd_config::quote::{is_private, one_line, shown};

/// The exit codes of the command line (docs/DESIGN.md, "Command line"). 0 is success.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Exit {
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
    /// An address could not be bound, here or by the server.
    BindFailed = 6,
}

/// The one error type of the command line.
#[derive(Debug, PartialEq, Eq)]
pub struct Error {
    exit: Exit,
    /// One, unless several things are wrong at once. Never none.
    parts: Vec<Part>,
}

#[derive(Debug, PartialEq, Eq)]
struct Part {
    cause: String,
    hint: Option<String>,
}

impl Error {
    /// An error whose cause names the thing and the value.
    pub fn new(exit: Exit, cause: impl Into<String>) -> Self {
        Self { exit, parts: vec![Part { cause: format!("keypadd: {}", cause.into()), hint: None }] }
    }

    /// Several faults of a file, each `FILE:LINE:COLUMN: cause` with its way out.
    pub fn listed(exit: Exit, faults: impl IntoIterator<Item = (String, Option<String>)>) -> Self {
        let part = |(cause, hint)| Part { cause, hint };
        Self { exit, parts: faults.into_iter().map(part).collect() }
    }

    /// Says another error too; the exit code stays.
    pub fn and(mut self, other: Self) -> Self {
        self.parts.extend(other.parts);
        self
    }

    /// With which code the program would end.
    pub fn exit(&self) -> Exit {
        self.exit
    }

    /// Adds the way out: what to type, set or look at.
    pub fn hint(mut self, hint: impl Into<String>) -> Self {
        if let Some(part) = self.parts.last_mut() {
            part.hint = Some(hint.into());
        }
        self
    }

    /// Prints two lines at most for each cause on standard error. A closed standard error is not a second error.
    pub fn report(&self) -> ExitCode {
        let _ = write!(io::stderr().lock(), "{self}");
        ExitCode::from(self.exit as u8)
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for Part { cause, hint } in &self.parts {
            writeln!(f, "{}", one_line(cause))?;
            if let Some(hint) = hint {
                writeln!(f, "  hint: {}", one_line(hint))?;
            }
        }
        Ok(())
    }
}

impl std::error::Error for Error {}

/// An error of the operating system without its number, to stand at the end of a cause.
pub fn system(error: &io::Error) -> String {
    let text = error.to_string();
    let mut text = text.split(" (os error").next().unwrap_or_default().to_owned();
    if let Some(first) = text.get_mut(..1) {
        first.make_ascii_lowercase();
    }
    text
}

/// The way out where a forward cannot listen here: at a TCP address, or at the path of a unix socket.
pub fn listen_hint(address: &str, error: &io::Error, example: &str) -> String {
    if !address.starts_with("unix ") {
        return bind_hint(error, example);
    }
    match error.kind() {
        ErrorKind::AddrInUse => "another program listens there; choose another path",
        ErrorKind::NotFound => "make its directory first, or choose another path",
        ErrorKind::PermissionDenied => "choose a path in a directory that you may write to",
        _ => "choose another path, or remove the file if nobody needs it",
    }
    .into()
}

/// The way out where a local address could not be bound; `example` is a flag with a good value.
pub fn bind_hint(error: &io::Error, example: &str) -> String {
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
    fn neither_cause_nor_hint_quotes_a_private_key() {
        let quoting = "cannot reach MC4CAQAwBQYDK2VwBCIEIAAAAAAA:4433: no";
        let kept = "cannot reach (a private key)";
        let error = Error::new(Exit::Runtime, quoting).hint(quoting);
        assert_eq!(error.to_string(), format!("keypadd: {kept}\n  hint: {kept}\n"));
    }
}
