//! Tests privilege dropping from outside, on ready daemons, and checks who may write the files they
//! trust. keypadd-sandbox/tests tests the sandbox from inside.

use std::fs;
use std::os::unix::fs::{PermissionsExt, lchown, symlink};
use std::os::unix::process::ExitStatusExt;
use std::process::Command;

use rustix::process::{Pid, Resource, Rlimit, Signal, prlimit};
use serde_json::Value;

use crate::daemons::{Daemon, Desk, NEAR_PUBLIC_KEY, desk, text, write_file};

/// One field of the status of each thread (proc(5)).
fn of_all_threads(daemon: &Daemon, word: &str) -> Vec<String> {
    let tasks = fs::read_dir(format!("/proc/{}/task", daemon.pid())).unwrap();
    let value = |status: String| {
        let line = status.lines().find_map(|line| line.strip_prefix(word)).unwrap();
        line.trim_start_matches(':').trim().to_owned()
    };
    let status = |task: fs::DirEntry| fs::read_to_string(task.path().join("status"));
    // A thread may have exited.
    tasks.filter_map(|task| status(task.unwrap()).ok()).map(value).collect()
}

fn status(desk: &Desk) -> Value {
    serde_json::from_slice(&desk.keypadd(&["status", "--json"]).output().unwrap().stdout).unwrap()
}

/// Kills a daemon with a signal that dumps core, after trying to raise its limit from outside;
/// returns whether it dumped.
fn dumps(desk: &Desk, args: &[&str]) -> bool {
    let daemon = Daemon::serve(desk, args);
    let limit = Rlimit { current: None, maximum: None };
    // Only root may raise it again.
    let _ = prlimit(Some(Pid::from_raw(daemon.pid() as i32).unwrap()), Resource::Core, limit);
    daemon.signal(Signal::ABORT);
    daemon.ended().status.core_dumped()
}

#[test]
fn a_daemon_leaves_no_core_dump_unless_told_to() {
    let desk = desk();
    assert!(!dumps(&desk, &[]));
    // If the kernel pipes dumps to a program, the pattern decides instead.
    let pattern = fs::read_to_string("/proc/sys/kernel/core_pattern").unwrap();
    if !pattern.starts_with(['|', '/']) {
        assert!(dumps(&desk, &["--core-dumps"]));
    }
}

#[test]
fn every_thread_of_a_daemon_is_sandboxed_and_status_says_so() {
    let desk = desk();
    let daemon = Daemon::serve(&desk, &["--permit-open", "localhost:22"]);
    let report = status(&desk)["daemons"][0]["sandbox"].clone();
    let holds = report["holds"].as_array().unwrap();
    let held = |words: &str| holds.iter().any(|text| text.as_str().unwrap().contains(words));
    assert!(held("no new privileges") && held("no capabilities"), "{report}");
    // CAP_IPC_LOCK is kept where root may lock memory beyond the limit but not raise the limit.
    let left: u64 = if held("but locking memory") { 1 << 14 } else { 0 };
    for (word, left) in [("CapInh", 0), ("CapPrm", left), ("CapEff", left), ("CapAmb", 0)] {
        let sets = of_all_threads(&daemon, word);
        assert!(sets.iter().all(|set| *set == format!("{left:016x}")), "{word}: {sets:?}");
    }
    assert!(of_all_threads(&daemon, "NoNewPrivs").iter().all(|value| value == "1"));
    // Features missing from the kernel are reported instead.
    let lacks = report["lacks"].to_string();
    assert!(held("seccomp") != lacks.contains("system calls"), "{report}");
    assert!(held("Landlock") != lacks.contains("files"), "{report}");
    if held("seccomp") {
        assert!(of_all_threads(&daemon, "Seccomp").iter().all(|value| value == "2"));
    }
    let shown = text(&desk.keypadd(&["status"]).output().unwrap().stdout);
    assert!(shown.contains("  sandbox: no capabilities"), "{shown}");
}

#[test]
fn a_daemon_without_the_sandbox_says_so() {
    let desk = desk();
    let daemon = Daemon::serve(&desk, &["--sandbox", "off"]);
    let shown = text(&desk.keypadd(&["status"]).output().unwrap().stdout);
    assert!(shown.contains("  sandbox off\n"), "{shown}");
    let said = text(&daemon.stop().stderr);
    assert!(said.contains("sandbox off"), "{said}");
}

#[test]
fn an_unknown_user_is_refused_before_anything_is_bound() {
    let desk = desk();
    let output = desk
        .keypadd(&["serve", "--allow", NEAR_PUBLIC_KEY, "--user", "nobody-of-that-name"])
        .output()
        .unwrap();
    assert_eq!(output.status.code(), Some(3));
    let said = text(&output.stderr);
    assert!(said.contains("user: `nobody-of-that-name`: no such user"), "{said}");
}

