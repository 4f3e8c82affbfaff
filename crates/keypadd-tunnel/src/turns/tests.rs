use std::task::{Wake, Waker};

use super::*;

/// Bytes of each batch that the flood consists of.
const BATCH_BYTES: usize = 64 << 10;

/// A socket that always has another batch.
#[derive(Debug)]
struct Flood;

impl AsyncUdpSocket for Flood {
    fn create_io_poller(self: Arc<Self>) -> Pin<Box<dyn UdpPoller>> {
        unreachable!("nothing is sent")
    }

    fn try_send(&self, _: &Transmit<'_>) -> io::Result<()> {
        unreachable!("nothing is sent")
    }

    fn poll_recv(
        &self,
        _: &mut Context<'_>,
        _: &mut [IoSliceMut<'_>],
        metas: &mut [RecvMeta],
    ) -> Poll<io::Result<usize>> {
        (metas[0].len, metas[0].stride) = (BATCH_BYTES, 1200);
        Poll::Ready(Ok(1))
    }

    fn local_addr(&self) -> io::Result<SocketAddr> {
        Ok(([127, 0, 0, 1], 1).into())
    }
}

/// Counts how often something was woken.
#[derive(Default)]
struct Wakes(AtomicUsize);

impl Wake for Wakes {
    fn wake(self: Arc<Self>) {
        self.0.fetch_add(1, SeqCst);
    }
}

impl Wakes {
    fn count(&self) -> usize {
        self.0.load(SeqCst)
    }
}

/// An endpoint's task and a flooded socket.
struct Endpoint {
    socket: TurnSocket,
    wakes: Arc<Wakes>,
}

impl Endpoint {
    fn new(turns: &Arc<Turns>) -> Self {
        Self { socket: TurnSocket::new(Arc::new(Flood), Arc::clone(turns)), wakes: Arc::default() }
    }

    /// Reads until it may not, at most so much; what it has read.
    fn read(&self, bytes_max: usize) -> usize {
        let waker = Waker::from(Arc::clone(&self.wakes));
        let (mut cx, mut read_bytes) = (Context::from_waker(&waker), 0);
        let mut metas = [RecvMeta::default()];
        while read_bytes < bytes_max
            && self.socket.poll_recv(&mut cx, &mut [], &mut metas).is_ready()
        {
            read_bytes += BATCH_BYTES;
        }
        read_bytes
    }
}

/// A connection's task that never ends.
fn connection(turns: &Arc<Turns>) -> (Driver, Arc<Wakes>) {
    (Driver::new(Box::pin(std::future::pending()), turns), Arc::default())
}

fn poll((driver, wakes): &mut (Driver, Arc<Wakes>)) {
    let waker = Waker::from(Arc::clone(wakes));
    assert!(Pin::new(driver).poll(&mut Context::from_waker(&waker)).is_pending());
}

const MUCH: usize = 64 << 20;
const BACKLOG_BYTES_MAX: usize = 2 * TURN_BYTES + BATCH_BYTES;

#[test]
fn an_endpoint_without_connections_reads_on() {
    assert_eq!(Endpoint::new(&Arc::default()).read(MUCH), MUCH);
}

#[test]
fn the_backlog_of_a_connection_that_gets_no_processor_is_bounded() {
    let turns = Arc::default();
    let endpoint = Endpoint::new(&turns);
    let mut stuck = connection(&turns);
    poll(&mut stuck);
    let read = endpoint.read(MUCH);
    assert!((TURN_BYTES..=BACKLOG_BYTES_MAX).contains(&read), "{read}");
    assert_eq!((endpoint.read(MUCH), stuck.1.count()), (0, 1), "it was woken once, and waited for");
}

#[test]
fn every_connection_is_waited_for_and_the_last_one_wakes_the_endpoint() {
    let turns = Arc::default();
    let endpoint = Endpoint::new(&turns);
    let mut connections = [connection(&turns), connection(&turns), connection(&turns)];
    connections.iter_mut().for_each(poll);
    endpoint.read(MUCH);
    for (had, connection) in connections.iter_mut().enumerate() {
        assert_eq!((endpoint.wakes.count(), endpoint.read(MUCH)), (0, 0), "{had} had their turn");
        poll(connection);
    }
    assert_eq!(endpoint.wakes.count(), 1);
    let read = endpoint.read(MUCH);
    assert!((1..=BACKLOG_BYTES_MAX).contains(&read), "{read}");
}

#[test]
fn a_connection_that_ends_is_not_waited_for() {
    let turns = Arc::default();
    let endpoint = Endpoint::new(&turns);
    let mut gone = connection(&turns);
    poll(&mut gone);
    endpoint.read(MUCH);
    drop(gone);
    assert_eq!(endpoint.wakes.count(), 1);
    assert_eq!(endpoint.read(MUCH), MUCH);
}

#[test]
fn a_connection_that_keeps_up_never_stops_the_endpoint() {
    let turns = Arc::default();
    let endpoint = Endpoint::new(&turns);
    let mut busy = connection(&turns);
    for _ in 0..100 {
        assert_eq!(endpoint.read(TURN_BYTES / 2), TURN_BYTES / 2);
        poll(&mut busy);
    }
    assert_eq!(endpoint.wakes.count(), 0);
}
