//! Runs the binary as daemons in a temporary directory, for the cli and hostile suites: start,
//! ready line, logs, stop.

use std::fs;
use std::io::{BufRead, BufReader, Read};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStderr, Command, Output, Stdio};
use std::sync::Once;
use std::sync::mpsc::{self, RecvTimeoutError};
use std::thread;
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};
use tokio::runtime::Builder;
use tokio::signal::unix::{SignalKind, signal};

/// Longer than a daemon takes to start, stop or log a line; hitting it means a hang.
const HANG: Duration = Duration::from_secs(120);

/// A key with a known seed: RFC 8032, section 7.1, test 1 in PKCS#8 (RFC 8410).
pub(crate) const PRIVATE_KEY: &str = "-----BEGIN PRIVATE KEY-----\n\
    MC4CAQAwBQYDK2VwBCIEIJ1hsZ3v/VpguoRK9JLsLMREScVpezJpGXA7rAMcrn9g\n\
    -----END PRIVATE KEY-----\n";

/// Its public half.
pub(crate) const PUBLIC_KEY: &str = "11qYAYKxCrfVS/7TyWQHOg7hcvPapiMlrwIaaPcHURo=";

/// The connecting host's key: test 2 of the same section.
#[allow(dead_code, reason = "`hostile` does not read it")]
pub(crate) const NEAR_PRIVATE_KEY: &str = "-----BEGIN PRIVATE KEY-----\n\
    MC4CAQAwBQYDK2VwBCIEIEzNCJso/5banbbDRuwRTg9bijGfNaumJNqM9u1PuKb7\n\
    -----END PRIVATE KEY-----\n";

/// Its public half.
pub(crate) const NEAR_PUBLIC_KEY: &str = "PUAXw+hDiVqStwqnTRt+vJyYLM8uxJaMwM1V8Sr0Zgw=";

/// Writes a file with exactly this mode, whatever the umask.
pub(crate) fn write_file(path: &Path, text: &str, mode: u32) {
    fs::write(path, text).unwrap();
    fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
}

/// A directory with the keys of two hosts. Daemons also put their control sockets there.
pub(crate) struct Desk {
    directory: tempfile::TempDir,
    may_be_watched: bool,
}

pub(crate) fn desk() -> Desk {
    handle_hangups();
    let desk = Desk { directory: tempfile::tempdir().unwrap(), may_be_watched: false };
    write_file(&desk.path("good.key"), PRIVATE_KEY, 0o600);
    write_file(&desk.path("connect.key"), NEAR_PRIVATE_KEY, 0o600);
    desk
}

/// Handles SIGHUP in this process, so that the programs it starts get the default action: under
/// nohup they would inherit an ignored signal.
fn handle_hangups() {
    static HANDLED: Once = Once::new();
    HANDLED.call_once(|| {
        // On its own thread: a test may already run in a runtime, and a second one cannot be
        // dropped there.
        let handling = thread::spawn(|| {
            let runtime = Builder::new_current_thread().enable_all().build().unwrap();
            let _entered = runtime.enter();
            // The handler outlives the runtime.
            let _ = signal(SignalKind::hangup()).unwrap();
        });
        handling.join().unwrap();
    });
}

/// A desk whose daemons an unprivileged test may inspect: descriptors, memory, dumps.
pub(crate) fn watched_desk() -> Desk {
    Desk { may_be_watched: true, ..desk() }
}

impl Desk {
    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    /// The binary, with only the environment variables that keep it inside this directory.
    pub(crate) fn keypadd(&self, args: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_keypadd"));
        command
            .args(args)
            .env_clear()
            .env("RUNTIME_DIRECTORY", self.path("run"))
            .env("KEYPADD_KEY", self.path("good.key"))
            .env("KEYPADD_POOL", "on")
            .env("KEYPADD_POOL_BUDGET", "4MiB")
            .current_dir(self.directory.path())
            .stdin(Stdio::null());
        if self.may_be_watched {
            command.env("KEYPADD_CORE_DUMPS", "true");
        }
        command
    }
}

/// A running `serve` that allows the near key.
pub(crate) struct Daemon {
    child: Child,
    stderr: BufReader<ChildStderr>,
    said: Vec<u8>,
    pub(crate) ready: serde_json::Value,
}

