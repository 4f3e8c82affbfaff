//! Sets up two hosts, near and far: network namespaces joined by a veth pair, or by an emulated
//! path.
//!
//! ```text
//! near 10.99.7.2 -- 10.99.7.1 far
//! ```
//!
//! Knows no tunnels and no traffic. Changes nothing outside the two namespaces.

use std::ffi::OsStr;
use std::net::Ipv4Addr;
use std::process::Command;

use crate::namespace::Namespace;
use crate::path::{Device, End, Path};
use crate::programs::locate;

/// The two namespaces. They disappear with this process and its children.
#[derive(Debug)]
pub struct TwoHosts {
    /// Where load is generated and tunnels listen.
    pub near: Namespace,
    /// Where the traffic service runs.
    pub far: Namespace,
}

impl TwoHosts {
    /// The near host, as the far one reaches it.
    pub const NEAR: Ipv4Addr = Ipv4Addr::new(10, 99, 7, 2);
    /// The far host, as the near one reaches it.
    pub const FAR: Ipv4Addr = Ipv4Addr::new(10, 99, 7, 1);

    /// The network between them.
    pub const NETWORK: &str = "10.99.7.0/24";

    fn new() -> Result<Self, String> {
        let hosts = Self { near: Namespace::new()?, far: Namespace::new()? };
        hosts.near.ip("link set lo up\n")?;
        hosts.far.ip("link set lo up\n")?;
        Ok(hosts)
    }

    /// Joins both by a veth pair: as fast as this machine allows.
    ///
    /// # Errors
    /// One line: what `unshare` or `ip` said.
    pub fn by_veth(mtu: u32) -> Result<Self, String> {
        let hosts = Self::new()?;
        let Self { near, far } = &hosts;
        far.ip(&format!(
            "link add veth0 mtu {mtu} type veth peer name veth0 mtu {mtu} netns {}\n",
            near.path()
        ))?;
        for (namespace, address) in [(near, Self::NEAR), (far, Self::FAR)] {
            namespace.ip(&format!("addr add {address}/24 dev veth0\nlink set veth0 up\n"))?;
        }
        Ok(hosts)
    }

    /// Joins both by an emulated path, which passes everything immediately until configured.
    ///
    /// # Errors
    /// One line: what `unshare` or `ip` said, or why there is no TUN device.
    pub fn by_path(mtu: u32, seed: u64) -> Result<(Self, Path), String> {
        let hosts = Self::new()?;
        let device = |namespace: &Namespace, address| Device::open(namespace, address, mtu);
        let near = device(&hosts.near, Self::NEAR)?;
        let far = device(&hosts.far, Self::FAR)?;
        let path = Path::start(near, far, seed)?;
        Ok((hosts, path))
    }

    /// A command that runs `program` in a namespace and dies with the calling thread.
    ///
    /// `setpriv` replaces itself by the program, so the child's id is the program's.
    pub fn command(&self, end: End, program: &OsStr) -> Command {
        let namespace = match end {
            End::Near => &self.near,
            End::Far => &self.far,
        };
        let mut command = namespace.command(locate("setpriv"));
        command.args(["--pdeathsig", "KILL"]).arg(program);
        command
    }
}
