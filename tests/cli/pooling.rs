//! Tests the pool setting: what `auto` chooses and reports, reloads, and memory that cannot be
//! locked.

use std::fs;
use std::io::{self, Write};
use std::net::SocketAddr;
use std::process::{Command, Stdio};

use serde_json::Value;

use crate::daemons::{Daemon, Desk, NEAR_PUBLIC_KEY, PUBLIC_KEY, desk, text};
use crate::ends::{echo, echoes, free_port, through, until};

fn status(desk: &Desk) -> (String, Value) {
    let ask = |args: &[&str]| text(&desk.keypadd(args).output().unwrap().stdout);
    let document = ask(&["status", "--json"]);
    (ask(&["status"]), serde_json::from_str(&document).unwrap())
}

#[test]
fn auto_uses_a_pool_for_a_slow_cipher_and_shows_the_figures() {
    let desk = desk();
    let slow = ["--suite", "3des-ctr-hmac-sha1", "--allow-legacy", "--cipher-backend", "des-crate"];
    let _server = Daemon::serve(&desk, &[&["--pool", "auto"][..], &slow].concat());
    let (shown, document) = status(&desk);
    assert!(shown.contains("\n  pool on (auto): 0 B filled of 4.0 MiB"), "{shown}");
    assert!(shown.contains("\n    3des-ctr-hmac-sha1 pooled: pooled/inline "), "{shown}");
    let suites = &document["daemons"][0]["pool"]["suites"];
    let lengths = suites[0]["seals"].as_array().unwrap().iter().map(|seal| &seal["payload_bytes"]);
    assert!(lengths.eq([64, 256, 1400].iter()), "{suites}");
}

#[test]
fn auto_uses_no_pool_if_no_suite_gains_and_says_how_to_force_one() {
    let desk = desk();
    let _server = Daemon::serve(&desk, &["--pool", "auto"]);
    let (shown, document) = status(&desk);
    let pool = &document["daemons"][0]["pool"];
    let suites = pool["suites"].as_array().unwrap();
    assert_eq!((suites.len(), &pool["auto"]), (3, &Value::Bool(true)), "{pool}");
    let pays = suites.iter().any(|suite| suite["pays"] == true && suite["in_use"] == true);
    assert_eq!(pool["mode"], if pays { "on" } else { "off" });
    if pays {
        assert!(shown.contains("\n  pool on (auto): "), "{shown}");
    } else {
        let line = shown.lines().find(|line| line.starts_with("  pool off (auto): pooled "));
        assert!(line.unwrap().ends_with(" us; force with --pool on"), "{shown}");
    }
    let why = match suites[0]["suite"].as_str().unwrap() {
        "aes-256-gcm" => "AES-GCM before ChaCha20: this CPU has AES instructions",
        "chacha20-poly1305" => "ChaCha20 before AES-GCM: this CPU has no AES instructions",
        other => panic!("{other} is preferred"),
    };
    assert_eq!(document["daemons"][0]["suite_preference"], why);
    assert!(shown.contains(&format!("\n  prefers {why}\n")), "{shown}");
    for suite in suites {
        let way = match (suite["pays"] == true, suite["in_use"] == true) {
            (true, true) => "pooled",
            (true, false) => "pooled when used",
            (false, _) => "inline",
        };
        let line = format!("\n    {} {way}: pooled/inline ", suite["suite"].as_str().unwrap());
        assert!(shown.contains(&line), "{line}: {shown}");
    }
}

/// Limit of locked memory, in KiB.
const LOCKED_KIB: u32 = 1024;
const LOCKED: &str = "locked 1 of 4 MiB";

/// CAP_IPC_LOCK (capabilities(7)), which overrides the limit of locked memory.
const IPC_LOCK: u32 = 14;

