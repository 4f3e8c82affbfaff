//! Tests replacing running daemons with new processes under open connections, and which failures
//! leave the old process serving.

use std::fs;
use std::io::{ErrorKind, IoSlice, Read, Write};
use std::mem::MaybeUninit;
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::{UnixDatagram, UnixStream};
use std::path::PathBuf;
use std::process::{Child, Command, Output, Stdio};
use std::sync::{
    Arc,
    atomic::{AtomicBool, Ordering::Relaxed},
};
use std::thread;
use std::time::Duration;

use rustix::cmsg_space;
use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags, sendmsg};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};

use crate::daemons::{Daemon, Desk, PUBLIC_KEY, bounded, desk, text};
use crate::descriptors::with_few_files;
use crate::ends::{PATIENCE, echo, echoes, exchange, free_port, noise, rest, through, until};

/// Two hosts on one desk, each with a daemon from a file: `near` has a local and a remote forward.
struct Hosts {
    desk: Desk,
    target: SocketAddr,
    /// At near and at far.
    ports: [u16; 2],
    followers: Followers,
}

/// Processes that replaced those the test started, and end with it.
#[derive(Default)]
pub(crate) struct Followers(Vec<Pid>);

impl Followers {
    /// Adds those that `reload --binary` says it has started.
    pub(crate) fn add(&mut self, said: &str) {
        let pids = said.lines().filter_map(|line| {
            let (_, new) = line.split_once(") with ")?;
            new.split_once("(process ")?.1.split(')').next()?.parse().ok().and_then(Pid::from_raw)
        });
        self.0.extend(pids);
    }
}

impl Drop for Followers {
    fn drop(&mut self) {
        for pid in &self.0 {
            // A replaced process is gone.
            let _ = kill_process(*pid, Signal::KILL);
        }
    }
}

impl Hosts {
    fn new(far: &str, near: &str) -> Self {
        let (desk, target) = (desk(), echo("127.0.0.1"));
        let (udp, ports) = (free_port(), [free_port(), free_port()]);
        let output = desk.keypadd(&["keygen", "near.key"]).output().unwrap();
        let near_key = text(&output.stdout).trim().to_owned();
        let [local, remote] = ports;
        let far = format!(
            "listen = \"127.0.0.1:{udp}\"\nkey = \"good.key\"\npool-budget = \"1MiB\"\n{far}\n\
             permit-open = [\"{target}\"]\npermit-listen = [\"{remote}\"]\n\
             [peer.laptop]\npublic-key = \"{near_key}\"\n"
        );
        let near = format!(
            "key = \"near.key\"\npool-budget = \"1MiB\"\n{near}\n\
             [peer.office]\npublic-key = \"{PUBLIC_KEY}\"\nendpoint = \"127.0.0.1:{udp}\"\n\
             local = [\"127.0.0.1:{local}:{target}\"]\nremote = [\"{remote}:{target}\"]\n"
        );
        fs::write(desk.path("far.toml"), far).unwrap();
        fs::write(desk.path("near.toml"), near).unwrap();
        Self { desk, target, ports, followers: Followers::default() }
    }

    fn run(&self, name: &str) -> Daemon {
        let file = format!("{name}.toml");
        Daemon::start(self.desk.keypadd(&["run", "--config", &file, "--log-format", "json"]))
    }

    /// Control socket of a process.
    fn socket(&self, pid: u32) -> PathBuf {
        self.desk.path("run").join(format!("{pid}.sock"))
    }

    /// Runs `keypadd reload --binary` from a freshly installed program.
    fn install_and_reload(&mut self, args: &[&str]) -> Output {
        let installed = self.desk.path(&format!("keypadd-{}", free_port()));
        fs::copy(env!("CARGO_BIN_EXE_keypadd"), &installed).unwrap();
        let (here, mut command) = (self.desk.keypadd(&[]), Command::new(installed));
        let variables = here.get_envs().filter_map(|(name, value)| Some((name, value?)));
        command.env_clear().envs(variables).current_dir(self.desk.path(""));
        command.args(["reload", "--binary"]).args(args);
        // A child of another test may have the copy open for writing until it calls exec (ETXTBSY).
        let output = until("the copy runs", || match command.output() {
            Err(error) if error.kind() == ErrorKind::ExecutableFileBusy => None,
            output => Some(output.unwrap()),
        });
        self.followers.add(&text(&output.stdout));
        output
    }

