//! Tests peers with several endpoints, two keys and an expiry date, with daemons of their own.

use std::fs;
use std::net::SocketAddr;

use rustix::process::Signal;
use serde_json::Value;

use crate::daemons::{Daemon, Desk, PUBLIC_KEY, desk, text};
use crate::ends::{echo, echoes, free_port, through, until};

/// A host that connects, and two servers, the second as failover.
struct Hosts {
    desk: Desk,
    target: SocketAddr,
    /// Of the connecting host and of the second server.
    keys: [String; 2],
    udp: [u16; 2],
    port: u16,
}

impl Hosts {
    fn new() -> Self {
        let desk = desk();
        let keys = ["near.key", "second.key"].map(|name| {
            let output = desk.keypadd(&["keygen", name]).output().unwrap();
            text(&output.stdout).trim().to_owned()
        });
        let (udp, port) = ([free_port(), free_port()], free_port());
        Self { desk, target: echo("127.0.0.1"), keys, udp, port }
    }

    /// Starts the server at this position of the list, with these lines for its peer.
    fn far(&self, place: usize, key: &str, peer: &str) -> Daemon {
        let Self { udp, target, keys: [near, _], .. } = self;
        let listen = udp[place];
        let text = format!(
            "listen = \"127.0.0.1:{listen}\"\nkey = \"{key}\"\npool-budget = \"1MiB\"\n\
             permit-open = [\"{target}\"]\n[peer.laptop]\npublic-key = \"{near}\"\n{peer}\n"
        );
        self.run(&format!("far{place}.toml"), &text)
    }

    /// Starts the connecting host, with these lines for its peer.
    fn near(&self, peer: &str) -> Daemon {
        let Self { udp: [first, second], target, keys: [_, other], port, .. } = self;
        let text = format!(
            "key = \"near.key\"\npool-budget = \"1MiB\"\n[peer.office]\n\
             public-key = [\"{PUBLIC_KEY}\", \"{other}\"]\n\
             endpoint = [\"127.0.0.1:{first}\", \"127.0.0.1:{second}\"]\n\
             local = [\"127.0.0.1:{port}:{target}\"]\n{peer}\n"
        );
        self.run("near.toml", &text)
    }

    fn run(&self, file: &str, text: &str) -> Daemon {
        fs::write(self.desk.path(file), text).unwrap();
        Daemon::start(self.desk.keypadd(&["run", "--config", file, "--log-format", "json"]))
    }

    /// The text of `status`, and the sessions of the connecting host.
    fn status(&self, near: &Daemon) -> (String, Vec<Value>) {
        let ask = |args: &[&str]| text(&self.desk.keypadd(args).output().unwrap().stdout);
        let document: Value = serde_json::from_str(&ask(&["status", "--json"])).unwrap();
        let daemons = document["daemons"].as_array().unwrap().iter();
        let own = daemons.filter(|daemon| daemon["pid"] == near.pid());
        let sessions = own.flat_map(|daemon| daemon["sessions"].as_array().unwrap().clone());
        (ask(&["status"]), sessions.collect())
    }
}

#[test]
fn a_host_that_stops_answering_is_left_for_one_of_another_key_and_the_log_says_what_is_reset() {
    let hosts = Hosts::new();
    let first = hosts.far(0, "good.key", "");
    let _second = hosts.far(1, "second.key", "");
    let mut near = hosts.near("");
    let _open = until("the first server works", || through(hosts.port));
    let (shown, sessions) = hosts.status(&near);
    assert_eq!(sessions[0]["public_key"], PUBLIC_KEY);
    assert!(shown.contains(&format!("    key {PUBLIC_KEY}, one of several\n")), "{shown}");

    first.signal(Signal::STOP);
    let reset =
        format!("open connections reset: 1 (1 of -L 127.0.0.1:{}:{})", hosts.port, hosts.target);
    near.hear(&reset);
    let stream = until("the second server works", || through(hosts.port));
    let (shown, sessions) = hosts.status(&near);
    assert_eq!(sessions[0]["public_key"].as_str(), Some(&*hosts.keys[1]));
    assert_eq!(sessions[0]["remote"], format!("127.0.0.1:{}", hosts.udp[1]));
    assert!(shown.contains("reconnects: moved 1"), "{shown}");
    assert!(echoes(&stream));
    first.signal(Signal::CONT);
}

#[test]
fn a_peer_whose_last_day_is_over_is_refused_and_not_dialed_and_check_says_so() {
    let hosts = Hosts::new();
    let mut far = hosts.far(0, "good.key", "valid-until = \"2020-01-31\"");
    let mut near = hosts.near("");
    far.hear("the peer's valid-until has passed");
    near.hear("the server's valid-until for this key has passed");
    drop((far, near));
    let checked = hosts.desk.keypadd(&["check", "--config", "far0.toml"]).output().unwrap();
    assert!(text(&checked.stdout).contains("  valid until 2020-01-31T23:59:59Z\n"));
    let said = text(&checked.stderr);
    assert!(said.contains("valid-until: peer `laptop` has expired (warning)"), "{said}");

    let mut near = hosts.near("valid-until = \"2020-01-31\"");
    near.hear("not connecting: the peer's valid-until has passed");
    let (shown, _) = hosts.status(&near);
    assert!(shown.contains("; valid until 2020-01-31T23:59:59Z"), "{shown}");
}

#[test]
fn connections_held_for_a_peer_end_with_its_last_day_and_a_line() {
    let hosts = Hosts::new();
    drop(hosts.far(0, "good.key", ""));
    let file = fs::read_to_string(hosts.desk.path("far0.toml")).unwrap();
    let file = format!("peer-timeout = \"10s\"\n{file}");
    let mut far = hosts.run("far0.toml", &file);
    let near = hosts.near("");
    let _open = until("the forward works", || through(hosts.port));
    near.signal(Signal::KILL);
    far.hear("holding the connections of a lost session");
    fs::write(hosts.desk.path("far0.toml"), file + "valid-until = \"2020-01-31\"\n").unwrap();
    assert!(hosts.desk.keypadd(&["reload"]).status().unwrap().success());
    far.hear("reset connections of peers removed from the list or past their valid-until");
}
