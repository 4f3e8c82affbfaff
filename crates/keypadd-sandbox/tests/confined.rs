//! Applies the sandbox in a child process and tries what it must stop and what it must allow.

#![allow(clippy::unwrap_used)]

use std::fs::{self, File};
use std::io::ErrorKind::PermissionDenied;
use std::io::Write;
use std::net::{TcpListener, TcpStream, ToSocketAddrs, UdpSocket};
use std::os::unix::fs::FileExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::mpsc;
use std::thread;

use keypadd_sandbox::{Confined, Needs, Report, confine, limit_capabilities};
use memmap2::MmapMut;
use rustix::fs::{Mode, chmod, fchmod, fcntl_get_seals};
use rustix::io::Errno;
use rustix::net::{AddressFamily, SendFlags, SocketType, ipproto, sendto, socket};
use rustix::process::{
    Resource, Rlimit, Signal, getpid, getppid, kill_process, setpriority_process, setrlimit,
    test_kill_process,
};
use rustix::thread::{sched_getaffinity, sched_setaffinity};

/// Kept where the limit of locked memory cannot be raised (capabilities(7)).
const CAP_IPC_LOCK: u64 = 1 << 14;

/// Environment variable that names the test's directory to its child.
const DIRECTORY: &str = "KEYPADD_SANDBOX_DIRECTORY";

/// Runs `probe` in a child process, with a directory of its own.
fn in_child(test: &str, probe: impl FnOnce(&Path)) {
    if let Some(directory) = std::env::var_os(DIRECTORY) {
        return probe(Path::new(&directory));
    }
    let directory = tempfile::tempdir().unwrap();
    fs::write(directory.path().join("secret"), "s").unwrap();
    fs::create_dir(directory.path().join("read")).unwrap();
    fs::write(directory.path().join("read/file"), "r").unwrap();
    fs::create_dir(directory.path().join("sockets")).unwrap();
    let child = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", test, "--nocapture", "--test-threads", "1"])
        .env(DIRECTORY, directory.path())
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&child.stdout) + String::from_utf8_lossy(&child.stderr);
    assert!(child.status.success() && said.contains("1 passed"), "{said}");
}

fn needs(directory: &Path) -> Needs {
    Needs {
        read: vec![directory.join("read")],
        sockets_in: vec![directory.join("sockets")],
        ..Needs::default()
    }
}

fn confined(directory: &Path) -> Confined {
    confine(&needs(directory)).unwrap()
}

fn sealed(directory: &Path) -> Report {
    confined(directory).seal().unwrap()
}

/// One field of each thread's status (proc(5)).
fn of_all_threads(word: &str) -> Vec<String> {
    let tasks = fs::read_dir("/proc/self/task").unwrap().map(|task| task.unwrap().path());
    tasks.map(|task| of_thread(task, word)).collect()
}

fn of_thread(task: PathBuf, word: &str) -> String {
    let status = fs::read_to_string(task.join("status")).unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix(word)).unwrap();
    line.trim_start_matches(':').trim().to_owned()
}

/// Whether the kernel restricts files; otherwise the rest of the test is skipped.
fn restricts_files(report: &Report) -> bool {
    let restricts = report.holds.iter().any(|text| text.contains("Landlock"));
    if !restricts {
        eprintln!("skipped: {:?}", report.lacks);
    }
    restricts
}

#[test]
fn neither_shadow_nor_any_other_file_opens_but_those_that_are_needed() {
    in_child("neither_shadow_nor_any_other_file_opens_but_those_that_are_needed", |directory| {
        let opened_before = File::open(directory.join("secret")).unwrap();
        if !restricts_files(&sealed(directory)) {
            return;
        }
        for path in [Path::new("/etc/shadow"), &directory.join("secret"), Path::new("/root")] {
            assert_eq!(File::open(path).unwrap_err().kind(), PermissionDenied, "{path:?}");
        }
        assert_eq!(fs::read(directory.join("read/file")).unwrap(), b"r");
        // As a VM clock device is.
        let mut byte = [0];
        opened_before.read_exact_at(&mut byte, 0).unwrap();
        assert_eq!(byte, *b"s");
        for path in ["read/file", "read/new", "sockets/new"] {
            let error =
                File::options().write(true).create(true).truncate(true).open(directory.join(path));
            assert_eq!(error.unwrap_err().kind(), PermissionDenied, "{path}");
        }
        assert_eq!(fs::remove_file(directory.join("secret")).unwrap_err().kind(), PermissionDenied);
    });
}