/// Runs the same command under this limit; `None`, after printing a line, where it cannot be set.
fn limited(test: &str, command: &Command) -> Option<Command> {
    let own = fs::read_to_string("/proc/self/status").unwrap();
    let capabilities = own.lines().find_map(|line| line.strip_prefix("CapEff:")).unwrap();
    let capabilities = u64::from_str_radix(capabilities.trim(), 16).unwrap();
    let script = format!("ulimit -l {LOCKED_KIB} && exec \"$@\"");
    let mut shell = vec!["sh", "-c", &script, "sh"];
    if capabilities >> IPC_LOCK & 1 == 1 {
        // Drop it for good, where allowed (setpriv(1)).
        shell.splice(0..0, ["setpriv", "--bounding-set", "-ipc_lock", "--inh-caps", "-ipc_lock"]);
    }
    let in_shell = || {
        let mut in_shell = Command::new(shell[0]);
        in_shell.args(&shell[1..]);
        in_shell
    };
    if !in_shell().arg("true").output().is_ok_and(|output| output.status.success()) {
        // Not `eprintln!`, whose output a passing test does not show.
        let _ = writeln!(
            io::stderr(),
            "{test}: SKIPPED: `{}` does not work here, and who has CAP_IPC_LOCK may lock all",
            shell.join(" ")
        );
        return None;
    }
    let mut limited = in_shell();
    limited.arg(command.get_program()).args(command.get_args()).env_clear().stdin(Stdio::null());
    limited.envs(command.get_envs().filter_map(|(name, value)| Some((name, value?))));
    limited.current_dir(command.get_current_dir().unwrap());
    // For the shell only.
    limited.env("PATH", std::env::var_os("PATH").unwrap_or_default());
    Some(limited)
}

const SERVE: [&str; 7] =
    ["serve", "--allow", NEAR_PUBLIC_KEY, "--listen", "127.0.0.1:0", "--log-format", "json"];

#[test]
fn a_server_that_cannot_lock_its_pool_says_how_much_is_locked_and_how_to_lock_all() {
    let desk = desk();
    let name = "a_server_that_cannot_lock_its_pool_says_how_much_is_locked_and_how_to_lock_all";
    let Some(command) = limited(name, &desk.keypadd(&SERVE)) else { return };
    let server = Daemon::start(command);
    let (shown, document) = status(&desk);
    let line =
        format!("\n  {LOCKED}, the rest may be swapped out; raise `ulimit -l` or LimitMEMLOCK=\n");
    assert!(shown.contains(&line), "{shown}");
    let pool = &document["daemons"][0]["pool"];
    // All but one unit of two pages: a page of secrets is locked first.
    assert_eq!(pool["locked_bytes"], (u64::from(LOCKED_KIB) << 10) - 8192, "{pool}");
    let said = text(&server.stop().stderr);
    let warning = format!(
        "the kernel {LOCKED}; the rest may be swapped out; raise `ulimit -l`, or LimitMEMLOCK= in the systemd unit"
    );
    let lines: Vec<_> = said.lines().filter(|line| line.contains("swapped out")).collect();
    assert!(lines.len() == 1 && lines[0].contains(&warning), "{said}");
}

#[test]
fn require_locked_refuses_to_start_without_locked_memory() {
    let desk = desk();
    let command = desk.keypadd(&[&SERVE[..5], &["--require-locked"]].concat());
    let name = "require_locked_refuses_to_start_without_locked_memory";
    let Some(mut command) = limited(name, &command) else { return };
    let output = command.output().unwrap();
    let expected = format!(
        "keypadd: cannot create the pool: the kernel {LOCKED}, and require-locked is set\n  \
         hint: raise `ulimit -l`, or LimitMEMLOCK= in the systemd unit\n"
    );
    assert_eq!((output.status.code(), text(&output.stderr)), (Some(1), expected));
}

#[test]
fn require_locked_locks_the_pool() {
    let (first, second) = (desk(), desk());
    let _server = Daemon::serve(&first, &[]);
    let (_, document) = status(&first);
    let pool = &document["daemons"][0]["pool"];
    if pool["locked_bytes"] == pool["budget_bytes"] {
        Daemon::serve(&second, &["--require-locked"]);
    }
}

