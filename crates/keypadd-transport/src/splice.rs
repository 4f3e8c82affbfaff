//! Joins one socket to one stream: every byte, the end of each direction, and resets.
//!
//! | socket                 | stream                                                    |
//! | ---------------------- | --------------------------------------------------------- |
//! | end of input (FIN)     | finished                                                  |
//! | output shut down (FIN) | finished by the peer                                      |
//! | reset, or an error     | what was read before it, then RESET_STREAM, STOP_SENDING  |
//! | reset                  | RESET_STREAM or STOP_SENDING by the peer, connection lost |
//!
//! A splice ends well only when both directions have ended and the peer has acknowledged every
//! byte. Each direction ([`ToStream`](crate::to_stream::ToStream),
//! [`ToSocket`](crate::to_socket::ToSocket)) is owned by one loop and may move to another
//! (`migrate`). The two share only the outcome, which is kept here.

mod holder;
mod registrar;

use std::{
    fmt, io,
    os::fd::OwnedFd,
    sync::{
        Arc, Mutex, MutexGuard, OnceLock, PoisonError, Weak,
        atomic::{
            AtomicBool, AtomicU64,
            Ordering::{Relaxed, SeqCst},
        },
    },
    time::{Duration, Instant},
};

use quinn_proto::{StreamId, VarInt};
use serde::{Deserialize, Serialize};
use thiserror::Error;
use tokio::sync::oneshot;

pub use self::holder::StreamName;
pub(crate) use self::{
    holder::{Holder, Parked},
    registrar::{Key, Owner, Registered, Registrar, Sockets},
};
use crate::{replay::Receipt, socket::Socket, transfer_stats::TransferStats};

/// Time in which a socket must accept a byte once the connection is gone. The kernel accepts a
/// third of its buffer at a time, which takes a slow reader seconds.
pub(crate) const DELIVERY_TIME: Duration = Duration::from_secs(20);

/// How long a stream whose socket has failed may send nothing until it is reset; [`DELIVERY_TIME`]
/// in all. A receipt follows its bytes within a second and a round trip.
pub(crate) const LINGER: Duration = Duration::from_secs(2);

/// Why a splice ended before both directions had finished.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum Cut {
    /// The socket failed.
    #[error(transparent)]
    Local(#[from] io::Error),
    /// The peer abandoned the stream, with this code.
    #[error("the peer reset the stream: error {0}")]
    Remote(VarInt),
    /// The connection is gone.
    #[error("connection lost")]
    Lost,
}

/// How long a socket may accept nothing once the connection is gone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Delivery {
    /// 20 s after each byte.
    Bounded,
    /// Forever: the reader may pause.
    Unbounded,
}

/// What the caller of a splice gets back when another process continues it.
#[derive(Clone, Debug)]
pub struct Label {
    /// Its own name for the stream.
    pub text: Arc<str>,
    /// Descriptors that go with it; closed when it has ended.
    pub descriptors: Arc<[OwnedFd]>,
}

impl From<&str> for Label {
    fn from(text: &str) -> Self {
        Self { text: text.into(), descriptors: Arc::new([]) }
    }
}

/// Receives the outcome of a splice.
pub(crate) type Reply = oneshot::Sender<Result<(), Cut>>;

/// The connection that carries a splice.
pub(crate) trait SpliceConnection: fmt::Debug + Send + Sync {
    /// Resets both directions of the stream.
    fn reset(&self, id: StreamId, code: VarInt);
}

/// State that both directions of one splice share.
#[derive(Debug)]
pub(crate) struct SpliceState {
    pub(crate) delivery: Delivery,
    /// The caller's label, kept across a handover.
    label: Label,
    outcome: Mutex<Outcome>,
    cut: AtomicBool,
    /// The socket's output is shut down, or is about to be.
    shut: AtomicBool,
    /// When the socket failed. Until the peer has what was read before, the splice lives on.
    failed_at: OnceLock<Instant>,
    /// Where it is held while its session has no connection.
    held_by: OnceLock<(StreamName, Weak<dyn Holder>)>,
    /// What has been carried; whoever spliced it shares this.
    pub(crate) carried: Arc<TransferStats>,
    /// The last receipt of the peer's socket, encoded.
    peer_receipt: AtomicU64,
}

