//! Tests `connect @NAME`, which takes the server from the configuration file.

use std::io::Write;
use std::process::{Command, Stdio};

use serde_json::Value;

use crate::daemons::{Daemon, Desk, PUBLIC_KEY, desk, text, write_file};
use crate::ends::echo;

/// Writes a configuration file whose peer `lab` is this server, with the key that it allows. The
/// file allows a suite that no flag here allows.
fn name(server: &Daemon, desk: &Desk) {
    let file = format!(
        "key = \"connect.key\"\nallow-legacy = true\n[peer.lab]\npublic-key = \"{PUBLIC_KEY}\"\n\
         endpoint = \"{}\"\nsuite = \"3des-ctr-hmac-sha1\"\nkex = \"x25519\"\n\
         local = [\"127.0.0.1:1:a:1\"]\n",
        server.address()
    );
    write_file(&desk.path("keypadd.toml"), &file, 0o644);
}

/// `connect @lab` with the default configuration file and no key in the environment.
fn connect(desk: &Desk, args: &[&str]) -> Command {
    let mut command = desk.keypadd(&["connect", "@lab"]);
    command.args(args).env("CONFIGURATION_DIRECTORY", desk.path("")).env_remove("KEYPADD_KEY");
    command
}

/// A server that allows the suites of both the file and the flags.
fn server(desk: &Desk, target: &str) -> Daemon {
    let suites = "--suite=3des-ctr-hmac-sha1,aes-128-gcm";
    Daemon::serve(desk, &["--permit-open", target, "--allow-legacy", suites])
}

fn ready(desk: &Desk, args: &[&str]) -> Value {
    let mut command = connect(desk, &["-L", "127.0.0.1:0:a:1", "--log-format", "json"]);
    command.args(args);
    let client = Daemon::start(command);
    let ready = client.ready.clone();
    assert_eq!(client.stop().status.code(), Some(0));
    ready
}

#[test]
fn a_proxy_command_needs_no_more_than_the_name_of_a_peer_in_the_file() {
    let desk = desk();
    let target = echo("127.0.0.1").to_string();
    let server = server(&desk, &target);
    name(&server, &desk);
    let mut command = connect(&desk, &["-W", &target]);
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().unwrap();
    child.stdin.take().unwrap().write_all(b"through the file").unwrap();
    let output = child.wait_with_output().unwrap();
    assert_eq!(text(&output.stdout), "through the file", "{}", text(&output.stderr));
    assert_eq!(output.status.code(), Some(0));
}

#[test]
fn suite_and_key_exchange_are_the_files_unless_flags_say_otherwise() {
    let desk = desk();
    let server = server(&desk, "a:1");
    name(&server, &desk);
    let of_file = ready(&desk, &[]);
    assert!(of_file["suite"].as_str().unwrap().starts_with("3des-ctr-hmac-sha1"), "{of_file}");
    assert_eq!(of_file["kex"], "x25519", "{of_file}");
    let of_flags = ready(&desk, &["--suite", "aes-128-gcm", "--kex", "secp384r1"]);
    assert!(of_flags["suite"].as_str().unwrap().starts_with("aes-128-gcm"), "{of_flags}");
    assert_eq!(of_flags["kex"], "secp384r1", "{of_flags}");
    // `run` alone uses the forwards in the file.
    let forwards = of_file["forwards"].as_array().unwrap();
    assert_eq!(forwards.len(), 1, "{of_file}");
}

#[test]
fn a_key_of_the_command_line_replaces_the_files() {
    let desk = desk();
    let server = server(&desk, "a:1");
    name(&server, &desk);
    // The server does not allow this key.
    let output = connect(&desk, &["-W", "a:1", "--key", "good.key"]).output().unwrap();
    assert_eq!(output.status.code(), Some(4), "{}", text(&output.stderr));
}

#[test]
fn a_file_that_allows_its_legacy_suite_allows_none_of_the_command_lines() {
    let desk = desk();
    let server = server(&desk, "a:1");
    name(&server, &desk);
    let output = connect(&desk, &["-W", "a:1", "--suite", "des-ctr-hmac-sha1"]).output().unwrap();
    assert_eq!(output.status.code(), Some(2), "{}", text(&output.stderr));
}
