//! Tests reloads of peers: from the main file or one beside it, and with another key of this host.

use std::fs;
use std::net::{TcpStream, UdpSocket};
use std::time::Duration;

use serde_json::Value;

use crate::daemons::{Daemon, PUBLIC_KEY, text};
use crate::ends::{echoes, exchange, free_port, through, until};
use crate::hosts::{Hosts, new_key};
use crate::replacing::Followers;

#[test]
fn added_peers_are_admitted_and_dialed() {
    let hosts = Hosts::new();
    let (target, [one, two]) = (hosts.target, [free_port(), free_port()]);
    hosts.write_far("");
    let office = format!("local = [\"127.0.0.1:{one}:{target}\"]");
    hosts.write_near(&office);
    let (_far, _near) = (hosts.run("far.toml"), hosts.run("near.toml"));
    let kept = until("the forward works", || through(one));

    // A peer to connect to, which refuses until it lists our key.
    let stranger = new_key(&hosts.desk, "attic.key");
    let attic = format!(
        "key = \"attic.key\"\npool = \"off\"\nlisten = \"127.0.0.1:0\"\n[peer.nobody]\n\
         public-key = \"{PUBLIC_KEY}\"\npermit-open = [\"{target}\"]\n"
    );
    fs::write(hosts.desk.path("attic.toml"), &attic).unwrap();
    let third = hosts.run("attic.toml");
    let address = third.address();
    hosts.write_near(&format!(
        "{office}\n[peer.attic]\npublic-key = \"{stranger}\"\nendpoint = \"{address}\"\n\
         local = [\"127.0.0.1:{two}:{target}\"]\n"
    ));
    assert!(hosts.reload().contains("  peer attic added\n"));
    let shown = until("near says why it is not connected", || {
        let (_, shown, _) = hosts.keypadd(&["status"]);
        shown.contains("does not allow this key").then_some(shown)
    });
    assert!(shown.contains(&format!("  peer attic at {address}: not connected for ")), "{shown}");
    let near_key = &hosts.near_key;
    fs::write(
        hosts.desk.path("attic.toml"),
        format!(
            "{attic}[peer.laptop]\npublic-key = \"{near_key}\"\npermit-open = [\"{target}\"]\n"
        ),
    )
    .unwrap();
    assert!(hosts.reload().contains("  peer laptop added\n"));
    until("the new peer is reached", || through(two));

    hosts.write_near(&office);
    assert!(hosts.reload().contains("  peer attic removed\n"));
    assert!(TcpStream::connect(("127.0.0.1", two)).is_err());
    assert!(echoes(&kept));
}

/// The token with which a server resets a connection that it does not know (RFC 9000 10.3).
fn reset_token(udp: u16) -> [u8; 16] {
    let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
    socket.set_read_timeout(Some(Duration::from_millis(200))).unwrap();
    // A short header with the ID of a loop that no server has.
    let stray = [&[0x40, 0xff][..], &[7; 47]].concat();
    let mut buffer = [0; 2_048];
    until("the server answers", || {
        socket.send_to(&stray, ("127.0.0.1", udp)).unwrap();
        let bytes = socket.recv(&mut buffer).ok()?;
        buffer[bytes - 16..bytes].try_into().ok()
    })
}

#[test]
fn a_reload_with_another_key_resets_connections_by_its_tokens_and_not_by_the_old_ones() {
    let hosts = Hosts::new();
    hosts.write_far("");
    let far = hosts.run("far.toml");
    let old = reset_token(hosts.udp);
    let file = hosts.desk.path("far.toml");
    new_key(&hosts.desk, "other.key");
    let changed = fs::read_to_string(&file).unwrap().replace("good.key", "other.key");
    fs::write(&file, changed).unwrap();
    hosts.reload();
    let new = reset_token(hosts.udp);
    assert_ne!(new, old);
    assert_eq!(far.stop().status.code(), Some(0));
    let _again = hosts.run("far.toml");
    assert_eq!(reset_token(hosts.udp), new, "a restart has the same");
}

#[test]
fn a_reload_names_the_way_to_peers_that_the_sandbox_hides() {
    let hosts = Hosts::new();
    let file = |name: &str| hosts.desk.path(&format!("near/{name}"));
    fs::create_dir(file("")).unwrap();
    let peer = |name: &str, key: &str| {
        format!("[peer.{name}]\npublic-key = \"{key}\"\nendpoint = \"127.0.0.1:{}\"\n", hosts.udp)
    };
    let text = "key = \"../near.key\"\npool-budget = \"1MiB\"\n".to_owned();
    fs::write(file("keypadd.toml"), text + &peer("office", PUBLIC_KEY)).unwrap();
    let mut command = hosts.command("near/keypadd.toml");
    // Other programs share a home.
    command.env("HOME", file(""));
    let _near = Daemon::start(command);

    let other = new_key(&hosts.desk, "other.key");
    fs::create_dir(file("peers.d")).unwrap();
    fs::write(file("peers.d/lab.toml"), peer("lab", &other)).unwrap();
    let mut followers = Followers::default();
    let (code, said, error) = hosts.keypadd(&["reload"]);
    match code {
        Some(3) => {
            assert!(error.contains("peers.d` cannot be read: permission denied\n"), "{error}");
            assert!(error.contains("\n  hint: this process gave up access to it"), "{error}");
            let (code, said, error) = hosts.keypadd(&["reload", "--binary"]);
            assert_eq!(code, Some(0), "{error}");
            followers.add(&said);
        }
        // Kernels before Linux 5.13.
        _ => assert!(said.contains("peer lab added"), "{said}{error}"),
    }
    until("the peer is there", || hosts.keypadd(&["status"]).1.contains("lab").then_some(()));
}