/// The progress of a splice.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct SpliceRecord {
    to_stream_done: bool,
    to_socket_done: bool,
    /// Whether the socket's output is shut down.
    shut: bool,
    /// Receipts, encoded.
    given: u64,
    got: u64,
}

#[derive(Debug)]
struct Outcome {
    reply: Option<Reply>,
    /// How the socket failed.
    failure: Option<io::Error>,
    to_stream_done: bool,
    to_socket_done: bool,
    /// The connection that carries it.
    connection: Option<(Arc<dyn SpliceConnection>, StreamId)>,
    /// Dropped when that connection no longer carries it.
    attached: Option<oneshot::Sender<()>>,
}

impl SpliceState {
    pub(crate) fn new(
        delivery: Delivery,
        label: Label,
        reply: Reply,
        connection: (Arc<dyn SpliceConnection>, StreamId),
    ) -> Arc<Self> {
        let state = Self::restore(&SpliceRecord::default(), delivery, label, reply);
        state.carried.set_held(false);
        state.outcome().connection = Some(connection);
        state
    }

    /// Continues a splice from another process. No connection carries it yet.
    pub(crate) fn restore(
        record: &SpliceRecord,
        delivery: Delivery,
        label: Label,
        reply: Reply,
    ) -> Arc<Self> {
        let outcome = Outcome {
            reply: Some(reply),
            failure: None,
            to_stream_done: record.to_stream_done,
            to_socket_done: record.to_socket_done,
            connection: None,
            attached: None,
        };
        Arc::new(Self {
            delivery,
            label,
            outcome: Mutex::new(outcome),
            cut: AtomicBool::new(false),
            shut: AtomicBool::new(record.shut),
            failed_at: OnceLock::new(),
            held_by: OnceLock::new(),
            carried: Arc::new(TransferStats::resumed(Receipt::decode(record.given))),
            peer_receipt: AtomicU64::new(record.got),
        })
    }

    /// What [`SpliceState::restore`] needs.
    pub(crate) fn record(&self) -> SpliceRecord {
        SpliceRecord {
            to_stream_done: self.is_to_stream_done(),
            to_socket_done: self.is_to_socket_done(),
            shut: self.shut.load(SeqCst),
            given: self.local_receipt().encode(),
            got: self.peer_receipt.load(Relaxed),
        }
    }

    /// The caller's label.
    pub(crate) fn label(&self) -> &Label {
        &self.label
    }

    /// Makes it held when its connection is lost; false if it was cut.
    pub(crate) fn set_held_by(&self, name: StreamName, holder: Weak<dyn Holder>) -> bool {
        !self.is_cut() && self.held_by.set((name, holder)).is_ok()
    }

    /// Whether it will be held when its connection is lost.
    pub(crate) fn can_be_held(&self) -> bool {
        self.held_by.get().is_some()
    }

    /// Parks a direction whose connection is lost; cuts the splice if it cannot be held.
    pub(crate) fn park(&self, registered: &Registered, parked: Parked) {
        match self.held_by.get() {
            Some((name, holder)) if !self.is_cut() && self.failed_at().is_none() => {
                let holder = holder.upgrade().ok_or(Cut::Lost);
                if let Err(cut) = holder.and_then(|it| it.park(*name, registered, parked)) {
                    self.cut(cut);
                }
            }
            _ => drop(self.cut(Cut::Lost)),
        }
    }

    /// Attaches it to a connection; `attached` is dropped when that ends.
    pub(crate) fn attach(
        &self,
        connection: (Arc<dyn SpliceConnection>, StreamId),
        attached: oneshot::Sender<()>,
    ) {
        self.carried.set_held(false);
        let mut outcome = self.outcome();
        (outcome.connection, outcome.attached) = (Some(connection), Some(attached));
    }

    /// Detaches it from its connection.
    pub(crate) fn detach(&self) {
        self.carried.set_held(true);
        let mut outcome = self.outcome();
        (outcome.connection, outcome.attached) = (None, None);
    }

    /// How much this end has written to its socket.
    pub(crate) fn local_receipt(&self) -> Receipt {
        self.carried.receipt()
    }

    pub(crate) fn set_local_receipt(&self, receipt: Receipt) {
        self.carried.set_receipt(receipt);
    }

    /// How much the peer has written to its socket, by its receipts.
    pub(crate) fn peer_receipt(&self) -> Receipt {
        Receipt::decode(self.peer_receipt.load(Relaxed))
    }

