//! Measures keystrokes while bulk data runs on the same tunnel, to show their effect on each other.

use std::time::Instant;

use keypadd_traffic::{Broken, Due, Exchange, Latencies, Path, Requester};

use crate::interleave::{Runs, Workload};
use crate::results::{Section, Table};
use crate::statistics::mean_of_finite;
use crate::workload::bulk::{STEP_BYTES, flood, rate_mbit, streams_beside};
use crate::workload::terminal::{LEAD, Terminal, distributions, quantiles, type_keys};
use crate::workload::{Claims, Figure, Ratio, costs, ratios, samples, verdicts};

/// Typing beside bulk.
#[derive(Clone, Copy, Debug)]
pub struct Mixed {
    /// The typing; bulk runs as long.
    pub terminal: Terminal,
    /// Streams of bulk data from here to the far end.
    pub streams: u32,
}

/// One turn.
#[derive(Clone, Debug)]
pub struct MixedMeasured {
    /// From key to echo.
    pub latencies: Latencies,
    /// Rate of the bulk data, Mbit/s.
    pub mbit: f64,
}

impl Workload for Mixed {
    type Measured = MixedMeasured;

    async fn once(&self, path: &Path, round: u32) -> Result<MixedMeasured, Broken> {
        let requester = Requester::open(path.address()).await?;
        let start = Instant::now() + LEAD;
        let step = Exchange::new(STEP_BYTES, 1);
        let keys = self.terminal.keys(round);
        let (latencies, arrivals) = tokio::try_join!(
            type_keys(requester, keys, start),
            flood(path, self.streams, step, self.terminal.time, start),
        )?;
        Ok(MixedMeasured { latencies, mbit: rate_mbit(&arrivals) })
    }

    fn offered(&self) -> Vec<Due> {
        self.terminal.keys(0)
    }

    fn figures(&self) -> Vec<Figure<MixedMeasured>> {
        vec![Figure {
            of: "A keystroke beside bulk data",
            claims: Claims::Ratio(Ratio { name: "ratio of medians", less_is_better: true }),
            value: Box::new(|measured| measured.latencies.quantile_us(0.5)),
        }]
    }

    fn section(&self, runs: &Runs<MixedMeasured>) -> Section {
        let arms = runs.measured();
        let mut section = Section::of_page(
            "mixed",
            include_str!("mixed.md"),
            &[("typing", &self.terminal.words()), ("streams", &streams_beside(self.streams))],
        );
        let medians = samples(&arms, |measured| measured.latencies.quantile_us(0.5));
        section.verdicts = verdicts(&self.figures(), runs);
        section.notes = runs.notes();
        let rates = samples(&arms, |measured| Some(measured.mbit));
        let rates = Table::of("rates", "Bulk data that arrived meanwhile", "arm", rates)
            .column("rate", "Mbit/s", |samples| mean_of_finite(samples))
            .end();
        section.tables = vec![
            quantiles("latency", "From key to echo", &arms, |measured| &measured.latencies),
            ratios("ratios", "Median over that of the base lines, round by round", &medians),
            rates,
            costs(&arms),
        ];
        section.plots =
            vec![distributions("From key to echo", &arms, |measured| &measured.latencies)];
        section
    }
}
