//! Names why packets are dropped.

use crate::packet::Malformed;

/// Declares the reasons, all of them as a list, and their labels.
macro_rules! reasons {
    ($($(#[doc = $doc:literal])+ $reason:ident: $label:literal,)+) => {
        /// Why a packet is dropped. As a number, its place in the list of all.
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
    /// A packet of the tunnel itself: a route leads the tunnel through the tunnel.
    Loop: "loop",
    /// Not a packet, or one that no network carries.
    Malformed: "malformed",
    /// An address, or a message, that has no meaning beyond a link or a host.
    Martian: "martian",
    /// The destination is not behind the peer that the device leads to.
    NoRoute: "no-route",
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_reason_has_its_place_and_its_label() {
        let places: Vec<_> = Reason::ALL.iter().map(|reason| *reason as usize).collect();
        assert_eq!(places, (0..Reason::ALL.len()).collect::<Vec<_>>());
        let mut labels: Vec<_> = Reason::ALL.iter().map(|reason| reason.label()).collect();
        labels.dedup();
        assert_eq!(labels.len(), Reason::ALL.len());
        assert!(labels.is_sorted());
    }
}
