//! Tests refusals that need another end: a server, a taken port, a silent peer. Cases are data, as
//! in `cmd`; this file sets up what they run against, with addresses substituted for `{names}`.

use std::ffi::OsStr;
use std::fs;
use std::net::{TcpListener, UdpSocket};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use crate::daemons::{Daemon, PUBLIC_KEY, desk, text, write_file};
use crate::ends::free_port;

/// More than the maximum of remote forwards per session.
const MANY: usize = 65;

#[test]
fn an_argument_that_is_no_text_is_refused_like_others() {
    let not_text = OsStr::from_bytes(b"\xff");
    for before in [&[][..], &["status"], &["connect"]] {
        let output = desk().keypadd(before).arg(not_text).arg("--quietly").output().unwrap();
        let error = text(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{error}");
        assert!(error.starts_with("keypadd: ") && error.lines().count() == 2, "{error}");
    }
}

#[test]
fn every_refusal_prints_and_exits_as_recorded() {
    let desk = desk();
    let other = text(&desk.keypadd(&["keygen", "other.key"]).output().unwrap().stdout);
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let busy = taken.local_addr().unwrap().port();
    let silent = UdpSocket::bind("127.0.0.1:0").unwrap();
    let closed = free_port();
    let at_desk = desk.path("").display().to_string();
    let at_desk = at_desk.trim_end_matches('/');
    let open = format!("localhost:{closed},*:7");
    let listen = format!("localhost:{busy},192.0.2.1:*,127.0.0.2:*,{at_desk}/good.key");
    let server = Daemon::serve(&desk, &["--permit-open", &open, "--permit-listen", &listen]);
    let strict = ["--suite", "aes-256-ctr-hmac-sha256", "--kex", "x25519"];
    let strict = Daemon::serve(&desk, &strict);
    let names = [
        ("{server}", server.address()),
        ("{strict}", strict.address()),
        ("{silent}", silent.local_addr().unwrap().to_string()),
        ("{key}", PUBLIC_KEY.into()),
        ("{other}", other.trim().into()),
        ("{desk}", at_desk.into()),
        ("{busy}", busy.to_string()),
        ("{closed}", closed.to_string()),
        ("{many}", vec!["127.0.0.2:0:a:1"; MANY].join(",")),
    ];
    let filled =
        |text: String| names.iter().fold(text, |text, (name, value)| text.replace(name, value));
    let source = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/cli/refusals"));
    let files: Vec<_> = fs::read_dir(source).unwrap().map(|entry| entry.unwrap().path()).collect();
    for file in &files {
        let text = filled(fs::read_to_string(file).unwrap());
        write_file(&desk.path(file.file_name().unwrap().to_str().unwrap()), &text, 0o644);
    }
    let cases = trycmd::TestCases::new();
    for (variable, value) in
        [("RUNTIME_DIRECTORY", desk.path("run")), ("KEYPADD_KEY", desk.path("connect.key"))]
    {
        cases.env(variable, value.display().to_string());
    }
    cases.env("KEYPADD_POOL_BUDGET", "1MiB").case(desk.path("*.trycmd")).run();
    // `TRYCMD=overwrite` has written to the copies.
    if std::env::var_os("TRYCMD").is_some() {
        for file in &files {
            let copy = fs::read_to_string(desk.path(file.file_name().unwrap().to_str().unwrap()));
            let named =
                names.iter().fold(copy.unwrap(), |text, (name, value)| text.replace(value, name));
            fs::write(file, named).unwrap();
        }
    }
}
