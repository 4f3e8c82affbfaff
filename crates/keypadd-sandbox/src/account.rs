//! Switches all threads to another user, for good.

use std::ffi::CString;
use std::{fmt, io};

use nix::unistd::{Gid, Uid, User, getgrouplist, setgroups, setresgid, setresuid};

/// A user to become.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Account {
    name: String,
    uid: Uid,
    gid: Gid,
    groups: Vec<Gid>,
}

/// There is no such user.
#[derive(Debug)]
pub struct UnknownUser;

impl fmt::Display for UnknownUser {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("no such user")
    }
}

impl std::error::Error for UnknownUser {}

impl Account {
    /// Looks up a user, with its groups.
    ///
    /// # Errors
    /// There is no such user.
    pub fn find(name: &str) -> Result<Self, UnknownUser> {
        let user = User::from_name(name).ok().flatten().ok_or(UnknownUser)?;
        let c_name = CString::new(name).map_err(|_| UnknownUser)?;
        let groups = getgrouplist(&c_name, user.gid).unwrap_or_else(|_| vec![user.gid]);
        Ok(Self { name: name.to_owned(), uid: user.uid, gid: user.gid, groups })
    }

    /// Its name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Its number.
    pub fn uid(&self) -> u32 {
        self.uid.as_raw()
    }

    fn is_current(&self) -> bool {
        Uid::current() == self.uid && Uid::effective() == self.uid
    }

    /// Whether this process may become it.
    pub(crate) fn check(&self) -> io::Result<()> {
        if self.is_current() || Uid::effective().is_root() {
            return Ok(());
        }
        Err(io::Error::new(io::ErrorKind::PermissionDenied, "only root can switch users"))
    }

    /// Switches all three user and group IDs, and the groups. The C library does so in every thread
    /// (nptl(7)); the system calls alone would switch only one.
    pub(crate) fn switch(&self) -> io::Result<()> {
        if self.is_current() {
            return Ok(());
        }
        setgroups(&self.groups)?;
        setresgid(self.gid, self.gid, self.gid)?;
        setresuid(self.uid, self.uid, self.uid)?;
        if !self.uid.is_root() && setresuid(Uid::from_raw(0), Uid::from_raw(0), self.uid).is_ok() {
            return Err(io::Error::other("root can be regained after switching users"));
        }
        Ok(())
    }
}
