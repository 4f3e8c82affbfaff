//! An endpoint that does not run ahead of its connections.
//!
//! quinn's endpoint task hands each datagram to its connection's task through a queue without bound
//! (quinn issue 1131), and knows nothing of how far that task has come. Sorting a datagram costs less
//! than opening it, so who sends a connection's packets again fast enough would fill this host's
//! memory. Here the endpoint reads so many bytes and then no more until every connection has had its
//! turn; what comes meanwhile waits in the socket's buffer, or is lost there as in any full queue.
//!
//! Knows tasks and byte counts; never looks into a datagram.

use std::{
    fmt,
    future::Future,
    io::{self, IoSliceMut},
    net::SocketAddr,
    pin::Pin,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst},
    },
    task::{Context, Poll, ready},
    time::Instant,
};

use atomic_waker::AtomicWaker;
use quinn::{
    AsyncTimer, AsyncUdpSocket, Runtime, TokioRuntime, UdpPoller,
    udp::{RecvMeta, Transmit},
};
use tokio::task::coop::unconstrained;

/// Bytes that are read in one turn. Those of two turns may be queued, so this bounds an endpoint's
/// backlog at about 8 MiB and one batch of the socket's. Several milliseconds of the fastest traffic
/// measured: far more than a task waits for a processor that is free.
const TURN_BYTES: usize = 4 << 20;

/// What a queued datagram holds besides its bytes: quinn's event and the queue's block.
const DATAGRAM_BYTES: usize = 256;

/// tokio for one endpoint, with its connections' tasks watched.
#[derive(Debug, Default)]
pub(crate) struct TurnRuntime {
    turns: Arc<Turns>,
    has_endpoint: AtomicBool,
}

/// Whose turn it is.
#[derive(Debug, Default)]
struct Turns {
    connections: Mutex<Vec<Arc<Seat>>>,
    /// Connections that have not had the turn that was given last.
    waited_for: AtomicUsize,
    /// The endpoint's task, where it waits for them.
    endpoint: AtomicWaker,
}

/// A connection's place among the others.
#[derive(Debug, Default)]
struct Seat {
    /// Whether it was given a turn that it has not had.
    waited_for: AtomicBool,
    waker: AtomicWaker,
}

impl Turns {
    fn all_had_theirs(&self) -> bool {
        self.waited_for.load(SeqCst) == 0
    }

    /// Gives every connection a turn. Only when all have had the last.
    fn give(&self) {
        let connections = self.connections();
        self.waited_for.store(connections.len(), SeqCst);
        for seat in connections.iter() {
            seat.waited_for.store(true, SeqCst);
            // One that has no waker yet is about to be polled for the first time.
            seat.waker.wake();
        }
    }

    /// Nothing that may panic is done under this lock.
    fn connections(&self) -> MutexGuard<'_, Vec<Arc<Seat>>> {
        self.connections.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A turn that a connection was given; dropped, it has had it.
struct Turn<'a>(&'a Turns);

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        if self.0.waited_for.fetch_sub(1, SeqCst) == 1 {
            self.0.endpoint.wake();
        }
    }
}

impl Seat {
    fn turn<'a>(&self, turns: &'a Turns) -> Option<Turn<'a>> {
        self.waited_for.swap(false, SeqCst).then(|| Turn(turns))
    }
}

/// A connection's task.
struct Driver {
    driver: Pin<Box<dyn Future<Output = ()> + Send>>,
    seat: Arc<Seat>,
    turns: Arc<Turns>,
}

impl Driver {
    fn new(driver: Pin<Box<dyn Future<Output = ()> + Send>>, turns: &Arc<Turns>) -> Self {
        let (seat, turns) = (Arc::<Seat>::default(), Arc::clone(turns));
        turns.connections().push(Arc::clone(&seat));
        Self { driver, seat, turns }
    }
}

