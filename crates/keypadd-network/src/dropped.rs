//! Names why packets are dropped, and counts them.

use crate::packet::Malformed;

/// Declares the reasons, all of them as a list, and their labels.
macro_rules! reasons {
    ($($(#[doc = $doc:literal])+ $reason:ident: $label:literal,)+) => {
        /// Why a packet is dropped.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
        pub enum Reason {
            $($(#[doc = $doc])+ $reason,)+
        }

        impl Reason {
            /// All reasons. Metrics have each from the start: a counter that begins at 1 does not
            /// increase.
            pub const ALL: &[Self] = &[$(Self::$reason,)+];

            /// The label of the metric, also shown by `status`.
            pub fn label(self) -> &'static str {
                match self {
                    $(Self::$reason => $label,)+
                }
            }
        }
    };
}

reasons! {
    /// A peer may not begin this here, and it answers nothing that began here.
    Destination: "destination",
    /// It belongs to the tunnel itself: a route leads the tunnel through the tunnel.
    Loop: "loop",
    /// It is no packet, or one that no network carries.
    Malformed: "malformed",
    /// An address, or a message, that has no meaning beyond a link or a host.
    Martian: "martian",
    /// The destination is not behind the peer that the device leads to.
    NoRoute: "no-route",
    /// No session with the peer stands.
    NoSession: "no-session",
    /// Too many packets wait.
    Queue: "queue",
    /// The source is not behind the peer that sent it, or is this host.
    Source: "source",
}

impl From<Malformed> for Reason {
    fn from(_: Malformed) -> Self {
        Self::Malformed
    }
}

/// Whether a packet passes, or why it does not.
pub type Verdict = Result<(), Reason>;

/// How many packets were dropped, by reason.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Dropped([u64; Reason::ALL.len()]);

impl Dropped {
    /// Counts a packet.
    pub fn count(&mut self, reason: Reason) {
        self.0[reason as usize] += 1;
    }

    /// How many packets were dropped for this reason.
    pub fn of(&self, reason: Reason) -> u64 {
        self.0[reason as usize]
    }

    /// How many packets were dropped.
    pub fn total(&self) -> u64 {
        self.0.iter().sum()
    }

    /// Each reason, with how many packets were dropped for it.
    pub fn iter(&self) -> impl Iterator<Item = (Reason, u64)> {
        Reason::ALL.iter().map(|reason| (*reason, self.of(*reason)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_reason_has_its_count_and_its_label() {
        let mut dropped = Dropped::default();
        for (times, reason) in Reason::ALL.iter().enumerate() {
            (0..times).for_each(|_| dropped.count(*reason));
        }
        let counts: Vec<_> = dropped.iter().map(|(_, count)| count as usize).collect();
        assert_eq!(counts, (0..Reason::ALL.len()).collect::<Vec<_>>());
        assert_eq!(dropped.total(), counts.iter().sum::<usize>() as u64);
        let mut labels: Vec<_> = Reason::ALL.iter().map(|reason| reason.label()).collect();
        labels.dedup();
        assert_eq!(labels.len(), Reason::ALL.len());
        assert!(labels.is_sorted());
    }
}
