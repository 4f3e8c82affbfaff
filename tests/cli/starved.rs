//! Tests what a daemon says that can start no thread, and that it goes on.

use std::fs;

use rustix::process::{Pid, Resource, Rlimit, prlimit};

use crate::daemons::{Daemon, text};
use crate::ends::{echoes, free_port, through, until};
use crate::hosts::Hosts;

/// More than glibc keeps of threads that have ended, so that each needs memory of its own.
const LARGE_STACK_BYTES: u64 = 256 << 20;

fn run_with_large_stacks(hosts: &Hosts, file: &str) -> Daemon {
    let mut command = hosts.command(file);
    command.env("RUST_MIN_STACK", LARGE_STACK_BYTES.to_string());
    Daemon::start(command)
}

/// Limits the memory of a daemon with large stacks so that it can start no thread. False, and nothing is limited, if
/// the C library keeps the stack of a thread that has ended: the next one would get that.
fn limit_threads(daemon: &Daemon) -> bool {
    until("no thread is about to end", || (!runs_once(daemon)).then_some(()));
    let of = |file: &str| fs::read_to_string(format!("/proc/{}/{file}", daemon.pid())).unwrap();
    let status = of("status");
    let value = |name: &str| -> u64 {
        let value = status.lines().find_map(|line| line.strip_prefix(name)).unwrap();
        value.trim().trim_end_matches(" kB").parse().unwrap()
    };
    let maps = of("maps");
    let is_stack = |line: &&str| {
        let (first, end) = line.split_once(' ').unwrap().0.split_once('-').unwrap();
        let [first, end] = [first, end].map(|at| u64::from_str_radix(at, 16).unwrap());
        end - first == LARGE_STACK_BYTES
    };
    let stacks = maps.lines().filter(is_stack).count() as u64;
    // The first thread's is another one.
    if stacks != value("Threads:") - 1 {
        eprintln!("skipped: the stack of a thread that has ended is kept");
        return false;
    }
    set_memory_limit(daemon, Some((value("VmSize:") << 10) + LARGE_STACK_BYTES / 8));
    true
}

/// Whether a thread does a single piece of work, after which it ends.
fn runs_once(daemon: &Daemon) -> bool {
    let threads = fs::read_dir(format!("/proc/{}/task", daemon.pid())).unwrap();
    let mut names =
        threads.filter_map(|thread| fs::read_to_string(thread.ok()?.path().join("comm")).ok());
    names.any(|name| name.trim_end() == "keypadd-once")
}

fn set_memory_limit(daemon: &Daemon, current: Option<u64>) {
    let limit = Rlimit { current, maximum: None };
    prlimit(Some(Pid::from_raw(daemon.pid() as i32).unwrap()), Resource::As, limit).unwrap();
}

#[test]
fn a_reload_that_cannot_start_a_thread_is_refused_and_the_daemon_goes_on() {
    let hosts = Hosts::new();
    hosts.write_far("");
    let far = run_with_large_stacks(&hosts, "far.toml");
    for _ in 0..20 {
        if !limit_threads(&far) {
            return;
        }
        let (code, _, error) = hosts.keypadd(&["reload"]);
        set_memory_limit(&far, None);
        // A thread that ends at the wrong moment leaves its stack to the next one, which can start.
        if code == Some(0) {
            continue;
        }
        assert_eq!(code, Some(3), "{error}");
        assert!(error.contains("cannot start a thread"), "{error}");
        hosts.reload();
        return;
    }
    panic!("a thread could be started each time");
}

#[test]
fn names_that_no_thread_can_look_up_are_refused_with_one_line() {
    let hosts = Hosts::new();
    let (target, bind) = (hosts.target, "127.0.0.1");
    hosts.write_far(&format!("permit-open = [\"*:9\", \"{target}\"]"));
    let far = run_with_large_stacks(&hosts, "far.toml");
    let [to_name, to_target] = [free_port(), free_port()];
    hosts.write_near(&format!(
        "local = [\"{bind}:{to_name}:host.invalid:9\", \"{bind}:{to_target}:{target}\"]"
    ));
    let _near = hosts.run("near.toml");
    let open = through(to_target).expect("the connection is forwarded");
    if !limit_threads(&far) {
        return;
    }
    for _ in 0..3 {
        assert!(through(to_name).is_none(), "refused");
    }
    assert!(echoes(&open), "the daemon goes on");
    set_memory_limit(&far, None);
    let log = text(&far.stop().stderr);
    assert!(!log.contains("panicked"), "{log}");
    assert_eq!(log.matches("cannot start a thread").count(), 1, "{log}");
}
