//! Makes the two network namespaces, near and far, and joins them by a veth pair.
//!
//! ```text
//! near 10.99.7.2 -- veth -- 10.99.7.1 far
//! ```
//!
//! Knows no tunnels and no traffic. Nothing outside the two namespaces changes.

use std::fs::File;
use std::net::Ipv4Addr;
use std::os::fd::AsFd;
use std::process::Command;
use std::sync::Arc;

use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};

use crate::arms::locate;
use crate::cleanup::Cleanup;

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

/// The two namespaces. They are removed by [`Cleanup`], not by dropping this.
#[derive(Debug)]
pub(crate) struct Network {
    near: String,
    far: String,
}

impl Network {
    /// Makes both namespaces, their loopbacks and the veth pair.
    ///
    /// # Errors
    /// One line: what `ip` said.
    pub(crate) fn create(cleanup: &Arc<Cleanup>, mtu: u32) -> Result<Self, String> {
        let id = std::process::id();
        let network = Self { near: format!("compare-near-{id}"), far: format!("compare-far-{id}") };
        for name in [&network.near, &network.far] {
            // Register first: removing a namespace that was never made is harmless.
            cleanup.add_namespace(name);
            ip(&["netns", "add", name])?;
        }
        let (near, far, mtu) = (&network.near, &network.far, &mtu.to_string());
        ip(&[
            "-n", far, "link", "add", "veth0", "mtu", mtu, "type", "veth", "peer", "name", "veth0",
            "mtu", mtu, "netns", near,
        ])?;
        for (name, address) in [(near, NEAR), (far, FAR)] {
            ip(&["-n", name, "link", "set", "lo", "up"])?;
            ip(&["-n", name, "addr", "add", &format!("{address}/24"), "dev", "veth0"])?;
            ip(&["-n", name, "link", "set", "veth0", "up"])?;
        }
        Ok(network)
    }

    /// The name of a namespace.
    pub(crate) fn name(&self, end: End) -> &str {
        match end {
            End::Near => &self.near,
            End::Far => &self.far,
        }
    }

    /// A command that runs `program` in a namespace and dies with the calling thread.
    ///
    /// `ip` and `setpriv` replace themselves by the program, so the child's id is the program's.
    pub(crate) fn command(&self, end: End, program: &std::ffi::OsStr) -> Command {
        let mut command = Command::new(locate("ip"));
        command.args(["netns", "exec", self.name(end)]).arg(locate("setpriv"));
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
        let path = format!("/run/netns/{}", self.near);
        std::thread::scope(|scope| {
            let inside = scope.spawn(|| {
                let file = File::open(&path).map_err(|error| format!("{path}: {error}"))?;
                move_into_link_name_space(file.as_fd(), Some(LinkNameSpaceType::Network))
                    .map_err(|error| format!("{path}: cannot enter: {error}"))?;
                work()
            });
            inside.join().unwrap_or_else(|_| Err("the load thread panicked".into()))
        })
    }
}

fn ip(arguments: &[&str]) -> Result<(), String> {
    let output = Command::new(locate("ip"))
        .args(arguments)
        .output()
        .map_err(|error| format!("ip: {error}"))?;
    if output.status.success() {
        return Ok(());
    }
    let words = String::from_utf8_lossy(&output.stderr);
    Err(format!("ip {}: {}", arguments.join(" "), words.lines().next().unwrap_or("failed")))
}
