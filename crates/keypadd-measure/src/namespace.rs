//! Hosts that are told apart by the kernel: network namespaces of our own, joined by veth pairs.
//!
//! They have no names: each is known to this process alone, by a descriptor, and gone with it, however
//! the process ends. Nothing outside them is touched. Needs root, iproute2, and unshare of util-linux.

use std::fs::File;
use std::io::{self, Read, Write};
use std::net::{IpAddr, Ipv4Addr};
use std::os::fd::{AsFd, AsRawFd};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::thread;

use keypadd_traffic::Host;
use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};

/// A network namespace. Clones are the same one.
#[derive(Clone, Debug)]
pub(crate) struct Namespace(Arc<File>);

impl Namespace {
    /// A new one, with nothing but a loopback that is down.
    ///
    /// # Errors
    /// In words: what is not permitted, or which program is missing.
    fn new() -> Result<Self, String> {
        let failed = |error: io::Error| format!("unshare: {error}");
        // A program that lives in it until it is open here; then it has nothing more to read, and ends.
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
    pub(crate) fn enter(&self) -> io::Result<()> {
        let network = Some(LinkNameSpaceType::Network);
        Ok(move_into_link_name_space(self.0.as_fd(), network)?)
    }

    /// Runs a program in it, which is given `input`.
    fn run(&self, program: &str, arguments: &[&str], input: &str) -> Result<(), String> {
        thread::scope(|scope| {
            let inside = scope.spawn(|| {
                self.enter().map_err(|error| format!("a namespace: {error}"))?;
                run(Command::new(program).args(arguments), input)
            });
            inside.join().unwrap_or_else(|_| Err("a thread ended on a fault".into()))
        })
    }

    /// Has it pass on packets that are not for itself.
    fn forward(&self) -> Result<(), String> {
        thread::scope(|scope| {
            let inside = scope.spawn(|| {
                self.enter()?;
                std::fs::write("/proc/sys/net/ipv4/ip_forward", "1")
            });
            inside.join().unwrap_or_else(|_| Err(io::Error::other("a thread ended on a fault")))
        })
        .map_err(|error| format!("ip_forward: {error}"))
    }

    /// Where other programs of this user find it.
    fn path(&self) -> String {
        format!("/proc/{}/fd/{}", std::process::id(), self.0.as_raw_fd())
    }
}

/// A client, the gateway of its network, that of the server's, and the server, in a row:
///
/// ```text
/// client 10.86.1.2 -- 10.86.1.1 near 10.86.2.1 -- 10.86.2.2 far 10.86.3.1 -- 10.86.3.2 server
/// ```
///
/// Packets reach each from each; a tunnel between the gateways is the other way.
#[derive(Debug)]
pub struct FourHosts {
    client: Namespace,
    pub(crate) near: Namespace,
    pub(crate) far: Namespace,
    pub(crate) server: Namespace,
}

impl FourHosts {
    /// The near gateway, as the client reaches it.
    pub(crate) const NEAR: IpAddr = address(1, 1);
    /// The far gateway, as the near one reaches it.
    pub(crate) const FAR: IpAddr = address(2, 2);
    /// The server.
    pub(crate) const SERVER: IpAddr = address(3, 2);

    /// Builds them.
    ///
    /// # Errors
    /// In words: what is not permitted, or missing.
    pub fn build() -> Result<Self, String> {
        let needs = |cause| format!("needs root and iproute2, for network namespaces ({cause})");
        Self::try_build().map_err(needs)
    }

    /// The client, to measure from.
    ///
    /// # Errors
    /// The system has no thread for it.
    pub fn client(&self) -> io::Result<Host> {
        let client = self.client.clone();
        Host::start_in(move || client.enter())
    }

