//! Tests that a report is complete, valid HTML, XML and CSV, and inert whatever text it contains.

use std::collections::HashSet;

use super::*;
use crate::results::{Axis, Cell, Curve, Estimate, Mark, MarkPosition, Outcome, Prediction, Run};
use crate::results::{Plot, Style, Table, Verdict};
use crate::synthetic;

fn content<'a>(files: &'a [File], path: &str) -> &'a str {
    let file = files.iter().find(|file| file.path == path);
    &file.unwrap_or_else(|| panic!("{path} is missing")).contents
}

fn page(results: &Results) -> String {
    content(&files(results), PAGE).to_owned()
}

/// Results whose every text (figure, label, unit) is this one.
fn hostile(text: &str) -> Results {
    let mut results = synthetic::results();
    results.run.title = text.to_owned();
    results.run.command_line = text.to_owned();
    results.run.end_early(text);
    results.run.emulated = vec![text.to_owned()];
    results.machine.cpu = text.to_owned();
    for section in &mut results.sections {
        section.id = text.to_owned();
        section.title = text.to_owned();
        section.question = text.to_owned();
        section.method = vec![text.to_owned()];
        section.notes = vec![text.to_owned()];
        section.verdicts.push(Verdict {
            claim: text.to_owned(),
            rule: text.to_owned(),
            outcome: Outcome::CannotTell,
            because: text.to_owned(),
            beside: None,
        });
        section.predictions.push(Prediction::new(text, text, 1.0, text));
        for table in &mut section.tables {
            table.id = text.to_owned();
            table.title = text.to_owned();
            table.rows_are = text.to_owned();
            table.columns[0].name = text.to_owned();
            table.columns[0].unit = text.to_owned();
            table.rows[0].label = text.to_owned();
            table.rows[0].cells[0] = text.into();
        }
        for plot in &mut section.plots {
            plot.id = text.to_owned();
            plot.title = text.to_owned();
            plot.caption = text.to_owned();
            plot.x = Axis::linear(text, text);
            plot.curves[0].label = text.to_owned();
            plot.marks.push(Mark::at_x(3.0, text));
            plot.marks.push(Mark::at_y(3.0, text));
        }
    }
    results
}

/// Whatever is between `<` and `>`, as an XML parser sees a document without comments.
fn tags(markup: &str) -> Vec<&str> {
    markup.split('<').skip(1).filter_map(|part| part.split('>').next()).collect()
}

#[test]
fn hostile_text_stays_text() {
    let text = "\"><script>alert(1)</script><img src=x onerror=alert(1)>'&amp;\u{1b}[2J\u{0}";
    for file in files(&hostile(text)) {
        if file.path.ends_with(".json") {
            continue;
        }
        assert!(!file.contents.contains(|c: char| c.is_control() && c != '\n'), "{}", file.path);
        if file.path.ends_with(".csv") {
            continue;
        }
        for tag in tags(&file.contents) {
            let name = tag.trim_start_matches('/').split([' ', '\n']).next().unwrap();
            assert!(!matches!(name, "script" | "img" | "iframe" | "object"), "{}", file.path);
            let attributes = tag.replace(|c: char| c.is_whitespace(), " ");
            let outside = attributes.split('"').step_by(2).collect::<String>();
            assert!(!outside.contains("onerror"), "{}: {tag}", file.path);
        }
    }
}

#[test]
fn every_picture_is_xml_whose_elements_end() {
    let results = hostile("<a>&\"'\u{8}");
    for file in files(&results).iter().filter(|file| file.path.ends_with(".svg")) {
        let mut open = Vec::new();
        for tag in tags(&file.contents) {
            let name = tag.split([' ', '\n']).next().unwrap();
            match name.strip_prefix('/') {
                Some(name) => assert_eq!(open.pop(), Some(name), "{}", file.path),
                None => open.push(name),
            }
        }
        assert!(open.is_empty(), "{}: {open:?}", file.path);
    }
}

#[test]
fn csv_round_trips_and_no_cell_is_a_formula() {
    let text = "=1+1,\"quoted\"\nnew line";
    let files = files(&hostile(text));
    let file = files.iter().find(|file| file.path == "csv/verdicts.csv").unwrap();
    let mut reader = csv::Reader::from_reader(file.contents.as_bytes());
    let rows: Vec<_> = reader.records().map(Result::unwrap).collect();
    assert!(rows.iter().any(|row| &row[1] == format!("'{text}").as_str()));
    assert!(rows.iter().all(|row| row.len() == 5));
    for file in files.iter().filter(|file| file.path.ends_with(".csv")) {
        let mut reader = csv::Reader::from_reader(file.contents.as_bytes());
        for field in reader
            .records()
            .flat_map(|row| row.unwrap().iter().map(str::to_owned).collect::<Vec<_>>())
        {
            let formula = field.starts_with(['=', '+', '@', '-']) && field.parse::<f64>().is_err();
            assert!(!formula, "{}: {field}", file.path);
        }
    }
}

