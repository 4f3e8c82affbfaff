//! Brings an arm's tunnel up between two gateways, and proves that it carries packets and what
//! crosses the link between them.
//!
//! The hosts are made anew for each sample, so that nothing of another arm remains. Each gateway
//! runs one script, which lives as long as its tunnel; it has a `/run` of its own, where daemons
//! leave sockets and numbers of processes. Or both gateways run in this process. Does not know how
//! arms differ.

use std::fs;
use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use keypadd_traffic::TunnelArm;
use testbed::programs::{clear_variables, find, locate, search_path};
use testbed::{Capture, Cleanup, FourHosts, LinkAddress, Namespace, Processes, Seen};
use tokio::runtime::{Builder, Runtime};

use super::arms::{NetworkArm, Up};
use crate::arm::Arm;
use crate::load::words;
use crate::path::{PathSettings, Place, open_cold};

/// Memory of each gateway's pool in this process, as a daemon's has by default.
const POOL_BYTES: usize = 64 << 20;

/// Timeout of making keys, and of asking for a version; as timeout(1) takes it.
const SCRIPT_TIMEOUT: &str = "60";

/// How long one packet of the proof may take.
const ROUND_TRIP: Duration = Duration::from_millis(200);

/// The near gateway's address on the link between the gateways: locally administered.
const LINK: LinkAddress = [0x02, 0x86, 0x02, 0, 0, 1];

/// Port of the proof.
const PORT: u16 = 7001;

/// What a packet of the proof repeats.
const MARK_BYTES: usize = 16;
const MARKS: usize = 8;

/// What a script of a gateway begins and ends with. Whatever it started dies with it.
const BEGIN: &str = r#"mount -t tmpfs tmpfs /run
daemon() { setpriv --pdeathsig KILL "$@" & }
"#;
const END: &str = "\n: >$side.up\nwait $!; exit 1\n";

/// Programs that the lab itself needs, and their packages.
const NEEDS: [(&str, &str); 6] = [
    ("ip", "iproute2"),
    ("setpriv", "util-linux"),
    ("unshare", "util-linux"),
    ("nsenter", "util-linux"),
    ("mount", "mount"),
    ("timeout", "coreutils"),
];

/// Four hosts and a tunnel. Dropping it ends the gateways' programs.
#[derive(Debug)]
pub(super) struct Lab {
    /// The gateways' scripts, which end before their hosts do.
    pub(super) scripts: Processes,
    /// The tunnel between gateways in this process, and the runtime that it needs.
    _here: Option<(keypadd_traffic::Path, Runtime)>,
    pub(super) hosts: Arc<FourHosts>,
}

/// Checks for root and for the lab's own programs.
///
/// # Errors
/// One line: what is missing.
pub(super) fn check() -> Result<(), String> {
    if !rustix::process::geteuid().is_root() {
        return Err("needs root, for network namespaces".into());
    }
    let missing = NEEDS.into_iter().find(|(program, _)| find(program).is_none());
    missing.map_or(Ok(()), |(program, package)| {
        Err(format!("{program} is missing: apt-get install {package}"))
    })
}

impl NetworkArm {
    /// What this machine lacks for it, in a line.
    pub(super) fn lacks(&self) -> Option<String> {
        let missing = self.needs.iter().find(|need| find(need.program).is_none())?;
        Some(format!(
            "{} is left out, {} is missing: {}",
            self.name, missing.program, missing.install
        ))
    }

    /// The first line of its version, or why there is none.
    pub(super) fn read_version(&self) -> String {
        let script = format!("{{ {}; }} 2>&1 || true", self.version);
        let said = run(&script, Path::new("/")).unwrap_or_else(|error| error);
        said.lines().next().unwrap_or("unknown").trim().to_owned()
    }

    /// Makes what all rounds share.
    ///
    /// # Errors
    /// One line: what a program said.
    pub(super) fn prepare(&self, directory: &Path) -> Result<(), String> {
        fs::create_dir_all(directory)
            .map_err(|error| format!("{}: {error}", directory.display()))?;
        run(self.prepare, directory).map(drop).map_err(|error| format!("{}: {error}", self.name))
    }
}

