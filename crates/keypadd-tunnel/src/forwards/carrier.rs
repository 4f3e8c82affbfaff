//! Carries connections from other processes on this host over a client's session, within the limits
//! of its forwards, so that every `connect -W` can share one tunnel.
//!
//! The caller decides who may ask, and how.

use std::{
    fmt,
    os::{fd::OwnedFd, unix::net::UnixStream as StdUnixStream},
    pin::Pin,
    sync::Arc,
};

use tokio::net::UnixStream;

use crate::{
    addresses::{forward::Destination, servers::ServerAddresses, target::Target},
    error::ClientError,
    forwards::{
        connection_log::ConnectionRecord,
        open_stream::{OpenError, open_stream},
        splice::splice,
        splice_error::SpliceError,
        tasks::ConnectionTasks,
    },
    handover::Handover,
    limits::{
        SharedLimits,
        descriptors::{Descriptors, Holder, OF_CARRIED},
        places::{ForwardPlaces, Place},
    },
    sessions::{counts::ConnectionCount, server_link::ServerLink, session::LiveSession},
    wire::{StreamCode, StreamHeader},
};

/// The forward that these connections are counted as.
const FORWARD: &str = "-W";

/// Carries connections from other processes; outlives its client, and then has no session.
#[derive(Clone, Debug)]
pub struct Carrier {
    pub(crate) server: ServerAddresses,
    pub(crate) link: ServerLink,
    pub(crate) limits: Arc<SharedLimits>,
    pub(crate) places: Arc<ForwardPlaces>,
    pub(crate) holder: Holder,
    pub(crate) tasks: ConnectionTasks,
    pub(crate) handover: Handover,
}

/// Room for one connection on a live session.
#[derive(Debug)]
pub struct CarrierSlot {
    server: ServerAddresses,
    session: Arc<LiveSession>,
    place: Place,
    _descriptors: Descriptors,
}

/// A connected target; if dropped, its connection is reset.
pub struct ConnectedTarget {
    slot: CarrierSlot,
    target: Target,
    stream: keypadd_transport::Stream,
    record: ConnectionRecord,
    _count: ConnectionCount,
}

/// A connection of another process on this host that the daemon before this one carried.
pub struct AdoptedConnection {
    /// Carries it to its end, once this process serves: as [`ConnectedTarget::carry`], but all
    /// failures are codes.
    pub carried: Pin<Box<dyn Future<Output = Result<(), StreamCode>> + Send>>,
    /// The descriptors that it was carried with.
    pub descriptors: Arc<[OwnedFd]>,
}

impl fmt::Debug for AdoptedConnection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("AdoptedConnection").finish_non_exhaustive()
    }
}

impl Carrier {
    /// Reserves a slot for one connection; `None` if no session matches, or at a limit.
    pub fn slot(&self, wanted: impl FnOnce(&LiveSession) -> bool) -> Option<CarrierSlot> {
        let session = self.link.current()?;
        if session.has_ended() || self.handover.is_suspended() || !wanted(&session) {
            return None;
        }
        let place = self.places.try_take()?;
        let descriptors = self.limits.descriptors.acquire(self.holder, FORWARD, OF_CARRIED)?;
        Some(CarrierSlot { server: self.server.clone(), session, place, _descriptors: descriptors })
    }

    /// Runs a task that carries a connection as one of the client's own: it drains with them, and
    /// is dropped if the client shuts down.
    pub fn spawn(&self, task: impl Future<Output = ()> + Send + 'static) {
        self.tasks.spawn(task);
    }
}

impl CarrierSlot {
    /// The session.
    pub fn live(&self) -> &LiveSession {
        &self.session
    }

    /// Asks the server to connect to `target`.
    ///
    /// # Errors
    /// [`ClientError::Refused`] if it cannot, [`ClientError::Lost`].
    pub async fn connect(mut self, target: Target) -> Result<ConnectedTarget, ClientError> {
        let session = &self.session;
        let count = session.count_connection(&format!("{FORWARD} {target}"));
        let mut record = ConnectionRecord::new(&session.limits);
        record.set_peer(session.peer());
        record.set_forward(FORWARD, None);
        record.set_target(&target.to_string());
        let header = StreamHeader::Destination(Destination::Tcp(target.clone()));
        match open_stream(session, &header).await {
            Ok(stream) => {
                self.place.connected();
                Ok(ConnectedTarget { slot: self, target, stream, record, _count: count })
            }
            Err(OpenError::Refused(code)) => {
                record.refused(code);
                Err(ClientError::Refused { target, code })
            }
            Err(OpenError::Lost) => Err(self.lost_error().await),
        }
    }

    async fn lost_error(&self) -> ClientError {
        ClientError::Lost { server: self.server.clone(), cause: self.session.ended().await }
    }
}

impl ConnectedTarget {
    /// Carries bytes between the target and this socket until both directions have finished. The
    /// connection is held while the session is lost, and continues in the process that replaces
    /// this one, which gets `descriptors` as well; they stay open until its end.
    ///
    /// # Errors
    /// [`ClientError::Refused`] if the connection is reset, [`ClientError::Local`] if the socket
    /// fails, [`ClientError::Lost`].
    pub async fn carry(
        self,
        socket: StdUnixStream,
        descriptors: Arc<[OwnedFd]>,
    ) -> Result<(), ClientError> {
        let Self { slot, target, stream, mut record, _count } = self;
        record.set_descriptors(descriptors);
        let socket = socket.set_nonblocking(true).and_then(|()| UnixStream::from_std(socket));
        let socket = socket.map_err(ClientError::Local)?;
        match splice(socket.into(), stream, &mut record).await {
            Ok(()) => Ok(()),
            Err(SpliceError::Local(error)) => Err(ClientError::Local(error)),
            Err(SpliceError::Remote(code)) => Err(ClientError::Refused { target, code }),
            // Cut by this end, while its session continues.
            Err(SpliceError::Lost) if !slot.session.has_ended() => {
                Err(ClientError::Refused { target, code: StreamCode::Reset })
            }
            Err(SpliceError::Lost) => Err(slot.lost_error().await),
        }
    }
}
