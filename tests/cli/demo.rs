//! Tests `keypadd demo`: every line is printed and nothing is left behind. Values are not checked.

use std::fs;
use std::io::{BufRead, BufReader, Read};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};

use rustix::process::{Pid, Signal, kill_process, test_kill_process_group};

const ARMS: [&str; 3] =
    ["3des-ctr-hmac-sha1, pool on", "3des-ctr-hmac-sha1, pool off", "aes-256-gcm, pool on"];

/// The binary with a home directory of its own and no other variables.
fn demo(home: &Path) -> Child {
    let mut command = Command::new(env!("CARGO_BIN_EXE_keypadd"));
    command.arg("demo").env_clear().current_dir(home).process_group(0);
    for variable in ["HOME", "TMPDIR", "XDG_RUNTIME_DIR", "XDG_CONFIG_HOME", "XDG_STATE_HOME"] {
        command.env(variable, home);
    }
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap()
}

/// The demo's exit code and both outputs; asserts that no file and no process is left.
fn end(mut demo: Child, mut said: String, home: &Path) -> (Option<i32>, String, String) {
    let mut complaints = String::new();
    demo.stdout.take().unwrap().read_to_string(&mut said).unwrap();
    demo.stderr.take().unwrap().read_to_string(&mut complaints).unwrap();
    let group = Pid::from_child(&demo);
    let code = demo.wait().unwrap().code();
    assert_eq!(fs::read_dir(home).unwrap().count(), 0, "files are left in its home");
    // With no process left, none of its sockets can be open.
    assert!(test_kill_process_group(group).is_err(), "processes are left");
    (code, said, complaints)
}

#[test]
fn a_verdict_for_each_arm_and_nothing_left_behind() {
    let home = tempfile::tempdir().unwrap();
    let (code, said, complaints) = end(demo(home.path()), String::new(), home.path());
    assert_eq!(code, Some(0), "{said}{complaints}");
    assert_eq!(complaints, "");
    assert!(!said.contains('\x1b'), "no terminal, no colors: {said:?}");
    for arm in ARMS {
        let verdicts = said
            .lines()
            .filter(|line| line.starts_with(&format!("{arm}: ")) && line.contains(", keystrokes "));
        assert_eq!(verdicts.count(), 1, "{arm}: {said}");
    }
    let row = said.lines().find(|line| line.starts_with("aes-256-gcm        on")).unwrap();
    assert!(!row.contains(" - "), "a value is missing: {row}");
}

#[test]
fn an_interrupt_ends_it_with_the_figures_so_far() {
    let home = tempfile::tempdir().unwrap();
    let mut demo = demo(home.path());
    let mut said = String::new();
    let mut stdout = BufReader::new(demo.stdout.take().unwrap());
    while !said.ends_with("typing\n") {
        assert_ne!(stdout.read_line(&mut said).unwrap(), 0, "{said}");
    }
    kill_process(Pid::from_child(&demo), Signal::INT).unwrap();
    stdout.read_to_string(&mut said).unwrap();
    demo.stdout = Some(stdout.into_inner());
    let (code, said, complaints) = end(demo, said, home.path());
    assert_eq!((code, complaints.as_str()), (Some(0), ""), "{said}");
    assert!(said.contains("Interrupted"), "{said}");
    for arm in ARMS {
        assert!(said.contains(&format!("\n{arm}: no verdict")), "{said}");
    }
}
