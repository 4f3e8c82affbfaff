//! Counts events of one run or many, and checks that every class of packet occurred.

use std::fmt;

/// Counts of one run, or of many added up.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Finished runs in these counts.
    pub runs: u64,
    /// Further runs whose last connection was lost because an end went through a phase of which its
    /// peer got no packet.
    pub outrun: u64,
    /// 1-RTT packets on the wire, all audited.
    pub packets: u64,
    /// Blocks of keystream on the wire, each compared with all others of its run.
    pub blocks: u64,
    /// Packets sealed or opened with every byte from the pool.
    pub hit: u64,
    /// With part of their bytes from the pool.
    pub partial: u64,
    /// With none.
    pub miss: u64,
    /// 1-RTT packets that reached the other end intact for the first time.
    pub delivered: u64,
    /// Of those, packets that arrived after one of a later segment.
    pub late: u64,
    /// Of those, packets that arrived after one of a later phase.
    pub after_rekey: u64,
    /// Datagrams lost, duplicated, corrupted in transit.
    pub lost: u64,
    /// See `lost`.
    pub doubled: u64,
    /// See `lost`.
    pub corrupted: u64,
    /// Key updates, both directions together.
    pub updates: u64,
    /// The client's changes of address.
    pub rebinds: u64,
    /// Changes of a pool's budget during the run.
    pub resizes: u64,
    /// Times that a live connection left its pool, to return later.
    pub switches: u64,
    /// Times that a lane ran dry.
    pub dry: u64,
    /// Connections cut off midway.
    pub cut: u64,
    /// Bulk connections that sessions opened beside their first; only with loops.
    pub bulk: u64,
    /// Bytes of streams that were delivered and compared.
    pub stream_bytes: u64,
}

impl Counts {
    /// The least share of a class of packets, per mille. AEADs that seal and open in one pass decline
    /// a pad of which the pool has a part, unless little is missing: their class "partial" is rare.
    fn share_min(class: &str) -> u64 {
        if class == "partial" { 2 } else { 10 }
    }

    /// Adds a run.
    pub fn add(&mut self, other: &Self) {
        let Self {
            runs,
            outrun,
            packets,
            blocks,
            hit,
            partial,
            miss,
            delivered,
            late,
            after_rekey,
            lost,
            doubled,
            corrupted,
            updates,
            rebinds,
            resizes,
            switches,
            dry,
            cut,
            bulk,
            stream_bytes,
        } = other;
        self.runs += runs;
        self.outrun += outrun;
        self.packets += packets;
        self.blocks += blocks;
        self.hit += hit;
        self.partial += partial;
        self.miss += miss;
        self.delivered += delivered;
        self.late += late;
        self.after_rekey += after_rekey;
        self.lost += lost;
        self.doubled += doubled;
        self.corrupted += corrupted;
        self.updates += updates;
        self.rebinds += rebinds;
        self.resizes += resizes;
        self.switches += switches;
        self.dry += dry;
        self.cut += cut;
        self.bulk += bulk;
        self.stream_bytes += stream_bytes;
    }

    /// The classes of packets with their shares, in per mille.
    pub fn shares(&self) -> [(&'static str, u64); 5] {
        let used = (self.hit + self.partial + self.miss).max(1);
        let delivered = self.delivered.max(1);
        [
            ("hit", self.hit * 1000 / used),
            ("partial", self.partial * 1000 / used),
            ("miss", self.miss * 1000 / used),
            ("late", self.late * 1000 / delivered),
            ("after rekey", self.after_rekey * 1000 / delivered),
        ]
    }

    /// The classes of too few packets.
    pub fn scarce(&self) -> Vec<&'static str> {
        let shares = self.shares().into_iter();
        shares
            .filter(|(name, share)| *share < Self::share_min(name))
            .map(|(name, _)| name)
            .collect()
    }
}

impl fmt::Display for Counts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{} runs ({} outrun), {} packets, {} blocks: hit {}, partial {}, miss {}; of {} delivered late {}, after rekey {}; \
             lost {}, doubled {}, corrupted {}; {} key updates, {} rebinds, {} budgets changed, {} pools left, dry {} times, {} cut off, {} for bulk, {} stream bytes",
            self.runs,
            self.outrun,
            self.packets,
            self.blocks,
            self.hit,
            self.partial,
            self.miss,
            self.delivered,
            self.late,
            self.after_rekey,
            self.lost,
            self.doubled,
            self.corrupted,
            self.updates,
            self.rebinds,
            self.resizes,
            self.switches,
            self.dry,
            self.cut,
            self.bulk,
            self.stream_bytes
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_class_of_too_few_packets_is_named() {
        let full = Counts {
            hit: 988,
            partial: 2,
            miss: 10,
            delivered: 1000,
            late: 10,
            after_rekey: 10,
            ..Counts::default()
        };
        assert_eq!(full.scarce(), [""; 0]);
        assert_eq!(Counts { partial: 1, ..full }.scarce(), ["partial"]);
        assert_eq!(Counts { late: 9, after_rekey: 0, ..full }.scarce(), ["late", "after rekey"]);
        assert_eq!(Counts::default().scarce().len(), 5);
    }
}
