//! Parses the path of a unix socket, on either end of a forward.
//!
//! Paths are compared as text, without asking the file system.

use std::{fmt, path::Path, str::FromStr};

use thiserror::Error;

/// Longest path: the kernel's field has 108 bytes with the terminating null (unix(7)).
pub(crate) const PATH_BYTES_MAX: usize = 107;

/// An absolute path of 2 to 107 ASCII letters, digits and `/ . - _ @ + = %`. So it is safe in log
/// lines that suggest a command to paste into a shell, and has no `:` or `,`, which separate
/// fields.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct SocketPath(String);

/// A socket path that cannot be parsed; the message quotes the text.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum SocketPathError {
    /// The path is not absolute.
    #[error("`{0}`: a unix socket path begins with `/`")]
    Relative(String),
    /// The path names a directory, or is longer than the kernel allows.
    #[error("`{0}` is not a unix socket path (2 to 107 bytes, naming a file)")]
    NoFile(String),
    /// The path contains other characters.
    #[error("`{0}`: a unix socket path has only letters, digits and `/.-_@+=%`")]
    Characters(String),
}

impl SocketPathError {
    /// The text that the message quotes.
    pub(crate) fn quoted(&self) -> &str {
        match self {
            Self::Relative(text) | Self::NoFile(text) | Self::Characters(text) => text,
        }
    }
}

impl SocketPath {
    /// The path for the file system.
    pub fn as_path(&self) -> &Path {
        Path::new(&self.0)
    }

    /// The path as text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

/// Whether a field of a forward or a permit is a path.
pub(crate) fn is_path(text: &str) -> bool {
    text.starts_with('/')
}

impl FromStr for SocketPath {
    type Err = SocketPathError;

    fn from_str(text: &str) -> Result<Self, SocketPathError> {
        let usable = |b: u8| b.is_ascii_alphanumeric() || b"/.-_@+=%".contains(&b);
        if !is_path(text) {
            Err(SocketPathError::Relative(text.into()))
        } else if !text.bytes().all(usable) {
            Err(SocketPathError::Characters(text.into()))
        } else if text.len() > PATH_BYTES_MAX || text.ends_with('/') {
            Err(SocketPathError::NoFile(text.into()))
        } else {
            Ok(Self(text.into()))
        }
    }
}

impl fmt::Display for SocketPath {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn errors_name_the_bad_path() {
        let long = format!("/{}", "x".repeat(PATH_BYTES_MAX));
        for (text, cause) in [
            ("run/x.sock", "`run/x.sock`: a unix socket path begins with `/`"),
            ("", "``: a unix socket path begins with `/`"),
            ("/", "`/` is not a unix socket path (2 to 107 bytes, naming a file)"),
            ("/run/", "`/run/` is not a unix socket path (2 to 107 bytes, naming a file)"),
            ("/a b", "`/a b`: a unix socket path has only letters, digits and `/.-_@+=%`"),
            ("/$x", "`/$x`: a unix socket path has only letters, digits and `/.-_@+=%`"),
            ("/a:b", "`/a:b`: a unix socket path has only letters, digits and `/.-_@+=%`"),
        ] {
            assert_eq!(text.parse::<SocketPath>().unwrap_err().to_string(), cause);
        }
        assert_eq!(long.parse::<SocketPath>(), Err(SocketPathError::NoFile(long)));
    }

    proptest! {
        #[test]
        fn parsing_never_panics(text in "\\PC{0,120}") {
            let _ = text.parse::<SocketPath>();
        }

        #[test]
        fn displayed_paths_parse_to_the_same(text in "/[a-zA-Z0-9/.@+=%_-]{0,110}") {
            if let Ok(path) = text.parse::<SocketPath>() {
                prop_assert_eq!(path.to_string().parse(), Ok(path));
            }
        }
    }
}
