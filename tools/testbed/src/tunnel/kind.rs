//! Starts each arm's two ends: which programs, with which flags and files.
//!
//! Keys and certificates are created once per run, in its scratch directory. Every tunnel has
//! TCP_NODELAY and no other tuning. Knows no measurements.

use std::ffi::{OsStr, OsString};
use std::fs;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use crate::hosts::TwoHosts;
use crate::path::End;
use crate::programs::{clear_variables, find, locate};

/// The traffic service's port in the far namespace.
pub const SERVICE_PORT: u16 = 7000;
/// Keeps ssh from reading any other configuration.
const NO_FILE: &str = "/dev/null";

/// One way to reach the service.
#[derive(Clone, Debug)]
pub struct Arm {
    /// Its name in tables, and of its directory.
    pub name: String,
    /// Its programs.
    pub kind: Kind,
}

/// The programs of an arm.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Kind {
    /// TCP straight to the service.
    Direct,
    /// Two socat relays, no encryption.
    Socat,
    /// `ssh -L`, AES-256-GCM.
    Ssh,
    /// stunnel at both ends, TLS 1.3, AES-256-GCM.
    Stunnel,
    /// `keypadd serve` and `keypadd connect -L`, AES-256-GCM unless `flags` say otherwise.
    Keypadd {
        /// The binary.
        program: PathBuf,
        /// Flags for both ends.
        flags: Vec<String>,
    },
}

/// A process to start.
#[derive(Debug)]
pub struct Program {
    /// Where it runs.
    pub end: End,
    /// The program.
    pub program: OsString,
    /// Its arguments.
    pub arguments: Vec<OsString>,
    /// When the next process may start.
    pub ready: Ready,
}

/// How to tell that a program is ready.
#[derive(Debug)]
pub enum Ready {
    /// It accepts TCP connections at this address, from the near namespace.
    Listens(SocketAddr),
    /// A line of its log contains this text.
    Logs(&'static str),
    /// The measurement finds out by a round trip.
    Carries,
}

/// Checks for root and for programs before anything is started.
///
/// # Errors
/// One line: what is missing, and the package that has it.
pub fn check_needs(arms: &[Arm]) -> Result<(), String> {
    if !rustix::process::geteuid().is_root() {
        return Err("needs root, for network namespaces".into());
    }
    let ours = [("ip", "iproute2"), ("setpriv", "util-linux")];
    for (program, package) in ours.iter().chain(arms.iter().flat_map(|arm| arm.kind.needs())) {
        if find(program).is_none() {
            return Err(format!("{program} is missing: apt-get install {package}"));
        }
    }
    for arm in arms {
        if let Kind::Keypadd { program, .. } = &arm.kind
            && !program.is_file()
        {
            let program = program.display();
            return Err(format!("{}: no {program}: cargo build --release, or --keypadd", arm.name));
        }
    }
    Ok(())
}

impl Kind {
    /// keypadd with these flags at both ends, split at white space.
    pub fn keypadd(program: &Path, flags: &str) -> Self {
        let flags = flags.split_whitespace().map(str::to_owned).collect();
        Self::Keypadd { program: absolute(program), flags }
    }

    /// Replaces the binary of a keypadd arm; does nothing for others.
    pub fn use_program(&mut self, path: &Path) {
        if let Self::Keypadd { program, .. } = self {
            *program = absolute(path);
        }
    }

    /// The programs that this arm needs, each with its Debian package.
    pub fn needs(&self) -> &'static [(&'static str, &'static str)] {
        match self {
            Self::Direct | Self::Keypadd { .. } => &[],
            Self::Socat => &[("socat", "socat")],
            Self::Ssh => &[
                ("ssh", "openssh-client"),
                ("ssh-keygen", "openssh-client"),
                ("sshd", "openssh-server"),
            ],
            Self::Stunnel => &[("stunnel", "stunnel4"), ("openssl", "openssl")],
        }
    }

