//! Makes the two network namespaces, near and far, and joins them by a veth pair.
//!
//! ```text
//! near 10.99.7.2 -- veth -- 10.99.7.1 far
//! ```
//!
//! Knows no tunnels and no traffic. Nothing outside the two namespaces changes.

use std::ffi::OsStr;
use std::net::Ipv4Addr;
use std::process::Command;

use testbed::Namespace;

use crate::programs::locate;

/// The far end's address on the veth pair.
pub(crate) const FAR: Ipv4Addr = Ipv4Addr::new(10, 99, 7, 1);
/// The near end's address on the veth pair.
const NEAR: Ipv4Addr = Ipv4Addr::new(10, 99, 7, 2);

/// One of the two hosts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum End {
    /// Where load is generated and tunnels listen.
    Near,
    /// Where the traffic service runs.
    Far,
}

/// The two namespaces. They go with this process and its children.
#[derive(Debug)]
pub(crate) struct Network {
    near: Namespace,
    far: Namespace,
}

impl Network {
    /// Makes both namespaces, their loopbacks and the veth pair.
    ///
    /// # Errors
    /// One line: what `unshare` or `ip` said.
    pub(crate) fn create(mtu: u32) -> Result<Self, String> {
        let network = Self { near: Namespace::new()?, far: Namespace::new()? };
        let Self { near, far } = &network;
        far.ip(&format!(
            "link add veth0 mtu {mtu} type veth peer name veth0 mtu {mtu} netns {}\n",
            near.path()
        ))?;
        for (namespace, address) in [(near, NEAR), (far, FAR)] {
            namespace.ip(&format!(
                "link set lo up\naddr add {address}/24 dev veth0\nlink set veth0 up\n"
            ))?;
        }
        Ok(network)
    }

    /// A command that runs `program` in a namespace and dies with the calling thread.
    ///
    /// `setpriv` replaces itself by the program, so the child's id is the program's.
    pub(crate) fn command(&self, end: End, program: &OsStr) -> Command {
        let namespace = match end {
            End::Near => &self.near,
            End::Far => &self.far,
        };
        let mut command = namespace.command(locate("setpriv"));
        command.args(["--pdeathsig", "KILL"]).arg(program);
        command
    }

    /// Runs `work` on a thread inside the near namespace; threads that it starts are there too.
    ///
    /// # Errors
    /// The error of `work`, or one line why the namespace cannot be entered.
    pub(crate) fn inside_near<T: Send>(
        &self,
        work: impl FnOnce() -> Result<T, String> + Send,
    ) -> Result<T, String> {
        self.near.inside(work)
    }
}