    /// Receipts of two connections may cross: the highest counts.
    pub(crate) fn add_peer_receipt(&self, receipt: Receipt) {
        self.peer_receipt.fetch_max(receipt.encode(), Relaxed);
    }

    pub(crate) fn is_to_stream_done(&self) -> bool {
        self.outcome().to_stream_done
    }

    pub(crate) fn is_to_socket_done(&self) -> bool {
        self.outcome().to_socket_done
    }

    /// Nobody waits for the outcome any more: tells its connection to reset it with `code`, unless
    /// it has ended.
    pub(crate) fn abandon(&self, code: VarInt) {
        let connection = {
            let mut outcome = self.outcome();
            if outcome.reply.is_none() {
                return;
            }
            outcome.connection.take()
        };
        self.cut(Cut::Lost);
        if let Some((connection, id)) = connection {
            connection.reset(id, code);
        }
    }

    /// Shuts down the socket's output.
    pub(crate) fn shut_down(&self, socket: &Socket) -> io::Result<()> {
        self.shut.store(true, SeqCst);
        socket.shutdown()
    }

    /// Whether an end of input was a reset. The loop of the other direction may have consumed the
    /// error, so that the input shows only an end.
    pub(crate) fn was_reset(&self, socket: &Socket) -> bool {
        self.is_cut() || (socket.is_hung_up() && !self.shut.load(SeqCst))
    }

    /// The socket has failed; only the first failure counts. The peer still gets what was read.
    pub(crate) fn fail(&self, error: io::Error, now: Instant) {
        self.outcome().failure.get_or_insert(error);
        self.failed_at.get_or_init(|| now);
    }

    /// When the socket failed.
    pub(crate) fn failed_at(&self) -> Option<Instant> {
        self.failed_at.get().copied()
    }

    /// Why a splice whose socket has failed ends.
    pub(crate) fn failure(&self) -> Cut {
        self.outcome().failure.take().map_or(Cut::Lost, Cut::Local)
    }

    /// The peer has acknowledged every byte and the end.
    pub(crate) fn to_stream_done(&self, socket: &Socket) {
        self.done(socket, |outcome| outcome.to_stream_done = true);
    }

    /// The socket has accepted every byte and the end.
    pub(crate) fn to_socket_done(&self, socket: &Socket) {
        self.done(socket, |outcome| outcome.to_socket_done = true);
    }

    fn done(&self, socket: &Socket, note: impl FnOnce(&mut Outcome)) {
        let mut outcome = self.outcome();
        note(&mut outcome);
        let is_over = outcome.to_stream_done && outcome.to_socket_done;
        drop(outcome);
        match self.held_by.get() {
            _ if self.failed_at().is_some() => {}
            _ if is_over => self.end_well(socket),
            // If the other direction is parked, the whole splice is now held.
            Some((name, holder)) => {
                if let Some(holder) = holder.upgrade() {
                    holder.notify(*name);
                }
            }
            None => {}
        }
    }

    /// Both directions have finished: closes the socket cleanly.
    pub(crate) fn end_well(&self, socket: &Socket) {
        if let Some(reply) = self.over() {
            socket.close_cleanly();
            // If the task was dropped, nobody waits for it.
            let _ = reply.send(Ok(()));
        }
    }

    /// Ends the splice; only the first reason counts. The socket is reset once both directions are
    /// dropped. Returns whether this call ended it.
    pub(crate) fn cut(&self, cut: Cut) -> bool {
        self.cut.store(true, SeqCst);
        match self.over() {
            Some(reply) => {
                let _ = reply.send(Err(cut));
                true
            }
            None => false,
        }
    }

    /// Takes the reply: its owner reports how the splice ended.
    fn over(&self) -> Option<Reply> {
        let reply = {
            let mut outcome = self.outcome();
            (outcome.connection, outcome.attached) = (None, None);
            outcome.reply.take()
        };
        if let Some((name, holder)) = self.held_by.get()
            && let Some(holder) = holder.upgrade()
        {
            holder.forget(*name);
        }
        reply
    }

    /// Whether either direction was cut.
    pub(crate) fn is_cut(&self) -> bool {
        self.cut.load(SeqCst)
    }

    /// No panic can leave it half changed.
    fn outcome(&self) -> MutexGuard<'_, Outcome> {
        self.outcome.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
