//! Carries one direction of the relay: impairs datagrams, holds those in flight, and counts
//! outcomes.

use std::{
    cmp::Reverse,
    collections::{BinaryHeap, VecDeque},
    future::pending,
    net::SocketAddr,
    sync::{Arc, Mutex},
};

use tokio::{
    net::UdpSocket,
    sync::watch,
    task::JoinSet,
    time::{Instant, sleep_until},
};

use super::{Datagram, Direction, RelayState, lock};
use crate::line::{Arrivals, Line, LineSettings};

/// Maximum datagrams in transit; more are lost, as in any queue.
const UNDER_WAY_MAX: usize = 1 << 16;

/// Longest UDP payload.
const DATAGRAM_BYTES_MAX: usize = 1 << 16;

/// Outcomes of a direction's datagrams.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Received.
    pub taken: u64,
    /// Forwarded, copies included.
    pub sent: u64,
    /// Lost while the direction was cut.
    pub cut: u64,
    /// Lost by chance, too long, or without room on the line.
    pub lost: u64,
    /// Forwarded with a bit flipped.
    pub corrupted: u64,
    /// Forwarded twice.
    pub duplicated: u64,
    /// Held back.
    pub held: u64,
    /// Lost because too many were in transit, or because the kernel rejected them.
    pub overflowed: u64,
}

#[derive(Debug)]
pub(crate) struct Way(Mutex<State>);

#[derive(Debug)]
struct State {
    line: Line,
    /// Outcomes after the line had let datagrams pass.
    sent: u64,
    overflowed: u64,
    recorded: VecDeque<Datagram>,
    recorded_max: usize,
}

impl Way {
    pub(crate) fn new(seed: u64) -> Self {
        let line = Line::new(LineSettings::default(), seed);
        let recorded = VecDeque::new();
        Self(Mutex::new(State { line, sent: 0, overflowed: 0, recorded, recorded_max: 0 }))
    }

    pub(crate) fn set(&self, settings: LineSettings) {
        lock(&self.0).line.set(settings);
    }

    pub(crate) fn counts(&self) -> Counts {
        let state = lock(&self.0);
        let line = state.line.counts();
        Counts {
            taken: line.packets,
            sent: state.sent,
            cut: line.cut,
            lost: line.random + line.too_long + line.policed + line.queue_full,
            corrupted: line.corrupted,
            duplicated: line.duplicated,
            held: line.held,
            overflowed: state.overflowed,
        }
    }

    pub(crate) fn record(&self, datagrams_max: usize) {
        let mut state = lock(&self.0);
        state.recorded_max = datagrams_max;
        state.recorded.clear();
    }

    pub(crate) fn recorded(&self) -> Vec<Datagram> {
        lock(&self.0).recorded.iter().cloned().collect()
    }

    pub(crate) fn take_recorded(&self) -> Vec<Datagram> {
        std::mem::take(&mut lock(&self.0).recorded).into()
    }

    /// Offers a datagram to the line; returns what arrives of it.
    fn take(&self, now: Instant, datagram: &Datagram) -> Option<Arrivals> {
        let mut state = lock(&self.0);
        if state.recorded_max > 0 {
            if state.recorded.len() == state.recorded_max {
                state.recorded.pop_front();
            }
            state.recorded.push_back(datagram.clone());
        }
        state.line.offer(now.into_std(), datagram.bytes.len()).ok()
    }

    fn sent(&self, sent: bool) {
        let mut state = lock(&self.0);
        if sent {
            state.sent += 1;
        } else {
            state.overflowed += 1;
        }
    }
}

/// A datagram and when it is due; of two due at once the one that came first goes first.
type Due = Reverse<(Instant, u64, Datagram)>;

/// Datagrams on the way to the server, or to one client.
#[derive(Default)]
struct InFlight {
    heap: BinaryHeap<Due>,
    pushed: u64,
}

impl InFlight {
    /// Accepts a datagram and sends whatever is due by now.
    fn take(&mut self, shared: &RelayState, direction: Direction, datagram: &Datagram) {
        let way = &shared.ways[direction as usize];
        let arrivals = way.take(Instant::now(), datagram);
        for arrival in arrivals.into_iter().flatten() {
            let mut datagram = datagram.clone();
            if let Some(bit) = arrival.flipped {
                datagram.bytes[bit / 8] ^= 0x80 >> (bit % 8);
            }
            if self.heap.len() == UNDER_WAY_MAX {
                way.sent(false);
                continue;
            }
            self.heap.push(Reverse((arrival.at.into(), self.pushed, datagram)));
            self.pushed += 1;
        }
        self.send_due(shared, direction);
    }

    fn send_due(&mut self, shared: &RelayState, direction: Direction) {
        let now = Instant::now();
        while self.heap.peek().is_some_and(|Reverse((due, ..))| *due <= now)
            && let Some(Reverse((.., datagram))) = self.heap.pop()
        {
            let sent = shared.send(direction, &datagram).is_ok();
            shared.ways[direction as usize].sent(sent);
        }
    }

    /// Completes when something is due.
    async fn due(&self) {
        match self.heap.peek() {
            Some(Reverse((due, ..))) => sleep_until(*due).await,
            None => pending().await,
        }
    }
}

/// Relays what clients send until dropped, and starts the task of each that relays the answers.
/// Errors of `recv_from` are those of earlier sends.
pub(crate) async fn carry_to_server(shared: Arc<RelayState>) {
    let mut answers = JoinSet::new();
    let mut in_flight = InFlight::default();
    let mut buffer = vec![0; DATAGRAM_BYTES_MAX];
    loop {
        tokio::select! {
            () = in_flight.due() => in_flight.send_due(&shared, Direction::ToServer),
            received = shared.front.recv_from(&mut buffer) => {
                let Ok((bytes, client)) = received else { continue };
                if let Ok(Some(rebound)) = shared.open_back(client) {
                    answers.spawn(carry_to_client(Arc::clone(&shared), client, rebound));
                }
                let bytes = buffer[..bytes].to_vec();
                in_flight.take(&shared, Direction::ToServer, &Datagram { client, bytes });
            }
        }
    }
}

/// Relays what the server sends to a client until dropped.
async fn carry_to_client(
    shared: Arc<RelayState>,
    client: SocketAddr,
    mut rebound: watch::Receiver<Arc<UdpSocket>>,
) {
    let mut in_flight = InFlight::default();
    let mut buffer = vec![0; DATAGRAM_BYTES_MAX];
    loop {
        let back = Arc::clone(&rebound.borrow_and_update());
        tokio::select! {
            () = in_flight.due() => in_flight.send_due(&shared, Direction::ToClient),
            received = back.recv_from(&mut buffer) => match received {
                Ok((bytes, from)) if from == shared.server => {
                    let bytes = buffer[..bytes].to_vec();
                    in_flight.take(&shared, Direction::ToClient, &Datagram { client, bytes });
                }
                _ => {}
            },
            // The sender lives in `shared`.
            _ = rebound.changed() => {}
        }
    }
}
