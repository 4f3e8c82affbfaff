//! Tests replacing running daemons with new processes under open connections, and when that is
//! refused.

use std::fs;
use std::io::{ErrorKind, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::net::UnixDatagram;
use std::path::PathBuf;
use std::process::{Child, Command, Output, Stdio};
use std::thread;
use std::time::Duration;

use rustix::fs::{Mode, fchmod};
use rustix::process::{Pid, Signal, geteuid, kill_process};
use rustix::pty::{OpenptFlags, ioctl_tiocgptpeer, openpt, unlockpt};

use crate::daemons::{Daemon, Desk, PUBLIC_KEY, bounded, desk, text};
use crate::ends::{PATIENCE, echo, echoes, free_port, noise, rest, through, until};

/// Two hosts on one desk, each with a daemon from a file: `near` has a local and a remote forward.
pub(crate) struct Hosts {
    pub(crate) desk: Desk,
    pub(crate) target: SocketAddr,
    /// At near and at far.
    pub(crate) ports: [u16; 2],
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

    /// The ID of the last one.
    pub(crate) fn newest(&self) -> u32 {
        self.0.last().unwrap().as_raw_nonzero().get().cast_unsigned()
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
    pub(crate) fn new(far: &str, near: &str) -> Self {
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

    pub(crate) fn run(&self, name: &str) -> Daemon {
        let file = format!("{name}.toml");
        Daemon::start(self.desk.keypadd(&["run", "--config", &file, "--log-format", "json"]))
    }

    /// Control socket of a process.
    pub(crate) fn socket(&self, pid: u32) -> PathBuf {
        self.desk.path("run").join(format!("{pid}.sock"))
    }

    /// Runs `keypadd reload --binary` from a freshly installed program.
    pub(crate) fn install_and_reload(&mut self, args: &[&str]) -> Output {
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

    /// Replaces one daemon.
    pub(crate) fn replace(&mut self, daemon: &Daemon) -> Output {
        self.install_and_reload(&["--socket", self.socket(daemon.pid()).to_str().unwrap()])
    }

    /// The newest replacement process.
    pub(crate) fn follower(&self) -> u32 {
        self.followers.0.last().unwrap().as_raw_nonzero().get().unsigned_abs()
    }
}

#[test]
fn a_program_that_was_deleted_says_so_and_replaces_nothing() {
    let hosts = Hosts::new("", "");
    let daemon = hosts.run("far");
    let copy = hosts.desk.path("copy");
    fs::copy(env!("CARGO_BIN_EXE_keypadd"), &copy).unwrap();
    let file = fs::File::open(&copy).unwrap();
    fs::remove_file(&copy).unwrap();
    let (here, mut command) =
        (hosts.desk.keypadd(&[]), Command::new(format!("/proc/self/fd/{}", file.as_raw_fd())));
    let variables = here.get_envs().filter_map(|(name, value)| Some((name, value?)));
    command.env_clear().envs(variables).current_dir(hosts.desk.path(""));
    let socket = hosts.socket(daemon.pid());
    command.args(["reload", "--binary", "--socket", socket.to_str().unwrap()]);
    // As in `install_and_reload`.
    let output = until("the copy runs", || match command.output() {
        Err(error) if error.kind() == ErrorKind::ExecutableFileBusy => None,
        output => Some(output.unwrap()),
    });
    let said = text(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{said}");
    assert!(said.contains("this program's own file") && !said.contains("the daemon"), "{said}");
}

/// Sends bytes to an echo server and checks the echo, while something else happens.
pub(crate) fn traffic(port: u16) -> thread::JoinHandle<bool> {
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

/// A terminal that nobody reads, and what keeps it open.
fn terminal() -> (OwnedFd, OwnedFd) {
    let controller = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY).unwrap();
    unlockpt(&controller).unwrap();
    let terminal = ioctl_tiocgptpeer(&controller, OpenptFlags::RDWR | OpenptFlags::NOCTTY).unwrap();
    (terminal, controller)
}

#[test]
fn a_terminal_that_nobody_reads_and_that_may_not_be_opened_again_stops_nobody() {
    // Root may open anything, except in a namespace of its own.
    let namespace = geteuid().is_root().then_some("--user");
    if !Command::new("unshare").args(namespace).arg("true").status().unwrap().success() {
        eprintln!("skipped: root can have no user namespace here");
        return;
    }
    let hosts = Hosts::new("log-connections = true", "");
    let (terminal, _controller) = terminal();
    fchmod(&terminal, Mode::empty()).unwrap();
    let far = hosts.desk.keypadd(&["run", "--config", "far.toml", "-vv"]);
    let mut command = Command::new("setsid");
    command.args(["--ctty", "unshare"]).args(namespace);
    command.arg(far.get_program()).args(far.get_args()).env_clear();
    command.envs(far.get_envs().filter_map(|(name, value)| Some((name, value?))));
    command.current_dir(hosts.desk.path("")).stdin(terminal.try_clone().unwrap());
    let mut far = command.stdout(Stdio::null()).stderr(terminal).spawn().unwrap();
    let _bounded = bounded(&far);
    let _near = hosts.run("near");
    until("the forward works", || through(hosts.ports[0]));
    // The terminal holds the lines of fewer.
    for nth in 0..500 {
        assert!(through(hosts.ports[0]).is_some(), "{nth}");
    }
    kill_process(Pid::from_child(&far), Signal::TERM).unwrap();
    assert!(far.wait().unwrap().success());
}

#[test]
fn a_terminal_that_nobody_reads_does_not_stop_the_process_that_takes_it_over() {
    let mut hosts = Hosts::new("log-connections = true", "");
    let (terminal, _controller) = terminal();
    let mut command = hosts.desk.keypadd(&["run", "--config", "far.toml"]);
    let mut far = command.stdout(Stdio::null()).stderr(terminal).spawn().unwrap();
    let _bounded = bounded(&far);
    let _near = hosts.run("near");
    until("the forward works", || through(hosts.ports[0]));
    let output = hosts.install_and_reload(&["--socket", hosts.socket(far.id()).to_str().unwrap()]);
    assert!(output.status.success(), "{}", text(&output.stderr));
    assert!(far.wait().unwrap().success());
    // The terminal holds the lines of fewer.
    for nth in 0..500 {
        assert!(through(hosts.ports[0]).is_some(), "{nth}");
    }
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
    let replaced = hosts.replace(&near);
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
        let output = hosts.replace(&far);
        let error = text(&output.stderr);
        assert_eq!(output.status.code(), Some(1), "{error}");
        assert!(error.contains(cause), "{error}");
        assert!(error.contains(&format!("process {} continues", far.pid())), "{error}");
        assert!(echoes(&kept));
        until("a new connection works", || through(hosts.ports[0]));
    }
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
    let output = hosts.replace(&far);
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
    let output = hosts.replace(&near);
    let said = text(&output.stdout);
    let reset_line = "; 0 connections kept, 1 reset: their peers or keys are not in the settings, have expired, or \
                      were away too long\n";
    assert!(said.ends_with(reset_line), "{said} {}", text(&output.stderr));
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

#[test]
fn a_new_process_refuses_another_key_file_that_it_cannot_use() {
    let mut hosts = Hosts::new("", "");
    let near = hosts.run("near");
    assert!(hosts.replace(&near).status.success());
    let file = hosts.desk.path("near.toml");
    let changed = fs::read_to_string(&file).unwrap().replace("\"near.key\"", "\"/dev/zero\"");
    fs::write(&file, changed).unwrap();
    let socket = hosts.socket(hosts.follower());
    let reload = ["reload", "--socket", socket.to_str().unwrap()];
    let output = hosts.desk.keypadd(&reload).output().unwrap();
    assert_eq!(output.status.code(), Some(3), "{}", text(&output.stdout));
}