/// A daemon that connects to a peer, and accepts it: it has two sessions with that. A forward leads
/// there.
struct TwoWays {
    desk: Desk,
    peer: Desk,
    udp: [u16; 2],
    port: u16,
    target: SocketAddr,
}

impl TwoWays {
    fn new() -> Self {
        let (udp, port) = ([(); 2].map(|()| free_port()), free_port());
        Self { desk: desk(), peer: desk(), udp, port, target: echo("127.0.0.1") }
    }

    /// Writes its file, with these lines for the daemon and for the peer.
    fn write(&self, lines: &str, of_peer: &str) {
        let ([own, peer], key) = (self.udp, NEAR_PUBLIC_KEY);
        let file = self.file("good.key", key, [own, peer], (lines, of_peer));
        fs::write(self.desk.path("own.toml"), file).unwrap();
    }

    /// A file of one of the two, whose peer has this public key.
    fn file(
        &self,
        key: &str,
        peer_key: &str,
        [own, peer]: [u16; 2],
        (lines, of_peer): (&str, &str),
    ) -> String {
        let Self { port, target, .. } = self;
        let port = if key == "good.key" { *port } else { 0 };
        format!(
            "{lines}\nkey = \"{key}\"\npool-budget = \"4MiB\"\nlisten = \"127.0.0.1:{own}\"\n\
             permit-open = [\"{target}\"]\n[peer.other]\npublic-key = \"{peer_key}\"\n\
             endpoint = \"127.0.0.1:{peer}\"\npermit-listen = [\"1\"]\n{of_peer}\
             local = [\"{port}:{target}\"]\n"
        )
    }

    /// Starts both, the peer with these lines, and waits for both sessions.
    fn start(&self, lines: &str, of_peer: &str) -> [Daemon; 2] {
        let [own, peer] = self.udp;
        let file = self.file("connect.key", PUBLIC_KEY, [peer, own], (lines, of_peer));
        fs::write(self.peer.path("own.toml"), file).unwrap();
        let args = ["run", "--config", "own.toml", "--log-format", "json"];
        let daemons = [&self.peer, &self.desk].map(|desk| Daemon::start(desk.keypadd(&args)));
        until("both sessions are there", || (self.held().len() == 4).then_some(()));
        daemons
    }

    fn reload(&self) -> String {
        let output = self.desk.keypadd(&["reload"]).output().unwrap();
        assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
        text(&output.stdout)
    }

    /// The pool section of `status`.
    fn pool(&self) -> Value {
        status(&self.desk).1["daemons"][0]["pool"].clone()
    }

    /// Bytes of pads held by its two sessions, in each direction.
    fn held(&self) -> Vec<u64> {
        let (_, document) = status(&self.desk);
        let sessions = document["daemons"][0]["sessions"].as_array().unwrap().clone();
        let directions = ["send", "receive"];
        let parts = ["head", "body"];
        let level = |keys: &Value| -> u64 {
            parts.iter().map(|part| keys[part]["bytes"].as_u64().unwrap()).sum()
        };
        let keys = sessions.iter().flat_map(|one| directions.map(|way| level(&one["keys"][way])));
        keys.collect()
    }

    /// `Some` once both have pads in both directions.
    fn is_full(&self) -> Option<()> {
        let held = self.held();
        (held.len() == 4 && held.iter().all(|&one| one > 0)).then_some(())
    }
}