impl Lab {
    /// Makes the hosts and starts the arm's programs; returns once packets pass, and are seen
    /// between the gateways or not, as the arm says.
    ///
    /// # Errors
    /// What failed, and the last lines of the logs.
    pub(super) fn open(
        cleanup: &Arc<Cleanup>,
        arm: &NetworkArm,
        directory: &Path,
        stop: &AtomicBool,
    ) -> Result<Self, String> {
        let hosts = Arc::new(FourHosts::build()?);
        let [of_client, of_server] = FourHosts::NETWORKS;
        let address = LINK.map(|octet| format!("{octet:02x}")).join(":");
        // There is no way around the tunnel.
        hosts.near.ip(&format!("route del {of_server}\nlink set outside address {address}\n"))?;
        hosts.far.ip(&format!("route del {of_client}\n"))?;
        let mut lab = Self { scripts: Processes::new(cleanup), _here: None, hosts };
        let started = match arm.up {
            Up::Scripts(up) => lab.start(arm, up, directory, stop),
            Up::Here(tunnel) => lab.start_here(tunnel()),
        };
        let opened = started.and_then(|()| lab.prove(arm, stop));
        opened.map_err(|error| format!("{error}{}", lab.scripts.log_tails()))?;
        Ok(lab)
    }

    /// Has gateways in this process. Their pools fill before anything is measured, as a daemon's do.
    fn start_here(&mut self, tunnel: TunnelArm) -> Result<(), String> {
        let place = Place::Hosts { hosts: Arc::clone(&self.hosts), processor: None, ipv6: false };
        let settings =
            PathSettings { place, pool_budget_bytes: POOL_BYTES, ..PathSettings::default() };
        let runtime = Builder::new_current_thread().enable_all().build().map_err(words)?;
        let path = runtime.block_on(open_cold(Arm::Tunnel(tunnel), &settings));
        self._here = Some((path.map_err(|error| error.to_string())?, runtime));
        Ok(())
    }

    fn start(
        &mut self,
        arm: &NetworkArm,
        parts: &[&str],
        directory: &Path,
        stop: &AtomicBool,
    ) -> Result<(), String> {
        let up = ["far", "near"].map(|side| directory.join(format!("{side}.up")));
        for (side, up) in ["far", "near"].into_iter().zip(&up) {
            let _ = fs::remove_file(up);
            let namespace = if side == "near" { &self.hosts.near } else { &self.hosts.far };
            let script = format!("{BEGIN}{}{END}", parts.join("\n"));
            let mut command = namespace.command(locate("setpriv"));
            command.args(["--pdeathsig", "KILL", "unshare", "--mount", "sh", "-ec", &script]);
            command.current_dir(directory);
            set_variables(&mut command);
            set_side(&mut command, arm, side);
            let name = format!("the {side} gateway's script");
            self.scripts.start(name, up.with_extension("log"), &mut command)?;
        }
        self.scripts.wait("the tunnel is not up", stop, || up.iter().all(|up| up.exists()))
    }

    /// Sends packets from the client to the server and back, and looks at those between the
    /// gateways.
    fn prove(&self, arm: &NetworkArm, stop: &AtomicBool) -> Result<(), String> {
        let mark: Vec<u8> = (0..MARK_BYTES).map(|_| fastrand::u8(..)).collect();
        let packet = mark.repeat(MARKS);
        let server = bind(&self.hosts.server, FourHosts::SERVER)?;
        let client = bind(&self.hosts.client, FourHosts::CLIENT)?;
        let there = SocketAddr::from((FourHosts::SERVER, PORT));
        let capture = Capture::start(&self.hosts.near, LINK, mark)?;
        let carried = self.scripts.wait("the tunnel carries no packets", stop, || {
            let mut buffer = [0; MARK_BYTES * MARKS];
            let mut trip = || {
                client.send_to(&packet, there)?;
                let (_, from) = server.recv_from(&mut buffer)?;
                server.send_to(&packet, from)?;
                client.recv_from(&mut buffer)
            };
            trip().is_ok()
        });
        let seen = capture.end();
        carried.and_then(|()| judge(arm.is_clear, seen))
    }
}

/// Whether what was seen between the gateways is as it should be.
fn judge(is_clear: bool, seen: Seen) -> Result<(), String> {
    match (is_clear, seen) {
        (_, Seen { frames: 0, .. }) => Err("nothing passes between the gateways".into()),
        (false, Seen { marked: 1.., .. }) => {
            Err("what it carries passes between the gateways in the clear".into())
        }
        (true, Seen { marked: 0, .. }) => {
            Err("the packets between the gateways do not hold what they carry".into())
        }
        _ => Ok(()),
    }
}

