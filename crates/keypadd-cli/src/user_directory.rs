//! Finds the directories of a user's own configuration and state, as the XDG Base Directory
//! Specification says.
//!
//! Knows no file in it, and nothing about root, whose files are in `/etc/keypadd`.

use std::{ffi::OsString, path::PathBuf};

/// `$XDG_CONFIG_HOME/keypadd`, else `~/.config/keypadd`; `None` if HOME is not set either.
pub fn user_directory() -> Option<PathBuf> {
    directory_of(("XDG_CONFIG_HOME", ".config"), |name| std::env::var_os(name))
}

/// `$XDG_STATE_HOME/keypadd`, else `~/.local/state/keypadd`; `None` if HOME is not set either.
pub fn state_directory() -> Option<PathBuf> {
    directory_of(("XDG_STATE_HOME", ".local/state"), |name| std::env::var_os(name))
}

/// The directory that a variable names, or this one below HOME.
fn directory_of(
    (named, in_home): (&str, &str),
    variable: impl Fn(&str) -> Option<OsString>,
) -> Option<PathBuf> {
    let path = |name| variable(name).filter(|value| !value.is_empty()).map(PathBuf::from);
    // "All paths must be absolute. If an implementation encounters a relative path [...] it should
    // consider the path invalid and ignore it."
    let given = path(named).filter(|path| path.is_absolute());
    Some(given.or_else(|| Some(path("HOME")?.join(in_home)))?.join("keypadd"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn directory(xdg: &str, home: &str) -> Option<PathBuf> {
        directory_of(("XDG_CONFIG_HOME", ".config"), |name| match name {
            "XDG_CONFIG_HOME" => Some(xdg.into()),
            "HOME" => Some(home.into()),
            _ => None,
        })
    }

    #[test]
    fn an_absolute_xdg_config_home_comes_before_home() {
        let at = |path: &str| Some(PathBuf::from(path));
        assert_eq!(directory("/x", "/home/ann"), at("/x/keypadd"));
        assert_eq!(directory("", "/home/ann"), at("/home/ann/.config/keypadd"));
        assert_eq!(directory("conf", "/home/ann"), at("/home/ann/.config/keypadd"));
        assert_eq!(directory("/x", ""), at("/x/keypadd"));
        assert_eq!(directory("", ""), None);
    }
}
