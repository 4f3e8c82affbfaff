//! Tracks the newest packet number and phase that each end has received.

use std::collections::{BTreeMap, BTreeSet};

use quinn_proto::Side;

use crate::auditor::ReceivedNumber;
use crate::counts::Counts;

/// Arrivals of all connections of a run.
#[derive(Default)]
pub(crate) struct Arrivals {
    ends: BTreeMap<(usize, Side), Arrived>,
    /// Connections with an end that got a packet two phases ahead of any before. quinn ends a phase
    /// after its packet count whether or not a packet was acknowledged (RFC 9001 6.1 requires it to
    /// wait), and a peer that lost all of them can open nothing more. Phases of 60 packets are
    /// short enough for that; real ones have millions, and no window leaves so many unacknowledged.
    outrun: BTreeSet<usize>,
}

/// Packets that have reached one end of a connection.
#[derive(Default)]
struct Arrived {
    numbers: BTreeSet<u64>,
    newest: Option<ReceivedNumber>,
}

impl Arrivals {
    /// Counts a packet that arrived intact.
    pub(crate) fn arrive(
        &mut self,
        connection: usize,
        to: Side,
        seen: ReceivedNumber,
        counts: &mut Counts,
    ) {
        let arrived = self.ends.entry((connection, to)).or_default();
        if !arrived.numbers.insert(seen.number) {
            return;
        }
        counts.delivered += 1;
        let newest = arrived.newest.get_or_insert(seen);
        counts.late += u64::from(seen.number / 64 < newest.number / 64);
        counts.after_rekey += u64::from(seen.phase < newest.phase);
        if seen.phase > newest.phase + 1 {
            self.outrun.insert(connection);
        }
        newest.number = newest.number.max(seen.number);
        newest.phase = newest.phase.max(seen.phase);
    }

    /// The highest number and phase that have reached an end.
    pub(crate) fn newest(&self, connection: usize, to: Side) -> Option<ReceivedNumber> {
        self.ends.get(&(connection, to))?.newest
    }

    /// Whether an end that seals in this phase may begin the next one: its peer has got a packet of
    /// the phase and has answered in it, as RFC 9001 section 6.1 requires. quinn does not wait. A
    /// peer that got none cannot open packets of the phase after it; one that has not answered
    /// could skip a phase, which the key phase bit alone would not show to the auditor.
    pub(crate) fn may_update(&self, connection: usize, side: Side, sealing: u64) -> bool {
        let has_got = |to| self.newest(connection, to).is_some_and(|seen| seen.phase == sealing);
        has_got(!side) && has_got(side)
    }

    pub(crate) fn is_outrun(&self, connection: usize) -> bool {
        self.outrun.contains(&connection)
    }
}
