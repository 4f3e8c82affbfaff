//! Tests `keypadd forward`: forwards of a running daemon are listed, added and removed.

use std::net::{TcpListener, TcpStream};

use crate::daemons::{Daemon, Desk, PUBLIC_KEY, desk, text, write_file};
use crate::ends::{echo, echoes, exchange, free_port, until};
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

    let (said, exit) = forward(&desk, &["add", "-L", "127.0.0.1:4-6:a.example:80-81"]);
    assert_eq!(
        (said.contains("ranges of the same number of ports"), exit),
        (true, Some(2)),
        "{said}"
    );
    // Never connected to. On an address that no other test listens on.
    let range = "127.0.0.7:61004-61006:127.0.0.1:4-6";
    let (said, exit) = forward(&desk, &["add", "-L", range]);
    assert_eq!((said.lines().count(), exit), (3, Some(0)), "{said}");
    assert!(
        said.contains("-L 127.0.0.7:61006:127.0.0.1:6  listening on 127.0.0.7:61006"),
        "{said}"
    );
    assert_eq!(forward(&desk, &["remove", "-L", range]), (String::new(), Some(0)));
    assert_eq!(client.stop().status.code(), Some(0));
}

#[test]
fn forwards_added_to_a_peer_of_a_file_outlast_reloads_until_the_file_uses_their_address() {
    let (desk, target) = (desk(), echo("127.0.0.1").to_string());
    let server = Daemon::serve(&desk, &["--permit-open", "127.0.0.1:*", "--permit-listen", "*:*"]);
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
    let reload = |more: &str| {
        write_file(&desk.path("keypadd.toml"), &format!("{file}{more}"), 0o644);
        let output = desk.keypadd(&["reload"]).output().unwrap();
        (text(&output.stdout) + &text(&output.stderr), output.status.code())
    };
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let taken = taken.local_addr().unwrap();
    let port = free_port();
    let (said, exit) =
        forward(&desk, &["add", "@lab", "-L", &format!("127.0.0.1:{port}:{target}")]);
    assert_eq!(exit, Some(0), "{said}");
    let (said, exit) = reload(&format!("local = [\"{taken}:{target}\"]\n"));
    assert_eq!(exit, Some(6), "{said}");
    // Changes of the file, and another client for the peer.
    for more in ["", "send-proxy = false\n", "hold = \"5m\"\n"] {
        let (said, exit) = reload(more);
        assert_eq!(exit, Some(0), "{said}");
        let (listed, _) = forward(&desk, &["list"]);
        assert_eq!(listed.lines().count(), 2, "{listed}");
        assert_eq!(entrance(&desk, &spec), place);
        until("the forward works", || (exchange(&place, b"x").ok()? == b"x").then_some(()));
    }
    let (said, exit) = reload(&format!("dynamic = [\"127.0.0.1:{port}\"]\n"));
    assert_eq!(exit, Some(0), "{said}");
    let line = format!(
        "peer lab: the added forward -L 127.0.0.1:{port}:{target} is closed: the file uses its address\n"
    );
    assert!(said.contains(&line), "{said}");
    let (listed, _) = forward(&desk, &["list"]);
    assert!(
        listed.lines().count() == 2 && !listed.contains(&format!("{port}:{target}")),
        "{listed}"
    );
    let (said, exit) = reload(&format!("local = [\"{spec}\"]\n"));
    assert_eq!((said.contains("is closed"), exit), (false, Some(0)), "{said}");
    assert_eq!(entrance(&desk, &target), place, "it is one of the file now");

    let (ours, theirs) = (format!("-L 127.0.0.1:{port}:{target}"), format!("-R 0:{target}"));
    for (flag, spec) in [&ours, &theirs].map(|added| added.split_once(' ').unwrap()) {
        let (said, _) = forward(&desk, &["add", "@lab", flag, spec]);
        assert!(said.contains(spec), "{said}");
    }
    write_file(&desk.path("keypadd.toml"), &file.replace("peer.lab", "peer.attic"), 0o644);
    let said = text(&desk.keypadd(&["reload"]).output().unwrap().stdout);
    let line = format!(
        "  peer lab: added forwards are closed, as the file no longer connects to it: {ours}, {theirs}\n"
    );
    assert!(said.contains(&line), "{said}");
    assert_eq!(run.stop().status.code(), Some(0));
}

#[test]
fn a_remote_forward_that_the_server_refuses_is_not_added() {
    let (desk, target) = (desk(), echo("127.0.0.1").to_string());
    let [permitted, taken] = [free_port(), free_port()];
    let _listener = TcpListener::bind(("127.0.0.1", taken)).unwrap();
    let permit = format!("127.0.0.1:{permitted},127.0.0.1:{taken}");
    let server =
        Daemon::serve(&desk, &["--permit-open", "127.0.0.1:*", "--permit-listen", &permit]);
    let (_client, _) = forwarding(&server, &desk, &target, &[]);
    let spec = format!("127.0.0.1:{permitted}:{target}");
    let (said, exit) = forward(&desk, &["add", "-R", &spec]);
    assert_eq!(exit, Some(0), "{said}");
    assert_eq!(exchange(&format!("127.0.0.1:{permitted}"), b"x").unwrap(), b"x");

    let refused = format!("127.0.0.1:{}:{target}", free_port());
    for (spec, cause, hint, code) in [
        (refused, "not permitted", "permit-listen = [\"127.0.0.1:", 4),
        (format!("127.0.0.1:{taken}:{target}"), "address in use", "choose a free address", 6),
    ] {
        let (said, exit) = forward(&desk, &["add", "-R", &spec]);
        assert_eq!(exit, Some(code), "{said}");
        let expected =
            format!("keypadd: remote forward -R {spec} failed on the server: {cause}\n  hint: ");
        assert!(said.starts_with(&expected) && said.contains(hint), "{said}");
        assert!(!forward(&desk, &["list"]).0.contains(&spec), "it is listed");
    }
}

#[test]
fn a_remote_forward_waits_for_a_server_that_is_away_and_says_so() {
    let (desk, target) = (desk(), echo("127.0.0.1").to_string());
    let file = format!(
        "key = \"connect.key\"\n[peer.lab]\npublic-key = \"{PUBLIC_KEY}\"\n\
         endpoint = \"127.0.0.1:{}\"\n",
        free_port()
    );
    write_file(&desk.path("keypadd.toml"), &file, 0o644);
    let mut command = desk.keypadd(&["run", "--config", "keypadd.toml", "--log-format", "json"]);
    command.env_remove("KEYPADD_KEY");
    let _run = Daemon::start(command);
    let (said, exit) = forward(&desk, &["add", "-R", &format!("0:{target}")]);
    assert_eq!(exit, Some(0), "{said}");
    assert!(said.contains("the server has not answered for -R 0:"), "{said}");
}

#[test]
fn a_daemon_that_connects_to_nobody_has_no_forwards() {
    let desk = desk();
    let _server = Daemon::serve(&desk, &[]);
    let (said, exit) = forward(&desk, &["list"]);
    assert_eq!((said.contains("no daemon found that connects"), exit), (true, Some(5)), "{said}");
}
