//! Distinguishes the sources of a listening socket, and keeps their first datagrams until they have
//! a flow.
//!
//! Sends only to addresses that have sent something and have a flow. The table of sources is
//! bounded.

use std::{
    collections::HashMap,
    io,
    net::{IpAddr, SocketAddr},
    sync::Arc,
    time::{Duration, Instant},
};

use bytes::Bytes;
use mio::{Registry, Token};
use quinn_proto::StreamId;
use tokio::sync::mpsc;

use super::{
    early::OF_STREAM_MAX,
    handles::{FlowCommands, NewListener, SocketLease, Source, SourceName},
    socket::{Arrival, ListeningSocket},
};

/// Most bytes kept of a source's first datagrams: one of maximum length.
const FIRST_BYTES_MAX: usize = 64 << 10;

/// How long to drop the datagrams of a source that the peer has refused: each would ask again.
const MUTE: Duration = Duration::from_secs(5);

/// A listening socket, and its sources.
///
/// Fields drop in order: the socket before its lease.
pub(super) struct Listener {
    socket: ListeningSocket,
    _lease: SocketLease,
    listener: u64,
    incoming: mpsc::Sender<Source>,
    connection: Arc<dyn FlowCommands>,
    /// Uses the default hasher, not a fast one: strangers choose the addresses.
    sources: HashMap<SocketAddr, Entry>,
    sources_max: usize,
}

struct Entry {
    number: u64,
    /// The address that it has sent to, if the socket has several.
    to: Option<IpAddr>,
    state: State,
}

enum State {
    /// A control task opens its flow.
    Opening(PendingDatagrams),
    Open(StreamId),
    Muted(Instant),
}

/// What a source has sent before it had a flow.
#[derive(Debug, Default)]
pub(super) struct PendingDatagrams {
    pub(super) datagrams: Vec<Bytes>,
    bytes: usize,
    pub(super) dropped: u64,
}

impl PendingDatagrams {
    fn add(&mut self, datagram: &[u8]) {
        let bytes = self.bytes + datagram.len();
        if self.datagrams.len() >= OF_STREAM_MAX || bytes > FIRST_BYTES_MAX {
            self.dropped += 1;
            return;
        }
        self.bytes = bytes;
        self.datagrams.push(Bytes::copy_from_slice(datagram));
    }
}

impl Listener {
    pub(super) fn new(
        new: NewListener,
        token: Token,
        registry: &Arc<Registry>,
        connection: &Arc<dyn FlowCommands>,
    ) -> io::Result<Self> {
        let NewListener { listener, socket, lease, incoming, sources_max } = new;
        let socket = ListeningSocket::new(socket, token, registry)?;
        let (connection, sources) = (Arc::clone(connection), HashMap::new());
        Ok(Self { socket, _lease: lease, listener, incoming, connection, sources, sources_max })
    }

    pub(super) fn token(&self) -> Token {
        self.socket.token()
    }

    pub(super) fn receive(&mut self, buffer: &mut [u8]) -> io::Result<Arrival> {
        self.socket.receive(buffer)
    }

    /// Whether another source must leave before a new one can be added.
    pub(super) fn needs_room(&self, from: SocketAddr) -> bool {
        self.sources.len() >= self.sources_max && !self.sources.contains_key(&from)
    }

    /// Forgets sources that have been muted long enough; returns whether there is room for another
    /// one now.
    pub(super) fn forget_muted(&mut self, now: Instant) -> bool {
        self.sources.retain(|_, entry| !matches!(entry.state, State::Muted(until) if until <= now));
        self.sources.len() < self.sources_max
    }

    /// The streams of its flows.
    pub(super) fn open_flows(&self) -> impl Iterator<Item = StreamId> + use<> {
        let open = self.sources.values().filter_map(|entry| match entry.state {
            State::Open(id) => Some(id),
            State::Opening(_) | State::Muted(_) => None,
        });
        open.collect::<Vec<_>>().into_iter()
    }

    /// Handles a datagram; returns the stream that carries it. Without one it waits for the
    /// source's flow, or is dropped. `number` is for a new source.
    pub(super) fn arrived(
        &mut self,
        Arrival { from, to, .. }: Arrival,
        datagram: &[u8],
        number: u64,
        now: Instant,
    ) -> Option<StreamId> {
        if let Some(entry) = self.sources.get_mut(&from) {
            entry.to = to;
            match &mut entry.state {
                State::Open(id) => return Some(*id),
                State::Opening(sent) => {
                    sent.add(datagram);
                    return None;
                }
                State::Muted(until) if *until > now => return None,
                State::Muted(_) => {}
            }
        }
        self.sources.remove(&from);
        let name = SourceName { listener: self.listener, from, number };
        // While too many wait, a source is not recorded until its next datagram.
        let place = self.incoming.try_reserve().ok()?;
        place.send(Source::new(name, &self.connection));
        let mut sent = PendingDatagrams::default();
        sent.add(datagram);
        self.sources.insert(from, Entry { number, to, state: State::Opening(sent) });
        None
    }

    /// Records that the source has a flow; returns what it has sent. `None` if it is no longer
    /// known.
    pub(super) fn opened(&mut self, name: SourceName, id: StreamId) -> Option<PendingDatagrams> {
        let entry = self.sources.get_mut(&name.from).filter(|entry| entry.number == name.number)?;
        match std::mem::replace(&mut entry.state, State::Open(id)) {
            State::Opening(sent) => Some(sent),
            other => {
                entry.state = other;
                None
            }
        }
    }

    /// Forgets a source that nobody wants, or mutes it for a while; returns the stream of its flow.
    pub(super) fn refuse(
        &mut self,
        name: SourceName,
        mute: bool,
        now: Instant,
    ) -> Option<StreamId> {
        let entry = self.sources.get_mut(&name.from).filter(|entry| entry.number == name.number)?;
        let open = match entry.state {
            State::Open(id) => Some(id),
            State::Opening(_) | State::Muted(_) => None,
        };
        match mute {
            true => entry.state = State::Muted(now + MUTE),
            false => drop(self.sources.remove(&name.from)),
        }
        open
    }

    /// The flow of a source has ended.
    pub(super) fn closed(&mut self, name: SourceName) {
        let is_open =
            |entry: &Entry| entry.number == name.number && matches!(entry.state, State::Open(_));
        if self.sources.get(&name.from).is_some_and(is_open) {
            self.sources.remove(&name.from);
        }
    }

    /// Sends a datagram to a source.
    pub(super) fn send(&self, datagram: &[u8], to: SocketAddr) -> io::Result<()> {
        let from = self.sources.get(&to).and_then(|entry| entry.to);
        self.socket.send(datagram, to, from)
    }
}