    /// Creates what the arm keeps for all rounds: keys, certificates, configuration.
    ///
    /// # Errors
    /// One line: which program failed, and what it said.
    pub fn prepare(&self, directory: &Path) -> Result<(), String> {
        let at = |name: &str| directory.join(name);
        fs::create_dir_all(directory)
            .map_err(|error| format!("{}: {error}", directory.display()))?;
        match self {
            Self::Direct | Self::Socat => Ok(()),
            Self::Ssh => {
                for name in ["host", "user"] {
                    let mut keygen = Command::new(locate("ssh-keygen"));
                    run(keygen.args(["-q", "-t", "ed25519", "-N", "", "-f"]).arg(at(name)))?;
                }
                let host = read(&at("host.pub"))?;
                write(&at("known_hosts"), &format!("testbed {host}"))
            }
            Self::Stunnel => {
                let mut openssl = Command::new(locate("openssl"));
                openssl.args(["req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2"]);
                openssl.args(["-subj", "/CN=testbed", "-keyout"]).arg(at("key.pem"));
                run(openssl.arg("-out").arg(at("certificate.pem"))).map(drop)
            }
            Self::Keypadd { program, .. } => {
                for name in ["near", "far"] {
                    let mut keygen = Command::new(program);
                    clear_variables(&mut keygen);
                    let public = run(keygen.arg("keygen").arg(at(name)))?;
                    write(&at(&format!("{name}.pub")), &public)?;
                }
                Ok(())
            }
        }
    }

    /// The processes to start, in order, and the address in the near namespace to send traffic to.
    ///
    /// `ports` are unused by earlier tunnels: the near listener's and the far one's.
    ///
    /// # Errors
    /// One line: a file of [`Self::prepare`] is missing.
    pub fn programs(
        &self,
        directory: &Path,
        ports: (u16, u16),
    ) -> Result<(Vec<Program>, SocketAddr), String> {
        let near = SocketAddr::from((Ipv4Addr::LOCALHOST, ports.0));
        let far = SocketAddr::from((TwoHosts::FAR, ports.1));
        let programs = match self {
            Self::Direct => {
                return Ok((Vec::new(), SocketAddr::from((TwoHosts::FAR, SERVICE_PORT))));
            }
            Self::Socat => socat(near, far),
            Self::Ssh => ssh(directory, near, far)?,
            Self::Stunnel => stunnel(directory, near, far)?,
            Self::Keypadd { program, flags } => keypadd(directory, program, flags, near, far)?,
        };
        Ok((programs, near))
    }
}

fn socat(near: SocketAddr, far: SocketAddr) -> Vec<Program> {
    let relay = |end, listen: SocketAddr, to: &str, ready| {
        let (ip, port) = (listen.ip(), listen.port());
        let listen = format!("TCP4-LISTEN:{port},bind={ip},reuseaddr,fork,nodelay");
        program(end, "socat", [listen, format!("TCP4:{to},nodelay")], ready)
    };
    let service = format!("127.0.0.1:{SERVICE_PORT}");
    vec![
        relay(End::Far, far, &service, Ready::Listens(far)),
        relay(End::Near, near, &far.to_string(), Ready::Carries),
    ]
}

fn ssh(directory: &Path, near: SocketAddr, far: SocketAddr) -> Result<Vec<Program>, String> {
    let at = |name: &str| directory.join(name).display().to_string();
    let config = format!(
        "ListenAddress {far}\nHostKey {}\nAuthorizedKeysFile {}\nPidFile none\nStrictModes no\n\
         UsePAM no\nPasswordAuthentication no\nPermitRootLogin prohibit-password\nUseDNS no\n",
        at("host"),
        at("user.pub"),
    );
    write(&directory.join("sshd_config"), &config)?;
    let server = ["-D".into(), "-e".into(), "-f".into(), at("sshd_config")];
    let mut client: Vec<String> = ["-F", NO_FILE, "-N", "-T"].map(str::to_owned).to_vec();
    for option in [
        format!("UserKnownHostsFile={}", at("known_hosts")),
        format!("GlobalKnownHostsFile={NO_FILE}"),
        "HostKeyAlias=testbed".into(),
        "StrictHostKeyChecking=yes".into(),
        "IdentitiesOnly=yes".into(),
        "IdentityAgent=none".into(),
        "BatchMode=yes".into(),
        "ControlMaster=no".into(),
        "ControlPath=none".into(),
        "ExitOnForwardFailure=yes".into(),
        "Compression=no".into(),
        "ConnectTimeout=10".into(),
    ] {
        client.extend(["-o".into(), option]);
    }
    client.extend(["-i".into(), at("user"), "-c".into(), "aes256-gcm@openssh.com".into()]);
    client.extend(["-p".into(), far.port().to_string()]);
    client.extend(["-L".into(), format!("{near}:127.0.0.1:{SERVICE_PORT}")]);
    client.push(format!("root@{}", far.ip()));
    Ok(vec![
        program(End::Far, "sshd", server, Ready::Logs("Server listening on")),
        program(End::Near, "ssh", client, Ready::Carries),
    ])
}