#[test]
fn a_file_where_sockets_are_made_can_be_removed_and_neither_written_nor_replaced() {
    in_child(
        "a_file_where_sockets_are_made_can_be_removed_and_neither_written_nor_replaced",
        |directory| {
            let [record, socket] =
                ["1.start", "1.sock"].map(|name| directory.join("sockets").join(name));
            fs::write(&record, "how it was started").unwrap();
            if !restricts_files(&sealed(directory)) {
                return;
            }
            let _listener = UnixListener::bind(&socket).unwrap();
            let options = File::options;
            for opened in [
                options().write(true).open(&record),
                options().append(true).open(&record),
                options().write(true).truncate(true).open(&record),
            ] {
                assert_eq!(opened.unwrap_err().kind(), PermissionDenied);
            }
            for moved in [
                fs::rename(&socket, &record),
                fs::rename(&record, &socket),
                fs::rename(directory.join("read/file"), &record),
            ] {
                assert_eq!(moved.unwrap_err().kind(), PermissionDenied);
            }
            fs::remove_file(&record).unwrap();
            for made in [
                options().write(true).create_new(true).open(&record).map(drop),
                fs::hard_link(directory.join("read/file"), &record),
                std::os::unix::fs::symlink(directory.join("read/file"), &record),
                fs::create_dir(&record),
            ] {
                assert_eq!(made.unwrap_err().kind(), PermissionDenied);
            }
        },
    );
}

#[test]
fn a_file_is_replaced_where_that_is_needed_and_nowhere_else() {
    in_child("a_file_is_replaced_where_that_is_needed_and_nowhere_else", |directory| {
        let needed = directory.join("replaced");
        fs::create_dir(&needed).unwrap();
        fs::write(needed.join("file"), "old").unwrap();
        let needs = Needs { replaces_in: vec![needed.clone()], ..needs(directory) };
        let report = confine(&needs).unwrap().seal().unwrap();
        let mut new = File::create_new(needed.join("new")).unwrap();
        new.write_all(b"new").unwrap();
        new.sync_all().unwrap();
        fs::hard_link(needed.join("new"), needed.join("link")).unwrap();
        fs::rename(needed.join("new"), needed.join("file")).unwrap();
        fs::remove_file(needed.join("link")).unwrap();
        assert_eq!(fs::read(needed.join("file")).unwrap(), b"new");
        if !restricts_files(&report) {
            return;
        }
        let elsewhere = File::create_new(directory.join("read/new"));
        assert_eq!(elsewhere.unwrap_err().kind(), PermissionDenied);
        assert!(fs::rename(needed.join("file"), directory.join("read/file")).is_err());
        assert_eq!(fs::read(directory.join("read/file")).unwrap(), b"r");
    });
}

#[test]
fn no_file_gets_another_mode() {
    in_child("no_file_gets_another_mode", |directory| {
        // One that may be read, and is this user's.
        let path = directory.join("read/file");
        let file = File::open(&path).unwrap();
        sealed(directory);
        assert_eq!(fchmod(&file, Mode::RWXU), Err(Errno::PERM));
        assert_eq!(chmod(&path, Mode::RWXU), Err(Errno::PERM));
    });
}

#[test]
fn a_file_that_replaces_a_readable_one_can_be_read() {
    in_child("a_file_that_replaces_a_readable_one_can_be_read", |directory| {
        let (replace, asked) = mpsc::channel::<()>();
        let (replaced, done) = mpsc::channel();
        let path = directory.join("read");
        // Runs outside the sandbox: this thread started before it.
        thread::spawn(move || {
            asked.recv().unwrap();
            fs::write(path.join("other"), "new").unwrap();
            fs::rename(path.join("other"), path.join("file")).unwrap();
            replaced.send(()).unwrap();
        });
        confined(directory);
        replace.send(()).unwrap();
        done.recv().unwrap();
        assert_eq!(fs::read(directory.join("read/file")).unwrap(), b"new");
    });
}

#[test]
fn no_program_runs() {
    in_child("no_program_runs", |directory| {
        assert!(Command::new("/bin/true").status().unwrap().success());
        sealed(directory);
        assert_eq!(Command::new("/bin/true").status().unwrap_err().kind(), PermissionDenied);
    });
}

#[test]
fn no_memory_that_was_written_becomes_code() {
    in_child("no_memory_that_was_written_becomes_code", |directory| {
        MmapMut::map_anon(4096).unwrap().make_exec().unwrap();
        sealed(directory);
        let error = MmapMut::map_anon(4096).unwrap().make_exec().unwrap_err();
        assert_eq!(error.kind(), PermissionDenied);
    });
}

#[test]
fn other_processes_get_no_signal_and_no_priority_and_limits_stay() {
    in_child("other_processes_get_no_signal_and_no_priority_and_limits_stay", |directory| {
        let parent = getppid().unwrap();
        let all_cpus = sched_getaffinity(Some(parent)).unwrap();
        sealed(directory);
        // A signal that has no effect.
        assert_eq!(kill_process(parent, Signal::CONT), Err(Errno::PERM));
        test_kill_process(getpid()).unwrap();
        assert_eq!(setpriority_process(Some(parent), 19), Err(Errno::PERM));
        setpriority_process(None, 19).unwrap();
        assert_eq!(sched_setaffinity(Some(parent), &all_cpus), Err(Errno::PERM));
        let limit = Rlimit { current: Some(64), maximum: Some(64) };
        assert_eq!(setrlimit(Resource::Nofile, limit), Err(Errno::PERM));
        // Commands that are not listed, such as F_SETOWN, by which the kernel signals another
        // process.
        let (socket, _other) = UnixStream::pair().unwrap();
        assert_eq!(fcntl_get_seals(&socket), Err(Errno::PERM));
    });
}

