//! Renders `report.html`: the summary, then a section for each experiment; long ones get pages of
//! their own.

use maud::DOCTYPE;
use maud::Markup;
use maud::PreEscaped;
use maud::html;

use super::names::{Names, SectionNames, VERDICTS, address, class};
use super::palette::Palette;
use super::plot;
use super::sheet::Size;
use super::{DATA, PAGE, PLOT_STYLE, PLOTS, RATIOS_CAPTION, RESULTS};
use super::{claims, ratios, surface, table};
use crate::machine::Machine;
use crate::results::{Outcome, Results, Run, Section, Verdict};
use crate::text;

const PAGE_STYLE: &str = include_str!("page.css");

/// The front page, with all sections that have no separate page.
pub(super) fn page(results: &Results, names: &Names) -> Markup {
    let run = &results.run;
    let body = html! {
        (summary(results, names))
        @for (section, names) in results.sections.iter().zip(&names.sections) {
            @if !section.own_page { (experiment(section, run, names, "")) }
        }
        (origin(run, &results.machine))
    };
    let footer = html! {
        p {
            "Made from " a href=(RESULTS) { (RESULTS) } " alone. Beside it stand " code { (PLOTS) "/" }
            " with every picture and " code { (DATA) "/" } " with every table and curve."
        }
    };
    document(run, &run.title, &html! {}, &body, &footer)
}

/// A section's own page.
pub(super) fn own_page(results: &Results, section: &Section, names: &SectionNames) -> Markup {
    let front = format!("{UP}{PAGE}");
    let back = html! { p { a href=(front) { "All claims, the run and the machine" } } };
    let title = format!("{}: {}", results.run.title, section.title);
    document(&results.run, &title, &back, &experiment(section, &results.run, names, UP), &back)
}

/// Path from a section's page to the directory of the report.
const UP: &str = "../";

fn document(run: &Run, title: &str, head: &Markup, main: &Markup, footer: &Markup) -> Markup {
    html! {
        (DOCTYPE)
        html lang="en" {
            head {
                meta charset="utf-8";
                meta name="viewport" content="width=device-width, initial-scale=1";
                meta name="color-scheme" content="light dark";
                meta name="generator" content={ "keypadd " (run.version) };
                title { (title) }
                style { (PreEscaped(PLOT_STYLE)) (PreEscaped(PAGE_STYLE)) }
            }
            body {
                header {
                    h1 { (run.title) }
                    p class="when" { (when(run)) }
                    (head)
                    @if let Some(ending) = text::ending(run) {
                        p class="incomplete" role="status" { (ending) }
                    }
                    @if !run.emulated.is_empty() {
                        p class="emulated" { "Emulated: " (run.emulated.join("; ")) }
                    }
                }
                main { (main) }
                footer { (footer) }
            }
        }
    }
}

/// `21 November`, from RFC 3339, without letters that only machines need.
fn when(run: &Run) -> String {
    let plain = |time: &str| time.replace('T', " ").replace('Z', " UTC");
    let ended = run.ended.as_deref().map_or_else(String::new, |ended| {
        // Print the day only once.
        let same_day = ended.split('T').next() == run.started.split('T').next();
        let ended = if same_day { ended.split('T').nth(1).unwrap_or(ended) } else { ended };
        format!(" to {}", plain(ended))
    });
    let started = plain(&run.started);
    let started = if ended.is_empty() { started } else { started.replace(" UTC", "") };
    format!("{started}{ended}, keypadd {}, seed {}", run.version, run.seed)
}

fn summary(results: &Results, names: &Names) -> Markup {
    let verdicts = || results.sections.iter().flat_map(|section| &section.verdicts);
    let count = |outcome| verdicts().filter(|verdict| verdict.outcome == outcome).count();
    let counts: Vec<_> = Outcome::ALL
        .map(|outcome| (outcome, count(outcome)))
        .into_iter()
        .filter(|(_, count)| *count > 0)
        .collect();
    html! {
        section class="summary" {
            h2 { "What came out" }
            @if results.sections.is_empty() {
                p { "Nothing has been measured." }
            } @else if counts.is_empty() {
                p { "Nothing was judged in this run: the figures stand below." }
            } @else {
                p class="counts" {
                    @for (outcome, count) in counts {
                        span class={ "outcome " (class(outcome)) } { (count) " " (counted(outcome, count)) }
                        " "
                    }
                }
                // With a single experiment they stand right below.
                @for (section, names) in results.sections.iter().zip(&names.sections) {
                    @if claims::has_any(section) {
                        (claims::table(section, names))
                    } @else if results.sections.len() > 1 && !section.verdicts.is_empty() {
                        h3 { a href=(address(section, names)) { (section.title) } }
                        (judged(&section.verdicts))
                    }
                }
            }
            // Judged sections are linked above.
            @if results.sections.iter().any(|section| section.verdicts.is_empty()) {
                nav aria-label="Experiments" {
                    @for (section, names) in results.sections.iter().zip(&names.sections) {
                        a href=(address(section, names)) { (section.title) }
                        " "
                    }
                }
            }
            p class="facts" { (results.machine.cpu_and_cores()) }
        }
    }
}

