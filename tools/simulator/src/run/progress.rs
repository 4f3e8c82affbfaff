//! Tracks a run's progress and missing goals, and counts at its end.

use bytes::Bytes;
use keypadd_pool::{Coverage, Direction};
use quinn_proto::{ConnectionHandle, Side, VarInt};
use sha2::Digest;

use super::{Outcome, World};
use crate::auditor::Finding;
use crate::ends::Link;

/// Phases that a seed must reach in both directions.
pub(crate) const PHASES_MIN: u64 = 3;

/// What the newest connection is doing.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Stage {
    Writing,
    /// Streams have ended and are being delivered.
    Finishing,
    Closing,
    Over,
}

impl World {
    /// Whether the handshake of a connection is confirmed at both ends (RFC 9001 4.1.2).
    pub(super) fn is_confirmed(&self, index: usize) -> bool {
        let mut links = self.ends.iter().flat_map(|end| end.links.values());
        self.accepted.contains(&index)
            && links.all(|link| link.index != index || link.is_confirmed())
    }

    /// The last connection's phases, by sender.
    pub(super) fn phases(&self) -> Vec<u64> {
        let last = self.wirings.len() - 1;
        let links = self.ends.iter().flat_map(|end| end.links.values());
        links.filter(|link| link.index == last).map(|link| link.sender.phase()).collect()
    }

    /// Whether the pools have served, then not, then served again.
    pub(super) fn has_refilled(&mut self) -> bool {
        let refilled = self.refill.observe(self.ends.iter().map(|end| &*end.meters));
        // After a third of the run, the fillers bring about what is still missing.
        let last = self.wirings.len() == self.schedule.connections;
        let left = self.packets_goal.saturating_sub(self.auditor.packets);
        let is_due = last && left <= self.schedule.packets * 2 / 3;
        let order = self.refill.order().filter(|_| is_due);
        self.ends.iter_mut().for_each(|end| end.pool.order = order);
        refilled
    }

    /// Cuts connections off, ends streams, and closes, each when due.
    pub(super) fn progress(&mut self) {
        let last = self.wirings.len() - 1;
        let refilled = self.has_refilled();
        match self.stage {
            Stage::Writing if self.auditor.packets < self.packets_goal => {
                if self.auditor.packets >= self.cut_at {
                    self.cut_before(last);
                }
            }
            Stage::Writing if self.wirings.len() < self.schedule.connections => {
                self.cut_before(last);
                self.connect();
            }
            Stage::Writing => {
                let phases = self.phases();
                if refilled && phases.len() == 2 && phases.iter().all(|&at| at >= PHASES_MIN) {
                    self.cut_before(last);
                    self.stage = Stage::Finishing;
                    self.each_link(last, |link| link.traffic.finish(&mut link.connection));
                }
            }
            Stage::Finishing => {
                if self.all_delivered(last) {
                    self.stage = Stage::Closing;
                    self.close(last);
                }
            }
            Stage::Closing | Stage::Over => {}
        }
        if self.ends.iter().all(|end| end.links.is_empty()) {
            match self.stage {
                Stage::Closing => {}
                // The run could not reach its goals.
                _ if self.arrivals.is_outrun(last) => {
                    (self.counts.runs, self.counts.outrun) = (0, 1);
                }
                _ => {
                    let at = format!("the connection was lost: {:?}", self.endings);
                    self.auditor.find(Finding::Hang(at));
                }
            }
            self.stage = Stage::Over;
        }
    }

    fn all_delivered(&self, index: usize) -> bool {
        let link = |side: usize| self.ends[side].links.values().find(|link| link.index == index);
        let (Some(client), Some(server)) = (link(0), link(1)) else { return false };
        let complete = |from: &Link, to: &Link| from.traffic.written() == *to.traffic.received();
        complete(client, server) && complete(server, client)
    }

    /// Does something with both ends of a connection and lets them send.
    fn each_link(&mut self, index: usize, mut act: impl FnMut(&mut Link)) {
        for side in [Side::Client, Side::Server] {
            let links = &mut self.ends[side as usize].links;
            let link = links.iter_mut().find(|(_, link)| link.index == index);
            let Some((&handle, link)) = link else { continue };
            act(link);
            self.drive(side, handle);
        }
    }

    /// Cuts off the connections before this one in the middle of writing.
    fn cut_before(&mut self, index: usize) {
        while (self.counts.cut as usize) < index {
            self.counts.cut += 1;
            self.close(self.counts.cut as usize - 1);
        }
    }

    /// Closes at the client.
    fn close(&mut self, index: usize) {
        let now = self.instant();
        self.each_link(index, |link| {
            if link.connection.side() == Side::Client {
                link.traffic.wake_at = None;
                link.connection.close(now, VarInt::from_u32(0), Bytes::new());
            }
        });
    }

    /// Retires one end of a connection.
    pub(super) fn retire(&mut self, side: Side, handle: ConnectionHandle) {
        let Some(link) = self.ends[side as usize].links.remove(&handle) else { return };
        self.note("gone", &[side as u64, link.index as u64, link.traffic.received_bytes]);
        self.counts.stream_bytes += link.traffic.received_bytes;
        self.counts.updates += link.sender.phase();
        if let Some(wrong) = link.traffic.wrong {
            let at = format!("connection {}, {side:?}: {wrong}", link.index);
            self.auditor.find(Finding::WrongBytes(at));
        }
    }

    /// Adds up the counts and checks the invariants of pools and keys.
    pub(super) fn conclude(mut self) -> Outcome {
        for side in [Side::Client, Side::Server] {
            let handles: Vec<_> = self.ends[side as usize].links.keys().copied().collect();
            handles.into_iter().for_each(|handle| self.retire(side, handle));
        }
        for end in &mut self.ends {
            for direction in [Direction::Send, Direction::Receive] {
                self.counts.hit += end.meters.packets(direction, Coverage::Hit);
                self.counts.partial += end.meters.packets(direction, Coverage::Partial);
                self.counts.miss += end.meters.packets(direction, Coverage::Miss);
            }
            self.counts.dry += end.meters.exhaustions();
            end.pool.settle(self.now);
            let snapshot = end.pool.pool.snapshot();
            if end.meters.pad_reuse() > 0 || snapshot.filled_bytes > 0 {
                let reuse = end.meters.pad_reuse();
                let at = format!("at the end {reuse} pads reused, {snapshot:?}");
                self.auditor.find(Finding::Accounts(at));
            }
        }
        self.counts.packets = self.auditor.packets;
        self.counts.blocks = self.auditor.blocks;
        self.transcript.update(format!("{:?}", self.counts));
        Outcome {
            counts: self.counts,
            transcript: self.transcript.finalize().into(),
            findings: self.auditor.findings,
        }
    }
}