#[test]
fn peers_come_and_go_with_their_files_in_a_directory_though_the_daemon_is_confined() {
    let hosts = Hosts::new();
    let port = free_port();
    hosts.write_far("");
    let far = hosts.run("far.toml");
    // Not beside the server's file, which would have these peers, too.
    let file = |name: &str| hosts.desk.path(&format!("near/{name}"));
    fs::create_dir_all(file("peers.d")).unwrap();
    fs::write(file("keypadd.toml"), "key = \"../near.key\"\npool-budget = \"1MiB\"\n").unwrap();
    let peer = |name: &str, key: &str, port: u16| {
        format!(
            "[peer.{name}]\npublic-key = \"{key}\"\nendpoint = \"127.0.0.1:{}\"\n\
             local = \"127.0.0.1:{port}:{}\"\n",
            hosts.udp, hosts.target
        )
    };
    fs::write(file("peers.d/office.toml"), peer("office", PUBLIC_KEY, port)).unwrap();
    let _near = hosts.run("near/keypadd.toml");
    let works = || (exchange(&format!("127.0.0.1:{port}"), b"x").ok()? == b"x").then_some(());
    until("the forward works", works);

    let reload = || {
        let (code, said, error) = hosts.keypadd(&["reload"]);
        (code, said + &error)
    };
    let other = new_key(&hosts.desk, "other.key");
    fs::write(file("peers.d/another.toml"), peer("office", &other, free_port())).unwrap();
    let (code, said) = reload();
    assert_eq!(code, Some(3), "{said}");
    let both = "office.toml:1:7: peer `office` is also in line 1 of `another.toml`";
    assert!(said.contains(&format!("peers.d/{both}")), "{said}");
    until("the forward still works", works);

    fs::write(file("peers.d/another.toml"), peer("lab", &other, free_port())).unwrap();
    let (code, said) = reload();
    assert!(code == Some(0) && said.contains("peer lab added"), "{said}");
    fs::remove_file(file("peers.d/another.toml")).unwrap();
    // What an editor leaves.
    fs::write(file("peers.d/another.toml~"), "nonsense").unwrap();
    let (code, said) = reload();
    assert!(code == Some(0) && said.contains("peer lab removed"), "{said}");
    until("the forward works to the end", works);
    drop(far);
}

#[test]
fn peers_in_force_are_listed_with_their_files_permits_and_whether_they_are_connected() {
    let (hosts, port) = (Hosts::new(), free_port());
    let other = new_key(&hosts.desk, "other.key");
    hosts.write_far("");
    hosts.write_near(&format!("local = [\"127.0.0.1:{port}:{}\"]", hosts.target));
    // A directory for both daemons' files: the other one is no peer of `near`.
    let far = fs::read_to_string(hosts.desk.path("far.toml")).unwrap();
    fs::create_dir_all(hosts.desk.path("far/peers.d")).unwrap();
    let far = far.replace("good.key", "../good.key");
    fs::write(hosts.desk.path("far/far.toml"), far).unwrap();
    let part = hosts.desk.path("far/peers.d/others.toml");
    let listed = format!(
        "[peer.other]\npublic-key = \"{other}\"\npermit-open = [\"a:1\", \"b:2\", \"c:3\", \"d:4\"]\n"
    );
    fs::write(&part, listed).unwrap();
    let (_far, _near) = (hosts.run("far/far.toml"), hosts.run("near.toml"));
    until("the forward works", || through(port));

    let (code, shown, error) = hosts.keypadd(&["peers"]);
    assert_eq!(code, Some(0), "{error}");
    assert!(shown.contains(": 2 peers, 1 connected\n"), "{shown}");
    let permit = hosts.target;
    let laptop = format!("\n  connected  laptop  {}  permit-open {permit}\n", hosts.near_key);
    assert!(shown.contains(&laptop), "{shown}");
    let line = format!(
        "\n  -          other  {other}  peers.d/others.toml  permit-open a:1, b:2, c:3 and 1 more\n"
    );
    assert!(shown.contains(&line), "{shown}");
    let office = format!("\n  connected  office  {PUBLIC_KEY}  at 127.0.0.1:{}\n", hosts.udp);
    assert!(shown.contains(&office), "{shown}");

    fs::remove_file(&part).unwrap();
    hosts.reload();
    let (_, shown, _) = hosts.keypadd(&["peers", "--json"]);
    let shown: Value = serde_json::from_str(&shown).unwrap();
    let daemons = shown["daemons"].as_array().unwrap();
    assert_eq!(daemons.len(), 2);
    assert!(daemons.iter().all(|daemon| daemon["peers"].as_array().unwrap().len() == 1), "{shown}");
}

#[test]
fn a_server_id_of_the_environment_is_a_servers_alone_and_check_shows_it() {
    const NAME: &str = "AWS_LBC_QUIC_SERVER_ID";
    let hosts = Hosts::new();
    hosts.write_far("");
    hosts.write_near("");
    let check = |file: &str, id: &str| {
        let mut command = hosts.desk.keypadd(&["check", "--config", file]);
        let output = command.env(NAME, id).output().unwrap();
        (text(&output.stdout), text(&output.stderr), output.status.code())
    };
    let (shown, _, _) = check("far.toml", "AQIDBAUGBwg=");
    assert!(shown.contains(&format!("\n  server-id 0x0102030405060708 ({NAME})\n")), "{shown}");
    let (_, error, code) = check("far.toml", "short");
    assert!(error.contains(NAME), "{error}");
    assert_eq!(code, Some(2));
    let (shown, _, code) = check("near.toml", "short");
    assert_eq!((shown.contains("server-id"), code), (false, Some(0)));
    // A client starts, whatever it is.
    let mut command = hosts.command("near.toml");
    command.env(NAME, "short");
    drop(Daemon::start(command));
}
