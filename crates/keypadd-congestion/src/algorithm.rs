//! Chooses the congestion control of a connection: this crate's, or one that knows only what
//! quinn-proto tells it. Knows no transport.

use std::{fmt, sync::Arc, time::Instant};

use quinn_proto::congestion::{Controller, ControllerFactory};

use crate::{RateController, Waits};

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
