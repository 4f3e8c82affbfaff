//! Tests what `keypadd reload --binary` starts in place of a daemon that does the will of strangers:
//! what the record of its start says, nothing that it says itself, and nothing that may do more.

use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::process::{self, Stdio};

use serde_json::{Value, json};

use crate::daemons::{Daemon, bounded, desk, text};
use crate::ends::{echoes, through, until};
use crate::replacing::Hosts;
use crate::taking_over::{VERSION, frame, hear_frame, takes_over};

/// Text as the daemon writes it in JSON.
fn wide(text: impl AsRef<Path>) -> Value {
    json!({ "Unix": text.as_ref().as_os_str().as_encoded_bytes() })
}

/// An offer that says what to start, as earlier versions did.
fn dictated(arguments: &[&str], directory: &Path, environment: &[(&str, &str)]) -> Vec<u8> {
    let environment: Vec<_> =
        environment.iter().map(|(name, value)| [wide(name), wide(value)]).collect();
    frame(&json!({ "offer": {
        "version": VERSION,
        "pid": process::id(),
        "release": "0.0.0",
        "same": false,
        "arguments": arguments.iter().map(wide).collect::<Vec<_>>(),
        "directory": wide(directory),
        "environment": environment,
    } }))
}

/// Answers a request for the status, then makes this offer; returns the way to the new process.
fn offer(listener: &UnixListener, offer: &[u8]) -> UnixStream {
    for answer in [b"{}", offer] {
        let (mut stream, _) = listener.accept().unwrap();
        BufReader::new(&stream).read_line(&mut String::new()).unwrap();
        stream.write_all(answer).unwrap();
        if answer == offer {
            return stream;
        }
    }
    unreachable!("the offer comes last")
}

/// The record of a process's start.
fn record(directory: PathBuf, pid: u32) -> PathBuf {
    directory.join(format!("{pid}.start"))
}

#[test]
fn no_command_that_a_daemon_offers_is_run() {
    let desk = desk();
    let (socket, made) = (desk.path("socket"), desk.path("made.key"));
    let listener = UnixListener::bind(&socket).unwrap();
    let mut reload = desk.keypadd(&["reload", "--binary", "--socket", socket.to_str().unwrap()]);
    let child = reload.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let _bounded = bounded(&child);
    let arguments = ["keygen", made.to_str().unwrap()];
    drop(offer(&listener, &dictated(&arguments, Path::new("/"), &[])));
    let ended = child.wait_with_output().unwrap();
    let said = text(&ended.stderr);
    assert!(!made.exists() && ended.status.code() == Some(1), "{said}");
    let line = "how it was started is not recorded beside its socket\n  hint: restart it; its \
        connections will close\n";
    assert!(said.ends_with(line), "{said}");
}

#[test]
fn a_daemon_decides_on_neither_command_line_nor_directory_nor_environment_of_what_replaces_it() {
    let hosts = Hosts::new("", "core-dumps = true\nsandbox = \"off\"");
    let mut near = hosts.desk.keypadd(&["run", "--config", "near.toml", "--log-format", "json"]);
    near.env("LANG", "C");
    let near = Daemon::start(near);
    let socket = hosts.desk.path("socket");
    let recorded = record(hosts.desk.path("run"), near.pid());
    // From now on this process stands for it.
    fs::copy(recorded, record(hosts.desk.path(""), process::id())).unwrap();
    near.stop();
    let listener = UnixListener::bind(&socket).unwrap();
    let mut reload =
        hosts.desk.keypadd(&["reload", "--binary", "--socket", socket.to_str().unwrap()]);
    let child = reload.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let _bounded = bounded(&child);
    let arguments = ["run", "--config", "near.toml", "--sandbox", "off"];
    let environment = [("LD_PRELOAD", "/no/such/library.so"), ("DICTATED", "yes")];
    let mut old = offer(&listener, &dictated(&arguments, Path::new("/"), &environment));
    assert_eq!(hear_frame(&old), "begin");
    old.write_all(&frame(&json!({ "sockets": {} }))).unwrap();
    assert_eq!(hear_frame(&old), "bound");
    old.write_all(&frame(&json!("end"))).unwrap();
    let new = hear_frame(&old)["done"][0].as_u64().unwrap();
    let of_new = |file: &str| PathBuf::from(format!("/proc/{new}/{file}"));
    let list = |file| {
        let text = fs::read_to_string(of_new(file)).unwrap();
        text.split_terminator('\0').map(str::to_owned).collect::<Vec<_>>()
    };
    assert_eq!(list("cmdline")[1..], ["run", "--config", "near.toml", "--log-format", "json"]);
    assert_eq!(fs::read_link(of_new("cwd")).unwrap(), hosts.desk.path("").canonicalize().unwrap());
    // The program sets the last one itself.
    let known = ["KEYPADD_", "RUNTIME_DIRECTORY=", "RUST_BACKTRACE="];
    for variable in list("environ") {
        assert!(known.iter().any(|known| variable.starts_with(known)), "{variable}");
    }
    old.write_all(&frame(&json!("continues"))).unwrap();
    drop((old, listener));
    let ended = child.wait_with_output().unwrap();
    let said = text(&ended.stderr);
    assert!(ended.status.code() == Some(1) && !said.contains("LD_PRELOAD"), "{said}");
}

