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

use crate::line::LineSettings;
use crate::path::{DEVICE, Device, End, Path};

/// Longest packet of an emulated path between gateways, bytes: as on Ethernet.
const ETHERNET_MTU: u32 = 1_500;

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
        self.set("ipv4/ip_forward", "1")?;
        self.set("ipv6/conf/all/forwarding", "1")
    }

    /// Sets a parameter of the kernel's network inside (sysctl(8)).
    fn set(&self, name: &str, value: &str) -> Result<(), String> {
        self.inside(|| {
            let path = format!("/proc/sys/net/{name}");
            std::fs::write(path, value).map_err(|error| format!("{name}: {error}"))
        })
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
/// The client has further addresses, for as many clients. All have the same in IPv6, in fd86:1::/64
/// to fd86:3::/64.
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
    /// How many addresses the client has.
    pub const CLIENTS_MAX: u32 = 20;
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

    /// The client's network and the server's in IPv6.
    pub const NETWORKS_V6: [&str; 2] = ["fd86:1::/64", "fd86:3::/64"];

    /// The address in IPv6 of what has this one in IPv4.
    ///
    /// # Panics
    /// If it is in IPv6 already.
    fn in_ipv6(address: IpAddr) -> IpAddr {
        let IpAddr::V4(address) = address else { panic!("{address} is in IPv6 already") };
        let [.., network, host] = address.octets();
        IpAddr::from([0xfd86, network.into(), 0, 0, 0, 0, 0, host.into()])
    }

    /// This address in IPv4, or the same host's in IPv6.
    pub fn in_family(address: IpAddr, ipv6: bool) -> IpAddr {
        if ipv6 { Self::in_ipv6(address) } else { address }
    }

    /// Creates and connects them.
    ///
    /// # Errors
    /// In words: what is not permitted, or missing.
    pub fn build() -> Result<Self, String> {
        let needs = |cause| format!("needs root and iproute2, for network namespaces ({cause})");
        Self::try_build().map_err(needs)
    }

    /// Address of one of the clients, from 0; [`Self::CLIENT`] is the first. More clients than there
    /// are addresses share them.
    pub fn client(nth: u32) -> IpAddr {
        address(1, 2 + (nth % Self::CLIENTS_MAX) as u8)
    }

    /// Creates them with an emulated path between the gateways, whose lines in both directions have
    /// these settings.
    ///
    /// # Errors
    /// As for [`build`](Self::build), or why there is no TUN device.
    pub fn by_path(line: LineSettings) -> Result<(Self, Path), String> {
        let hosts = Self::new()?;
        let near = Device::open(&hosts.near, ipv4(2, 1), ETHERNET_MTU)?;
        let far = Device::open(&hosts.far, ipv4(2, 2), ETHERNET_MTU)?;
        for (gateway, address) in [(&hosts.near, Self::NEAR_OUTSIDE), (&hosts.far, Self::FAR)] {
            gateway.ip(&add_ipv6(DEVICE, address))?;
        }
        let path = Path::start(near, far, 0)?;
        [End::Near, End::Far].into_iter().for_each(|from| path.set(from, line));
        hosts.route()?;
        Ok((hosts, path))
    }

    fn try_build() -> Result<Self, String> {
        let hosts = Self::new()?;
        let Self { near, far, .. } = &hosts;
        near.ip(&veth("outside", "outside", far))?;
        for (gateway, address) in [(near, Self::NEAR_OUTSIDE), (far, Self::FAR)] {
            gateway.ip(&up("outside", address))?;
        }
        hosts.route()?;
        Ok(hosts)
    }

    /// Hosts and their gateways, which do not reach each other yet.
    fn new() -> Result<Self, String> {
        let new = Namespace::new;
        let hosts = Self { client: new()?, near: new()?, far: new()?, server: new()? };
        let Self { client, near, far, server } = &hosts;
        for host in [client, near, far, server] {
            host.ip("link set lo up\n")?;
        }
        near.ip(&(veth("inside", "outside", client) + &up("inside", Self::NEAR)))?;
        far.ip(&(veth("inside", "outside", server) + &up("inside", address(3, 1))))?;
        let clients = (1..Self::CLIENTS_MAX).map(Self::client);
        let further = clients.map(|address| format!("addr add {address}/24 dev outside\n"));
        let further = further.collect::<String>();
        let default = |gateway| via("0.0.0.0/0", gateway) + &via("::/0", Self::in_ipv6(gateway));
        client.ip(&(up("outside", Self::CLIENT) + &further + &default(Self::NEAR)))?;
        server.ip(&(up("outside", Self::SERVER) + &default(address(3, 1))))?;
        Ok(hosts)
    }

    /// Has the gateways forward packets to each other's networks.
    fn route(&self) -> Result<(), String> {
        let there = |of: usize, gateway| {
            via(Self::NETWORKS[of], gateway) + &via(Self::NETWORKS_V6[of], Self::in_ipv6(gateway))
        };
        self.near.ip(&there(1, Self::FAR))?;
        self.far.ip(&there(0, Self::NEAR_OUTSIDE))?;
        self.near.forward()?;
        self.far.forward()
    }
}

/// What ip(8) does for a pair of devices, the second one in another namespace.
fn veth(here: &str, there: &str, namespace: &Namespace) -> String {
    format!("link add {here} type veth peer name {there} netns {}\n", namespace.path())
}

/// What ip(8) does for a device with an address.
fn up(device: &str, address: IpAddr) -> String {
    let ipv6 = add_ipv6(device, address);
    format!("addr add {address}/24 dev {device}\n{ipv6}link set {device} up\n")
}

/// What ip(8) does for the address in IPv6 of a device with this one.
fn add_ipv6(device: &str, address: IpAddr) -> String {
    format!("addr add {}/64 dev {device} nodad\n", FourHosts::in_ipv6(address))
}

/// What ip(8) does for a route.
fn via(to: &str, gateway: IpAddr) -> String {
    format!("route add {to} via {gateway}\n")
}

const fn ipv4(network: u8, host: u8) -> Ipv4Addr {
    Ipv4Addr::new(10, 86, network, host)
}

const fn address(network: u8, host: u8) -> IpAddr {
    IpAddr::V4(ipv4(network, host))
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