impl Daemon {
    pub(crate) fn serve(desk: &Desk, args: &[&str]) -> Self {
        Self::serve_at(desk, &[&["--listen", "127.0.0.1:0"], args].concat())
    }

    /// Starts a server with its listen addresses given as flags.
    pub(crate) fn serve_at(desk: &Desk, args: &[&str]) -> Self {
        let mut command =
            desk.keypadd(&["serve", "--allow", NEAR_PUBLIC_KEY, "--log-format", "json"]);
        command.args(args);
        Self::start(command)
    }

    /// Starts any daemon that logs JSON and waits for its ready line.
    pub(crate) fn start(mut command: Command) -> Self {
        let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        let _bounded = bounded(&child);
        let mut stderr = BufReader::new(child.stderr.take().unwrap());
        let mut said = Vec::new();
        let ready = loop {
            let mut line = Vec::new();
            let length = stderr.read_until(b'\n', &mut line).unwrap();
            said.extend(&line);
            assert_ne!(length, 0, "ended: {}", String::from_utf8_lossy(&said));
            match serde_json::from_slice::<serde_json::Value>(&line) {
                Ok(line) if line["event"] == "ready" => break line,
                _ => {}
            }
        };
        Self { child, stderr, said, ready }
    }

    /// The server's listen address.
    pub(crate) fn address(&self) -> String {
        self.ready["listen"].as_str().unwrap().to_owned()
    }

    /// A `connect` to this server, not started yet.
    pub(crate) fn connect(&self, desk: &Desk, args: &[&str]) -> Command {
        let mut command = Self::connect_to(desk, &self.address());
        command.args(args);
        command
    }

    pub(crate) fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.child), signal).unwrap();
    }

    /// A `connect` with the near key to a server of this desk at any address.
    pub(crate) fn connect_to(desk: &Desk, address: &str) -> Command {
        let mut command = desk.keypadd(&["connect", address, "--peer", PUBLIC_KEY]);
        command.env("KEYPADD_KEY", desk.path("connect.key"));
        command
    }

    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Waits until it logs a line that contains these words.
    pub(crate) fn hear(&mut self, words: &str) {
        let _bounded = bounded(&self.child);
        loop {
            let from = self.said.len();
            let length = self.stderr.read_until(b'\n', &mut self.said).unwrap();
            let line = String::from_utf8_lossy(&self.said[from..]);
            assert_ne!(length, 0, "it exited without logging {words}: {}", text(&self.said));
            if line.contains(words) {
                return;
            }
        }
    }

    /// CPU time used so far (proc(5): fields 14 and 15 of `stat`, in 1/100 s).
    #[allow(dead_code, reason = "not used by `cli`")]
    pub(crate) fn cpu_seconds(&self) -> f64 {
        let stat = fs::read_to_string(format!("/proc/{}/stat", self.pid())).unwrap();
        let after_name = stat.rsplit_once(')').unwrap().1;
        let ticks = after_name.split_whitespace().skip(11).take(2);
        ticks.map(|ticks| ticks.parse::<f64>().unwrap()).sum::<f64>() / 100.0
    }

    /// Sends SIGTERM and returns everything it logged.
    pub(crate) fn stop(self) -> Output {
        self.signal(Signal::TERM);
        self.ended()
    }

    /// Waits for it to exit and returns everything it logged.
    pub(crate) fn ended(mut self) -> Output {
        let _bounded = bounded(&self.child);
        self.stderr.read_to_end(&mut self.said).unwrap();
        let status = self.child.wait().unwrap();
        Output { status, stdout: Vec::new(), stderr: std::mem::take(&mut self.said) }
    }
}

/// Kills the process unless the guard is dropped in time, so that a wait always ends.
pub(crate) fn bounded(child: &Child) -> mpsc::Sender<()> {
    let (guard, dropped) = mpsc::channel();
    let process = Pid::from_child(child);
    thread::spawn(move || {
        if dropped.recv_timeout(HANG) == Err(RecvTimeoutError::Timeout) {
            let _ = kill_process(process, Signal::KILL);
        }
    });
    guard
}

impl Drop for Daemon {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

pub(crate) fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}
