//! Opens the output directory, saves a run's results after each round, prints them at the end, resumes a
//! stopped run, and shows progress.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::{Duration, Instant};

use console::Term;
use keypadd_cli::error::{Error, Exit, system};
use keypadd_cli::results::print;
use keypadd_cli::shutdown::Shutdown;
use keypadd_measure::machine::Machine;
use keypadd_measure::output::{Output, OutputError};
use keypadd_measure::results::{Results, Run, Section, SectionRun};
use keypadd_measure::text;
use keypadd_measure::{OnProgress, Progress};
use keypadd_papers::{Effort, Notebook};

use crate::cli::ReportFlags;

/// Columns of tables that are not printed on a terminal.
const WIDTH: usize = 100;

/// A run's results and where they go.
#[derive(Debug)]
pub(crate) struct Keeping {
    results: Results,
    output: Option<Output>,
    json: bool,
}

impl Keeping {
    /// Begins a run. `emulated` is what is not as it is in use.
    ///
    /// # Errors
    /// Exit 2: the directory does not take a report.
    pub(crate) fn begin(
        title: &str,
        flags: &ReportFlags,
        emulated: Vec<String>,
    ) -> Result<Self, Error> {
        let run = Run { emulated, ..Run::begin(title, &command_line(), flags.seed) };
        Self::new(run, flags, Output::create)
    }

    /// Begins a run, or goes on with one.
    ///
    /// # Errors
    /// Exit 2: the directory does not take a report.
    pub(crate) fn resume(title: &str, flags: &ReportFlags) -> Result<Self, Error> {
        Self::new(Run::begin(title, &command_line(), flags.seed), flags, Output::resume)
    }

    fn new(
        run: Run,
        flags: &ReportFlags,
        open: fn(&Path) -> Result<Output, OutputError>,
    ) -> Result<Self, Error> {
        let output = flags.out.as_deref().map(open).transpose();
        let output = output.map_err(|error| output_error(&error))?;
        Ok(Self { results: Results::new(run, Machine::read()), output, json: flags.json })
    }