impl Future for Driver {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        let Self { driver, seat, turns } = &mut *self;
        // Taken before the poll, because what is queued while it runs may be left.
        let _turn = seat.turn(turns);
        seat.waker.register(cx.waker());
        // tokio would have it stop after 128 datagrams; a turn is all of them.
        Pin::new(&mut unconstrained(driver.as_mut())).poll(cx)
    }
}

impl Drop for Driver {
    fn drop(&mut self) {
        self.turns.connections().retain(|seat| !Arc::ptr_eq(seat, &self.seat));
        // It is given no other, as it is no longer among them.
        drop(self.seat.turn(&self.turns));
    }
}

impl Runtime for TurnRuntime {
    fn new_timer(&self, at: Instant) -> Pin<Box<dyn AsyncTimer>> {
        TokioRuntime.new_timer(at)
    }

    /// quinn starts an endpoint's task when it makes the endpoint, and one for each connection later.
    fn spawn(&self, task: Pin<Box<dyn Future<Output = ()> + Send>>) {
        if self.has_endpoint.swap(true, SeqCst) {
            TokioRuntime.spawn(Box::pin(Driver::new(task, &self.turns)));
        } else {
            TokioRuntime.spawn(task);
        }
    }

    fn wrap_udp_socket(&self, socket: std::net::UdpSocket) -> io::Result<Arc<dyn AsyncUdpSocket>> {
        let socket = TokioRuntime.wrap_udp_socket(socket)?;
        Ok(Arc::new(TurnSocket::new(socket, Arc::clone(&self.turns))))
    }
}

/// A socket that is read in turns with the connections.
struct TurnSocket {
    socket: Arc<dyn AsyncUdpSocket>,
    turns: Arc<Turns>,
    /// Read since the last turn was given.
    read_bytes: AtomicUsize,
}

impl TurnSocket {
    fn new(socket: Arc<dyn AsyncUdpSocket>, turns: Arc<Turns>) -> Self {
        Self { socket, turns, read_bytes: AtomicUsize::new(0) }
    }

    /// Completes when there may be read on.
    fn poll_turn(&self, cx: &Context<'_>) -> Poll<()> {
        if self.read_bytes.load(SeqCst) < TURN_BYTES {
            return Poll::Ready(());
        }
        if !self.turns.all_had_theirs() {
            self.turns.endpoint.register(cx.waker());
            // The last may have had its turn before the waker was there.
            if !self.turns.all_had_theirs() {
                return Poll::Pending;
            }
        }
        self.turns.give();
        self.read_bytes.store(0, SeqCst);
        Poll::Ready(())
    }
}

impl AsyncUdpSocket for TurnSocket {
    fn create_io_poller(self: Arc<Self>) -> Pin<Box<dyn UdpPoller>> {
        Arc::clone(&self.socket).create_io_poller()
    }

    fn try_send(&self, transmit: &Transmit<'_>) -> io::Result<()> {
        self.socket.try_send(transmit)
    }

    fn poll_recv(
        &self,
        cx: &mut Context<'_>,
        buffers: &mut [IoSliceMut<'_>],
        metas: &mut [RecvMeta],
    ) -> Poll<io::Result<usize>> {
        ready!(self.poll_turn(cx));
        let received = self.socket.poll_recv(cx, buffers, metas);
        if let Poll::Ready(Ok(batches)) = received {
            let held =
                |meta: &RecvMeta| meta.len + meta.len.div_ceil(meta.stride.max(1)) * DATAGRAM_BYTES;
            self.read_bytes.fetch_add(metas[..batches].iter().map(held).sum(), SeqCst);
        }
        received
    }

    fn local_addr(&self) -> io::Result<SocketAddr> {
        self.socket.local_addr()
    }

    fn max_transmit_segments(&self) -> usize {
        self.socket.max_transmit_segments()
    }

    fn max_receive_segments(&self) -> usize {
        self.socket.max_receive_segments()
    }

    fn may_fragment(&self) -> bool {
        self.socket.may_fragment()
    }
}

impl fmt::Debug for TurnSocket {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TurnSocket").field("socket", &self.socket).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests;
