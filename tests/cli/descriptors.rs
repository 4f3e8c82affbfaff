//! Tests open files: how many a forwarded connection takes, and how many a daemon may have.

use std::fs;
use std::process::Command;

use rustix::process::Signal;

use crate::daemons::{Daemon, NEAR_PUBLIC_KEY, text, watched_desk};
use crate::ends::{PATIENCE, echo, echoes, through, until};

/// Fewer than the forwards of the test take.
const SOFT_LIMIT: usize = 64;
const FORWARDS: usize = 100;

/// Runs the command as from a shell with few open files allowed; `how` are the options of `ulimit`.
pub(crate) fn with_few_files(command: &Command, how: &str, files: usize) -> Command {
    let mut shell = Command::new("/bin/sh");
    shell.args(["-c", &format!("ulimit {how} {files} && exec \"$@\""), "sh"]);
    shell.arg(command.get_program()).args(command.get_args()).env_clear();
    shell.envs(command.get_envs().filter_map(|(name, value)| Some((name, value?))));
    if let Some(directory) = command.get_current_dir() {
        shell.current_dir(directory);
    }
    shell
}

#[test]
fn a_daemon_that_may_open_too_few_files_says_so_and_does_not_start() {
    let desk = watched_desk();
    let serve = desk.keypadd(&["serve", "--listen", "127.0.0.1:0", "--allow", NEAR_PUBLIC_KEY]);
    for files in [8, SOFT_LIMIT] {
        let output = with_few_files(&serve, "-n", files).output().unwrap();
        let error = text(&output.stderr);
        assert_eq!(output.status.code(), Some(1), "{error}");
        let cause =
            format!("keypadd: only {files} open files are allowed; at least 128 are needed\n");
        assert!(error.starts_with(&cause) && error.contains("ulimit -Hn"), "{error}");
    }
}

fn open_files(daemon: &Daemon) -> usize {
    fs::read_dir(format!("/proc/{}/fd", daemon.pid())).unwrap().count()
}

#[test]
fn a_forward_takes_one_open_file_at_each_end_and_the_soft_limit_is_raised() {
    let (desk, target) = (watched_desk(), echo("127.0.0.1"));
    let permit = target.to_string();
    let mut serve = desk.keypadd(&["serve", "--log-format", "json", "--listen", "127.0.0.1:0"]);
    serve.args(["--allow", NEAR_PUBLIC_KEY, "--permit-open", &permit]);
    let server = Daemon::start(with_few_files(&serve, "-S -n", SOFT_LIMIT));
    let connect =
        server.connect(&desk, &["--log-format", "json", "-L", &format!("127.0.0.1:0:{permit}")]);
    let client = Daemon::start(with_few_files(&connect, "-S -n", SOFT_LIMIT));
    let listener: std::net::SocketAddr =
        client.ready["forwards"][0]["listen"][0].as_str().unwrap().parse().unwrap();
    let before = [open_files(&server), open_files(&client)];
    let forwards: Vec<_> = (0..FORWARDS)
        .map(|_| through(listener.port()).expect("the connection is forwarded"))
        .collect();
    assert!(forwards.iter().all(echoes), "no echo within {PATIENCE:?}");
    until("each end has one more descriptor per connection", || {
        let more = [open_files(&server) - before[0], open_files(&client) - before[1]];
        (more == [FORWARDS; 2]).then_some(())
    });
    drop(forwards);
    for daemon in [client, server] {
        daemon.signal(Signal::TERM);
        assert_eq!(daemon.ended().status.code(), Some(0));
    }
}
