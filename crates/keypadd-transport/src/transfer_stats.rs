//! Counts what a splice carries over all its connections, or a flow over one, and records how it
//! ended, for the task that started it.
//!
//! Written by the loops that carry it, read by anyone at any time. Knows no streams or sockets.

use std::sync::atomic::{
    AtomicBool, AtomicU8, AtomicU64,
    Ordering::{Relaxed, SeqCst},
};

use crate::replay::Receipt;

const NEITHER: u8 = 0;
const SOCKET: u8 = 1;
const STREAM: u8 = 2;

/// What a splice or a flow has carried so far.
#[derive(Debug, Default)]
pub struct TransferStats {
    from_socket: AtomicU64,
    /// The last receipt of what the socket has taken, encoded.
    receipt: AtomicU64,
    /// Bytes that the socket took in another process.
    written_before: u64,
    ended_first: AtomicU8,
    held: AtomicBool,
    is_flow: bool,
    /// For a flow: datagrams from the socket and to it.
    datagrams: [AtomicU64; 2],
    dropped: AtomicU64,
    unreachable: AtomicU64,
}

impl TransferStats {
    /// Bytes that this process has read from the socket.
    pub fn from_socket(&self) -> u64 {
        self.from_socket.load(Relaxed)
    }

    /// Bytes that the socket has taken from this process.
    pub fn to_socket(&self) -> u64 {
        self.receipt().bytes - self.written_before
    }

    /// Whether it counts the datagrams of a flow.
    pub fn is_flow(&self) -> bool {
        self.is_flow
    }

    /// For a flow: datagrams read from the socket and written to it.
    pub fn datagrams(&self) -> (u64, u64) {
        let [from_socket, to_socket] = &self.datagrams;
        (from_socket.load(Relaxed), to_socket.load(Relaxed))
    }

    /// For a flow: datagrams that this end dropped because of no room, delay, or the socket
    /// refusing them.
    pub fn dropped(&self) -> u64 {
        self.dropped.load(Relaxed)
    }

    /// How often the network has reported a flow's destination as unreachable (ICMP).
    pub fn unreachable(&self) -> u64 {
        self.unreachable.load(Relaxed)
    }

    /// Whether the socket's input ended before the stream did.
    pub fn socket_ended_first(&self) -> bool {
        self.ended_first.load(SeqCst) == SOCKET
    }

    /// Whether the stream ended before the socket's input did: this end has closed the socket's
    /// output first.
    pub fn stream_ended_first(&self) -> bool {
        self.ended_first.load(SeqCst) == STREAM
    }

    /// Whether no connection carries it: it is held, or was when it ended.
    pub fn is_held(&self) -> bool {
        self.held.load(Relaxed)
    }

    /// For a held splice from another process.
    pub(crate) fn resumed(receipt: Receipt) -> Self {
        let (held, written_before) = (AtomicBool::new(true), receipt.bytes);
        Self { receipt: receipt.encode().into(), written_before, held, ..Self::default() }
    }

    /// For a flow.
    pub(crate) fn for_flow() -> Self {
        Self { is_flow: true, ..Self::default() }
    }

    pub(crate) fn add_from_socket(&self, bytes: usize) {
        self.from_socket.fetch_add(bytes as u64, Relaxed);
    }

    /// A datagram has been read.
    pub(crate) fn add_datagram_from_socket(&self, bytes: usize) {
        self.add_from_socket(bytes);
        self.datagrams[0].fetch_add(1, Relaxed);
    }

    /// A datagram has been written. Called by one loop.
    pub(crate) fn add_datagram_to_socket(&self, bytes: usize) {
        let Receipt { bytes: before, end } = self.receipt();
        self.set_receipt(Receipt { bytes: before + bytes as u64, end });
        self.datagrams[1].fetch_add(1, Relaxed);
    }

    pub(crate) fn add_dropped(&self, datagrams: u64) {
        self.dropped.fetch_add(datagrams, Relaxed);
    }

    pub(crate) fn add_unreachable(&self) {
        self.unreachable.fetch_add(1, Relaxed);
    }

    pub(crate) fn receipt(&self) -> Receipt {
        Receipt::decode(self.receipt.load(Relaxed))
    }

    pub(crate) fn set_receipt(&self, receipt: Receipt) {
        self.receipt.store(receipt.encode(), Relaxed);
    }

    pub(crate) fn set_held(&self, held: bool) {
        self.held.store(held, Relaxed);
    }

    pub(crate) fn socket_ended(&self) {
        self.ended(SOCKET);
    }

    pub(crate) fn stream_ended(&self) {
        self.ended(STREAM);
    }

    fn ended(&self, which: u8) {
        // The first end stays.
        let _ = self.ended_first.compare_exchange(NEITHER, which, SeqCst, SeqCst);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_first_end_counts() {
        let carried = TransferStats::default();
        assert!(!carried.socket_ended_first());
        carried.socket_ended();
        carried.stream_ended();
        assert!(carried.socket_ended_first() && !carried.stream_ended_first());
        let carried = TransferStats::default();
        carried.stream_ended();
        carried.socket_ended();
        assert!(!carried.socket_ended_first() && carried.stream_ended_first());
    }
}
