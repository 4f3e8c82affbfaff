//! Tests streams that continue over another connection: every byte, each end and each reset.
#![allow(unreachable_pub, dead_code, clippy::unwrap_used)]

mod pair;

use std::{
    collections::BTreeSet,
    fs,
    io::{ErrorKind, Read, Write},
    net::{Ipv4Addr, Shutdown, SocketAddr, UdpSocket},
    os::{fd::AsRawFd, unix::net::UnixStream},
    path::PathBuf,
    sync::{
        Arc, OnceLock,
        atomic::{AtomicBool, Ordering::SeqCst},
    },
    thread,
    time::Duration,
};

use keypadd_transport::{
    Connection, Delivery, HeldStreams, Receipt, ReplayBudget, SpinShare, Splice, Stream,
    StreamName, VarInt,
};
use pair::{HOLD, Pair};
use tokio::time::timeout;

/// Longer than anything here takes; reaching it means a hang.
const HANG: Duration = Duration::from_secs(60);

/// Two ends that hold their streams, and their connection.
struct Held {
    pair: Pair,
    /// The address at which the client reaches the server.
    address: SocketAddr,
    streams: [HeldStreams; 2],
    ends: [Connection; 2],
    epoch: u32,
}

impl Held {
    fn new() -> Self {
        Self::with_buffers(16 << 20)
    }

    fn with_buffers(bytes: usize) -> Self {
        Self::over(bytes, |server| server)
    }

    fn over(bytes: usize, path: impl FnOnce(SocketAddr) -> SocketAddr) -> Self {
        let pair = Pair::new(SpinShare::percent(0));
        let address = path(pair.server.local_addr());
        let streams =
            [(); 2].map(|()| HeldStreams::new(Arc::new(ReplayBudget::new(bytes, 256 << 20))));
        let ends = pair.connect_to(address);
        let held = Self { pair, address, streams, ends, epoch: 0 };
        held.hold();
        held
    }

    fn hold(&self) {
        for (end, streams) in self.ends.iter().zip(&self.streams) {
            end.hold(streams, self.epoch);
        }
    }

    /// A stream between two programs.
    fn splice(&self) -> [UnixStream; 2] {
        self.splice_by(|streams| self.pair.splice(streams))
    }

    /// Like [`Self::splice`]; the first program's bytes start with a preface.
    fn splice_with_preface(&self, preface: Vec<u8>) -> [UnixStream; 2] {
        self.splice_by(|[ours, theirs]| {
            let [(near, near_end), (far, far_end)] = [(); 2].map(|()| UnixStream::pair().unwrap());
            let (delivery, label) = (Delivery::Unbounded, "".into());
            let splice = ours.splice_with_preface(preface, near_end.into(), delivery, label);
            self.pair.control.spawn(splice);
            self.pair.control.spawn(theirs.splice(far_end.into(), delivery, "".into()));
            [near, far]
        })
    }

