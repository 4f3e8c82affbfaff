//! Chooses the congestion control of a connection by name: this crate's, or one that knows only
//! what quinn-proto tells it. Knows no transport.

use std::{fmt, sync::Arc, time::Instant};

use quinn_proto::congestion::{Controller, ControllerFactory, CubicConfig};

use crate::{RateController, Waits};

/// The congestion controls that a user chooses from.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Congestion {
    /// Follows delay and the rate of delivery: a short queue, and random loss costs little.
    #[default]
    Rate,
    /// RFC 9438: fills queues as TCP does; slow on paths with random loss.
    Cubic,
}

impl Congestion {
    /// Their names, the default first.
    pub const NAMES: [&str; 2] = [Self::Rate.name(), Self::Cubic.name()];

    /// The one of this name.
    pub fn named(name: &str) -> Option<Self> {
        [Self::Rate, Self::Cubic].into_iter().find(|one| one.name() == name)
    }

    const fn name(self) -> &'static str {
        match self {
            Self::Rate => "rate",
            Self::Cubic => "cubic",
        }
    }

    /// What it does on a connection.
    pub fn control(self) -> Control {
        match self {
            Self::Rate => Control::Rate,
            Self::Cubic => Control::Other(Arc::new(CubicConfig::default())),
        }
    }
}

impl fmt::Display for Congestion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// The congestion control of a connection, which builds a controller for each of its paths.
#[derive(Clone)]
pub enum Control {
    /// [`RateController`].
    Rate,
    /// Another factory's, such as quinn-proto's CUBIC.
    Other(Arc<dyn ControllerFactory + Send + Sync>),
}

impl Control {
    /// A controller for a new path that carries packets of `mtu` bytes.
    pub fn build(&self, now: Instant, mtu: u16) -> Algorithm {
        match self {
            Self::Rate => Algorithm::Rate(Box::new(RateController::new(mtu))),
            Self::Other(factory) => Algorithm::Other(Arc::clone(factory).build(now, mtu)),
        }
    }
}

impl fmt::Debug for Control {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Rate => "Rate",
            Self::Other(_) => "Other",
        })
    }
}

/// The controller of one path.
pub enum Algorithm {
    /// Can tell the two ways of the path apart.
    Rate(Box<RateController>),
    /// Sees round trips only.
    Other(Box<dyn Controller>),
}

impl Algorithm {
    /// What quinn-proto knows of it.
    pub fn controller(&self) -> &dyn Controller {
        match self {
            Self::Rate(rate) => &**rate,
            Self::Other(other) => &**other,
        }
    }

    /// What quinn-proto may tell it.
    pub fn controller_mut(&mut self) -> &mut dyn Controller {
        match self {
            Self::Rate(rate) => &mut **rate,
            Self::Other(other) => &mut **other,
        }
    }

    /// Continues on another connection of the path, whose packets have `mtu` bytes. So many bytes
    /// of the one before are in flight still, of which it will hear no more.
    pub fn continue_on_another(&mut self, now: Instant, in_flight: u64, mtu: u16) {
        if let Self::Rate(rate) = self {
            rate.continue_on_another(now, in_flight);
        }
        self.controller_mut().on_mtu_update(mtu);
    }

    /// Takes what the peer's clock says of both ways, if it can tell them apart.
    pub fn set_waits(&mut self, now: Instant, waits: Waits) {
        if let Self::Rate(rate) = self {
            rate.set_waits(now, waits);
        }
    }
}

impl Clone for Algorithm {
    fn clone(&self) -> Self {
        match self {
            Self::Rate(rate) => Self::Rate(rate.clone()),
            Self::Other(other) => Self::Other(other.clone_box()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_congestion_control_is_found_by_its_name() {
        for name in Congestion::NAMES {
            assert_eq!(Congestion::named(name).map(|one| one.to_string()), Some(name.to_owned()));
        }
        assert_eq!(Congestion::named("reno"), None);
    }
}
