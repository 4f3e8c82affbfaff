//! Defines the error of a command: a line with the cause, a line with a hint, and an exit code;
//! several causes for a file with several faults. User input goes through [`shown`] before it is
//! printed, so that pasted private keys, control characters and long texts never reach the
//! terminal.

use std::fmt;
use std::io::{self, ErrorKind, Write};
use std::process::ExitCode;

pub use keypadd_config::quote::{is_private, one_line, shown};
use keypadd_tunnel::BindAddress;
use rustix::io::Errno;

/// Exit codes, as `keypadd --help` lists them; 0 is success.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Exit {
    /// Runtime error.
    Runtime = 1,
    /// Invalid command line.
    Usage = 2,
    /// Invalid configuration or key file.
    Config = 3,
    /// One end rejected the other's key, suites or key exchange.
    Authentication = 4,
    /// No answer from the other end.
    Unreachable = 5,
    /// An address could not be bound, here or by the server.
    BindFailed = 6,
}

impl Exit {
    const ALL: [Self; 6] = [
        Self::Runtime,
        Self::Usage,
        Self::Config,
        Self::Authentication,
        Self::Unreachable,
        Self::BindFailed,
    ];

    /// The code that another process gives; [`Runtime`](Self::Runtime) for an unknown one.
    pub fn of(code: u8) -> Self {
        Self::ALL.into_iter().find(|exit| *exit as u8 == code).unwrap_or(Self::Runtime)
    }
}

/// The one error type of the command line.
#[derive(Debug, PartialEq, Eq)]
pub struct Error {
    exit: Exit,
    /// Never empty.
    parts: Vec<Part>,
}

#[derive(Debug, PartialEq, Eq)]
struct Part {
    /// Printed before the cause, which may begin with a place in a file instead.
    program: &'static str,
    cause: String,
    hint: Option<String>,
}

impl Error {
    /// An error; the cause names the flag or file and the value.
    pub fn new(exit: Exit, cause: impl Into<String>) -> Self {
        Self { exit, parts: vec![Part { program: "keypadd: ", cause: cause.into(), hint: None }] }
    }

    /// Several faults of a file, each `FILE:LINE:COLUMN: cause` with its hint.
    pub fn listed(exit: Exit, faults: impl IntoIterator<Item = (String, Option<String>)>) -> Self {
        let part = |(cause, hint)| Part { program: "", cause, hint };
        Self { exit, parts: faults.into_iter().map(part).collect() }
    }

    /// Appends another error; keeps the exit code.
    pub fn and(mut self, other: Self) -> Self {
        self.parts.extend(other.parts);
        self
    }

    /// The exit code.
    pub fn exit(&self) -> Exit {
        self.exit
    }

    /// Sets the hint of the last cause: what to do about it.
    pub fn hint(mut self, hint: impl Into<String>) -> Self {
        if let Some(part) = self.parts.last_mut() {
            part.hint = Some(hint.into());
        }
        self
    }

    /// Each cause, without the program's name, and its hint.
    pub fn parts(&self) -> impl Iterator<Item = (&str, Option<&str>)> {
        self.parts.iter().map(|Part { cause, hint, .. }| (&**cause, hint.as_deref()))
    }

    /// Prints at most two lines per cause on standard error, which may be closed.
    pub fn report(&self) -> ExitCode {
        let _ = write!(io::stderr().lock(), "{self}");
        ExitCode::from(self.exit as u8)
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for Part { program, cause, hint } in &self.parts {
            writeln!(f, "{program}{}", one_line(cause))?;
            if let Some(hint) = hint {
                writeln!(f, "  hint: {}", one_line(hint))?;
            }
        }
        Ok(())
    }
}

impl std::error::Error for Error {}

/// An operating system error without its number, in lower case, for the end of a cause.
pub fn system(error: &io::Error) -> String {
    let text = error.to_string();
    let mut text = text.split(" (os error").next().unwrap_or_default().to_owned();
    if let Some(first) = text.get_mut(..1) {
        first.make_ascii_lowercase();
    }
    text
}

/// The hint if a forward's TCP address or unix socket cannot be bound.
pub fn listen_hint(address: &BindAddress, error: &io::Error, example: &str) -> String {
    match error.kind() {
        ErrorKind::ResourceBusy => {
            "run `keypadd reload` first: that process can change the address"
        }
        _ if !matches!(address, BindAddress::Unix(_)) => return bind_hint(error, example),
        ErrorKind::AddrInUse => "another program is listening there; choose another path",
        ErrorKind::NotFound => "create the directory, or choose another path",
        ErrorKind::PermissionDenied => "choose a path in a directory that you can write to",
        _ => "choose another path, or remove the file",
    }
    .into()
}

/// The hint if a local address cannot be bound; `example` is a flag with a valid value.
pub fn bind_hint(error: &io::Error, example: &str) -> String {
    match error.kind() {
        ErrorKind::AddrInUse => {
            format!("another program is listening there; choose a free port, as in {example}")
        }
        ErrorKind::ResourceBusy => "restart it; its connections will close".into(),
        ErrorKind::PermissionDenied => {
            format!("ports below 1024 require root; choose a higher one, as in {example}")
        }
        ErrorKind::AddrNotAvailable => {
            format!("this host does not have that address; choose one of its own, as in {example}")
        }
        // EAGAIN and ENOMEM are of the thread that would serve it, EMFILE and ENFILE of its
        // descriptors.
        ErrorKind::WouldBlock | ErrorKind::OutOfMemory => {
            "allow more threads and memory: `ulimit -u`, `-v` and `-d`, or TasksMax= and \
                MemoryMax= in the systemd unit"
                .into()
        }
        _ if matches!(Errno::from_io_error(error), Some(Errno::MFILE | Errno::NFILE)) => {
            "raise `ulimit -Hn`, or LimitNOFILE= in the systemd unit".into()
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
    fn a_lack_of_threads_memory_or_files_is_not_blamed_on_the_address() {
        for (error, hint) in [
            (Errno::AGAIN, "ulimit -u"),
            (Errno::NOMEM, "MemoryMax="),
            (Errno::MFILE, "LimitNOFILE="),
            (Errno::ADDRINUSE, "--listen 1"),
        ] {
            let hinted = bind_hint(&error.into(), "--listen 1");
            assert!(hinted.contains(hint), "{hinted}");
            assert_eq!(hinted.contains("port"), hint == "--listen 1", "{hinted}");
        }
    }

    #[test]
    fn neither_cause_nor_hint_quotes_a_private_key() {
        let quoting = "cannot reach MC4CAQAwBQYDK2VwBCIEIAAAAAAA:4433: no";
        let kept = "cannot reach (a private key)";
        let error = Error::new(Exit::Runtime, quoting).hint(quoting);
        assert_eq!(error.to_string(), format!("keypadd: {kept}\n  hint: {kept}\n"));
    }
}
