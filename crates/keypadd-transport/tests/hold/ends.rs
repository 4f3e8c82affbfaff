//! Tests ends and resets of streams, and what stays open without them.

use std::{
    fs,
    io::{ErrorKind, Read, Write},
    net::Shutdown,
    os::{fd::AsRawFd, unix::net::UnixStream},
    path::PathBuf,
    pin::pin,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering::Relaxed},
    },
    task::{Context, Wake},
    time::Duration,
};

use keypadd_transport::{Delivery, HeldStreams, Receipt, ReplayBudget, Splice, VarInt};
use tokio::time::timeout;

use crate::held::{HANG, Held};

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

/// Waits until an end's QUIC has as many bytes.
fn until_received(held: &Held, end: usize, bytes: usize) {
    let received = async {
        while held.ends[end].stats().udp_rx.bytes < bytes as u64 {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    };
    held.pair.control.block_on(async { timeout(HANG, received).await.expect("not received") });
}

#[test]
fn a_stream_that_nobody_adopts_is_reset() {
    let mut held = Held::new();
    let [mut near, _far] = held.splice();
    held.lose(0);
    let gone = HeldStreams::new(Arc::new(ReplayBudget::new(16 << 20, 256 << 20, Arc::default())));
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
    until_received(&held, 1, BYTES);
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
fn a_stream_ends_at_both_ends_if_a_program_leaves_before_it_reads_an_answer_that_has_arrived() {
    // More than a socket takes, and less than a socket and a stream that nobody reads.
    const BYTES: usize = 320 << 10;
    let held = Held::new();
    let [near, mut far] = held.splice();
    near.shutdown(Shutdown::Write).unwrap();
    assert_eq!(far.read(&mut [0]).unwrap(), 0);
    far.write_all(&vec![7; BYTES]).unwrap();
    far.shutdown(Shutdown::Write).unwrap();
    until_received(&held, 0, BYTES);
    // The end of the answer is acknowledged by now.
    let _streams = held.pair.open(&held.ends);
    drop(near);
    held.until_over();
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
fn a_close_with_another_code_resets_what_is_open() {
    let held = Held::new();
    let programs = held.splice();
    held.ends[0].close(VarInt::from_u32(1), b"");
    for mut program in programs {
        assert_eq!(program.read(&mut [0]).unwrap_or(0), 0);
    }
    held.until_over();
}

#[derive(Default)]
struct Wakes(AtomicUsize);

impl Wake for Wakes {
    fn wake(self: Arc<Self>) {
        self.0.fetch_add(1, Relaxed);
    }
}

#[test]
fn who_waits_for_a_stream_is_woken_when_that_one_is_held_and_not_by_others() {
    let held = Held::new();
    let (programs, name) = (held.splice(), held.streams[0].names()[0]);
    let other = held.splice();
    let wakes = Arc::<Wakes>::default();
    let waker = Arc::clone(&wakes).into();
    let mut taking = pin!(held.streams[0].take(name));
    assert!(taking.as_mut().poll(&mut Context::from_waker(&waker)).is_pending());
    drop(other);
    let until = |is_so: &dyn Fn() -> bool| {
        let waiting = async {
            while !is_so() {
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
        };
        held.pair.control.block_on(async { timeout(HANG, waiting).await.unwrap() });
    };
    until(&|| held.streams[0].names() == [name]);
    assert_eq!(wakes.0.load(Relaxed), 0, "woken by the end of another stream");
    held.lose(0);
    until(&|| wakes.0.load(Relaxed) > 0);
    until(&|| held.streams[0].held() == 1);
    assert!(held.pair.control.block_on(taking).is_some());
    drop(programs);
}