#[test]
fn a_file_that_others_may_replace_is_refused_with_a_way_out() {
    let desk = desk();
    let config = format!("[peer.lab]\npublic-key = \"{NEAR_PUBLIC_KEY}\"\nendpoint = \"lab:1\"\n");
    fs::create_dir(desk.path("open")).unwrap();
    write_file(&desk.path("open/keypadd.toml"), &format!("key = \"../good.key\"\n{config}"), 0o644);
    let check = |mode| {
        fs::set_permissions(desk.path("open"), fs::Permissions::from_mode(mode)).unwrap();
        let output = desk.keypadd(&["check", "--config", "open/keypadd.toml"]).output().unwrap();
        (output.status.code(), text(&output.stderr))
    };
    for mode in [0o777, 0o775, 0o757] {
        let (exit, said) = check(mode);
        let cause = format!("can be replaced by other users (mode {mode:04o} of its directory)");
        assert!(exit == Some(3) && said.contains(&cause), "{said}");
        assert!(said.contains("\n  hint: chmod go-w open\n"), "{said}");
    }
    // As in /tmp, only its owner may replace it.
    for mode in [0o755, 0o1777] {
        assert_eq!(check(mode).0, Some(0), "{mode:o}");
    }
}

#[test]
fn a_file_that_group_or_others_may_write_is_refused_with_a_way_out() {
    let desk = desk();
    let config = format!(
        "key = \"good.key\"\n[peer.lab]\npublic-key = \"{NEAR_PUBLIC_KEY}\"\nendpoint = \"127.0.0.1:9\"\n"
    );
    for mode in [0o664, 0o646, 0o666] {
        write_file(&desk.path("shared.toml"), &config, mode);
        let output = desk.keypadd(&["check", "--config", "shared.toml"]).output().unwrap();
        let said = text(&output.stderr);
        assert_eq!(output.status.code(), Some(3), "{said}");
        let cause = format!("`shared.toml` can be changed by other users (mode {mode:04o})");
        assert!(said.contains(&cause) && said.contains("chmod go-w shared.toml"), "{said}");
    }
    write_file(&desk.path("shared.toml"), &config, 0o644);
    let output = desk.keypadd(&["check", "--config", "shared.toml"]).output().unwrap();
    assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
}

#[test]
fn no_control_socket_is_made_where_others_may_replace_it() {
    let desk = desk();
    fs::create_dir(desk.path("run")).unwrap();
    let mode = |mode: &str| {
        assert!(Command::new("chmod").arg(mode).arg(desk.path("run")).status().unwrap().success());
    };
    for open in ["0770", "0707", "1777"] {
        mode(open);
        let daemon = Daemon::serve(&desk, &[]);
        let said = text(&daemon.stop().stderr);
        assert!(said.contains("no control socket"), "{open}: {said}");
        let cause = format!("other users may write to it (mode 0{}", &open[1..]);
        assert!(said.contains(&cause), "{said}");
    }
    mode("0755");
    let daemon = Daemon::serve(&desk, &[]);
    assert!(desk.path("run").join(format!("{}.sock", daemon.pid())).exists());
    daemon.stop();
}

#[test]
fn no_control_socket_is_made_behind_a_link_of_another_user() {
    let desk = desk();
    fs::create_dir(desk.path("real")).unwrap();
    symlink(desk.path("real"), desk.path("run")).unwrap();
    let daemon = Daemon::serve(&desk, &[]);
    assert!(desk.path("real").join(format!("{}.sock", daemon.pid())).exists());
    daemon.stop();
    if lchown(desk.path("run"), Some(65_534), None).is_err() {
        eprintln!("skipped: only root gives a link away");
        return;
    }
    let said = text(&Daemon::serve(&desk, &[]).stop().stderr);
    let cause = "owned by another user (uid 65534)";
    assert!(said.contains("no control socket") && said.contains(cause), "{said}");
}

/// More than the secrets of a daemon without a pool take.
const LOCKED_KIB_MAX: u64 = 64;

#[test]
fn a_server_whose_suites_gain_nothing_from_a_pool_locks_no_memory_for_one() {
    let desk = desk();
    let mut serve = desk.keypadd(&["serve", "--allow", NEAR_PUBLIC_KEY, "--listen", "127.0.0.1:0"]);
    serve
        .args(["--log-format", "json"])
        .env("KEYPADD_POOL", "auto")
        .env_remove("KEYPADD_POOL_BUDGET");
    let server = Daemon::start(serve);
    // Without AES instructions a pool pays.
    if status(&desk)["daemons"][0]["pool"]["budget_bytes"].as_u64() > Some(0) {
        eprintln!("skipped: a pool pays here");
        return;
    }
    let locked = &of_all_threads(&server, "VmLck")[0];
    let kib: u64 = locked.split(' ').next().unwrap().parse().unwrap();
    assert!(kib <= LOCKED_KIB_MAX, "{locked}");
}