    /// The newest replacement process.
    fn follower(&self) -> u32 {
        self.followers.0.last().unwrap().as_raw_nonzero().get().unsigned_abs()
    }
}

/// Sends bytes to an echo server and checks the echo, while something else happens.
fn traffic(port: u16) -> thread::JoinHandle<bool> {
    let stream = until("the forward works", || through(port));
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    let mut back = stream.try_clone().unwrap();
    let reading = thread::spawn(move || rest(&mut back).unwrap());
    thread::spawn(move || {
        let sent = noise(6 << 20);
        for piece in sent.chunks(32 << 10) {
            (&stream).write_all(piece).unwrap();
            thread::sleep(Duration::from_millis(5));
        }
        stream.shutdown(Shutdown::Write).unwrap();
        reading.join().unwrap() == sent
    })
}

#[test]
fn connections_go_on_in_the_processes_that_replace_both_ends() {
    let mut hosts = Hosts::new("", "");
    let (mut far, mut near) = (hosts.run("far"), hosts.run("near"));
    let idle: Vec<_> =
        hosts.ports.iter().map(|&port| until("the forward works", || through(port))).collect();
    let busy = hosts.ports.map(traffic);
    for round in 0..2 {
        let output = hosts.install_and_reload(&[]);
        let said = text(&output.stdout);
        assert!(output.status.success(), "{round}: {said}{}", text(&output.stderr));
        assert_eq!(
            said.lines().filter(|line| line.starts_with("replaced 0.")).count(),
            2,
            "{said}"
        );
    }
    assert!(busy.into_iter().all(|busy| busy.join().unwrap()));
    assert!(idle.iter().all(echoes));
    for port in hosts.ports {
        // The listeners were never closed.
        TcpStream::connect(("127.0.0.1", port)).unwrap();
        until("a new connection works too", || through(port));
    }
    assert_eq!(hosts.followers.0.len(), 4);
    let status = hosts.desk.keypadd(&["status"]).output().unwrap();
    assert_eq!(status.status.code(), Some(0), "{}", text(&status.stdout));
    for old in [&mut far, &mut near] {
        old.hear("replaced: a new process has taken over");
        // It inherits the old process's standard streams.
        old.hear("took over from the old process");
    }
    drop(hosts);
    assert!(far.ended().status.success() && near.ended().status.success());
}

#[test]
fn a_stdio_forward_that_a_daemon_carries_goes_on_in_the_process_that_follows() {
    let mut hosts = Hosts::new("", "");
    let (_far, near) = (hosts.run("far"), hosts.run("near"));
    until("the forward works", || through(hosts.ports[0]));
    let target = hosts.target.to_string();
    let mut command = hosts.desk.keypadd(&["connect", "@office", "-W", &target]);
    command.env("KEYPADD_CONFIG", "near.toml").env_remove("KEYPADD_KEY");
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().unwrap();
    let _bounded = bounded(&child);
    let (mut input, mut output) = (child.stdin.take().unwrap(), child.stdout.take().unwrap());
    let mut say = |word: &[u8; 6]| {
        let mut heard = [0; 6];
        input.write_all(word).unwrap();
        output.read_exact(&mut heard).unwrap();
        assert_eq!(&heard, word);
    };
    say(b"before");
    let replaced =
        hosts.install_and_reload(&["--socket", hosts.socket(near.pid()).to_str().unwrap()]);
    assert!(replaced.status.success(), "{}", text(&replaced.stderr));
    say(b"after1");
    say(b"after2");
    drop(input);
    assert_eq!(rest(&mut output).unwrap(), b"");
    let ended = child.wait_with_output().unwrap();
    assert_eq!((ended.status.code(), text(&ended.stderr)), (Some(0), String::new()));
}