#[test]
fn nothing_is_fetched_from_anywhere() {
    // The namespace of a plot's elements is a name; nothing is fetched.
    const NAMESPACE: &str = "xmlns=\"http://www.w3.org/2000/svg\"";
    for file in files(&synthetic::results()) {
        let text = file.contents.replace(NAMESPACE, "");
        for fetched in ["http:", "https:", "//", "url(", "@import", "src=", "<script", "<link"] {
            // A bare double slash is never legitimate in a report.
            assert!(!text.contains(fetched), "{} has {fetched}", file.path);
        }
        let targets = text.split("href=\"").skip(1).filter_map(|rest| rest.split('"').next());
        let known: HashSet<_> =
            files(&synthetic::results()).into_iter().map(|file| file.path).collect();
        for target in targets {
            let below = file.path.starts_with("pages/");
            let target = if below { target.strip_prefix("../").unwrap() } else { target };
            let here =
                target.strip_prefix('#').is_some_and(|id| text.contains(&format!("id=\"{id}\"")));
            assert!(here || known.contains(target), "{} names {target}", file.path);
        }
    }
}

#[test]
fn an_incomplete_run_says_so_on_its_page_and_its_pictures() {
    let mut results = synthetic::results();
    assert!(!page(&results).contains("INCOMPLETE"));
    results.run.end_early("the peer was lost: timed out");
    let files = files(&results);
    let page = content(&files, PAGE);
    let at = page.find("INCOMPLETE: the peer was lost: timed out").unwrap();
    assert!(at < page.find("What came out").unwrap());
    for file in files.iter().filter(|file| file.path.ends_with(".svg")) {
        let words = file.contents.replace("</text>", " ");
        assert!(words.contains("incomplete"), "{}", file.path);
    }
}

#[test]
fn every_table_plot_prediction_and_verdict_has_its_values() {
    let results = synthetic::results();
    let files = files(&results);
    for section in &results.sections {
        for table in &section.tables {
            let values = content(&files, &format!("csv/{}-{}.csv", section.id, table.id));
            assert_eq!(values.lines().count(), table.rows.len() + 1);
        }
        for plot in &section.plots {
            let values = content(&files, &format!("csv/{}-{}.csv", section.id, plot.id));
            let points: usize = plot.curves.iter().map(|curve| curve.points.len()).sum();
            assert_eq!(values.lines().count(), points + plot.marks.len() + 1);
            content(&files, &format!("plots/{}-{}.svg", section.id, plot.id));
        }
    }
    let values = content(&files, "csv/exhaustion-predictions.csv");
    assert_eq!(values.lines().count(), 4);
    assert!(values.contains("5.16,5.02,"), "{values}");
    assert!(content(&files, "csv/bulk-rate.csv").contains("2610,2576.07,2643.93"));
}

#[test]
fn what_is_emulated_is_named_on_every_table_and_picture() {
    let mut results = synthetic::results();
    results.run.emulated = vec!["the whole run".to_owned()];
    let files = files(&results);
    for file in files.iter().filter(|file| file.path != "csv/verdicts.csv") {
        let words = file.contents.replace("</text>", " ");
        assert!(words.contains("the whole run"), "{}", file.path);
        let in_section = file.path.contains("exhaustion");
        assert!(!in_section || words.contains("slowed to 11.7 MB/s"), "{}", file.path);
    }
    let page = content(&files, PAGE);
    let pictures_and_tables = page.matches("<figure>").count();
    assert!(page.matches("the whole run").count() >= pictures_and_tables);
}

