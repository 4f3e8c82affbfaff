//! Reproduces papers: repeats their experiments through today's tunnels and judges their claims.
//!
//! A paper is a list of parts to measure, each recorded as plain figures once complete
//! ([`Notebook`]), and a pure function from these records to a [`Section`]. Recorded parts are
//! never measured again, so a run of hours resumes where it was stopped. Rules are fixed before the
//! run; a paper's figures are data with their place in the paper.

#![cfg_attr(test, allow(clippy::unwrap_used))]

mod bollinger;
mod claim;
mod compaq;
mod effort;
#[cfg(test)]
mod index;
mod lab;
mod lomas;
mod notebook;
mod praptodiyono;
mod ridzuan;
mod stream;

use std::fmt;
use std::future::Future;
use std::time::{Duration, Instant};

use keypadd_keystream::{Cipher, Mac, Protection};
use keypadd_measure::results::Section;
use keypadd_measure::{INTERRUPTED, OnProgress};

use lab::Lab;

pub use effort::Effort;
pub use notebook::{Notebook, OtherRun};

/// A paper.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Paper {
    /// Lomas, "Encrypting Network Traffic".
    Lomas,
    /// Compaq, "Performance Testing of AXENT Raptor Firewall Virtual Private Network
    /// Implementation".
    Compaq,
    /// Bollinger, "Choosing Secure Remote Access Technologies".
    Bollinger,
    /// Ridzuan and Ab Rahman, "Performance Comparison of Encryption IPsec VPN Encryption
    /// Techniques".
    Ridzuan,
    /// Praptodiyono and others, "Performance Analysis of Internet Key Exchange Algorithms".
    Praptodiyono,
}

impl Paper {
    /// All papers, oldest first.
    pub const ALL: [Self; 5] =
        [Self::Lomas, Self::Compaq, Self::Bollinger, Self::Ridzuan, Self::Praptodiyono];

    /// Its name on the command line, in files and in reports.
    pub fn name(self) -> &'static str {
        match self {
            Self::Lomas => "lomas",
            Self::Compaq => "compaq",
            Self::Bollinger => "bollinger",
            Self::Ridzuan => "ridzuan",
            Self::Praptodiyono => "praptodiyono",
        }
    }

    /// Time limit of its quick run; less than five minutes for all together.
    fn quick_time(self) -> Duration {
        Duration::from_secs(match self {
            Self::Lomas => 104,
            Self::Compaq => 68,
            Self::Bollinger => 39,
            Self::Ridzuan => 29,
            Self::Praptodiyono => 45,
        })
    }

    /// Measures what is missing, as far as allowed; returns the page of everything available then.
    async fn reproduce(self, lab: &Lab<'_>) -> Section {
        let section = match self {
            Self::Lomas => lomas::reproduce(lab).await,
            Self::Compaq => compaq::reproduce(lab).await,
            Self::Bollinger => bollinger::reproduce(lab).await,
            Self::Ridzuan => ridzuan::reproduce(lab).await,
            Self::Praptodiyono => praptodiyono::reproduce(lab).await,
        };
        Section { own_page: true, ..section }
    }
}

impl fmt::Display for Paper {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

/// What to reproduce, and how thoroughly.
#[derive(Clone, Debug)]
pub struct Reproduction {
    /// The papers.
    pub papers: Vec<Paper>,
    /// How thoroughly to run.
    pub effort: Effort,
    /// Seed of the traffic and of the order of arms.
    pub seed: u64,
    /// Time for all papers together; `None` for that of a quick run, and no limit of a full one.
    pub time: Option<Duration>,
}

/// The result of a run.
#[derive(Clone, Debug)]
pub struct Reproduced {
    /// A page per paper that was requested or already has recorded parts.
    pub sections: Vec<Section>,
    /// Why it ended early; `None` if complete.
    pub ended_by: Option<String>,
}

impl Reproduction {
    /// Measures what `notebook` lacks, until complete or until `stop` resolves. `keep` gets the
    /// pages after each paper.
    pub async fn run(
        &self,
        notebook: &Notebook<'_>,
        tell: OnProgress<'_>,
        keep: &(dyn Fn(Vec<Section>) + Sync),
        stop: impl Future<Output = ()>,
    ) -> Reproduced {
        keep(self.pages(notebook, tell).await);
        let all = async {
            let (start, mut shares) = (Instant::now(), Duration::ZERO);
            let together = self.papers.iter().map(|paper| paper.quick_time()).sum::<Duration>();
            let time = self.time.or_else(|| (self.effort == Effort::Quick).then_some(together));
            let end = |part: f64| time.map(|time| start + time.mul_f64(part));
            // Those that take least are decided soonest. What a paper leaves of its share is for
            // the next, and in the end for any.
            let mut papers = self.papers.clone();
            papers.sort_by_key(|paper| paper.quick_time());
            let of_paper = papers.iter().map(|paper| {
                shares += paper.quick_time();
                (paper, end(shares.as_secs_f64() / together.as_secs_f64()))
            });
            let rest = papers.iter().map(|paper| (paper, end(1.0))).filter(|it| it.1.is_some());
            for (paper, end) in of_paper.chain(rest) {
                let lab = Lab::measuring(notebook, *paper, self, tell, end);
                paper.reproduce(&lab).await;
                keep(self.pages(notebook, tell).await);
            }
        };
        let ended_by = tokio::select! {
            biased;
            () = stop => Some(INTERRUPTED.to_owned()),
            () = all => notebook.fault(),
        };
        Reproduced { sections: self.pages(notebook, tell).await, ended_by }
    }

    /// The pages of the recorded parts.
    async fn pages(&self, notebook: &Notebook<'_>, tell: OnProgress<'_>) -> Vec<Section> {
        let mut sections = Vec::new();
        for paper in Paper::ALL {
            if self.papers.contains(&paper) || notebook.has_any_of(paper) {
                let lab = Lab::reading(notebook, paper, self, tell);
                sections.push(paper.reproduce(&lab).await);
            }
        }
        sections
    }
}

/// The arms of a round, in an order drawn from the seed.
fn order(seed: u64, round: u32, count: usize) -> Vec<usize> {
    let mut order: Vec<usize> = (0..count).collect();
    fastrand::Rng::with_seed(seed.wrapping_add(round.into())).shuffle(&mut order);
    order
}

/// The suite for a paper's combination of cipher and MAC.
fn suite(cipher: Cipher, mac: Mac) -> Protection {
    let found = Protection::all().find(|it| it.cipher() == cipher && it.mac() == mac);
    found.expect("there is a suite for each pair of the papers, which tests go through")
}

#[cfg(test)]
mod tests;
