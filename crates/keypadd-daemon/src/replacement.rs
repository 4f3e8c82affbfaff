//! Hands a daemon's sockets and held streams to the process that replaces it (`keypadd reload
//! --binary`).
//!
//! | new process | old process |
//! | --- | --- |
//! | reads its settings, then [`Message::Begin`] | shares the sockets that it listens on |
//! | binds its sockets, then [`Message::Bound`] | ends its sessions and describes what is held |
//! | resumes what is held, then [`Message::Done`] | says [`Message::Bye`] and exits |
//!
//! Until `Done` the old process still has everything, and serves if the new one dies. After it both
//! have everything, and [`Message::Bye`] decides: once all of it is in the new process's socket,
//! the old one never serves again; before that, the new one does not serve while the old one lives.
//! Both are on one host, so neither is left in doubt, as a peer across a network would be: the
//! kernel takes a message for the other process or reports that it takes none. So
//!
//! - an old process that gives up stops receiving, then says [`Message::Continues`]. A `Done` that
//!   it has not read by then fails at its sender, or its sender reads that answer;
//! - a new process whose wait is over stops receiving, then reads what is there: a `Bye` that comes
//!   later fails at its sender, which continues;
//! - an end of file after `Done`, without either frame, means that the old process has died: the
//!   new one serves.
//!
//! No key, pad or packet number is handed over, except the open file of the host's key, because
//! systemd shows a credential only to the first process of a service.
//!
//! The old process does not say what to start: [`record`] does. The new one may do no more than the
//! old one could: [`privileges`].

use std::collections::BTreeMap;
use std::time::Duration;

use keypadd_transport::StreamRecord;
use keypadd_tunnel::handover::{ClientRecord, LineageRecord, SocketFile, SocketRecord};
use serde::{Deserialize, Serialize};

pub(crate) mod channel;
pub(crate) mod give;
pub(crate) mod privileges;
pub(crate) mod record;
pub(crate) mod take;

/// Version of the frames. A mismatch is refused, and the old process continues.
pub(crate) const VERSION: u32 = 5;

/// Tells a new process that its standard input is the old one's channel, and what privileges that
/// was given when it started.
pub(crate) const VARIABLE: &str = "KEYPADD_TAKEOVER";

/// Sockets that go with a connection carried for `connect -W`: the command's control socket, then
/// its end of the pair.
pub(crate) const OF_COMMAND: usize = 2;

/// How long the new process may take to read its settings and to bind its sockets.
const PREPARE_TIMEOUT: Duration = Duration::from_secs(30);

/// How long either process waits for the other while no traffic flows.
const HANDOVER_TIMEOUT: Duration = Duration::from_secs(20);

/// How long a process may take to read a frame, or to answer when it has everything. A stopped one
/// must not keep the other from serving: listeners that a server has left open for a client wait
/// ten seconds.
const STALL_TIMEOUT: Duration = Duration::from_secs(5);

/// How long the new process may take to read a frame or to answer while the old one is suspended,
/// and all traffic with it.
const SUSPENDED_STALL_TIMEOUT: Duration = Duration::from_secs(2);

/// What one process tells the other.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Message {
    /// Which process offers to be replaced, the file of the host's key attached; for `keypadd
    /// reload`.
    Offer(Offer),
    /// The new process has read its settings.
    Begin,
    /// A listening socket, attached.
    Socket(SocketRecord),
    /// All sockets were sent; the clients' instance numbers, by name.
    Sockets(BTreeMap<String, [u8; 16]>),
    /// The new process has bound its sockets.
    Bound,
    /// The server is drained; what is open may stay for so many milliseconds, if there is a limit.
    Draining(Option<u64>),
    /// A client whose connection is gone; its streams follow.
    Lineage(LineageRecord),
    /// The client of this name; its streams follow.
    Client(String, ClientRecord),
    /// A stream of the last lineage or client: its bytes, its socket attached.
    Stream(StreamRecord),
    /// A stream of the last lineage or client that is carried for `connect -W`: its bytes. Attached
    /// are its socket, the command's control socket and the command's end of the pair.
    Carried(StreamRecord),
    /// Everything was sent.
    End,
    /// The new process, with this ID, has everything. Lists files of unix sockets that its settings
    /// do not name and its sandbox may not remove.
    Done(u32, Vec<SocketFile>),
    /// The old process exits; its standard streams are attached.
    Bye,
    /// The old process has given up, and serves on. Instead of an offer: too many others wait to
    /// replace it.
    Continues,
}

/// A daemon that offers to be replaced.
#[derive(Debug, Default, Serialize, Deserialize)]
pub(crate) struct Offer {
    pub(crate) version: u32,
    /// The old process.
    pub(crate) pid: u32,
    /// Its version of keypadd.
    pub(crate) release: String,
    /// Whether it runs the same program.
    pub(crate) same: bool,
}
