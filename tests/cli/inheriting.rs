//! Tests the listeners that a new process has from the one that it replaces.

use std::fs;
use std::net::TcpStream;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::sync::{
    Arc,
    atomic::{AtomicBool, Ordering::Relaxed},
};
use std::thread;
use std::time::Duration;

use serde_json::Value;

use crate::daemons::text;
use crate::ends::{exchange, free_port, noise, through, until};
use crate::replacing::Hosts;

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
    assert!(hosts.replace(&near).status.success());
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
    let replaced = hosts.replace(&near);
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
    let output = hosts.replace(&far);
    assert!(output.status.success(), "{}", text(&output.stderr));
    thread::sleep(Duration::from_millis(100));
    stopped.store(true, Relaxed);
    connecting.into_iter().for_each(|one| one.join().unwrap());
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
    let output = hosts.replace(&near);
    assert!(text(&output.stderr).contains("continues"), "{}", text(&output.stderr));
    assert_eq!(exchange(&place, b"y").unwrap(), b"y");

    fs::write(&file, plain).unwrap();
    let output = hosts.replace(&near);
    assert!(output.status.success(), "{}", text(&output.stderr));
    // The old process removes it once the new one serves.
    until("the socket file is removed", || (!path.exists()).then_some(()));
    until("the rest keeps working", || through(hosts.ports[0]));
}

#[test]
fn a_unix_socket_whose_file_another_program_has_taken_is_left_to_it_and_one_without_a_file_is_bound_anew()
 {
    let mut hosts = Hosts::new("", "");
    let [taken, gone] = ["taken.sock", "gone.sock"].map(|name| hosts.desk.path(name));
    let (file, target) = (hosts.desk.path("near.toml"), hosts.target);
    let plain = fs::read_to_string(&file).unwrap();
    let with = |paths: &[&Path]| {
        let entries: String =
            paths.iter().map(|path| format!("\"{}:{target}\", ", path.display())).collect();
        plain.replace("local = [", &format!("local = [{entries}"))
    };
    fs::write(&file, with(&[&taken, &gone])).unwrap();
    let (_far, near) = (hosts.run("far"), hosts.run("near"));
    until("the forward works", || through(hosts.ports[0]));
    for path in [&taken, &gone] {
        fs::remove_file(path).unwrap();
    }
    let _others = UnixListener::bind(&taken).unwrap();
    fs::write(&file, with(&[&gone])).unwrap();
    let output = hosts.replace(&near);
    assert!(output.status.success(), "{}", text(&output.stderr));
    UnixStream::connect(&taken).unwrap();
    assert_eq!(exchange(gone.to_str().unwrap(), b"x").unwrap(), b"x");
}

#[test]
fn a_port_that_the_system_chose_stays_with_its_forward() {
    let mut hosts = Hosts::new("", "");
    let (file, target) = (hosts.desk.path("near.toml"), hosts.target);
    let plain = fs::read_to_string(&file).unwrap();
    let with = |entries: &str| plain.replace("local = [", &format!("local = [{entries}, "));
    let chosen = format!("\"127.0.0.1:0:{target}\"");
    fs::write(&file, with(&chosen)).unwrap();
    let (_far, near) = (hosts.run("far"), hosts.run("near"));
    let forwards = &near.ready["dialing"][0]["forwards"];
    let listens = forwards[0]["listen"][0].as_str().unwrap();
    let port = listens.rsplit(':').next().unwrap().parse().unwrap();
    until("the forward works", || through(port));
    // No permit of far admits its target.
    fs::write(&file, with(&format!("\"127.0.0.1:0:127.0.0.1:9\", {chosen}"))).unwrap();
    let output = hosts.replace(&near);
    assert!(output.status.success(), "{}", text(&output.stderr));
    assert!(through(port).is_some());
}

#[test]
fn a_port_that_the_old_process_has_at_all_addresses_is_not_said_to_be_another_programs() {
    let mut hosts = Hosts::new("", "");
    let (file, target, port) = (hosts.desk.path("near.toml"), hosts.target, free_port());
    let plain = fs::read_to_string(&file).unwrap();
    let with =
        |bind: &str| plain.replace("local = [", &format!("local = [\"{bind}:{port}:{target}\", "));
    fs::write(&file, with("*")).unwrap();
    let (_far, near) = (hosts.run("far"), hosts.run("near"));
    until("the forward works", || through(port));
    fs::write(&file, with("127.0.0.1")).unwrap();
    let output = hosts.replace(&near);
    let said = text(&output.stderr);
    assert!(said.contains("the process that is to be replaced listens there\n"), "{said}");
    assert!(said.contains("hint: run `keypadd reload` first"), "{said}");
    let socket = hosts.socket(near.pid());
    let reload = ["reload", "--socket", socket.to_str().unwrap()];
    assert!(hosts.desk.keypadd(&reload).status().unwrap().success());
    let output = hosts.replace(&near);
    assert!(output.status.success(), "{}", text(&output.stderr));
    assert!(through(port).is_some());
}
