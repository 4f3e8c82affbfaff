//! Renders the summary of the papers: each claim with the paper's ratio, today's, whether its
//! direction and size are the paper's, and the verdict.

use maud::Markup;
use maud::html;

use super::names::{SectionNames, address, class};
use crate::agreement::Agreement;
use crate::figure;
use crate::results::{PaperComparison, Section, Verdict};

/// Whether a section's verdicts are those of a paper.
pub(super) fn has_any(section: &Section) -> bool {
    section.verdicts.iter().any(|verdict| verdict.beside.is_some())
}

/// The claims of one paper; the heading links to its page.
pub(super) fn table(section: &Section, names: &SectionNames) -> Markup {
    let claims = || section.verdicts.iter().filter_map(|it| Some((it, it.beside.as_ref()?)));
    html! {
        h3 { a href=(address(section, names)) { (section.title) } }
        p class="question" { (section.question) }
        table class="claims" {
            thead {
                tr {
                    th scope="col" { "claim" }
                    th scope="col" { "ratio" }
                    th scope="col" class="figure" { "paper" }
                    th scope="col" class="figure" { "today" }
                    th scope="col" title="whether the whole interval is on the paper's side of 1" { "direction" }
                    th scope="col" title="alike: from half to twice the paper's effect" { "size" }
                    th scope="col" { "verdict" }
                }
            }
            tbody { @for (verdict, beside) in claims() { (row(verdict, beside)) } }
        }
    }
}

fn row(verdict: &Verdict, beside: &PaperComparison) -> Markup {
    let paper = beside.paper.map(figure::brief);
    let today = beside.today.as_ref().map(figure::write);
    let missing = || figure::NONE.to_owned();
    let Agreement { direction, size } = Agreement::of(beside);
    html! {
        tr {
            th scope="row" { span class="name" { (beside.name) } " " (verdict.claim) }
            td class="of" { (beside.ratio) }
            td class="figure" data-is="paper" title=(beside.source) { (paper.unwrap_or_else(missing)) }
            td class="figure" data-is="today" title=(verdict.because) { (today.unwrap_or_else(missing)) }
            td { (direction) }
            td { (size) }
            td { span class={ "outcome " (class(verdict.outcome)) } { (verdict.outcome.name()) } }
        }
    }
}