fn bind(host: &Namespace, address: IpAddr) -> Result<UdpSocket, String> {
    host.inside(|| {
        let socket = UdpSocket::bind((address, PORT)).map_err(|error| error.to_string())?;
        let set = socket.set_read_timeout(Some(ROUND_TRIP));
        set.map(|()| socket).map_err(|error| error.to_string())
    })
}

/// Variables of all scripts.
fn set_variables(command: &mut Command) {
    clear_variables(command);
    command.env("PATH", search_path());
    let [near_net, far_net] = FourHosts::NETWORKS;
    command.envs([("near_net", near_net), ("far_net", far_net)]);
    command.env("near_ip", FourHosts::NEAR_OUTSIDE.to_string());
    command.env("far_ip", FourHosts::FAR.to_string());
}

/// Variables of a gateway's script.
fn set_side(command: &mut Command, arm: &NetworkArm, side: &'static str) {
    let (near, far) = (FourHosts::NEAR_OUTSIDE.to_string(), FourHosts::FAR.to_string());
    let [near_net, far_net] = FourHosts::NETWORKS;
    let (near_inner, far_inner) = ("10.86.4.1", "10.86.4.2");
    let pair = |name: &'static str, theirs: &'static str, near: &str, far: &str| {
        let (own, other) = if side == "near" { (near, far) } else { (far, near) };
        [(name, own.to_owned()), (theirs, other.to_owned())]
    };
    command.envs(pair("side", "other", "near", "far"));
    command.envs(pair("me", "them", &near, &far));
    command.envs(pair("net", "their_net", near_net, far_net));
    command.envs(pair("inner", "their_inner", near_inner, far_inner));
    // Names of devices are at most 15 bytes long, and of WireGuard's also of files of one machine.
    let name: String = arm.name.chars().filter(char::is_ascii_alphanumeric).take(9).collect();
    command.env("dev", format!("{name}-{side}"));
}

/// Runs a script to its end, for as long as it may take, and returns what it prints.
fn run(script: &str, directory: &Path) -> Result<String, String> {
    let mut command = Command::new(locate("timeout"));
    set_variables(&mut command);
    command.args([SCRIPT_TIMEOUT, "sh", "-ec", script]).current_dir(directory);
    let output = command.stdin(Stdio::null()).output().map_err(|error| error.to_string())?;
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).trim().to_owned();
    match output.status.success() {
        true => Ok(text(&output.stdout)),
        false => Err(text(&output.stderr).lines().last().unwrap_or("failed").to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::super::arms::ARMS;
    use super::*;

    #[test]
    fn every_script_is_one_that_a_shell_reads() {
        for arm in &ARMS {
            let parts = match arm.up {
                Up::Scripts(parts) => parts,
                Up::Here(_) => &[],
            };
            let up = format!("{BEGIN}{}{END}", parts.join("\n"));
            for script in [arm.prepare, arm.version, &up] {
                let mut command = Command::new("sh");
                let status = command.args(["-nc", script]).status().unwrap();
                assert!(status.success(), "{}: {script}", arm.name);
            }
        }
    }

    #[test]
    fn an_arm_whose_program_is_missing_says_what_installs_it() {
        let needs = &[super::super::arms::Need { program: "no-such", install: "install it" }];
        let arm = NetworkArm { needs, ..ARMS[0].clone() };
        let said = arm.lacks().unwrap();
        assert_eq!(said, "plain is left out, no-such is missing: install it");
    }

    #[test]
    fn a_tunnel_shows_frames_and_only_a_clear_one_what_they_hold() {
        let (nothing, sealed) = (Seen::default(), Seen { frames: 4, marked: 0 });
        let clear = Seen { frames: 4, marked: 1 };
        assert!(judge(false, sealed).is_ok() && judge(true, clear).is_ok());
        assert!(judge(false, clear).unwrap_err().contains("in the clear"));
        for (is_clear, seen) in [(true, sealed), (true, nothing), (false, nothing)] {
            assert!(judge(is_clear, seen).is_err());
        }
    }
}
