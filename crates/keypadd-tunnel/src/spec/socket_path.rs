//! The path of a unix socket, on either end of a forward.
//!
//! Text only: sockets are bound in `listen` and connected to in `dial`. Paths are compared as they
//! stand, without asking the file system; a permit names exactly one.

use std::{fmt, path::Path, str::FromStr};

use thiserror::Error;

/// Longest path: the kernel's field has 108 bytes, one of them the final 0 (unix(7)).
pub(crate) const PATH_BYTES_MAX: usize = 107;

/// An absolute path of 2 to 107 ASCII letters, digits and `/ . - _ @ + = %`: a peer's path goes into
/// a log line that is meant to be pasted into a shell, and `:` and `,` separate fields and values.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct SocketPath(String);

/// Why a text is no path of a unix socket; the message names the text.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum SocketPathError {
    /// It does not begin at the root.
    #[error("`{0}`: the path of a unix socket begins with `/`")]
    Relative(String),
    /// It is a directory's name, or longer than the kernel takes.
    #[error("`{0}` is not the path of a unix socket (2 to 107 bytes, a file at its end)")]
    NoFile(String),
    /// It has characters that cannot be told from what stands around it.
    #[error("`{0}`: the path of a unix socket has letters, digits and `/.-_@+=%` only")]
    Characters(String),
}

impl SocketPath {
    /// The path as the file system takes it.
    pub fn as_path(&self) -> &Path {
        Path::new(&self.0)
    }

    /// The path as text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

/// Whether a field of a forward or a permit is meant as a path.
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
    fn bad_paths_are_named() {
        let long = format!("/{}", "x".repeat(PATH_BYTES_MAX));
        for (text, cause) in [
            ("run/x.sock", "`run/x.sock`: the path of a unix socket begins with `/`"),
            ("", "``: the path of a unix socket begins with `/`"),
            ("/", "`/` is not the path of a unix socket (2 to 107 bytes, a file at its end)"),
            (
                "/run/",
                "`/run/` is not the path of a unix socket (2 to 107 bytes, a file at its end)",
            ),
            ("/a b", "`/a b`: the path of a unix socket has letters, digits and `/.-_@+=%` only"),
            ("/$x", "`/$x`: the path of a unix socket has letters, digits and `/.-_@+=%` only"),
            ("/a:b", "`/a:b`: the path of a unix socket has letters, digits and `/.-_@+=%` only"),
        ] {
            assert_eq!(text.parse::<SocketPath>().unwrap_err().to_string(), cause);
        }
        assert_eq!(long.parse::<SocketPath>(), Err(SocketPathError::NoFile(long)));
    }

    proptest! {
        #[test]
        fn any_text_is_parsed_or_refused_without_a_panic(text in "\\PC{0,120}") {
            let _ = text.parse::<SocketPath>();
        }

        #[test]
        fn what_is_shown_is_read_back(text in "/[a-zA-Z0-9/.@+=%_-]{0,110}") {
            if let Ok(path) = text.parse::<SocketPath>() {
                prop_assert_eq!(path.to_string().parse(), Ok(path));
            }
        }
    }
}