#[test]
fn no_command_but_a_daemons_replaces_a_daemon() {
    let desk = desk();
    for args in [&["keygen", "made.key"][..], &["reload"], &["connect", "@office", "-W", "a:1"]] {
        let mut command = desk.keypadd(args);
        takes_over(&mut command);
        let ended = command.output().unwrap();
        let said = text(&ended.stderr);
        assert_eq!(ended.status.code(), Some(2), "{args:?}: {said}");
        assert!(said.contains("only `serve`, `connect` and `run` can replace a daemon"), "{said}");
    }
    assert!(!desk.path("made.key").exists());
}

#[test]
fn a_daemon_without_a_record_of_its_start_is_not_replaced_and_serves_on() {
    let mut hosts = Hosts::new("", "");
    let (far, _near) = (hosts.run("far"), hosts.run("near"));
    let kept = until("the forward works", || through(hosts.ports[0]));
    fs::remove_file(record(hosts.desk.path("run"), far.pid())).unwrap();
    let output = hosts.replace(&far);
    let said = text(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{said}");
    assert!(said.contains("how it was started is not recorded beside its socket"), "{said}");
    assert!(said.contains("hint: restart it; its connections will close"), "{said}");
    assert!(echoes(&kept));
}

#[test]
fn what_replaces_a_daemon_is_not_less_confined() {
    let mut hosts = Hosts::new("", "");
    let (far, _near) = (hosts.run("far"), hosts.run("near"));
    let kept = until("the forward works", || through(hosts.ports[0]));
    let file = hosts.desk.path("far.toml");
    let good = fs::read_to_string(&file).unwrap();
    for (line, what) in
        [("sandbox = \"off\"", "its sandbox is off"), ("core-dumps = true", "it may dump core")]
    {
        fs::write(&file, format!("{line}\n{good}")).unwrap();
        let output = hosts.replace(&far);
        let said = text(&output.stderr);
        assert_eq!(output.status.code(), Some(1), "{said}");
        assert!(said.contains(&format!("this one would be less confined: {what}\n")), "{said}");
        assert!(said.contains(&format!("process {} continues", far.pid())), "{said}");
        assert!(echoes(&kept));
    }
}

#[test]
fn a_record_goes_with_its_daemon_and_that_of_a_killed_one_with_the_next() {
    let desk = desk();
    let files = || {
        let names = fs::read_dir(desk.path("run")).unwrap().map(|file| file.unwrap().file_name());
        let mut names: Vec<_> = names.map(|name| name.into_string().unwrap()).collect();
        names.sort();
        names
    };
    let mut first = desk.keypadd(&["serve", "--allow", crate::daemons::NEAR_PUBLIC_KEY]);
    first.args(["--listen", "127.0.0.1:0", "--log-format", "json"]);
    // Dropping it kills it.
    let pid = Daemon::start(first).pid();
    assert_eq!(files(), [format!("{pid}.sock"), format!("{pid}.start")]);
    let second = Daemon::serve(&desk, &[]);
    let pid = second.pid();
    assert_eq!(files(), [format!("{pid}.sock"), format!("{pid}.start")]);
    second.stop();
    assert_eq!(files(), [""; 0]);
    // It may write to the directory of its core dumps, and so to a record below.
    let third = Daemon::serve(&desk, &["--core-dumps"]);
    assert_eq!(files(), [format!("{}.sock", third.pid())]);
}