fn counted(outcome: Outcome, count: usize) -> &'static str {
    match (outcome, count) {
        (Outcome::Holds, 1) => "claim holds",
        (Outcome::Holds, _) => "claims hold",
        (Outcome::DoesNotHold, 1) => "does not hold",
        (Outcome::DoesNotHold, _) => "do not hold",
        (Outcome::CannotTell, _) => "inconclusive",
        (Outcome::CannotCompare, _) => "not testable here",
        (Outcome::NotRun, 1) => "was not run",
        (Outcome::NotRun, _) => "were not run",
    }
}

fn judged(verdicts: &[Verdict]) -> Markup {
    html! {
        ul class="verdicts" {
            @for verdict in verdicts {
                li {
                    span class={ "outcome " (class(verdict.outcome)) } { (verdict.outcome.name()) }
                    div {
                        p class="claim" { (verdict.claim) }
                        @if let Some(beside) = &verdict.beside { p { (text::of_paper(beside)) } }
                        p { (verdict.because) }
                        p class="rule" { "Rule: " (verdict.rule) }
                    }
                }
            }
        }
    }
}

/// `home` is the path from the current page to the directory of the report.
fn experiment(section: &Section, run: &Run, names: &SectionNames, home: &str) -> Markup {
    let emulated = text::emulated(run, section);
    let emulated = emulated.as_deref();
    let context = SectionContext { emulated, home };
    let palette = Palette::of(&section.plots);
    let predictions = text::predictions(&section.predictions);
    html! {
        section id=(names.anchor) {
            h2 { (section.title) }
            p class="question" { (section.question) }
            @for paragraph in &section.method { p { (paragraph) } }
            @if let Some(emulated) = emulated { p class="emulated" { (emulated) } }
            @if !section.verdicts.is_empty() { (judged(&section.verdicts)) }
            @if ratios::has_any(&section.verdicts) {
                (picture("The paper's ratios and today's", RATIOS_CAPTION, &names.ratios, &context, |size| {
                    ratios::draw(&section.verdicts, size, None)
                }))
            }
            @for (content, name) in section.surfaces.iter().zip(&names.surfaces) {
                (picture(&content.title, &content.caption, name, &context, |size| {
                    surface::draw(content, size, None)
                }))
            }
            @for (content, name) in section.plots.iter().zip(&names.plots) {
                (picture(&content.title, &content.words(), name, &context, |size| {
                    plot::draw(content, &palette, size, None)
                }))
            }
            @if let Some(predictions) = predictions {
                figure {
                    figcaption { h3 { (predictions.title) } }
                    (table::table(&predictions))
                    (caption("", &context, &[(DATA, &names.predictions, "csv")]))
                }
                details open {
                    summary { "What the predictions were made from" }
                    dl {
                        @for prediction in &section.predictions {
                            dt { (prediction.name) }
                            dd { (prediction.from) }
                        }
                    }
                }
            }
            @for (content, name) in section.tables.iter().zip(&names.tables) {
                figure {
                    figcaption { h3 { (content.title) } }
                    (table::table(content))
                    (caption("", &context, &[(DATA, name, "csv")]))
                }
            }
            @if !section.notes.is_empty() {
                h3 { "Notes" }
                ul class="notes" { @for note in &section.notes { li { (note) } } }
            }
        }
    }
}

/// What all plots and tables of a section show below them.
struct SectionContext<'a> {
    emulated: Option<&'a str>,
    /// Path to the directory of the report.
    home: &'a str,
}

/// A plot twice, for a desktop and for a phone; the style shows one of them.
fn picture(
    title: &str,
    words: &str,
    name: &str,
    context: &SectionContext,
    draw: impl Fn(Size) -> Markup,
) -> Markup {
    let files = [(PLOTS, name, "svg"), (DATA, name, "csv")];
    html! {
        figure {
            figcaption { h3 { (title) } }
            (draw(Size::Wide))
            (draw(Size::Narrow))
            (caption(words, context, &files))
        }
    }
}

/// The caption of a plot or table, with emulations and links to its files.
fn caption(words: &str, context: &SectionContext, files: &[(&str, &str, &str)]) -> Markup {
    html! {
        p class="caption" {
            @if !words.is_empty() { (words) " " }
            @if let Some(emulated) = context.emulated { span class="emulated" { (emulated) } " " }
            span class="files" {
                @for (folder, name, ending) in files {
                    a href={ (context.home) (folder) "/" (name) "." (ending) } { (ending.to_uppercase()) }
                    " "
                }
            }
        }
    }
}

/// What a reader needs to repeat or compare the run.
fn origin(run: &Run, machine: &Machine) -> Markup {
    html! {
        section {
            h2 { "Run and machine" }
            dl class="origin" {
                dt { "Command line" } dd { code { (run.command_line) } }
                dt { "Version, seed" } dd { "keypadd " (run.version) ", " (run.seed) }
                dt { "Started, ended" }
                dd { (run.started) ", " (run.ended.as_deref().unwrap_or("not ended")) }
                @for (name, value) in machine.facts() { dt { (name) } dd { (value) } }
                dt { "Verdicts as data" } dd { a href={ (DATA) "/" (VERDICTS) ".csv" } { (VERDICTS) ".csv" } }
            }
        }
    }
}
