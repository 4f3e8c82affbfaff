//! What a run ran on, as far as figures depend on it.
//!
//! Read from `/proc` and `/sys`; what is not there is left out. Names neither the host nor its user,
//! and nothing by which the machine could be told from others of its kind.

use serde::{Deserialize, Serialize};

/// One machine.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Machine {
    /// As the CPU calls itself; empty where the kernel does not say.
    pub cpu: String,
}

impl Machine {
    /// This machine, now.
    pub fn read() -> Self {
        Self::default()
    }
}