/// A `-W` over the tunnel of near, before near is replaced twice.
fn carried_across_replacements() -> (Hosts, Daemon, Daemon, Child, TcpStream) {
    let mut hosts = Hosts::new("", "");
    let target = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = target.local_addr().unwrap().to_string();
    let file = hosts.desk.path("far.toml");
    let settings = fs::read_to_string(&file).unwrap();
    let permit = format!("permit-open = [\"{address}\", ");
    fs::write(&file, settings.replace("permit-open = [", &permit)).unwrap();
    let (far, near) = (hosts.run("far"), hosts.run("near"));
    until("the forward works", || through(hosts.ports[0]));
    let mut command = hosts.desk.keypadd(&["connect", "@office", "-W", &address]);
    command.env("KEYPADD_CONFIG", "near.toml").env_remove("KEYPADD_KEY");
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().unwrap();
    let (mut stream, _) = target.accept().unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    let mut say = |word: &[u8; 6]| {
        let mut heard = [0; 6];
        stream.write_all(word).unwrap();
        child.stdout.as_mut().unwrap().read_exact(&mut heard).unwrap();
        assert_eq!(&heard, word);
    };
    say(b"before");
    let mut pid = near.pid();
    for _ in 0..2 {
        let socket = hosts.socket(pid);
        let replaced = hosts.install_and_reload(&["--socket", socket.to_str().unwrap()]);
        assert!(replaced.status.success(), "{}", text(&replaced.stderr));
        pid = hosts.follower();
        say(b"after!");
    }
    (hosts, far, near, child, stream)
}

#[test]
fn a_download_over_a_daemon_that_was_replaced_fails_if_it_is_cut() {
    let (_hosts, _far, _near, mut child, stream) = carried_across_replacements();
    let target = stream.local_addr().unwrap();
    // The command has nothing more to say.
    drop(child.stdin.take());
    assert_eq!((&stream).read(&mut [0]).unwrap(), 0);
    rustix::net::sockopt::set_socket_linger(&stream, Some(Duration::ZERO)).unwrap();
    drop(stream);
    let _bounded = bounded(&child);
    let ended = child.wait_with_output().unwrap();
    let line = format!("keypadd: {target}: connection reset\n");
    assert_eq!((ended.status.code(), text(&ended.stderr)), (Some(1), line));
}

#[test]
fn a_download_over_a_daemon_that_was_replaced_fails_if_the_new_process_dies() {
    let (hosts, _far, _near, mut child, stream) = carried_across_replacements();
    drop(child.stdin.take());
    assert_eq!((&stream).read(&mut [0]).unwrap(), 0);
    kill_process(*hosts.followers.0.last().unwrap(), Signal::KILL).unwrap();
    let _bounded = bounded(&child);
    let ended = child.wait_with_output().unwrap();
    let said = text(&ended.stderr);
    assert_eq!(ended.status.code(), Some(1), "{said}");
    assert!(said.contains("lost: the daemon that carried it has exited"), "{said}");
}

#[test]
fn an_upload_over_a_daemon_that_was_replaced_is_reset_if_its_command_dies() {
    let (_hosts, _far, _near, mut child, stream) = carried_across_replacements();
    kill_process(Pid::from_child(&child), Signal::KILL).unwrap();
    child.wait().unwrap();
    let error = (&stream).read(&mut [0]).expect_err("the target saw a clean end");
    assert_eq!(error.kind(), ErrorKind::ConnectionReset);
}

#[test]
fn a_listening_unix_socket_the_metrics_port_and_a_proxy_are_served_on_without_a_gap() {
    let mut hosts = Hosts::new("", "");
    let (proxy, metrics, path) = (free_port(), free_port(), hosts.desk.path("x.sock"));
    let file = hosts.desk.path("near.toml");
    let text = fs::read_to_string(&file).unwrap();
    let (path, target) = (path.to_str().unwrap(), hosts.target);
    let text = text.replace("local = [", &format!("local = [\"{path}:{target}\", "));
    let text = format!("metrics = \"127.0.0.1:{metrics}\"\n{text}dynamic = [\"{proxy}\"]\n");
    fs::write(&file, text).unwrap();
    let (_far, near) = (hosts.run("far"), hosts.run("near"));
    until("the forward works", || through(hosts.ports[0]));
    let queued = UnixStream::connect(path).unwrap();
    assert!(
        hosts
            .install_and_reload(&["--socket", hosts.socket(near.pid()).to_str().unwrap()])
            .status
            .success()
    );
    drop(queued);
    let sent = noise(50_000);
    assert!(exchange(path, &sent).unwrap() == sent);
    TcpStream::connect(("127.0.0.1", proxy)).unwrap();
    TcpStream::connect(("127.0.0.1", metrics)).unwrap();
}

