//! Tests that results survive JSON, and how errors and bands are derived.

use super::*;
use crate::synthetic;

#[test]
fn results_come_back_from_json_as_they_were() {
    let mut results = synthetic::results();
    results.run.end_early("Ctrl-C");
    assert_eq!(Results::from_json(&results.to_json()).unwrap(), results);
}

#[test]
fn an_error_is_in_percent_of_what_was_measured() {
    let mut prediction = Prediction::new("T*", "s", 2.5, "B* / rate");
    prediction.compare(Estimate::single(1.25));
    assert_eq!(prediction.error_percent, Some(100.0));
}

#[test]
fn a_curve_has_a_band_only_if_every_point_has_an_interval() {
    let sure = Estimate { interval: Some([1.0, 2.0]), ..Estimate::single(1.5) };
    let unsure = Estimate::single(1.5);
    let with = Curve::of_estimates("", Style::Line, [(0.0, sure.clone())]);
    assert_eq!(with.band, Some(vec![[1.0, 2.0]]));
    let without = Curve::of_estimates("", Style::Line, [(0.0, sure), (1.0, unsure)]);
    assert_eq!(without.band, None);
}

#[test]
fn what_is_not_finite_is_null_in_json_and_nan_when_read() {
    let mut results = synthetic::results();
    let tables = results.sections[0].tables.clone();
    let section = results.sections.iter_mut().find(|it| it.id == "exhaustion").unwrap();
    section.tables = tables;
    section.tables[0].rows[0].cells[0] = Cell::Figure(Estimate {
        value: f64::NAN,
        interval: Some([f64::NEG_INFINITY, 2.0]),
        samples: vec![f64::INFINITY],
    });
    section.plots[0].curves[0].points[1][1] = f64::NAN;
    section.plots[0].marks[0].at = MarkPosition::X(f64::INFINITY);
    section.predictions[0].predicted = f64::NAN;
    section.predictions[0].error_percent = Some(f64::NAN);

    let json = results.to_json();
    let read = Results::from_json(&json).unwrap();
    let read = read.sections.iter().find(|it| it.id == "exhaustion").unwrap();
    let Cell::Figure(estimate) = &read.tables[0].rows[0].cells[0] else {
        panic!("a figure came back as something else")
    };
    assert!(estimate.value.is_nan());
    let [low, high] = estimate.interval.unwrap();
    assert!(low.is_nan() && high == 2.0);
    assert!(estimate.samples[0].is_nan());
    assert!(read.plots[0].curves[0].points[1][1].is_nan());
    assert!(read.predictions[0].predicted.is_nan());
}

#[test]
fn a_plot_with_a_gap_says_what_gaps_are_and_one_without_does_not() {
    let words = |y: Axis, points: &[[f64; 2]]| {
        let mut plot = Plot::new("a", "A", Axis::linear("time", "s"), y);
        plot.caption = "As it is.".into();
        plot.curves.push(Curve::new("one", Style::Line, points.to_vec()));
        plot.words()
    };
    assert_eq!(words(Axis::log("rate", ""), &[[0.0, 1.0], [1.0, 2.0]]), "As it is.");
    let gap = words(Axis::linear("rate", ""), &[[0.0, 0.0], [1.0, f64::NAN]]);
    assert_eq!(gap, "As it is. In gaps nothing was measured.");
    assert!(words(Axis::log("rate", ""), &[[0.0, 0.0]]).contains("it was 0"));
}