    /// What was measured in the directory before, by a run of this seed and effort.
    ///
    /// # Errors
    /// Exit 2: it was another run.
    pub(crate) fn notebook(&self, effort: Effort) -> Result<Notebook<'_>, Error> {
        let Results { run, machine, .. } = &self.results;
        Notebook::open(self.output.as_ref(), effort, run.seed, machine).map_err(|error| {
            Error::new(Exit::Usage, format!("--out: {error}"))
                .hint("name another directory, or use the flags of that run")
        })
    }

    /// Says when the first part of a run was begun that goes on.
    pub(crate) fn started(&mut self, at: String) {
        self.results.run.started = at;
    }

    /// Where progress is shown.
    pub(crate) fn meter(&self) -> Meter {
        Meter { term: Term::stderr(), said: std::sync::Mutex::new(Instant::now()) }
    }

    /// Saves what there is so far, where there is a place for it. If that fails it is tried again at the
    /// end, and told of then.
    pub(crate) fn save_so_far(&self, section: impl FnOnce() -> Section) {
        if self.output.is_some() {
            self.save_sections_so_far(vec![section()]);
        }
    }

    /// Saves what there is so far of several sections, as `save_so_far` does.
    pub(crate) fn save_sections_so_far(&self, sections: Vec<Section>) {
        if let Some(output) = &self.output {
            let _ = output.save(&Results { sections, ..self.results.clone() });
        }
    }

    fn save(&self) -> Result<(), Error> {
        let saved = self.output.as_ref().map_or(Ok(()), |output| output.save(&self.results));
        saved.map_err(|error| Error::new(Exit::Runtime, format!("--out: {error}")))
    }

    /// Measures on a thread of its own until that ends or a shutdown is asked for, and saves and
    /// prints what there is.
    ///
    /// # Errors
    /// Exit 1: those of [`Self::end`], or the measurement panicked.
    pub(crate) async fn measure_blocking(
        self,
        shutdown: Shutdown,
        measure: impl FnOnce(OnProgress<'_>, &dyn Fn(&Section), &AtomicBool) -> SectionRun
        + Send
        + 'static,
    ) -> Result<(), Error> {
        let stop = Arc::new(AtomicBool::new(false));
        let stopped = Arc::clone(&stop);
        tokio::spawn(async move {
            shutdown.requested().await;
            stopped.store(true, Relaxed);
        });
        let measuring = tokio::task::spawn_blocking(move || {
            let meter = self.meter();
            let tell = |progress: &Progress| meter.show(progress);
            let keep = |section: &Section| self.save_so_far(|| section.clone());
            let run = measure(&tell, &keep, &stop);
            (self, run)
        });
        let panicked = |_| Error::new(Exit::Runtime, "bench: the measurement thread panicked");
        let (keeping, run) = measuring.await.map_err(panicked)?;
        keeping.end(vec![run.section], run.ended_by.as_deref())
    }

    /// Saves and prints what there is in the end. `ended_by` says why it is not all.
    ///
    /// # Errors
    /// Exit 1: a file or standard output cannot be written, or the run ended early on a fault.
    pub(crate) fn end(
        mut self,
        sections: Vec<Section>,
        ended_by: Option<&str>,
    ) -> Result<(), Error> {
        let term = Term::stderr();
        if term.is_term() {
            let _ = term.clear_line();
        }
        match ended_by {
            Some(why) => self.results.run.end_early(why),
            None => self.results.run.end(),
        }
        self.results.sections = sections;
        let saved = self.save();
        let text = match self.json {
            true => self.results.to_json(),
            false => text::write(&self.results, width()),
        };
        print(text.as_bytes())?;
        saved?;
        if let Some(output) = &self.output {
            eprintln!("report: {}", output.page().display());
        }
        match ended_by {
            Some(why) if why != keypadd_measure::INTERRUPTED => {
                Err(Error::new(Exit::Runtime, format!("bench: {why}"))
                    .hint("results so far are printed and saved"))
            }
            _ => Ok(()),
        }
    }
}

fn output_error(error: &OutputError) -> Error {
    let cause = match error {
        OutputError::Unwritable { directory, cause } => {
            format!("cannot write to {}: {}", directory.display(), system(cause))
        }
        other => other.to_string(),
    };
    Error::new(Exit::Usage, format!("--out: {cause}")).hint(error.hint())
}

fn width() -> usize {
    let term = Term::stdout();
    if term.is_term() { usize::from(term.size().1) } else { WIDTH }
}

/// What was typed, as a shell would take it again.
fn command_line() -> String {
    let word = |word: String| {
        let plain = |c: char| c.is_ascii_alphanumeric() || "-_=+/.,:@[]%".contains(c);
        match !word.is_empty() && word.chars().all(plain) {
            true => word,
            false => format!("'{}'", word.replace('\'', r"'\''")),
        }
    };
    let arguments = std::env::args_os().skip(1).map(|it| word(it.to_string_lossy().into_owned()));
    std::iter::once("keypadd bench".to_owned()).chain(arguments).collect::<Vec<_>>().join(" ")
}

/// One line on standard error that says what is going on: drawn again in place on a terminal, a line now
/// and then elsewhere.
#[derive(Debug)]
pub(crate) struct Meter {
    term: Term,
    said: std::sync::Mutex<Instant>,
}

/// How often a line is written where none can be drawn again.
const LINE_EVERY: Duration = Duration::from_secs(30);

impl Meter {
    pub(crate) fn show(&self, progress: &Progress) {
        let line = progress.to_string();
        if self.term.is_term() {
            let width = usize::from(self.term.size().1).saturating_sub(1);
            let _ = self.term.clear_line();
            let _ = self.term.write_str(&console::truncate_str(&line, width, ""));
        } else if let Ok(mut said) = self.said.lock()
            && said.elapsed() >= LINE_EVERY
        {
            *said = Instant::now();
            let _ = self.term.write_line(&line);
        }
    }
}