#[test]
fn what_is_not_finite_reaches_neither_data_nor_pictures() {
    let mut results = synthetic::results();
    let none = [f64::NAN, f64::INFINITY, f64::NEG_INFINITY];
    for section in &mut results.sections {
        for plot in &mut section.plots {
            for (index, value) in none.into_iter().enumerate() {
                plot.curves[0].points[index + 1][1] = value;
                plot.curves[0].points[index][0] = value;
                if let Some(band) = &mut plot.curves[0].band {
                    band[index] = [value, value];
                }
                plot.marks.push(Mark { at: MarkPosition::X(value), label: "x".to_owned() });
                plot.marks.push(Mark { at: MarkPosition::Y(value), label: "y".to_owned() });
            }
        }
        for table in &mut section.tables {
            for (row, value) in table.rows.iter_mut().zip(none) {
                row.cells[0] = Cell::Figure(Estimate {
                    value,
                    interval: Some([value, value]),
                    samples: vec![value],
                });
            }
        }
        let mut prediction = Prediction::new("p", "", f64::NAN, "");
        prediction.compare(Estimate::single(0.0));
        section.predictions.push(prediction);
        for surface in &mut section.surfaces {
            for (cell, value) in surface.cells[0].iter_mut().flatten().zip(none) {
                *cell = Estimate { value, interval: Some([value, value]), samples: vec![value] };
            }
        }
        for beside in section.verdicts.iter_mut().filter_map(|it| it.beside.as_mut()) {
            beside.paper = beside.paper.map(|_| f64::NAN);
            beside.today = beside.today.as_ref().map(|_| Estimate::single(f64::INFINITY));
        }
    }
    for file in files(&results) {
        let lower = file.contents.to_lowercase();
        let words = lower.split(|c: char| !c.is_ascii_alphanumeric());
        let found: Vec<_> =
            words.filter(|word| matches!(*word, "nan" | "inf" | "infinity")).collect();
        assert!(found.is_empty(), "{}", file.path);
    }
    let read = Results::from_json(&results.to_json()).unwrap();
    assert_eq!(read.sections.len(), results.sections.len());
}

#[test]
fn an_empty_run_still_makes_a_page() {
    let mut results = Results::new(Run::begin("keypadd bench", "", 0), Default::default());
    let empty = page(&results);
    assert!(empty.contains("Nothing has been measured.") && empty.ends_with("</html>"));

    let mut section = Section::new("", "", "");
    section.plots.push(Plot::new("", "", Axis::log("", ""), Axis::linear("", "")));
    let mut plot = Plot::new("", "", Axis::log("", ""), Axis::linear("", ""));
    plot.curves.push(Curve::new("", Style::Points, vec![[-1.0, 0.0]]));
    section.plots.push(plot);
    section.tables.push(Table::new("", "", ""));
    let mut table = Table::new("", "", "").column("a", "").column("b", "");
    table.push("a row without cells", vec![]);
    section.tables.push(table);
    results.sections.push(section);
    assert!(page(&results).contains("nothing was measured"));
}

#[test]
fn no_two_files_have_one_name_and_no_name_leaves_its_folder() {
    let mut results = synthetic::results();
    for id in ["../../etc/x", "", "A B", "a-b", "verdicts", "predictions"] {
        let mut section = Section::new(id, "t", "q");
        for _ in 0..2 {
            let mut table = Table::new(id, "t", "r").column("c", "");
            table.push("a", vec![1.0.into()]);
            section.tables.push(table);
            section.plots.push(Plot::new(id, "t", Axis::linear("", ""), Axis::linear("", "")));
        }
        results.sections.push(section);
    }
    let paths: Vec<_> = files(&results).into_iter().map(|file| file.path).collect();
    let distinct: HashSet<_> = paths.iter().map(|path| path.to_lowercase()).collect();
    assert_eq!(distinct.len(), paths.len());
    assert!(paths.iter().all(|path| !path.contains("..") && path.matches('/').count() <= 1));
}

#[test]
fn a_label_has_one_color_in_all_pictures_of_a_section() {
    let mut results = synthetic::results();
    let section = &mut results.sections[0];
    let mut second = section.plots[0].clone();
    second.id = "second".to_owned();
    second.curves.reverse();
    section.plots.push(second);
    let files = files(&results);
    let color = |path: &str, label: &str| {
        let (before, _) = content(&files, path).rsplit_once(&format!("<title>{label}")).unwrap();
        let (_, class) = before.rsplit_once("<g class=\"").unwrap();
        class[..2].to_owned()
    };
    for curve in &results.sections[0].plots[0].curves {
        let label = &curve.label;
        assert_eq!(
            color("plots/terminal-round-trips.svg", label),
            color("plots/terminal-second.svg", label)
        );
    }
}

/// For eyes: `KEYPADD_MADE_UP_REPORT=DIR cargo test -p keypadd-measure --lib synthetic --
/// --ignored`, of the results in `KEYPADD_RESULTS` if that names a file.
#[test]
#[ignore = "writes a report for a person to look at"]
fn a_synthetic_report_is_written_for_inspection() {
    let directory = std::env::var_os("KEYPADD_MADE_UP_REPORT").expect("names a directory");
    let results = std::env::var_os("KEYPADD_RESULTS").map_or_else(synthetic::results, |file| {
        Results::from_json(&std::fs::read_to_string(file).unwrap()).unwrap()
    });
    crate::output::Output::create(directory.as_ref()).unwrap().save(&results).unwrap();
}