#[test]
fn the_filter_holds_in_threads_from_before_and_after() {
    in_child("the_filter_holds_in_threads_from_before_and_after", |directory| {
        let (go, gone) = mpsc::channel::<()>();
        let packet = || socket(AddressFamily::PACKET, SocketType::DGRAM, None).map(drop);
        let confined = confined(directory);
        let before = thread::spawn(move || {
            gone.recv().unwrap();
            packet()
        });
        confined.seal().unwrap();
        go.send(()).unwrap();
        assert_eq!(before.join().unwrap(), Err(Errno::PERM));
        assert_eq!(thread::spawn(packet).join().unwrap(), Err(Errno::PERM));
        for (word, value) in [("NoNewPrivs", "1"), ("Seccomp", "2")] {
            assert!(of_all_threads(word).iter().all(|one| one == value), "{word}");
        }
        // The test's main thread keeps its capabilities: it started before the sandbox.
        for word in ["CapPrm", "CapEff"] {
            let set = of_thread("/proc/thread-self".into(), word);
            let set = u64::from_str_radix(&set, 16).unwrap();
            assert_eq!(set & !CAP_IPC_LOCK, 0, "{word}");
        }
    });
}

#[test]
fn capabilities_beyond_a_limit_are_given_up() {
    const CAP_CHOWN: u64 = 1;
    in_child("capabilities_beyond_a_limit_are_given_up", |_| {
        let own = |word| {
            let set = of_thread("/proc/thread-self".into(), word);
            u64::from_str_radix(&set, 16).unwrap()
        };
        let had = own("CapPrm");
        limit_capabilities(CAP_CHOWN).unwrap();
        assert_eq!((own("CapPrm"), own("CapEff")), (had & CAP_CHOWN, had & CAP_CHOWN));
    });
}

#[test]
fn tcp_connects_to_the_ports_that_are_needed_and_to_no_other() {
    in_child("tcp_connects_to_the_ports_that_are_needed_and_to_no_other", |directory| {
        let listeners = [(); 2].map(|()| TcpListener::bind("127.0.0.1:0").unwrap());
        let [needed, other] = listeners.each_ref().map(|one| one.local_addr().unwrap());
        TcpStream::connect(other).unwrap();
        let needs = Needs { connects_to: Some([needed.port()].into()), ..needs(directory) };
        let report = confine(&needs).unwrap().seal().unwrap();
        TcpStream::connect(needed).unwrap();
        if !report.holds.iter().any(|text| text.contains(&format!(" {} ", needed.port()))) {
            return eprintln!("skipped: {:?}", report.lacks);
        }
        assert_eq!(TcpStream::connect(other).unwrap_err().kind(), PermissionDenied);
        // Nor past the restriction of plain TCP.
        for protocol in [ipproto::MPTCP, ipproto::SCTP] {
            let other = socket(AddressFamily::INET, SocketType::STREAM, Some(protocol));
            assert_eq!(other.map(drop), Err(Errno::PERM), "{protocol:?}");
        }
        let unconnected = socket(AddressFamily::INET, SocketType::STREAM, None).unwrap();
        let connects = SendFlags::from_bits_retain(libc::MSG_FASTOPEN.cast_unsigned());
        assert_eq!(sendto(&unconnected, b"x", connects, &other), Err(Errno::PERM));
        // Listening and UDP are not restricted.
        TcpListener::bind("127.0.0.1:0").unwrap();
        UdpSocket::bind("127.0.0.1:0").unwrap().connect(other).unwrap();
    });
}

#[test]
fn sockets_threads_and_name_lookups_go_on() {
    in_child("sockets_threads_and_name_lookups_go_on", |directory| {
        let report = sealed(directory);
        assert!(report.holds.iter().any(|text| text.contains("seccomp")), "{report:?}");
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        UdpSocket::bind("[::1]:0").unwrap();
        let path = directory.join("sockets/s");
        let listener = UnixListener::bind(&path).unwrap();
        UnixStream::connect(&path).unwrap();
        drop(listener);
        fs::remove_file(&path).unwrap();
        assert!(("localhost", 22).to_socket_addrs().unwrap().count() > 0);
        // Resolving a scoped address looks up its interface.
        assert!(("fe80::1%lo", 22).to_socket_addrs().unwrap().count() > 0);
        // The resolver may ask, whether or not anybody answers.
        let _ = ("name.invalid", 22).to_socket_addrs();
        thread::available_parallelism().unwrap();
        thread::spawn(|| vec![0_u8; 64 << 20].len()).join().unwrap();
        File::options().write(true).open("/dev/null").unwrap();
    });
}
