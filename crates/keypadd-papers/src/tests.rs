//! Tests how a reproduction records its parts, resumes and stops.

use std::sync::atomic::{AtomicU32, Ordering::Relaxed};

use keypadd_measure::machine::Machine;
use keypadd_measure::output::Output;
use keypadd_measure::results::{Outcome, Results, Run};

use super::lab::{Missed, Part};
use super::*;

const RUN: Reproduction =
    Reproduction { papers: Vec::new(), effort: Effort::Quick, seed: 7, time: None };
const PAPER: Paper = Paper::Praptodiyono;

fn directory() -> tempfile::TempDir {
    tempfile::tempdir().unwrap()
}

/// Opens a directory as the command does: with a report in it from the start.
fn take(directory: &tempfile::TempDir) -> Output {
    let output = Output::resume(directory.path()).unwrap();
    output.save(&Results::new(Run::begin("a test", "none", 7), Machine::default())).unwrap();
    output
}

fn open(output: &Output, effort: Effort, seed: u64) -> Result<Notebook<'_>, OtherRun> {
    Notebook::open(Some(output), effort, seed, &Machine::default())
}

/// Measures a part, and counts how often.
async fn measure(notebook: &Notebook<'_>, measured: &AtomicU32, end: Option<Instant>) -> Part<f64> {
    let lab = Lab::measuring(notebook, PAPER, &RUN, &|_| (), end);
    let work = async || {
        measured.fetch_add(1, Relaxed);
        Ok(1.5)
    };
    lab.part("a part", work).await
}

#[tokio::test]
async fn what_is_recorded_is_not_measured_again_by_a_later_run() {
    let (root, measured) = (directory(), AtomicU32::new(0));
    for _ in 0..2 {
        let output = take(&root);
        let notebook = open(&output, Effort::Quick, 7).unwrap();
        assert_eq!(measure(&notebook, &measured, None).await, Ok(1.5));
    }
    assert_eq!(measured.load(Relaxed), 1);
}

#[tokio::test]
async fn a_part_that_failed_or_came_too_late_says_why_and_is_tried_again_by_a_later_run() {
    let (root, measured) = (directory(), AtomicU32::new(0));
    {
        let output = take(&root);
        let notebook = open(&output, Effort::Quick, 7).unwrap();
        let late = measure(&notebook, &measured, Some(Instant::now())).await;
        assert_eq!(late, Err(Missed::OutOfTime));
        let lab = Lab::measuring(&notebook, PAPER, &RUN, &|_| (), None);
        let failed = Missed::Failed("no port".into());
        let part: Part<f64> = lab.part("another", async || Err(failed.clone())).await;
        assert_eq!(part, Err(failed.clone()));
        // Pages are built from what there is, and say why the rest is missing.
        let lab = Lab::reading(&notebook, PAPER, &RUN, &|_| ());
        let never = async || unreachable!("pages measure nothing");
        assert_eq!(lab.part::<f64>("a part", never).await, Err(Missed::OutOfTime));
        assert_eq!(lab.part::<f64>("another", never).await, Err(failed));
        assert_eq!(lab.part::<f64>("a third", never).await, Err(Missed::NotReached));
    }
    let output = take(&root);
    let notebook = open(&output, Effort::Quick, 7).unwrap();
    assert_eq!(measure(&notebook, &measured, None).await, Ok(1.5));
}

#[tokio::test]
async fn work_that_outlasts_its_time_is_cut_off() {
    let root = directory();
    let output = take(&root);
    let notebook = open(&output, Effort::Quick, 7).unwrap();
    let soon = Instant::now() + Duration::from_millis(20);
    let lab = Lab::measuring(&notebook, PAPER, &RUN, &|_| (), Some(soon));
    let part: Part<f64> = lab.part("endless", std::future::pending).await;
    assert_eq!(part, Err(Missed::OutOfTime));
}

#[tokio::test]
async fn figures_of_another_seed_effort_or_machine_are_refused_in_one_line() {
    let root = directory();
    let output = take(&root);
    let notebook = open(&output, Effort::Quick, 7).unwrap();
    measure(&notebook, &AtomicU32::new(0), None).await.unwrap();
    let other = Machine { cpu: "another".into(), ..Machine::default() };
    let others = [
        (open(&output, Effort::Quick, 8), "seed"),
        (open(&output, Effort::Full, 7), "effort"),
        (Notebook::open(Some(&output), Effort::Quick, 7, &other), "another"),
    ];
    for (opened, why) in others {
        let refused = opened.unwrap_err().to_string();
        assert!(refused.contains(why) && !refused.contains('\n'), "{refused}");
    }
}

#[test]
fn another_report_does_not_overwrite_a_reproduction() {
    let root = directory();
    let output = take(&root);
    output.save_notebook("{}").unwrap();
    drop(output);
    let refused = Output::create(root.path()).unwrap_err().to_string();
    assert!(refused.contains("measured.json"), "{refused}");
    std::fs::write(root.path().join("measured.json"), "no JSON").unwrap();
    let output = Output::resume(root.path()).unwrap();
    let refused = open(&output, Effort::Quick, 7).unwrap_err().to_string();
    assert!(refused.contains("measured.json"), "{refused}");
}

#[tokio::test]
async fn a_run_that_is_stopped_has_a_page_that_says_what_was_not_run() {
    let notebook = Notebook::open(None, Effort::Quick, 7, &Machine::default()).unwrap();
    let run = Reproduction { papers: Paper::ALL.to_vec(), ..RUN };
    let ran = run.run(&notebook, &|_| (), &|_| (), std::future::ready(())).await;
    assert_eq!(ran.ended_by.as_deref(), Some(INTERRUPTED));
    assert_eq!(ran.sections.len(), Paper::ALL.len());
    for section in &ran.sections {
        assert!(!section.verdicts.is_empty(), "{}", section.id);
        for verdict in &section.verdicts {
            let beside = verdict.beside.as_ref().unwrap();
            assert!(!beside.name.is_empty() && beside.today.is_none(), "{}", verdict.claim);
            let is_testable = !matches!(&*beside.name, "C6" | "C7" | "C11");
            let outcome = if is_testable { Outcome::NotRun } else { Outcome::CannotCompare };
            assert_eq!(verdict.outcome, outcome, "{}", verdict.claim);
        }
    }
}

#[test]
fn all_quick_runs_together_take_less_than_five_minutes() {
    let together: Duration = Paper::ALL.into_iter().map(Paper::quick_time).sum();
    assert!(together <= Duration::from_secs(285), "{together:?}");
}
