//! `status --watch`, and the figures that need a tunnel under way.

use std::io::{BufRead, BufReader, Read};
use std::process::Stdio;

use rustix::process::{Pid, Signal, kill_process};

use crate::daemons::{Daemon, desk, text};

#[test]
fn watching_prints_a_line_of_json_each_second_and_ends_on_ctrl_c() {
    let desk = desk();
    let _server = Daemon::serve(&desk, &[]);
    let mut command = desk.keypadd(&["status", "--watch", "--json"]);
    let mut watch = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let mut lines = BufReader::new(watch.stdout.take().unwrap()).lines();
    for _ in 0..2 {
        let line = lines.next().unwrap().unwrap();
        let document: serde_json::Value = serde_json::from_str(&line).unwrap();
        assert_eq!(document["daemons"][0]["verb"], "serve");
    }
    kill_process(Pid::from_child(&watch), Signal::INT).unwrap();
    let output = watch.wait_with_output().unwrap();
    assert_eq!((output.status.code(), text(&output.stderr).as_str()), (Some(0), ""));
}

#[test]
fn watching_says_when_the_daemon_goes_away() {
    let desk = desk();
    let server = Daemon::serve(&desk, &[]);
    let mut command = desk.keypadd(&["status", "--watch"]);
    let mut watch = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let mut shown = BufReader::new(watch.stdout.take().unwrap());
    let mut first = String::new();
    shown.read_line(&mut first).unwrap();
    assert!(first.starts_with("serve 127.0.0.1:"), "{first}");
    drop(server.stop());
    let mut rest = String::new();
    shown.read_to_string(&mut rest).unwrap();
    let output = watch.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(5));
    assert_eq!(text(&output.stderr), "keypadd: the daemon has gone away\n");
}

#[test]
fn a_reader_that_goes_away_ends_the_watch() {
    let desk = desk();
    let _server = Daemon::serve(&desk, &[]);
    let mut command = desk.keypadd(&["status", "--watch"]);
    let mut watch = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    drop(watch.stdout.take());
    let output = watch.wait_with_output().unwrap();
    assert_eq!((output.status.code(), text(&output.stderr).as_str()), (Some(0), ""));
}
