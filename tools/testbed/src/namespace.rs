//! Creates hosts as network namespaces, joined by veth pairs.
//!
//! Namespaces have no names: only a descriptor of this process refers to one, so they vanish with
//! it, however it ends. Changes nothing outside them. Needs root, iproute2, and unshare of
//! util-linux.

use std::ffi::OsStr;
use std::fs::File;
use std::io::{self, Read, Write};
use std::net::{IpAddr, Ipv4Addr};
use std::os::fd::{AsFd, AsRawFd};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::thread;

use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};

/// A network namespace. Clones are the same one.
#[derive(Clone, Debug)]
pub struct Namespace(Arc<File>);

impl Namespace {
    /// Creates one, with only a loopback that is down.
    ///
    /// # Errors
    /// In words: what is not permitted, or which program is missing.
    pub fn new() -> Result<Self, String> {
        let failed = |error: io::Error| format!("unshare: {error}");
        // Holds the namespace until it is open here; then its standard input closes and it exits.
        let mut child = Command::new("unshare")
            .args(["--net", "sh", "-c", "echo && exec cat"])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .map_err(failed)?;
        let is_up = child.stdout.take().is_some_and(|mut it| it.read_exact(&mut [0]).is_ok());
        let opened = File::open(format!("/proc/{}/ns/net", child.id()));
        let ended = child.wait_with_output().map_err(failed)?;
        if !is_up {
            let words = String::from_utf8_lossy(&ended.stderr);
            return Err(words.lines().next().unwrap_or("unshare: failed").to_owned());
        }
        opened.map(|file| Self(Arc::new(file))).map_err(|error| format!("a namespace: {error}"))
    }

    /// Moves the calling thread, and the threads and programs that it will start.
    pub fn enter(&self) -> io::Result<()> {
        let network = Some(LinkNameSpaceType::Network);
        Ok(move_into_link_name_space(self.0.as_fd(), network)?)
    }

    /// Runs `work` on a thread inside; threads that it starts are inside too.
    ///
    /// # Errors
    /// Those of `work`, or in words why a thread cannot enter.
    pub fn inside<T: Send>(
        &self,
        work: impl FnOnce() -> Result<T, String> + Send,
    ) -> Result<T, String> {
        thread::scope(|scope| {
            let inside = scope.spawn(|| {
                self.enter().map_err(|error| format!("a namespace: {error}"))?;
                work()
            });
            inside.join().unwrap_or_else(|_| Err("a measurement thread panicked".into()))
        })
    }

    /// Runs these ip(8) commands inside.
    ///
    /// # Errors
    /// Its error output.
    pub fn ip(&self, lines: &str) -> Result<(), String> {
        self.inside(|| run(Command::new("ip").args(["-batch", "-"]), lines))
    }

    /// A command that replaces itself by this program inside: the child's ID is the program's.
    pub fn command(&self, program: impl AsRef<OsStr>) -> Command {
        let mut command = Command::new("nsenter");
        command.arg(format!("--net={}", self.path())).arg(program);
        command
    }

    /// Enables IP forwarding.
    fn forward(&self) -> Result<(), String> {
        let write = || std::fs::write("/proc/sys/net/ipv4/ip_forward", "1");
        self.inside(|| write().map_err(|error| format!("ip_forward: {error}")))
    }

    /// Path by which other programs of this user can open it.
    pub fn path(&self) -> String {
        format!("/proc/{}/fd/{}", std::process::id(), self.0.as_raw_fd())
    }
}

/// A client, its gateway, the server's gateway, and the server, in a row:
///
/// ```text
/// client 10.86.1.2 -- 10.86.1.1 near 10.86.2.1 -- 10.86.2.2 far 10.86.3.1 -- 10.86.3.2 server
/// ```
///
/// All can reach each other; a tunnel between the gateways is the alternative route.
#[derive(Debug)]
pub struct FourHosts {
    /// The namespace of the program that measures.
    pub client: Namespace,
    /// Its gateway.
    pub near: Namespace,
    /// The server's gateway.
    pub far: Namespace,
    /// Where a service runs.
    pub server: Namespace,
}

impl FourHosts {
    /// The client.
    pub const CLIENT: IpAddr = address(1, 2);
    /// The near gateway, as the client reaches it.
    pub const NEAR: IpAddr = address(1, 1);
    /// The far gateway, as the near one reaches it.
    pub const FAR: IpAddr = address(2, 2);
    /// The server.
    pub const SERVER: IpAddr = address(3, 2);
    /// The near gateway, as the far one reaches it.
    pub const NEAR_OUTSIDE: IpAddr = address(2, 1);
    /// The client's network and the server's.
    pub const NETWORKS: [&str; 2] = ["10.86.1.0/24", "10.86.3.0/24"];

    /// Creates and connects them.
    ///
    /// # Errors
    /// In words: what is not permitted, or missing.
    pub fn build() -> Result<Self, String> {
        let needs = |cause| format!("needs root and iproute2, for network namespaces ({cause})");
        Self::try_build().map_err(needs)
    }

    fn try_build() -> Result<Self, String> {
        let new = Namespace::new;
        let hosts = Self { client: new()?, near: new()?, far: new()?, server: new()? };
        let Self { client, near, far, server } = &hosts;
        let veth = |here: &str, there: &str, namespace: &Namespace| {
            format!("link add {here} type veth peer name {there} netns {}\n", namespace.path())
        };
        near.ip(&(veth("inside", "outside", client) + &veth("outside", "outside", far)))?;
        far.ip(&veth("inside", "outside", server))?;
        let up = |device: &str, address: IpAddr| {
            format!("addr add {address}/24 dev {device}\nlink set {device} up\n")
        };
        let loopback = "link set lo up\n";
        let via = |to: &str, gateway: IpAddr| format!("route add {to} via {gateway}\n");
        near.ip(
            &[loopback, &up("inside", Self::NEAR), &up("outside", Self::NEAR_OUTSIDE)].concat()
        )?;
        far.ip(&[loopback, &up("outside", Self::FAR), &up("inside", address(3, 1))].concat())?;
        let host = |address, gateway| {
            [loopback, &up("outside", address), &via("default", gateway)].concat()
        };
        client.ip(&host(Self::CLIENT, Self::NEAR))?;
        server.ip(&host(Self::SERVER, address(3, 1)))?;
        let [of_client, of_server] = Self::NETWORKS;
        near.ip(&via(of_server, Self::FAR))?;
        far.ip(&via(of_client, Self::NEAR_OUTSIDE))?;
        near.forward()?;
        far.forward()?;
        Ok(hosts)
    }
}

const fn address(network: u8, host: u8) -> IpAddr {
    IpAddr::V4(Ipv4Addr::new(10, 86, network, host))
}

/// Runs a program to completion; on failure returns its error output.
fn run(command: &mut Command, input: &str) -> Result<(), String> {
    let name = command.get_program().to_string_lossy().into_owned();
    let failed = |error: io::Error| format!("{name}: {error}");
    let mut child = command
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .map_err(failed)?;
    if let Some(mut stdin) = child.stdin.take() {
        // A program that stops reading says why.
        let _ = stdin.write_all(input.as_bytes());
    }
    let ended = child.wait_with_output().map_err(failed)?;
    let words = String::from_utf8_lossy(&ended.stderr);
    match ended.status.success() {
        true => Ok(()),
        false => Err(format!("{name}: {}", words.lines().next().unwrap_or("failed"))),
    }
}
