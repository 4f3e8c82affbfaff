//! Measures keypadd: seeded traffic, interleaved arms, statistics, reports.
//!
//! Runs both ends of a tunnel, or the client of one whose server permits it, and reports costs with
//! confidence intervals. Measures the shipped code and adds nothing to its data path. Knows no
//! command line and prints nothing.

#![cfg_attr(test, allow(clippy::unwrap_used))]

mod agreement;
mod arm;
mod background;
mod emulate;
mod exhaustion;
pub mod figure;
mod flow;
mod interleave;
mod kex;
mod load;
pub mod machine;
mod networks;
mod others;
pub mod output;
pub mod path;
mod paths;
mod pings;
mod rehearsal;
pub mod report;
pub mod results;
mod schedule;
pub mod sequence;
mod series;
pub mod statistics;
mod suites;
#[cfg(test)]
mod synthetic;
pub mod text;
pub mod verdict;
mod workload;

pub use arm::Arm;
pub use background::Background;
pub use emulate::{CipherRate, Throttle, thread_cpu};
pub use exhaustion::{Exhaustion, Patience};
pub use interleave::{
    INTERRUPTED, OTHERS_MAX, OnProgress, Plan, Progress, Runs, Turn, Workload, may_repeat, order,
    process_cpu, take_turns, try_out,
};
pub use kex::{Ends, Kex, Times};
pub use networks::{NetworkArm, Networks};
pub use others::CpuBaseline;
pub use path::{PathError, PathSettings, Place};
pub use paths::{LineRate, LossPlace, PathArm, PathArms, PathCase, PathCases, Paths};
pub use pings::{PING_BYTES, Pings, pings};
pub use rehearsal::{OfferError, rehearse};
pub use schedule::Typing;
pub use series::{Series, Taken, Turn as SeriesTurn};
pub use suites::Suites;
pub use workload::{
    Bulk, BulkMeasured, Figure, FileMix, Files, FilesMeasured, LEAD, Mixed, MixedMeasured,
    Terminal, Voice, VoiceMeasured, flood, rate_mbit,
};