#[test]
fn listeners_count_once_among_the_open_files_of_the_process_that_follows() {
    const LISTENERS: u64 = 40;
    let mut hosts = Hosts::new("", "");
    let (file, target) = (hosts.desk.path("near.toml"), hosts.target);
    let path = hosts.desk.path("x.sock");
    let path = path.to_str().unwrap();
    let local: String =
        (0..LISTENERS).map(|number| format!("\"{path}{number}:{target}\", ")).collect();
    let text = fs::read_to_string(&file).unwrap();
    fs::write(&file, text.replace("local = [", &format!("local = [{local}"))).unwrap();
    let (_far, near) = (hosts.run("far"), hosts.run("near"));
    let files = |hosts: &Hosts, pid| {
        let mut status = hosts.desk.keypadd(&["status", "--json", "--socket"]);
        let output = status.arg(hosts.socket(pid)).output().unwrap();
        let answer: Value = serde_json::from_slice(&output.stdout).unwrap();
        answer["daemons"][0]["limits"]["descriptors_max"].as_u64().unwrap()
    };
    let before = files(&hosts, near.pid());
    let replaced =
        hosts.install_and_reload(&["--socket", hosts.socket(near.pid()).to_str().unwrap()]);
    assert!(replaced.status.success());
    let after = files(&hosts, hosts.follower());
    // The two processes open a few others.
    assert!(before.abs_diff(after) < LISTENERS / 4, "{before}, then {after}");
}

#[test]
fn a_remote_unix_socket_refuses_nobody_while_a_new_process_replaces_its_server() {
    let mut hosts = Hosts::new("", "");
    let path = hosts.desk.path("x.sock");
    let (place, target) = (path.to_str().unwrap().to_owned(), hosts.target);
    for (file, list, entry) in [
        ("far.toml", "permit-listen = [", format!("\"{place}\", ")),
        ("near.toml", "remote = [", format!("\"{place}:{target}\", ")),
    ] {
        let file = hosts.desk.path(file);
        let text = fs::read_to_string(&file).unwrap();
        fs::write(&file, text.replace(list, &format!("{list}{entry}"))).unwrap();
    }
    let (far, _near) = (hosts.run("far"), hosts.run("near"));
    until("it works", || exchange(&place, b"x").ok().filter(|got| got == b"x"));
    let stopped = Arc::new(AtomicBool::new(false));
    let connecting: Vec<_> = (0..8)
        .map(|_| {
            let (stopped, place) = (Arc::clone(&stopped), place.clone());
            thread::spawn(move || {
                while !stopped.load(Relaxed) {
                    assert_eq!(exchange(&place, b"y").unwrap(), b"y");
                    thread::sleep(Duration::from_millis(2));
                }
            })
        })
        .collect();
    let output = hosts.install_and_reload(&["--socket", hosts.socket(far.pid()).to_str().unwrap()]);
    assert!(output.status.success(), "{}", text(&output.stderr));
    thread::sleep(Duration::from_millis(100));
    stopped.store(true, Relaxed);
    connecting.into_iter().for_each(|one| one.join().unwrap());
}

#[test]
fn a_new_process_that_cannot_start_leaves_the_old_one_serving() {
    let mut hosts = Hosts::new("", "");
    let (far, _near) = (hosts.run("far"), hosts.run("near"));
    let kept = until("the forward works", || through(hosts.ports[0]));
    let file = hosts.desk.path("far.toml");
    let good = fs::read_to_string(&file).unwrap();
    let taken = TcpStream::connect(hosts.target).unwrap().peer_addr().unwrap();
    for (line, cause) in [
        ("pool-budgt = \"1MiB\"\n".to_owned(), "did you mean pool-budget?"),
        (format!("metrics = \"{taken}\"\n"), "metrics: cannot listen on"),
    ] {
        fs::write(&file, format!("{line}{good}")).unwrap();
        let output =
            hosts.install_and_reload(&["--socket", hosts.socket(far.pid()).to_str().unwrap()]);
        let error = text(&output.stderr);
        assert_eq!(output.status.code(), Some(1), "{error}");
        assert!(error.contains(cause), "{error}");
        assert!(error.contains(&format!("process {} continues", far.pid())), "{error}");
        assert!(echoes(&kept));
        until("a new connection works", || through(hosts.ports[0]));
    }
}

