//! Starts keypadd and the service, reads their memory and CPU use, and stops them.
//!
//! Every process runs in this program's process group, so that Ctrl-C ends them all, with its files
//! in a directory that is removed at the end.

use std::fs::{self, File};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::{Duration, Instant};

use keypadd_provider::PublicKey;
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use tempfile::TempDir;
use testbed::{procstat, programs};
use tokio::io::{AsyncBufReadExt, BufReader};
use tokio::process::{Child, Command};
use tokio::time::{sleep, timeout};

use crate::Outcome;

/// How long a program may take to be ready, or to exit.
const START_TIMEOUT: Duration = Duration::from_secs(60);
/// Interval between checks.
const LOOK: Duration = Duration::from_millis(2);
/// Memory is settled once it has not grown for this long.
const SETTLED: Duration = Duration::from_secs(2);

/// Key files, logs and control sockets.
#[derive(Debug)]
pub(crate) struct Desk {
    directory: TempDir,
    keypadd: PathBuf,
    /// The server's key.
    pub(crate) public_key: String,
    /// The client's key, if it has none of its own.
    near_public_key: String,
}

impl Desk {
    pub(crate) async fn new(keypadd: &Path) -> Outcome<Self> {
        let directory = tempfile::tempdir().map_err(|error| format!("temporary files: {error}"))?;
        let public_key = keygen(keypadd, &directory.path().join("serve.key")).await?;
        let near_public_key = keygen(keypadd, &directory.path().join("connect.key")).await?;
        Ok(Self { directory, keypadd: keypadd.to_owned(), public_key, near_public_key })
    }

    /// The server's key, to be pinned by a client of this process.
    pub(crate) fn server_key(&self) -> Outcome<PublicKey> {
        self.public_key.parse().map_err(|_| "invalid server key".to_owned())
    }

    /// A server on a free port, which allows `more` besides the client's key.
    pub(crate) async fn serve(&self, more: &[String], arguments: &[&str]) -> Outcome<Daemon> {
        self.serve_at("127.0.0.1:0", more, arguments).await
    }

    /// A server at this address.
    pub(crate) async fn serve_at(
        &self,
        listen: &str,
        more: &[String],
        arguments: &[&str],
    ) -> Outcome<Daemon> {
        let keys = [&self.near_public_key].into_iter().chain(more).flat_map(|key| ["--allow", key]);
        let common = ["serve", "--listen", listen, "--permit-open", "127.0.0.1:*"];
        let all: Vec<&str> =
            common.into_iter().chain(arguments.iter().copied()).chain(keys).collect();
        self.start("serve", &all).await
    }

    /// A client with one forward to `target`, and the address of the forward.
    pub(crate) async fn connect(
        &self,
        server: SocketAddr,
        target: SocketAddr,
        arguments: &[&str],
    ) -> Outcome<(Daemon, SocketAddr)> {
        let (server, forward) = (server.to_string(), format!("127.0.0.1:0:{target}"));
        let common = ["connect", &server, "--peer", &self.public_key, "-L", &forward];
        let all: Vec<&str> = common.into_iter().chain(arguments.iter().copied()).collect();
        let daemon = self.start("connect", &all).await?;
        let entrance = daemon.address("/forwards/0/listen/0")?;
        Ok((daemon, entrance))
    }

    async fn start(&self, name: &str, arguments: &[&str]) -> Outcome<Daemon> {
        let number = fastrand::u64(..);
        let log = self.directory.path().join(format!("{name}-{number:x}.log"));
        let runtime = self.directory.path().join(format!("{name}-{number:x}.run"));
        let file = File::create(&log).map_err(|error| format!("{}: {error}", log.display()))?;
        let child = Command::new(&self.keypadd)
            .args(arguments)
            .args(["--log-format", "json"])
            .env_clear()
            .env("RUNTIME_DIRECTORY", &runtime)
            .env("KEYPADD_KEY", self.directory.path().join(format!("{name}.key")))
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(file)
            .kill_on_drop(true)
            .spawn()
            .map_err(|error| format!("{}: {error}", self.keypadd.display()))?;
        let mut daemon = Daemon { name: name.to_owned(), child, log, ready: Value::Null };
        daemon.wait_until_ready().await?;
        Ok(daemon)
    }
}

/// Makes a key, and returns its public half.
async fn keygen(keypadd: &Path, file: &Path) -> Outcome<String> {
    let output = Command::new(keypadd).arg("keygen").arg(file).env_clear().output().await;
    let output = output.map_err(|error| format!("{}: {error}", keypadd.display()))?;
    match output.status.success() {
        true => Ok(String::from_utf8_lossy(&output.stdout).trim().to_owned()),
        false => Err(format!("keygen: {}", String::from_utf8_lossy(&output.stderr).trim())),
    }
}

/// The program's version string.
pub(crate) async fn version(keypadd: &Path) -> Outcome<String> {
    let output = Command::new(keypadd).arg("--version").env_clear().output().await;
    let output = output.map_err(|error| format!("{}: {error}", keypadd.display()))?;
    Ok(String::from_utf8_lossy(&output.stdout).trim().to_owned())
}

/// A daemon that is ready.
#[derive(Debug)]
pub(crate) struct Daemon {
    name: String,
    child: Child,
    log: PathBuf,
    ready: Value,
}