fn stunnel(directory: &Path, near: SocketAddr, far: SocketAddr) -> Result<Vec<Program>, String> {
    let at = |name: &str| directory.join(name).display().to_string();
    let common = "foreground = yes\npid =\nsyslog = no\ndebug = warning\n\
                  socket = l:TCP_NODELAY=1\nsocket = r:TCP_NODELAY=1\nsocket = a:TCP_NODELAY=1\n\
                  [tunnel]\nsslVersion = TLSv1.3\nciphersuites = TLS_AES_256_GCM_SHA384\n";
    let (certificate, key) = (at("certificate.pem"), at("key.pem"));
    let server = format!(
        "{common}accept = {far}\nconnect = 127.0.0.1:{SERVICE_PORT}\ncert = {certificate}\nkey = {key}\n"
    );
    let client = format!(
        "{common}client = yes\naccept = {near}\nconnect = {far}\nCAfile = {certificate}\n\
         verifyPeer = yes\n"
    );
    write(&directory.join("server.conf"), &server)?;
    write(&directory.join("client.conf"), &client)?;
    Ok(vec![
        program(End::Far, "stunnel", [at("server.conf")], Ready::Listens(far)),
        program(End::Near, "stunnel", [at("client.conf")], Ready::Carries),
    ])
}

fn keypadd(
    directory: &Path,
    binary: &Path,
    flags: &[String],
    near: SocketAddr,
    far: SocketAddr,
) -> Result<Vec<Program>, String> {
    let public = |name: &str| Ok::<_, String>(read(&directory.join(name))?.trim().to_owned());
    let (near_public, far_public) = (public("near.pub")?, public("far.pub")?);
    let both = |key: &str| {
        let key = directory.join(key).display().to_string();
        let mut all = vec!["--key".to_owned(), key];
        if !flags.iter().any(|flag| flag == "--suite" || flag.starts_with("--suite=")) {
            all.extend(["--suite".into(), "aes-256-gcm".into()]);
        }
        all.extend_from_slice(flags);
        all
    };
    let mut server = vec!["serve".into(), "--listen".into(), far.to_string()];
    server.extend(["--allow".into(), near_public]);
    server.extend(["--permit-open".into(), format!("127.0.0.1:{SERVICE_PORT}")]);
    server.extend(both("far"));
    let mut client = vec!["connect".into(), far.to_string(), "--peer".into(), far_public];
    client.extend(["-L".into(), format!("{near}:127.0.0.1:{SERVICE_PORT}")]);
    client.extend(both("near"));
    Ok(vec![
        program(End::Far, binary, server, Ready::Logs("keypadd: ready")),
        program(End::Near, binary, client, Ready::Carries),
    ])
}

fn program(
    end: End,
    program: impl AsRef<OsStr>,
    arguments: impl IntoIterator<Item = String>,
    ready: Ready,
) -> Program {
    let arguments = arguments.into_iter().map(OsString::from).collect();
    Program { end, program: locate(program.as_ref()), arguments, ready }
}

/// Makes the path absolute: a bare name would be looked up in `PATH`.
fn absolute(program: &Path) -> PathBuf {
    std::path::absolute(program).unwrap_or_else(|_| program.to_owned())
}

fn run(command: &mut Command) -> Result<String, String> {
    let name = command.get_program().to_string_lossy().into_owned();
    let output = command.stdin(Stdio::null()).output();
    let output = output.map_err(|error| format!("{name}: {error}"))?;
    if output.status.success() {
        return Ok(String::from_utf8_lossy(&output.stdout).into_owned());
    }
    let said = String::from_utf8_lossy(&output.stderr);
    Err(format!("{name}: {}", said.trim().lines().last().unwrap_or("failed")))
}

fn read(path: &Path) -> Result<String, String> {
    fs::read_to_string(path).map_err(|error| format!("{}: {error}", path.display()))
}

fn write(path: &Path, text: &str) -> Result<(), String> {
    fs::write(path, text).map_err(|error| format!("{}: {error}", path.display()))
}