#[test]
fn a_unix_socket_stays_where_it_is_if_a_replacement_fails_and_goes_with_its_setting() {
    let mut hosts = Hosts::new("", "");
    let (path, busy) = (hosts.desk.path("x.sock"), hosts.target);
    let file = hosts.desk.path("near.toml");
    let plain = fs::read_to_string(&file).unwrap();
    let place = path.to_str().unwrap().to_owned();
    let with_path = plain.replace("local = [", &format!("local = [\"{place}:{busy}\", "));
    fs::write(&file, &with_path).unwrap();
    let (_far, near) = (hosts.run("far"), hosts.run("near"));
    until("the forward works", || exchange(&place, b"x").ok().filter(|got| got == b"x"));

    fs::write(&file, format!("{with_path}dynamic = [\"{busy}\"]\n")).unwrap();
    let socket = hosts.socket(near.pid());
    let output = hosts.install_and_reload(&["--socket", socket.to_str().unwrap()]);
    assert!(text(&output.stderr).contains("continues"), "{}", text(&output.stderr));
    assert_eq!(exchange(&place, b"y").unwrap(), b"y");

    fs::write(&file, plain).unwrap();
    let output = hosts.install_and_reload(&["--socket", socket.to_str().unwrap()]);
    assert!(output.status.success(), "{}", text(&output.stderr));
    assert!(!path.exists());
    until("the rest keeps working", || through(hosts.ports[0]));
}

/// A frame from the new process.
fn frame(frame: &Value) -> Vec<u8> {
    let body = frame.to_string().into_bytes();
    [&(body.len() as u32).to_be_bytes()[..], &[0; 4], &body].concat()
}

#[test]
fn a_new_process_that_dies_at_any_step_leaves_the_old_one_with_all_connections() {
    let hosts = Hosts::new("", "");
    let (mut far, near) = (hosts.run("far"), hosts.run("near"));
    let kept = hosts.ports.map(|port| until("the forward works", || through(port)));
    let busy = hosts.ports.map(traffic);
    let garbage =
        [vec![0xff; 64], frame(&json!({ "done": [1, []] })), frame(&json!("no-such-frame"))]
            .concat();
    for pid in [far.pid(), near.pid()] {
        for said in [
            vec![],
            garbage.clone(),
            frame(&json!("begin")),
            [frame(&json!("begin")), frame(&json!("bound"))].concat(),
            [frame(&json!("begin")), frame(&json!("bound")), frame(&json!("end"))].concat(),
        ] {
            let mut socket = UnixStream::connect(hosts.socket(pid)).unwrap();
            socket.set_read_timeout(Some(PATIENCE)).unwrap();
            socket.write_all(b"replace\n").unwrap();
            socket.write_all(&said).unwrap();
            // Reads part of the handover and dies.
            socket.read_exact(&mut [0; 400]).unwrap();
            drop(socket);
            for stream in &kept {
                assert!(echoes(stream));
            }
        }
    }
    assert!(busy.into_iter().all(|busy| busy.join().unwrap()));
    far.hear("not replaced: this process continues");
    for port in hosts.ports {
        until("a new connection works", || through(port));
    }
}

/// The next frame of a process, by its text.
fn hear_frame(mut socket: &UnixStream) -> Value {
    let mut head = [0; 8];
    socket.read_exact(&mut head).unwrap();
    let length = |at: usize| u32::from_be_bytes(head[at..at + 4].try_into().unwrap()) as usize;
    let mut body = vec![0; length(0) + length(4)];
    socket.read_exact(&mut body).unwrap();
    serde_json::from_slice(&body[..length(0)]).unwrap()
}