impl Daemon {
    async fn wait_until_ready(&mut self) -> Outcome<()> {
        let deadline = Instant::now() + START_TIMEOUT;
        loop {
            let said = fs::read_to_string(&self.log).unwrap_or_default();
            let lines = said.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
            if let Some(ready) = lines.into_iter().find(|line| line["event"] == "ready") {
                self.ready = ready;
                return Ok(());
            }
            self.must_run()?;
            if Instant::now() > deadline {
                return Err(format!("{} is not ready in time{}", self.name, self.log_tail()));
            }
            sleep(LOOK).await;
        }
    }

    /// An address from its ready message.
    pub(crate) fn address(&self, pointer: &str) -> Outcome<SocketAddr> {
        let text = self.ready.pointer(pointer).and_then(Value::as_str);
        let address = text.and_then(|text| text.parse().ok());
        address.ok_or_else(|| format!("{} did not print {pointer}", self.name))
    }

    /// Where a server listens.
    pub(crate) fn listen(&self) -> Outcome<SocketAddr> {
        self.address("/listen")
    }

    /// An error if it has exited, with its last log lines.
    pub(crate) fn must_run(&mut self) -> Outcome<()> {
        match self.child.try_wait() {
            Ok(None) => Ok(()),
            Ok(Some(status)) => {
                Err(format!("{} has ended ({status}){}", self.name, self.log_tail()))
            }
            Err(error) => Err(format!("{}: {error}", self.name)),
        }
    }

    fn log_tail(&self) -> String {
        programs::log_tail(&self.name, &self.log)
    }

    /// Lines of its log that are warnings or errors.
    pub(crate) fn complaints(&self) -> usize {
        let said = fs::read_to_string(&self.log).unwrap_or_default();
        let is_bad = |line: &&str| line.contains("\"WARN\"") || line.contains("\"ERROR\"");
        said.lines().filter(is_bad).count()
    }

    /// Anonymous memory, in bytes.
    pub(crate) fn resident_bytes(&self) -> Outcome<u64> {
        resident_bytes(self.child.id().ok_or_else(|| format!("{} has ended", self.name))?)
    }

    /// Processor time so far.
    pub(crate) fn cpu_seconds(&self) -> Option<f64> {
        Some(procstat::cpu_seconds(&[self.child.id()?]))
    }

    /// The same memory once it no longer grows.
    pub(crate) async fn settled_bytes(&self) -> Outcome<u64> {
        let deadline = Instant::now() + START_TIMEOUT;
        let (mut most, mut since) = (0, Instant::now());
        loop {
            let now = self.resident_bytes()?;
            if now > most {
                (most, since) = (now, Instant::now());
            }
            if since.elapsed() > SETTLED || Instant::now() > deadline {
                return Ok(now);
            }
            sleep(Duration::from_millis(100)).await;
        }
    }

    /// Stops it with SIGTERM; an error if that takes long or its status is not 0.
    pub(crate) async fn stop(mut self) -> Outcome<()> {
        self.end().await
    }

    /// Kills it.
    pub(crate) async fn kill(&mut self) -> Outcome<()> {
        self.child.kill().await.map_err(|error| format!("{}: {error}", self.name))
    }

    /// As [`Self::stop`].
    pub(crate) async fn end(&mut self) -> Outcome<()> {
        let pid = self.child.id().and_then(|id| Pid::from_raw(id as i32));
        if let Some(pid) = pid {
            let _ = kill_process(pid, Signal::TERM);
        }
        match timeout(START_TIMEOUT, self.child.wait()).await {
            Ok(Ok(status)) if status.success() => Ok(()),
            Ok(Ok(status)) => Err(format!("{} ended with {status}{}", self.name, self.log_tail())),
            Ok(Err(error)) => Err(format!("{}: {error}", self.name)),
            Err(_) => Err(format!("{} did not exit", self.name)),
        }
    }
}

/// `RssAnon` of proc_pid_status(5).
fn resident_bytes(id: u32) -> Outcome<u64> {
    let path = format!("/proc/{id}/status");
    let status = fs::read_to_string(&path).map_err(|error| format!("{path}: {error}"))?;
    let line = status.lines().find_map(|line| line.strip_prefix("RssAnon:"));
    let kib = line.and_then(|line| line.split_whitespace().next()?.parse::<u64>().ok());
    kib.map(|kib| kib << 10).ok_or_else(|| format!("{path}: no RssAnon"))
}

/// The service that forwards lead to.
#[derive(Debug)]
pub(crate) struct Service {
    _child: Child,
    pub(crate) address: SocketAddr,
}

impl Service {
    pub(crate) async fn start() -> Outcome<Self> {
        let own = std::env::current_exe()
            .map_err(|error| format!("cannot find this executable: {error}"))?;
        let mut child = Command::new(own)
            .arg("service")
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .kill_on_drop(true)
            .spawn()
            .map_err(|error| format!("service: {error}"))?;
        let mut line = String::new();
        if let Some(stdout) = child.stdout.take() {
            let _ = BufReader::new(stdout).read_line(&mut line).await;
        }
        let port = line.trim().parse().map_err(|_| "the service does not start".to_owned())?;
        Ok(Self { _child: child, address: SocketAddr::from(([127, 0, 0, 1], port)) })
    }
}
