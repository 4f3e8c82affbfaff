//! Tests `keypadd demo`: every part and verdict is printed and nothing is left behind. Values are
//! not checked, but for the bytes of the downloads, which the demo compares itself.

use std::fs;
use std::io::{BufRead, BufReader, Read};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};

use rustix::process::{Pid, Signal, kill_process, test_kill_process_group};

const ARMS: [&str; 3] =
    ["3des-ctr-hmac-sha1, pool on", "3des-ctr-hmac-sha1, pool off", "aes-256-gcm, pool on"];

/// The binary with a home directory of its own and no other variables.
fn demo(home: &Path, flags: &[&str]) -> Child {
    let mut command = Command::new(env!("CARGO_BIN_EXE_keypadd"));
    command.arg("demo").args(flags).env_clear().current_dir(home).process_group(0);
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

/// What the demo says until a line that ends like this, its output from there on still to be read.
fn read_until(demo: &mut Child, ending: &str) -> String {
    let mut said = String::new();
    let mut stdout = BufReader::new(demo.stdout.take().unwrap());
    while !said.ends_with(ending) {
        assert_ne!(stdout.read_line(&mut said).unwrap(), 0, "{said}");
    }
    // Nothing may be in the buffer that `end` does not read.
    let rest = stdout.buffer().to_vec();
    said.push_str(&String::from_utf8(rest).unwrap());
    demo.stdout = Some(stdout.into_inner());
    said
}

#[test]
fn three_parts_with_a_verdict_each_fit_one_screen_and_leave_nothing_behind() {
    let home = tempfile::tempdir().unwrap();
    let (code, said, complaints) = end(demo(home.path(), &[]), String::new(), home.path());
    assert_eq!(code, Some(0), "{said}{complaints}");
    assert_eq!(complaints, "");
    assert!(!said.contains('\x1b'), "no terminal, no colors: {said:?}");
    let lines: Vec<_> = said.lines().collect();
    assert!(lines.len() < 24 && lines.iter().all(|line| line.len() <= 80), "{said}");
    for part in 1..=3 {
        let at = lines.iter().position(|line| line.starts_with(&format!("{part}  "))).unwrap();
        let part = lines[at..].split(|line| line.is_empty()).next().unwrap();
        let verdicts = part.iter().filter(|line| line.starts_with("   => "));
        assert_eq!(verdicts.count(), 1, "{said}");
    }
}

#[test]
fn a_download_goes_on_at_the_same_byte_where_that_of_plain_tcp_ends() {
    let home = tempfile::tempdir().unwrap();
    let (code, said, complaints) = end(demo(home.path(), &["--json"]), String::new(), home.path());
    assert_eq!(code, Some(0), "{said}{complaints}");
    let json: serde_json::Value = serde_json::from_str(&said).unwrap();
    assert_eq!(json["complete"], true);
    let outage = &json["outage"];
    // The demo has compared each of these bytes with what the service sends.
    assert_eq!(outage["keypadd"]["fate"], "complete", "{outage}");
    assert_eq!(outage["keypadd"]["bytes"], 10_000_000, "{outage}");
    assert!(outage["tcp"]["fate"]["ended"].is_string(), "{outage}");
    assert_eq!(outage["tcp"]["bytes"], outage["tcp"]["bytes_before"], "{outage}");
    for way in ["keypadd", "tcp"] {
        assert!(json["keystrokes"][way]["keystrokes"]["p99_us"].is_number(), "{json}");
    }
    assert_eq!(json["pads"]["suites"].as_array().unwrap().len(), 3, "{json}");
}

#[test]
fn an_interrupt_ends_it_with_the_parts_that_are_complete() {
    let home = tempfile::tempdir().unwrap();
    let mut demo = demo(home.path(), &[]);
    let said = read_until(&mut demo, "another address.\n");
    kill_process(Pid::from_child(&demo), Signal::INT).unwrap();
    let (code, said, complaints) = end(demo, said, home.path());
    assert_eq!((code, complaints.as_str()), (Some(0), ""), "{said}");
    assert!(said.contains("Interrupted") && !said.contains("=>"), "{said}");
}

#[test]
fn a_verdict_for_each_arm_of_the_pool_and_nothing_left_behind() {
    let home = tempfile::tempdir().unwrap();
    let (code, said, complaints) = end(demo(home.path(), &["--pool"]), String::new(), home.path());
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
fn an_interrupt_ends_arms_of_the_pool_with_the_figures_so_far() {
    let home = tempfile::tempdir().unwrap();
    let mut demo = demo(home.path(), &["--pool"]);
    let said = read_until(&mut demo, "typing\n");
    kill_process(Pid::from_child(&demo), Signal::INT).unwrap();
    let (code, said, complaints) = end(demo, said, home.path());
    assert_eq!((code, complaints.as_str()), (Some(0), ""), "{said}");
    assert!(said.contains("Interrupted"), "{said}");
    for arm in ARMS {
        assert!(said.contains(&format!("\n{arm}: no verdict")), "{said}");
    }
}