    fn splice_by(&self, splice: impl FnOnce([Stream; 2]) -> [UnixStream; 2]) -> [UnixStream; 2] {
        let open = |streams: &HeldStreams| streams.names().len();
        let before = self.streams.each_ref().map(open);
        let programs = splice(self.pair.open(&self.ends));
        let spliced = async {
            while self.streams.each_ref().map(open) != before.map(|count| count + 1) {
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
        };
        self.pair.control.block_on(async { timeout(HANG, spliced).await.expect("not spliced") });
        programs
    }

    /// Closes the connection from one end with the code that holds streams.
    fn lose(&self, by: usize) {
        self.ends[by].close(HOLD, b"");
    }

    /// Connects again.
    fn reconnect(&mut self) {
        self.ends = self.pair.connect_to(self.address);
        self.epoch += 1;
        self.hold();
    }

    /// Replaces an end that has no connection by another process.
    fn replace(&mut self, end: usize) {
        let old = &self.streams[end];
        let held = async {
            while old.held() < old.names().len() {
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
        };
        self.pair.control.block_on(async { timeout(HANG, held).await.expect("not held") });
        let new = HeldStreams::new(Arc::new(ReplayBudget::new(16 << 20, 256 << 20)));
        for handed in old.hand_over().unwrap() {
            self.pair.control.spawn(Splice::adopt(handed, &new, VarInt::from_u32(0)));
        }
        assert_eq!((new.names(), new.kept_bytes()), (old.names(), old.kept_bytes()));
        self.streams[end] = new;
    }

    /// Resumes the streams that both ends have, and ends those that only one has.
    fn resume(&self) {
        let names: BTreeSet<_> = self.streams.iter().flat_map(HeldStreams::names).collect();
        for name in names {
            self.resume_one(name, |receipt| receipt);
        }
    }

    /// Resumes one stream; `told` changes what the client hears about the server's progress.
    fn resume_one(&self, name: StreamName, told: impl Fn(Receipt) -> Receipt) {
        let [ours, theirs] = self.pair.open(&self.ends);
        let taken = async { tokio::join!(self.streams[0].take(name), self.streams[1].take(name)) };
        let taken = self.pair.control.block_on(async { timeout(HANG, taken).await.unwrap() });
        match taken {
            (Some(here), Some(there)) => {
                let receipts = (here.receipt(), there.receipt());
                self.pair.control.spawn(ours.resume(here, told(receipts.1)));
                self.pair.control.spawn(theirs.resume(there, receipts.0));
            }
            (one, other) => one.into_iter().chain(other).for_each(|held| {
                held.release();
            }),
        }
    }

    /// Waits until nothing is open.
    fn until_over(&self) {
        let over = async {
            while self.streams.iter().any(|streams| !streams.names().is_empty()) {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        };
        self.pair.control.block_on(async { timeout(HANG, over).await.expect("still open") });
        assert_eq!(self.streams.each_ref().map(HeldStreams::kept_bytes), [0, 0]);
    }
}

/// A path to a server that drops one in fifty full packets; returns its address.
fn lossy_path(server: SocketAddr) -> SocketAddr {
    let [near, far] = [(); 2].map(|()| UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).unwrap());
    let address = near.local_addr().unwrap();
    far.connect(server).unwrap();
    let ends = Arc::new((near, far, OnceLock::new()));
    let mut passed = 0;
    let mut passes = move |datagram: &[u8]| {
        // Short headers only (RFC 9000 17.3.1): handshakes would have to wait for timeouts.
        let is_full = datagram.len() > 1_000 && datagram[0] & 0x80 == 0;
        passed += usize::from(is_full);
        !is_full || passed % 50 != 0
    };
    let (there, back, mut passes_back) = (Arc::clone(&ends), ends, passes);
    thread::spawn(move || {
        let mut buffer = [0; 2_048];
        while let Ok((bytes, client)) = there.0.recv_from(&mut buffer) {
            there.2.get_or_init(|| client);
            if passes(&buffer[..bytes]) {
                let _ = there.1.send(&buffer[..bytes]);
            }
        }
    });
    thread::spawn(move || {
        let mut buffer = [0; 2_048];
        while let Ok(bytes) = back.1.recv(&mut buffer) {
            if let Some(client) = back.2.get()
                && passes_back(&buffer[..bytes])
            {
                let _ = back.0.send_to(&buffer[..bytes], client);
            }
        }
    });
    address
}

fn noise(seed: u64, bytes: usize) -> Vec<u8> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let next = |_| {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state as u8
    };
    (0..bytes).map(next).collect()
}

/// Identifies a socket, whichever descriptor refers to it.
fn name(socket: &UnixStream) -> PathBuf {
    fs::read_link(format!("/proc/self/fd/{}", socket.as_raw_fd())).unwrap()
}

/// Identifies everything that this process has open.
fn open_descriptors() -> Vec<PathBuf> {
    let descriptors = fs::read_dir("/proc/self/fd").unwrap();
    // Other tests are closing theirs at the same time.
    descriptors.filter_map(|entry| fs::read_link(entry.ok()?.path()).ok()).collect()
}

/// Sends these both ways, each ended by a half-close, and compares.
fn exchange(programs: &[UnixStream; 2], sent: [&[u8]; 2], mut meanwhile: impl FnMut()) {
    let done = AtomicBool::new(false);
    for program in programs {
        program.set_read_timeout(Some(HANG)).unwrap();
        program.set_write_timeout(Some(HANG)).unwrap();
    }
    thread::scope(|scope| {
        let transfers: Vec<_> = [(0, 1), (1, 0)]
            .map(|(from, to)| {
                let (mut writer, bytes) = (&programs[from], sent[from]);
                scope.spawn(move || {
                    for piece in bytes.chunks(10_007) {
                        writer.write_all(piece).unwrap();
                    }
                    writer.shutdown(Shutdown::Write).unwrap();
                });
                let mut reader = &programs[to];
                scope.spawn(move || {
                    let mut received = Vec::new();
                    reader.read_to_end(&mut received).unwrap();
                    assert!(received == sent[from], "end {from}: {} bytes", received.len());
                })
            })
            .into();
        scope.spawn(|| {
            let outcomes: Vec<_> = transfers.into_iter().map(|transfer| transfer.join()).collect();
            done.store(true, SeqCst);
            assert!(outcomes.iter().all(Result::is_ok), "a transfer failed");
        });
        while !done.load(SeqCst) {
            meanwhile();
        }
    });
}

/// Exchanges bytes while connections are lost one after another.
fn exchange_over_many(mut held: Held, bytes: usize) {
    let programs = held.splice();
    let (up, down) = (noise(1, bytes + 3), noise(2, bytes * 3 / 4 + 1));
    let mut losses = 0;
    exchange(&programs, [&up, &down], || {
        thread::sleep(Duration::from_millis(10));
        held.lose(losses % 2);
        held.reconnect();
        held.resume();
        losses += 1;
    });
    assert!(losses > 3, "{losses} connections were lost");
    held.until_over();
}

#[test]
fn a_stream_goes_on_over_other_connections_byte_for_byte() {
    exchange_over_many(Held::new(), 40_000_000);
}

#[test]
fn a_stream_goes_on_in_other_processes_byte_for_byte() {
    let mut held = Held::new();
    let programs = held.splice();
    let (up, down) = (noise(1, 20_000_003), noise(2, 15_000_001));
    let mut replaced = 0;
    exchange(&programs, [&up, &down], || {
        thread::sleep(Duration::from_millis(10));
        held.lose(replaced % 2);
        held.replace(replaced % 2);
        if replaced % 3 == 0 {
            held.replace(1 - replaced % 2);
        }
        held.reconnect();
        held.resume();
        replaced += 1;
    });
    assert!(replaced > 3, "{replaced} processes were replaced");
    held.until_over();
}

#[test]
fn a_preface_goes_on_as_the_bytes_of_its_socket_do() {
    let mut held = Held::new();
    let preface = noise(3, 1_000_000);
    let programs = held.splice_with_preface(preface.clone());
    let mut begin = vec![0; preface.len()];
    // Part of it has been sent when the first connection is lost, and all of it when the last one
    // is.
    for piece in begin.chunks_mut(300_000) {
        held.lose(0);
        held.reconnect();
        held.resume();
        programs[1].set_read_timeout(Some(HANG)).unwrap();
        (&programs[1]).read_exact(piece).unwrap();
    }
    assert!(begin == preface);
    held.lose(1);
    held.reconnect();
    held.resume();
    exchange(&programs, [b"its own", &noise(4, 100_000)], thread::yield_now);
    held.until_over();
}

#[test]
fn a_stream_that_nobody_adopts_is_reset() {
    let mut held = Held::new();
    let [mut near, _far] = held.splice();
    held.lose(0);
    let gone = HeldStreams::new(Arc::new(ReplayBudget::new(16 << 20, 256 << 20)));
    gone.close();
    held.replace(0);
    for handed in held.streams[0].hand_over().unwrap() {
        let refused = Splice::adopt(handed, &gone, VarInt::from_u32(0));
        assert!(held.pair.control.block_on(refused).is_err());
    }
    held.streams[0].close();
    near.set_read_timeout(Some(HANG)).unwrap();
    // A unix socket has no reset.
    assert_eq!(near.read(&mut [0; 1]).unwrap_or(0), 0);
}

#[test]
fn a_stream_that_is_delivered_without_a_connection_can_be_reset() {
    // More than a socket takes, and less than a socket and a stream that nobody reads.
    const BYTES: usize = 320 << 10;
    let mut held = Held::new();
    let [mut near, mut far] = held.splice();
    held.lose(0);
    held.reconnect();
    held.resume();
    far.shutdown(Shutdown::Write).unwrap();
    near.set_read_timeout(Some(HANG)).unwrap();
    assert_eq!(near.read(&mut [0]).unwrap(), 0);
    near.write_all(&vec![7; BYTES]).unwrap();
    near.shutdown(Shutdown::Write).unwrap();
    let server = held.ends[1].clone();
    let received = async {
        while server.stats().udp_rx.bytes < BYTES as u64 {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    };
    held.pair.control.block_on(async { timeout(HANG, received).await.expect("not received") });
    // The end of the other direction is acknowledged by now.
    let _streams = held.pair.open(&held.ends);
    held.ends[0].close(VarInt::from_u32(1), b"");
    held.pair.control.block_on(async { timeout(HANG, server.settled()).await.unwrap() });
    assert_eq!(held.streams[1].names().len(), 1, "it is being delivered");

    held.streams[1].reset_all(VarInt::from_u32(0));
    assert!(held.streams[1].names().is_empty());
    let mut delivered = Vec::new();
    // A unix socket has no reset.
    let _ = far.read_to_end(&mut delivered);
    assert!(delivered.len() < BYTES, "all of it was delivered");
}

#[test]
fn a_stream_with_gaps_goes_on_over_other_connections_byte_for_byte() {
    exchange_over_many(Held::over(16 << 20, lossy_path), 20_000_000);
}

#[test]
fn an_end_that_was_on_its_way_or_written_survives() {
    let mut held = Held::new();
    let [near, mut far] = held.splice();
    (&near).write_all(b"all of it").unwrap();
    near.shutdown(Shutdown::Write).unwrap();
    for round in 0..3 {
        held.lose(round % 2);
        held.reconnect();
        held.resume();
    }
    let mut received = Vec::new();
    far.read_to_end(&mut received).unwrap();
    assert_eq!(received, b"all of it");
    // The other direction is still open.
    held.lose(0);
    far.write_all(b"an answer").unwrap();
    held.reconnect();
    held.resume();
    drop(far);
    let mut answer = Vec::new();
    (&near).read_to_end(&mut answer).unwrap();
    assert_eq!(answer, b"an answer");
    held.until_over();
}

#[test]
fn a_socket_is_closed_once_both_ways_are_over_although_its_stream_was_resumed_after_an_end() {
    let mut held = Held::new();
    let (mut programs, mut sockets) = (Vec::new(), Vec::new());
    for _ in 0..64 {
        let streams = held.pair.open(&held.ends);
        programs.push(streams.map(|stream| {
            let (program, spliced) = UnixStream::pair().unwrap();
            sockets.push(name(&spliced));
            held.pair.control.spawn(stream.splice(spliced.into(), Delivery::Unbounded, "".into()));
            program
        }));
    }
    for [near, far] in &mut programs {
        near.shutdown(Shutdown::Write).unwrap();
        assert_eq!(far.read(&mut [0]).unwrap(), 0);
    }
    // The receipts for the last of these ends have not arrived.
    held.lose(0);
    held.reconnect();
    held.resume();
    for [near, far] in &mut programs {
        far.shutdown(Shutdown::Write).unwrap();
        assert_eq!(near.read(&mut [0]).unwrap(), 0);
    }
    held.until_over();
    let closed = async {
        while sockets.iter().any(|socket| open_descriptors().contains(socket)) {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    held.pair.control.block_on(async { timeout(HANG, closed).await.expect("still open") });
}

#[test]
fn a_stream_that_is_not_resumed_stays_as_it_was_whatever_attempts_fail() {
    let mut held = Held::new();
    let [mut near, mut far] = held.splice();
    near.write_all(b"a").unwrap();
    far.read_exact(&mut [0]).unwrap();
    held.lose(0);
    near.write_all(b"bc").unwrap();
    let name = held.streams[0].names()[0];
    // The client accepts and gives up; then both accept, and their connection is lost before they
    // resume.
    held.pair.control.block_on(async {
        drop(timeout(HANG, held.streams[0].take(name)).await.unwrap());
    });
    for _ in 0..3 {
        held.reconnect();
        let streams = held.pair.open(&held.ends);
        held.lose(1);
        held.pair.control.block_on(async {
            for (stream, streams) in streams.into_iter().zip(&held.streams) {
                let one = timeout(HANG, streams.take(name)).await.unwrap().unwrap();
                let receipt = Receipt { bytes: 1, end: false };
                timeout(HANG, stream.resume(one, receipt)).await.unwrap();
            }
        });
    }
    held.reconnect();
    held.resume();
    let mut received = [0; 2];
    far.read_exact(&mut received).unwrap();
    assert_eq!(&received, b"bc");
}

/// Splices both ends of a stream; one does so only after it knows its connection is lost.
fn splice_late(held: &mut Held, late: usize, claim: bool) -> [UnixStream; 2] {
    let mut programs = Vec::new();
    let mut ends: Vec<_> = held.pair.open(&held.ends).into_iter().enumerate().collect();
    ends.sort_by_key(|(end, _)| *end == late);
    for (end, stream) in ends {
        let (program, spliced) = UnixStream::pair().unwrap();
        if end == late {
            held.lose(end);
            held.pair.control.block_on(async {
                timeout(HANG, held.ends[end].settled()).await.unwrap();
            });
            if claim {
                assert!(held.streams[end].claim_before(held.epoch + 1).is_empty());
            }
        }
        held.pair.control.spawn(stream.splice(spliced.into(), Delivery::Unbounded, "".into()));
        let spliced = async {
            while !claim && held.streams[end].names().is_empty() {
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
        };
        held.pair.control.block_on(async { timeout(HANG, spliced).await.expect("not spliced") });
        programs.push(program);
    }
    programs.try_into().unwrap()
}

#[test]
fn a_stream_spliced_as_its_connection_is_lost_continues_unless_claims_were_complete() {
    for late in 0..2 {
        let mut held = Held::new();
        let [mut early, mut program] = splice_late(&mut held, late, false);
        held.reconnect();
        held.resume();
        early.write_all(b"k").unwrap();
        program.read_exact(&mut [0]).unwrap();
        program.write_all(b"k").unwrap();
        early.read_exact(&mut [0]).unwrap();

        let mut held = Held::new();
        let [_early, mut program] = splice_late(&mut held, late, true);
        // Must not wait for data that never comes.
        program.set_read_timeout(Some(HANG)).unwrap();
        let end = program.read(&mut [0]);
        assert!(!end.is_err_and(|error| error.kind() == ErrorKind::WouldBlock));
    }
}

#[test]
fn a_peer_that_claims_bytes_it_cannot_have_resets_its_stream_alone() {
    let mut held = Held::new();
    let (programs, mut other) = (held.splice(), held.splice());
    held.lose(0);
    held.reconnect();
    let [first, second] = held.streams[0].names()[..] else { panic!("two streams") };
    held.resume_one(first, |receipt| Receipt { bytes: receipt.bytes + 1, ..receipt });
    held.resume_one(second, |receipt| receipt);
    for mut program in programs {
        // A unix socket sees an end of stream instead of a reset.
        assert_eq!(program.read(&mut [0]).unwrap_or(0), 0);
    }
    let [near, far] = &mut other;
    near.write_all(b"k").unwrap();
    far.read_exact(&mut [0]).unwrap();
}

#[test]
fn what_the_peer_has_not_is_reset_and_what_has_ended_both_ways_is_closed_in_order() {
    let held = Held::new();
    let [mut near, _far] = held.splice();
    held.lose(0);
    let name = held.streams[0].names()[0];
    held.pair.control.block_on(async {
        timeout(HANG, held.streams[0].take(name)).await.unwrap().unwrap().release();
    });
    assert!(matches!(near.read(&mut [0]), Ok(0)) || near.read(&mut [0]).is_err());
    assert!(held.streams[0].names().is_empty());
    // The far end knows of the loss when its stream can be accepted; dropped, it stays held.
    held.pair.control.block_on(async {
        drop(timeout(HANG, held.streams[1].take(name)).await.unwrap());
    });
    assert_eq!(held.streams[1].close(), 1);
    assert!(held.streams[1].names().is_empty());
}

#[test]
fn an_unread_stream_fills_its_buffer_and_stops_nobody() {
    let mut held = Held::with_buffers(64 << 10);
    let (stalled, mut live) = (held.splice(), held.splice());
    stalled[0].set_nonblocking(true).unwrap();
    let mut written = 0;
    let block = noise(3, 64 << 10);
    // Until the socket has accepted nothing for a while.
    let mut quiet = 0;
    while quiet < 50 {
        match (&stalled[0]).write(&block[..1_000]) {
            Ok(bytes) => {
                assert_eq!(bytes, 1_000);
                (written, quiet) = (written + bytes, 0);
            }
            Err(error) if error.kind() == ErrorKind::WouldBlock => {
                quiet += 1;
                thread::sleep(Duration::from_millis(10));
            }
            Err(error) => panic!("{error}"),
        }
    }
    assert!(held.streams[0].kept_bytes() <= 64 << 10, "{}", held.streams[0].kept_bytes());
    for _ in 0..2 {
        let [near, far] = &mut live;
        near.write_all(b"k").unwrap();
        far.read_exact(&mut [0]).unwrap();
        held.lose(0);
        held.reconnect();
        held.resume();
    }
    let mut received = vec![0; written];
    (&stalled[1]).read_exact(&mut received).unwrap();
    assert!(received.chunks(1_000).all(|piece| piece == &block[..1_000]));
}

#[test]
fn a_close_with_another_code_resets_what_is_open() {
    let held = Held::new();
    let programs = held.splice();
    held.ends[0].close(VarInt::from_u32(1), b"");
    for mut program in programs {
        assert_eq!(program.read(&mut [0]).unwrap_or(0), 0);
    }
    held.until_over();
}