#[test]
fn a_new_process_that_has_everything_serves_if_the_old_one_dies_and_exits_if_it_continues() {
    let hosts = Hosts::new("", "");
    let _far = hosts.run("far");
    for continues in [true, false] {
        let (mut old, new) = UnixStream::pair().unwrap();
        old.set_read_timeout(Some(PATIENCE)).unwrap();
        let mut command = hosts.desk.keypadd(&["run", "--config", "near.toml"]);
        command.env("KEYPADD_TAKEOVER", "1").stdin(Stdio::from(OwnedFd::from(new)));
        let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        drop(command);
        let _bounded = bounded(&child);
        assert_eq!(hear_frame(&old), "begin");
        old.write_all(&frame(&json!({ "sockets": {} }))).unwrap();
        assert_eq!(hear_frame(&old), "bound");
        old.write_all(&frame(&json!("end"))).unwrap();
        assert_eq!(hear_frame(&old), json!({ "done": [child.id(), []] }));
        if continues {
            old.write_all(&frame(&json!("continues"))).unwrap();
        }
        drop(old);
        // Closed when it serves, as `keypadd reload` waits for that.
        let report = rest(child.stdout.as_mut().unwrap()).unwrap();
        if continues {
            let ended = child.wait_with_output().unwrap();
            let said = text(&ended.stderr);
            assert_eq!((ended.status.code(), report.len()), (Some(1), 0), "{said}");
            assert!(said.contains("cannot replace the old process: it has given up"), "{said}");
            continue;
        }
        let report: Value = serde_json::from_slice(&report).unwrap();
        assert_eq!(report["pid"], child.id());
        until("the forward works", || through(hosts.ports[0]));
        kill_process(Pid::from_child(&child), Signal::TERM).unwrap();
        let ended = child.wait_with_output().unwrap();
        assert!(text(&ended.stderr).contains("the old process has died"));
    }
}

#[test]
fn a_new_process_with_too_few_open_files_says_so() {
    const FILES: usize = 64;
    let hosts = Hosts::new("", "");
    let (old, new) = UnixStream::pair().unwrap();
    old.set_read_timeout(Some(PATIENCE)).unwrap();
    let command = hosts.desk.keypadd(&["run", "--config", "near.toml"]);
    let mut command = with_few_files(&command, "-n", FILES);
    command.env("KEYPADD_TAKEOVER", "1").stdin(Stdio::from(OwnedFd::from(new)));
    let child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    drop(command);
    let _bounded = bounded(&child);
    assert_eq!(hear_frame(&old), "begin");
    let frame = frame(&json!({ "socket": { "tcp": "127.0.0.1:1" } }));
    let shared = [old.as_fd()];
    // Until it exits.
    for _ in 0..FILES {
        let mut space = [MaybeUninit::uninit(); cmsg_space!(ScmRights(1))];
        let mut attached = SendAncillaryBuffer::new(&mut space);
        attached.push(SendAncillaryMessage::ScmRights(&shared));
        if sendmsg(&old, &[IoSlice::new(&frame)], &mut attached, SendFlags::NOSIGNAL).is_err() {
            break;
        }
    }
    let ended = child.wait_with_output().unwrap();
    let said = text(&ended.stderr);
    assert_eq!(ended.status.code(), Some(1), "{said}");
    assert!(said.contains("cannot replace the old process: too many open files"), "{said}");
}

#[test]
fn a_daemon_is_replaced_only_by_another_program_or_for_settings_that_need_it() {
    let mut hosts = Hosts::new("", "");
    let (far, _near) = (hosts.run("far"), hosts.run("near"));
    let kept = until("the forward works", || through(hosts.ports[0]));
    let socket = hosts.socket(far.pid());
    let same = ["reload", "--binary", "--socket", socket.to_str().unwrap()];
    let output = hosts.desk.keypadd(&same).output().unwrap();
    assert!(text(&output.stdout).ends_with("far.toml\n  no changes\n"), "{}", text(&output.stdout));

    let file = hosts.desk.path("far.toml");
    let good = fs::read_to_string(&file).unwrap();
    fs::write(&file, format!("peer-timeout = \"20s\"\n{good}")).unwrap();
    let output = hosts.desk.keypadd(&same).output().unwrap();
    let said = text(&output.stdout);
    assert!(said.starts_with("replaced "), "{said}{}", text(&output.stderr));
    hosts.followers.add(&said);
    assert!(echoes(&kept));
}