    fn try_build() -> Result<Self, String> {
        let new = Namespace::new;
        let hosts = Self { client: new()?, near: new()?, far: new()?, server: new()? };
        let Self { client, near, far, server } = &hosts;
        let veth = |here: &str, there: &str, namespace: &Namespace| {
            format!("link add {here} type veth peer name {there} netns {}\n", namespace.path())
        };
        let ip = |namespace: &Namespace, lines: &str| namespace.run("ip", &["-batch", "-"], lines);
        ip(near, &(veth("inside", "outside", client) + &veth("outside", "outside", far)))?;
        ip(far, &veth("inside", "outside", server))?;
        let up = |device: &str, address: IpAddr| {
            format!("addr add {address}/24 dev {device}\nlink set {device} up\n")
        };
        let loopback = "link set lo up\n";
        let via = |to: &str, gateway: IpAddr| format!("route add {to} via {gateway}\n");
        ip(near, &[loopback, &up("inside", Self::NEAR), &up("outside", address(2, 1))].concat())?;
        ip(far, &[loopback, &up("outside", Self::FAR), &up("inside", address(3, 1))].concat())?;
        let host = |address, gateway| {
            [loopback, &up("outside", address), &via("default", gateway)].concat()
        };
        ip(client, &host(address(1, 2), Self::NEAR))?;
        ip(server, &host(Self::SERVER, address(3, 1)))?;
        ip(near, &via("10.86.3.0/24", Self::FAR))?;
        ip(far, &via("10.86.1.0/24", address(2, 1)))?;
        near.forward()?;
        far.forward()?;
        Ok(hosts)
    }
}

const fn address(network: u8, host: u8) -> IpAddr {
    IpAddr::V4(Ipv4Addr::new(10, 86, network, host))
}

/// Runs a program to its end; its last words if it fails.
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
        // A program that does not read to the end says why.
        let _ = stdin.write_all(input.as_bytes());
    }
    let ended = child.wait_with_output().map_err(failed)?;
    let words = String::from_utf8_lossy(&ended.stderr);
    match ended.status.success() {
        true => Ok(()),
        false => Err(format!("{name}: {}", words.lines().next().unwrap_or("failed"))),
    }
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, Instant};

    use keypadd_keystream::{CipherEngine, Suite};
    use keypadd_provider::KeyExchange;
    use keypadd_traffic::{Due, Exchange, Requester, Requests, TunnelArm};

    use super::*;
    use crate::arm::Arm;
    use crate::path::{self, PathSettings, Place};

    /// As root: `cargo test -p keypadd-measure namespace -- --ignored`.
    #[tokio::test(flavor = "multi_thread")]
    #[ignore = "needs root"]
    async fn a_client_reaches_a_server_by_routes_and_by_a_tunnel_and_by_nothing_else() {
        let hosts = Arc::new(FourHosts::build().unwrap());
        let suite = Suite::AES_256_GCM.protection();
        let tunnel = Arm::Tunnel(TunnelArm { suite, pool: true, engine: CipherEngine::default() });
        for (arm, processor) in [(Arm::Tcp, None), (tunnel, None), (tunnel, Some(0.4))] {
            let place = Place::Hosts { hosts: Arc::clone(&hosts), processor };
            let settings = PathSettings {
                place,
                pool_budget_bytes: 1 << 20,
                kex: KeyExchange::X25519.into(),
                ..PathSettings::default()
            };
            let path = path::open_cold(arm, &settings).await.unwrap();
            let address = path.address();
            assert!(Requester::open(address).await.is_err(), "{address} from outside");
            let client = hosts.client().unwrap();
            let answers = client.run(async move {
                let requester = Requester::open(address).await?;
                let exchange = Exchange::new(100_000, 100_000);
                let requests = Requests::At(vec![Due { at: Duration::ZERO, exchange }]);
                requester.run(requests, Instant::now(), Vec::new(), Vec::push).await
            });
            let (_, answers) = answers.await.unwrap().unwrap();
            assert_eq!(answers.len(), 1);
            let quotas = || {
                let groups =
                    std::fs::read_dir("/sys/fs/cgroup/cpu").into_iter().flatten().flatten();
                let ours = format!("kp-{}-", std::process::id());
                groups.filter(|it| it.file_name().to_string_lossy().starts_with(&ours)).count()
            };
            assert_eq!(quotas() > 0, processor.is_some());
            drop(path);
            assert_eq!(quotas(), 0);
        }
    }
}
