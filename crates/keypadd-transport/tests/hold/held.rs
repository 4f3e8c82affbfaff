//! Provides two ends whose streams are held while they have no connection.

use std::{
    collections::BTreeSet, net::SocketAddr, os::unix::net::UnixStream, sync::Arc, time::Duration,
};

use keypadd_transport::{
    Connection, Delivery, HeldStreams, Receipt, ReplayBudget, SpinShare, Splice, Stream,
    StreamName, VarInt,
};
use tokio::time::timeout;

use crate::pair::{HOLD, Pair};

/// Longer than anything here takes; reaching it means a hang.
pub const HANG: Duration = Duration::from_secs(60);

/// Two ends that hold their streams, and their connection.
pub struct Held {
    pub pair: Pair,
    /// The address at which the client reaches the server.
    address: SocketAddr,
    pub streams: [HeldStreams; 2],
    pub ends: [Connection; 2],
    pub epoch: u32,
}

impl Held {
    pub fn new() -> Self {
        Self::with_buffers(16 << 20)
    }

    pub fn with_buffers(bytes: usize) -> Self {
        Self::over(bytes, |server| server)
    }

    pub fn over(bytes: usize, path: impl FnOnce(SocketAddr) -> SocketAddr) -> Self {
        let pair = Pair::new(SpinShare::percent(0));
        let address = path(pair.server.local_addr());
        let streams = [(); 2].map(|()| {
            HeldStreams::new(Arc::new(ReplayBudget::new(bytes, 256 << 20, Arc::default())))
        });
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
    pub fn splice(&self) -> [UnixStream; 2] {
        self.splice_by(|streams| self.pair.splice(streams))
    }

    /// Like [`Self::splice`]; the first program's bytes start with a preface.
    pub fn splice_with_preface(&self, preface: Vec<u8>) -> [UnixStream; 2] {
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
    pub fn lose(&self, by: usize) {
        self.ends[by].close(HOLD, b"");
    }

    /// Connects again.
    pub fn reconnect(&mut self) {
        self.ends = self.pair.connect_to(self.address);
        self.epoch += 1;
        self.hold();
    }

    /// Replaces an end that has no connection by another process.
    pub fn replace(&mut self, end: usize) {
        let old = &self.streams[end];
        let held = async {
            while old.held() < old.names().len() {
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
        };
        self.pair.control.block_on(async { timeout(HANG, held).await.expect("not held") });
        let new =
            HeldStreams::new(Arc::new(ReplayBudget::new(16 << 20, 256 << 20, Arc::default())));
        for handed in old.hand_over().unwrap() {
            self.pair.control.spawn(Splice::adopt(handed, &new, VarInt::from_u32(0)));
        }
        assert_eq!((new.names(), new.kept_bytes()), (old.names(), old.kept_bytes()));
        self.streams[end] = new;
    }

    /// Resumes the streams that both ends have, and ends those that only one has.
    pub fn resume(&self) {
        let names: BTreeSet<_> = self.streams.iter().flat_map(HeldStreams::names).collect();
        for name in names {
            self.resume_one(name, |receipt| receipt);
        }
    }

    /// Resumes one stream; `told` changes what the client hears about the server's progress.
    pub fn resume_one(&self, name: StreamName, told: impl Fn(Receipt) -> Receipt) {
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
    pub fn until_over(&self) {
        let over = async {
            while self.streams.iter().any(|streams| !streams.names().is_empty()) {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        };
        self.pair.control.block_on(async { timeout(HANG, over).await.expect("still open") });
        assert_eq!(self.streams.each_ref().map(HeldStreams::kept_bytes), [0, 0]);
    }
}