#[test]
fn serve_and_connect_are_replaced_as_well_and_systemd_hears_of_the_new_process() {
    let mut hosts = Hosts::new("", "");
    let notices = UnixDatagram::bind(hosts.desk.path("notify")).unwrap();
    notices.set_read_timeout(Some(PATIENCE)).unwrap();
    let (target, port) = (hosts.target, free_port());
    let args =
        ["--permit-open", &target.to_string(), "--listen", &format!("127.0.0.1:{}", free_port())];
    let mut serve = hosts.desk.keypadd(&[
        "serve",
        "--allow",
        crate::daemons::NEAR_PUBLIC_KEY,
        "--log-format",
        "json",
    ]);
    serve.args(args).env("NOTIFY_SOCKET", hosts.desk.path("notify"));
    let far = Daemon::start(serve);
    let forward = format!("127.0.0.1:{port}:{target}");
    let near = Daemon::start(far.connect(&hosts.desk, &["-L", &forward, "--log-format", "json"]));
    let kept = until("the forward works", || through(port));
    for pid in [near.pid(), far.pid()] {
        let socket = hosts.socket(pid);
        let output = hosts.install_and_reload(&["--socket", socket.to_str().unwrap()]);
        assert!(output.status.success(), "{}", text(&output.stderr));
        assert!(text(&output.stdout).contains("; 1 connection kept\n"), "{}", text(&output.stdout));
        assert!(echoes(&kept));
    }
    let main_pid = format!("MAINPID={}", hosts.follower());
    until("systemd knows the new process", || {
        let mut notice = [0; 256];
        let length = notices.recv(&mut notice).unwrap();
        text(&notice[..length]).lines().any(|line| line == main_pid).then_some(())
    });
}

#[test]
fn connections_that_are_not_held_end_with_the_old_process() {
    let mut hosts = Hosts::new("hold = \"0s\"", "");
    let (far, _near) = (hosts.run("far"), hosts.run("near"));
    let mut lost = until("the forward works", || through(hosts.ports[0]));
    let output = hosts.install_and_reload(&["--socket", hosts.socket(far.pid()).to_str().unwrap()]);
    assert!(text(&output.stdout).contains("; 0 connections kept\n"), "{}", text(&output.stderr));
    // A reset, never a silent stall, and never a clean end of stream.
    lost.set_read_timeout(Some(PATIENCE)).unwrap();
    assert!(lost.read(&mut [0; 1]).is_err());
    until("a new connection works", || through(hosts.ports[0]));
}

#[test]
fn connections_of_a_peer_that_the_new_process_does_not_have_are_counted_apart() {
    let mut hosts = Hosts::new("", "");
    let (_far, near) = (hosts.run("far"), hosts.run("near"));
    let mut reset = until("the forward works", || through(hosts.ports[0]));
    let file = hosts.desk.path("near.toml");
    let renamed = fs::read_to_string(&file).unwrap().replace("[peer.office]", "[peer.bureau]");
    fs::write(&file, renamed).unwrap();
    let output =
        hosts.install_and_reload(&["--socket", hosts.socket(near.pid()).to_str().unwrap()]);
    let said = text(&output.stdout);
    assert!(said.contains("; 0 connections kept, 1 reset: "), "{said} {}", text(&output.stderr));
    reset.set_read_timeout(Some(PATIENCE)).unwrap();
    assert!(reset.read(&mut [0; 1]).is_err());
    until("a new connection works", || through(hosts.ports[0]));
}

#[test]
fn a_connection_over_standard_input_and_output_is_not_replaced() {
    let mut hosts = Hosts::new("", "");
    let far = Daemon::serve(&hosts.desk, &["--permit-open", &hosts.target.to_string()]);
    let mut near = far.connect(&hosts.desk, &["-W", &hosts.target.to_string()]);
    let mut near = near
        .stdin(std::process::Stdio::piped())
        .stdout(std::process::Stdio::piped())
        .spawn()
        .unwrap();
    let mut answer = [0; 2];
    near.stdin.as_mut().unwrap().write_all(b"hi").unwrap();
    near.stdout.as_mut().unwrap().read_exact(&mut answer).unwrap();
    let socket = hosts.socket(near.id());
    let output = hosts.install_and_reload(&["--socket", socket.to_str().unwrap()]);
    assert_eq!(output.status.code(), Some(1));
    assert!(
        text(&output.stderr).contains("it cannot be replaced while it runs"),
        "{}",
        text(&output.stderr)
    );
    near.stdin.as_mut().unwrap().write_all(b"ho").unwrap();
    near.stdout.as_mut().unwrap().read_exact(&mut answer).unwrap();
    assert_eq!(&answer, b"ho");
    drop(near.stdin.take());
    assert!(near.wait().unwrap().success());
}