#[test]
fn a_reload_turns_the_pool_of_live_sessions_off_and_on() {
    let own = TwoWays::new();
    own.write("pool = \"on\"", "");
    let _daemons = own.start("pool = \"off\"", "");
    let kept = until("the forward works", || through(own.port));
    until("the pools exceed the later share of a peer", || {
        Some(()).filter(|()| own.held().iter().sum::<u64>() > 2 << 20)
    });
    // One peer, two sessions.
    let share = "pool-budget = \"2MiB\"\n";
    own.write("pool = \"on\"", share);
    own.reload();
    until("both sessions have released pads", || {
        assert!(echoes(&kept));
        Some(()).filter(|()| own.held().iter().sum::<u64>() <= 2 << 20)
    });
    until("all directions have pads", || own.is_full());

    own.write("pool = \"off\"", share);
    assert!(own.reload().contains("  pool changed\n"));
    let (shown, _) = status(&own.desk);
    assert!(shown.contains("\n  pool off: pool = \"off\"\n"), "{shown}");
    assert_eq!(own.held(), [0; 4]);
    assert!(echoes(&kept));

    own.write("pool = \"on\"\nmax-fill-cpu = \"50\"", share);
    let said = own.reload();
    assert!(said.contains("  max-fill-cpu changed\n"), "{said}");
    until("all directions have pads again", || own.is_full());
    assert!(echoes(&kept));
    let (shown, _) = status(&own.desk);
    assert!(shown.contains(" % of one core, limit 50 %\n"), "{shown}");
}

#[test]
fn live_sessions_follow_pool_auto_and_a_suite_is_calibrated_once() {
    // One suite for which a pool pays on any machine, and one for which it depends on the machine.
    let slow =
        "suite = [\"3des-ctr-hmac-sha1\"]\nallow-legacy = true\ncipher-backend = \"des-crate\"";
    for (lines, of_peer) in [(slow, "suite = \"3des-ctr-hmac-sha1\"\n"), ("", "")] {
        let own = TwoWays::new();
        let write = |mode: &str| own.write(&format!("pool = \"{mode}\"\n{lines}"), of_peer);
        write("auto");
        let _daemons = own.start(&format!("pool = \"off\"\n{lines}"), of_peer);
        let kept = until("the forward works", || through(own.port));
        let found = own.pool()["suites"].as_array().unwrap().clone();
        let used = if of_peer.is_empty() { "aes-256-gcm" } else { "3des-ctr-hmac-sha1" };
        let used = found.iter().find(|suite| suite["suite"] == used).unwrap();
        assert!(of_peer.is_empty() || used["pays"] == true, "{used}");
        for mode in ["auto", "on", "auto", "off", "auto", "off", "on"] {
            write(mode);
            own.reload();
            if mode == "on" || mode == "auto" && used["pays"] == true {
                until("all directions have pads", || own.is_full());
            } else {
                assert_eq!(own.held(), [0; 4], "{mode}");
            }
            let pool = own.pool();
            assert_eq!(pool["auto"], mode == "auto");
            let suites = pool["suites"].as_array().unwrap();
            assert_eq!(*suites, if mode == "auto" { found.clone() } else { Vec::new() });
            assert!(echoes(&kept), "{mode}");
        }
    }
}

#[test]
fn a_suite_is_preferred_only_where_no_setting_names_one() {
    let preference = |desk: &Desk| {
        let (shown, document) = status(desk);
        let preference = document["daemons"][0]["suite_preference"].as_str().unwrap().to_owned();
        assert_eq!(shown.contains("\n  prefers "), !preference.is_empty(), "{shown}");
        !preference.is_empty()
    };
    let own = TwoWays::new();
    own.write("", "");
    let daemons = own.start("", "");
    assert!(preference(&own.desk));
    let (of_file, of_peer) =
        ("suite = [\"aes-256-gcm\", \"chacha20-poly1305\"]", "suite = \"aes-256-gcm\"\n");
    for (of_file, of_peer, expected) in [("", of_peer, true), (of_file, "", false), ("", "", true)]
    {
        own.write(of_file, of_peer);
        own.reload();
        assert_eq!(preference(&own.desk), expected, "{of_file:?}, {of_peer:?}");
    }
    drop(daemons);
    for (args, expected) in [(&[][..], true), (&["--suite", "aes-256-gcm"], false)] {
        let (near, far) = (desk(), desk());
        let server = Daemon::serve(&far, args);
        assert_eq!(preference(&far), expected, "serve {args:?}");
        let forward = format!("{}:localhost:22", free_port());
        let args = [args, &["-L", &forward, "--log-format", "json"]].concat();
        let _client = Daemon::start(server.connect(&near, &args));
        assert_eq!(preference(&near), expected, "connect {args:?}");
    }
}
