//! Runs a server and a connecting host whose files a test changes.

use std::fs;
use std::net::SocketAddr;
use std::process::Command;

use serde_json::Value;

use crate::daemons::{Daemon, Desk, PUBLIC_KEY, desk, text};
use crate::ends::{echo, free_port};

/// Two hosts on one desk, a server and a connecting host, each with a key of its own.
pub(crate) struct Hosts {
    pub(crate) desk: Desk,
    /// The server's port.
    pub(crate) udp: u16,
    /// What the server may connect to: it echoes.
    pub(crate) target: SocketAddr,
    pub(crate) near_key: String,
}

impl Hosts {
    pub(crate) fn new() -> Self {
        let desk = desk();
        let near_key = new_key(&desk, "near.key");
        Self { desk, udp: free_port(), target: echo("127.0.0.1"), near_key }
    }

    /// Writes the server's file, with these lines for its peer.
    pub(crate) fn write_far(&self, peer: &str) {
        let Self { udp, target, near_key, .. } = self;
        let text = format!(
            "listen = \"127.0.0.1:{udp}\"\nkey = \"good.key\"\npool-budget = \"1MiB\"\n\
             permit-open = [\"{target}\"]\n[peer.laptop]\npublic-key = \"{near_key}\"\n{peer}\n"
        );
        fs::write(self.desk.path("far.toml"), text).unwrap();
    }

    /// Writes the connecting host's file, with these forwards and perhaps more peers.
    pub(crate) fn write_near(&self, forwards: &str) {
        self.write_near_to("127.0.0.1", forwards);
    }

    /// Writes the connecting host's file, with another name for the server's address.
    pub(crate) fn write_near_to(&self, server: &str, forwards: &str) {
        let udp = self.udp;
        let text = format!(
            "key = \"near.key\"\npool-budget = \"1MiB\"\n[peer.office]\npublic-key = \"{PUBLIC_KEY}\"\n\
             endpoint = \"{server}:{udp}\"\n{forwards}\n"
        );
        fs::write(self.desk.path("near.toml"), text).unwrap();
    }

    pub(crate) fn run(&self, file: &str) -> Daemon {
        Daemon::start(self.command(file))
    }

    pub(crate) fn command(&self, file: &str) -> Command {
        self.desk.keypadd(&["run", "--config", file, "--log-format", "json"])
    }

    /// Exit code, standard output, standard error.
    pub(crate) fn keypadd(&self, args: &[&str]) -> (Option<i32>, String, String) {
        let output = self.desk.keypadd(args).output().unwrap();
        (output.status.code(), text(&output.stdout), text(&output.stderr))
    }

    /// The output of a successful `reload`.
    pub(crate) fn reload(&self) -> String {
        let (code, said, error) = self.keypadd(&["reload"]);
        assert_eq!(code, Some(0), "{error}");
        said
    }

    /// Status of one forward of the connecting host.
    pub(crate) fn forward(&self, name: &str) -> Option<Value> {
        let (_, document, _) = self.keypadd(&["status", "--json"]);
        let document: Value = serde_json::from_str(&document).unwrap();
        let daemons = document["daemons"].as_array()?.iter();
        let sessions = daemons.filter_map(|daemon| daemon["sessions"].as_array()).flatten();
        let near = sessions.filter(|session| session["role"] == "client");
        let mut forwards = near.filter_map(|session| session["forwards"].as_array()).flatten();
        forwards.find(|forward| forward["forward"] == name).cloned()
    }
}

/// Generates a key on the desk; returns its public key.
pub(crate) fn new_key(desk: &Desk, name: &str) -> String {
    let output = desk.keypadd(&["keygen", name]).output().unwrap();
    text(&output.stdout).trim().to_owned()
}
