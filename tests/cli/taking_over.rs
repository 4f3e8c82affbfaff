//! Tests what either process does if the other one fails or lies while it is replaced.

use std::fs::{self, File};
use std::io::{BufRead, BufReader, ErrorKind, IoSlice, IoSliceMut, Read, Write};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::process::{self, Command, Stdio};
use std::thread;

use rustix::cmsg_space;
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, Shutdown, recvmsg, sendmsg, shutdown,
};
use rustix::process::{Pid, Resource, Signal, getrlimit, kill_process, prlimit};
use serde_json::{Value, json};

use crate::daemons::{NEAR_PRIVATE_KEY, bounded, desk, text};
use crate::descriptors::with_few_files;
use crate::ends::{PATIENCE, echoes, free_port, rest, through, until};
use crate::replacing::{Hosts, traffic};

/// A frame from one of the processes.
pub(crate) fn frame(frame: &Value) -> Vec<u8> {
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
        // What it says to the offer, and the last message that it reads whole.
        for (said, last) in [
            (vec![], None),
            (garbage.clone(), None),
            (frame(&json!("begin")), None),
            ([frame(&json!("begin")), frame(&json!("bound"))].concat(), Some("sockets")),
            (
                [frame(&json!("begin")), frame(&json!("bound")), frame(&json!("end"))].concat(),
                Some("sockets"),
            ),
        ] {
            let mut socket = replace(&hosts.socket(pid));
            // What comes before that may be taken for part of the request.
            assert!(hear_frame(&socket)["offer"].is_object());
            socket.write_all(&said).unwrap();
            if let Some(last) = last {
                while hear_frame(&socket).get(last).is_none() {}
                // Part of what is held.
                socket.read_exact(&mut [0; 12]).unwrap();
            }
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

/// The privileges of a process that could do anything here.
fn any_privileges() -> Value {
    let namespace = fs::read_link("/proc/self/ns/user").unwrap();
    json!({
        "permitted": u64::MAX,
        "bounding": u64::MAX,
        "no-new-privileges": false,
        "filters-calls": false,
        "user-namespace": { "Unix": namespace.as_os_str().as_encoded_bytes() },
        "sandbox": false,
        "core-dumps": true,
    })
}

/// Makes a command replace a process that could do anything here.
pub(crate) fn takes_over(command: &mut Command) -> &mut Command {
    command.env("KEYPADD_TAKEOVER", any_privileges().to_string())
}

/// Asks a daemon to be replaced.
fn replace(path: &Path) -> UnixStream {
    let mut socket = UnixStream::connect(path).unwrap();
    socket.set_read_timeout(Some(PATIENCE)).unwrap();
    socket.write_all(b"replace\n").unwrap();
    socket
}

/// The lengths of the next frame of a process.
fn hear_head(mut socket: &UnixStream) -> [usize; 2] {
    let mut head = [0; 8];
    socket.read_exact(&mut head).unwrap();
    [0, 4].map(|at| u32::from_be_bytes(head[at..at + 4].try_into().unwrap()) as usize)
}

/// The text of a frame of these lengths.
fn hear_body(mut socket: &UnixStream, [text, data]: [usize; 2]) -> Value {
    let mut body = vec![0; text + data];
    socket.read_exact(&mut body).unwrap();
    serde_json::from_slice(&body[..text]).unwrap()
}

/// The next frame of a process, by its text.
pub(crate) fn hear_frame(socket: &UnixStream) -> Value {
    hear_body(socket, hear_head(socket))
}

#[test]
fn a_new_process_that_has_everything_serves_if_the_old_one_dies_and_exits_if_it_continues() {
    let hosts = Hosts::new("", "");
    let _far = hosts.run("far");
    for (last, event) in [
        (Some("continues"), "cannot replace the old process: it has given up"),
        (Some("bye"), "the old process's standard streams cannot be used"),
        (None, "the old process has died"),
    ] {
        let (mut old, new) = UnixStream::pair().unwrap();
        old.set_read_timeout(Some(PATIENCE)).unwrap();
        let mut command = hosts.desk.keypadd(&["run", "--config", "near.toml"]);
        takes_over(&mut command).stdin(Stdio::from(OwnedFd::from(new)));
        let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        drop(command);
        let _bounded = bounded(&child);
        assert_eq!(hear_frame(&old), "begin");
        old.write_all(&frame(&json!({ "sockets": {} }))).unwrap();
        assert_eq!(hear_frame(&old), "bound");
        old.write_all(&frame(&json!("end"))).unwrap();
        assert_eq!(hear_frame(&old), json!({ "done": [child.id(), []] }));
        if let Some(last) = last {
            old.write_all(&frame(&json!(last))).unwrap();
        }
        drop(old);
        // Closed when it serves, as `keypadd reload` waits for that.
        let report = rest(child.stdout.as_mut().unwrap()).unwrap();
        if last == Some("continues") {
            let ended = child.wait_with_output().unwrap();
            let said = text(&ended.stderr);
            assert_eq!((ended.status.code(), report.len()), (Some(1), 0), "{said}");
            assert!(said.contains(event), "{said}");
            continue;
        }
        let report: Value = serde_json::from_slice(&report).unwrap();
        assert_eq!(report["pid"], child.id());
        until("the forward works", || through(hosts.ports[0]));
        kill_process(Pid::from_child(&child), Signal::TERM).unwrap();
        let ended = child.wait_with_output().unwrap();
        assert!(text(&ended.stderr).contains(event), "{}", text(&ended.stderr));
    }
}

#[test]
fn new_processes_that_do_not_begin_keep_no_other_command_waiting() {
    let hosts = Hosts::new("", "");
    let near = hosts.run("near");
    let path = hosts.socket(near.pid());
    let takeovers = [(); 4].map(|()| replace(&path));
    let first = &takeovers[0];
    fs::write(hosts.desk.path("near.toml"), "no-such-setting = 1\n").unwrap();
    let refused = || {
        let output = hosts.desk.keypadd(&["reload", "--socket", path.to_str().unwrap()]).output();
        assert_eq!(output.unwrap().status.code(), Some(3));
    };
    let length = hear_head(first);
    refused();
    // None has been given up, so nobody has waited for that.
    assert!(hear_body(first, length)["offer"].is_object());
    refused();
    first.set_nonblocking(true).unwrap();
    assert_eq!((&*first).read(&mut [0]).unwrap_err().kind(), ErrorKind::WouldBlock);
}

#[test]
fn a_new_process_that_stops_while_it_binds_its_sockets_keeps_no_other_command_waiting() {
    let hosts = Hosts::new("", "");
    let mut near = hosts.run("near");
    let path = hosts.socket(near.pid());
    let mut socket = replace(&path);
    assert!(hear_frame(&socket)["offer"].is_object());
    socket.write_all(&frame(&json!("begin"))).unwrap();
    let file = hosts.desk.path("near.toml");
    let good = fs::read_to_string(&file).unwrap();
    fs::write(&file, "no-such-setting = 1\n").unwrap();
    let keypadd = |args: &[&str]| {
        let mut command = hosts.desk.keypadd(args);
        command.args(["--socket", path.to_str().unwrap()]).output().unwrap()
    };
    assert_eq!(keypadd(&["reload"]).status.code(), Some(3));
    assert!(keypadd(&["forward", "list"]).status.success());
    // It has not been given up, so nobody has waited for that.
    while !hear_frame(&socket)["sockets"].is_object() {}
    socket.set_nonblocking(true).unwrap();
    assert_eq!(socket.read(&mut [0]).unwrap_err().kind(), ErrorKind::WouldBlock);

    // It shares the listener that is to be closed.
    fs::write(&file, good).unwrap();
    let forward = format!("127.0.0.1:{}:{}", hosts.ports[0], hosts.target);
    let removed = keypadd(&["forward", "remove", "@office", "-L", &forward]);
    assert!(removed.status.success(), "{}", text(&removed.stderr));
    assert_eq!(socket.read(&mut [0]).unwrap(), 0);
    near.hear("not replaced: a change of forwards came first");
}

#[test]
fn a_new_process_that_was_given_up_says_so() {
    let hosts = Hosts::new("", "");
    for begins in [false, true] {
        let (old, new) = UnixStream::pair().unwrap();
        let old = begins.then_some(old);
        let mut command = hosts.desk.keypadd(&["run", "--config", "near.toml"]);
        takes_over(&mut command).stdin(Stdio::from(OwnedFd::from(new)));
        let child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        drop(command);
        let _bounded = bounded(&child);
        if let Some(old) = old {
            assert_eq!(hear_frame(&old), "begin");
        }
        let ended = child.wait_with_output().unwrap();
        let line = "keypadd: cannot replace the old process: it has stopped waiting for this one, has been \
            reloaded, has changed its forwards, or has exited\n  hint: run `keypadd reload --binary` again\n";
        let said = text(&ended.stderr);
        assert!(ended.status.code() == Some(1) && said.ends_with(line), "{said}");
    }
}

#[test]
fn a_new_process_that_may_have_read_the_settings_before_a_reload_does_not_take_over() {
    let hosts = Hosts::new("", "");
    let mut near = hosts.run("near");
    let path = hosts.socket(near.pid());
    let takeovers = [(); 2].map(|()| replace(&path));
    let first = &takeovers[0];
    assert!(hear_frame(first)["offer"].is_object());
    let output = hosts.desk.keypadd(&["reload", "--socket", path.to_str().unwrap()]).output();
    assert!(output.unwrap().status.success());
    assert_eq!((&*first).read(&mut [0]).unwrap(), 0);
    near.hear("not replaced: a reload came first");
    // It reads them afterwards.
    assert!(hear_frame(&takeovers[1])["offer"].is_object());
}

#[test]
fn a_new_process_gets_the_key_file_of_the_last_reload() {
    let hosts = Hosts::new("", "");
    let near = hosts.run("near");
    let file = hosts.desk.path("near.toml");
    let changed = fs::read_to_string(&file).unwrap().replace("near.key", "connect.key");
    fs::write(&file, changed).unwrap();
    let path = hosts.socket(near.pid());
    let output = hosts.desk.keypadd(&["reload", "--socket", path.to_str().unwrap()]).output();
    assert!(output.unwrap().status.success());
    let socket = replace(&path);
    let mut space = [MaybeUninit::uninit(); cmsg_space!(ScmRights(1))];
    let mut attached = RecvAncillaryBuffer::new(&mut space);
    recvmsg(&socket, &mut [IoSliceMut::new(&mut [0; 8])], &mut attached, RecvFlags::empty())
        .unwrap();
    let Some(RecvAncillaryMessage::ScmRights(mut files)) = attached.drain().next() else {
        panic!()
    };
    assert_eq!(rest(&mut File::from(files.next().unwrap())).unwrap(), NEAR_PRIVATE_KEY.as_bytes());
    // There may be no descriptor left for another one.
    let (key_file, open) = (hosts.desk.path("connect.key"), format!("/proc/{}/fd", near.pid()));
    let is_of_key = |path| fs::read_link(path).is_ok_and(|file| file == key_file);
    let open =
        fs::read_dir(open).unwrap().filter(|entry| is_of_key(entry.as_ref().unwrap().path()));
    assert_eq!(open.count(), 1);
}

#[test]
fn a_daemon_shares_all_of_its_listeners_or_says_that_it_has_too_many_open_files() {
    let metrics = format!("127.0.0.1:{}", free_port());
    let hosts = Hosts::new("", &format!("metrics = \"{metrics}\"\n"));
    let mut near = hosts.run("near");
    let (path, pid) = (hosts.socket(near.pid()), Pid::from_raw(near.pid() as i32).unwrap());
    for spare in 0.. {
        let open = format!("/proc/{}/fd", near.pid());
        let is_free = |number: &u64| fs::read_link(format!("{open}/{number}")).is_err();
        // The request takes one.
        let limit = (0..).filter(is_free).nth(1 + spare);
        let mut limits = getrlimit(Resource::Nofile);
        limits.current = limit;
        prlimit(Some(pid), Resource::Nofile, limits).unwrap();
        let socket = replace(&path);
        let mut head = [0; 8];
        if (&socket).read(&mut head).unwrap() == 0 {
            near.hear("Too many open files");
            continue;
        }
        let [text, data] =
            [0, 4].map(|at| u32::from_be_bytes(head[at..at + 4].try_into().unwrap()) as usize);
        assert!(hear_body(&socket, [text, data])["offer"].is_object());
        (&socket).write_all(&frame(&json!("begin"))).unwrap();
        let next = || Some(hear_frame(&socket)["socket"].take()).filter(|it| !it.is_null());
        let shared: Vec<_> = std::iter::from_fn(next).collect();
        assert!(shared.contains(&json!({ "tcp": metrics })), "{shared:?}");
        assert!(spare > 0 && shared.len() == spare, "{spare}: {shared:?}");
        return;
    }
}

#[test]
fn a_new_process_with_too_few_open_files_says_so() {
    const FILES: usize = 192;
    let hosts = Hosts::new("", "");
    let (old, new) = UnixStream::pair().unwrap();
    old.set_read_timeout(Some(PATIENCE)).unwrap();
    let command = hosts.desk.keypadd(&["run", "--config", "near.toml"]);
    let mut command = with_few_files(&command, "-n", FILES);
    takes_over(&mut command).stdin(Stdio::from(OwnedFd::from(new)));
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

/// A daemon that gives these answers, each to one request, and closes the connection; with the last one it exits,
/// unless the returned socket is kept. The record of its start names no command.
fn daemon_that_answers(path: &Path, answers: Vec<Vec<u8>>, exits: bool) -> Option<UnixListener> {
    let listener = UnixListener::bind(path).unwrap();
    let record = json!({
        "arguments": [{ "Unix": Vec::from("no-such-verb") }],
        "directory": { "Unix": [b'/'] },
        "environment": [],
        "privileges": any_privileges(),
    });
    fs::write(path.with_file_name(format!("{}.start", process::id())), record.to_string()).unwrap();
    let kept = (!exits).then(|| listener.try_clone().unwrap());
    thread::spawn(move || {
        let last = answers.len() - 1;
        for (nth, answer) in answers.into_iter().enumerate() {
            let (mut stream, _) = listener.accept().unwrap();
            BufReader::new(&stream).read_line(&mut String::new()).unwrap();
            stream.write_all(&answer).unwrap();
            if nth == last && exits {
                // Before the connection is closed, as when a process exits. To close the socket is not enough: a child
                // of another test has a copy until it calls exec.
                shutdown(&listener, Shutdown::Both).unwrap();
            }
        }
    });
    kept
}

/// Version of the frames of a handover.
pub(crate) const VERSION: u32 = 5;

/// An offer to be replaced.
fn offer(version: u32) -> Vec<u8> {
    frame(&json!({ "offer": {
        "version": version,
        // There is such a process.
        "pid": 1,
        "release": "0.0.0",
        "same": false,
    } }))
}

#[test]
fn a_daemon_that_cannot_be_replaced_is_not_said_to_do_what_it_does_not() {
    const GONE: &str = "it has exited, or another process has just replaced it";
    const FAILED: &str = "it gave no answer: it is shutting down, or its log says why";
    let desk = desk();
    let no_answer = Vec::new();
    for (name, binary, answers, said) in [
        ("failed", false, vec![b"{}".to_vec(), no_answer.clone()], FAILED),
        ("failed too", true, vec![b"{}".to_vec(), no_answer.clone()], FAILED),
        (
            "failed status",
            true,
            vec![b"{}".to_vec(), offer(VERSION), no_answer.clone()],
            "; process 1 continues\n",
        ),
        ("gone", false, vec![b"{}".to_vec(), no_answer.clone()], GONE),
        ("loser", true, vec![b"{}".to_vec(), no_answer.clone()], GONE),
        (
            "earlier",
            true,
            vec![b"{}".to_vec(), offer(VERSION - 1)],
            "it is older than this program, and cannot hand over to it\n  hint: restart it",
        ),
        (
            "later",
            true,
            vec![b"{}".to_vec(), offer(VERSION + 1)],
            "it is newer than this program, and cannot hand over to it\n  hint: upgrade this program\n",
        ),
        (
            "busy",
            true,
            vec![b"{}".to_vec(), frame(&json!("continues"))],
            "other processes are waiting to replace it\n  hint: try again later\n",
        ),
        ("over", true, vec![b"{}".to_vec(), offer(VERSION), no_answer], "; process 1 has exited\n"),
        (
            "serving",
            true,
            vec![b"{}".to_vec(), offer(VERSION), b"{}".to_vec()],
            "; process 1 continues\n",
        ),
    ] {
        let path = desk.path(name);
        let _kept = daemon_that_answers(&path, answers, !name.starts_with("failed"));
        let mut reload = desk.keypadd(&["reload", "--socket", path.to_str().unwrap()]);
        let output = reload.args(binary.then_some("--binary")).output().unwrap();
        let error = text(&output.stderr);
        assert!(!output.status.success() && error.contains(said), "{name}: {error}");
    }
}
