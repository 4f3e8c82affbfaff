//! Tests `keypadd forward`: forwards of a running daemon are listed, added and removed.

use std::net::TcpStream;

use crate::daemons::{Daemon, Desk, PUBLIC_KEY, desk, text, write_file};
use crate::ends::{echo, echoes, exchange, until};
use crate::staying::forwarding;

/// Its output, or its error, and its exit code.
fn forward(desk: &Desk, args: &[&str]) -> (String, Option<i32>) {
    let output = desk.keypadd(&[&["forward"], args].concat()).output().unwrap();
    (text(&output.stdout) + &text(&output.stderr), output.status.code())
}

/// Listen address of the only forward to this target.
fn entrance(desk: &Desk, target: &str) -> String {
    let (listed, _) = forward(desk, &["list"]);
    let line = listed
        .lines()
        .find(|line| line.contains(target))
        .expect("the forward is listed")
        .to_owned();
    line.rsplit_once(" on ").expect("the forward listens").1.to_owned()
}

#[test]
fn a_forward_is_added_to_a_running_connect_used_and_removed() {
    let (desk, [first, second]) = (desk(), [(); 2].map(|()| echo("127.0.0.1").to_string()));
    let server = Daemon::serve(&desk, &["--permit-open", "127.0.0.1:*"]);
    let (client, kept) = forwarding(&server, &desk, &first, &[]);
    let spec = format!("127.0.0.1:0:{second}");
    let (said, exit) = forward(&desk, &["add", "-L", &spec]);
    assert_eq!(exit, Some(0), "{said}");
    assert!(said.contains(&format!("-L {spec}  listening on 127.0.0.1:")), "{said}");
    let added = entrance(&desk, &second);
    assert_eq!(exchange(&added, b"through it").unwrap(), b"through it");

    let open = TcpStream::connect(&added).unwrap();
    assert!(echoes(&open));
    assert_eq!(forward(&desk, &["remove", "-L", &spec]), (String::new(), Some(0)));
    assert!(TcpStream::connect(&added).is_err(), "the removed forward still listens");
    assert!(echoes(&open), "open connections stay");
    assert!(exchange(&kept.to_string(), b"x").is_ok(), "the other forward stays");
    let (said, exit) = forward(&desk, &["remove", "-L", &spec]);
    assert_eq!((said.contains("there is no -L "), exit), (true, Some(2)), "{said}");

    let taken = format!("127.0.0.1:{}:{second}", kept.port());
    let (said, exit) = forward(&desk, &["add", "-L", &taken]);
    assert_eq!((said.contains("address already in use"), exit), (true, Some(6)), "{said}");
    assert_eq!(client.stop().status.code(), Some(0));
}

#[test]
fn a_peer_of_a_running_file_is_named_and_a_reload_brings_back_what_the_file_says() {
    let (desk, target) = (desk(), echo("127.0.0.1").to_string());
    let server = Daemon::serve(&desk, &["--permit-open", "127.0.0.1:*"]);
    let file = format!(
        "key = \"connect.key\"\n[peer.lab]\npublic-key = \"{PUBLIC_KEY}\"\nendpoint = \"{}\"\n",
        server.address()
    );
    write_file(&desk.path("keypadd.toml"), &file, 0o644);
    let mut command = desk.keypadd(&["run", "--config", "keypadd.toml", "--log-format", "json"]);
    command.env_remove("KEYPADD_KEY");
    let run = Daemon::start(command);
    assert_eq!(forward(&desk, &["list"]), (String::new(), Some(0)));
    let spec = format!("127.0.0.1:0:{target}");
    let (said, exit) = forward(&desk, &["add", "@lba", "-L", &spec]);
    assert_eq!((said.contains("did you mean @lab?"), exit), (true, Some(2)), "{said}");
    let (said, exit) = forward(&desk, &["add", "@lab", "-L", &spec]);
    assert_eq!(exit, Some(0), "{said}");
    let place = entrance(&desk, &target);
    until("the forward works", || (exchange(&place, b"x").ok()? == b"x").then_some(()));
    assert!(desk.keypadd(&["reload"]).output().unwrap().status.success());
    assert_eq!(forward(&desk, &["list"]), (String::new(), Some(0)));
    assert!(TcpStream::connect(&place).is_err());
    assert_eq!(run.stop().status.code(), Some(0));
}

#[test]
fn a_daemon_that_connects_to_nobody_has_no_forwards() {
    let desk = desk();
    let _server = Daemon::serve(&desk, &[]);
    let (said, exit) = forward(&desk, &["list"]);
    assert_eq!((said.contains("no daemon found that connects"), exit), (true, Some(5)), "{said}");
}
