//! Draws one curve within its axes: band, line, points, and its sample in the legend.
//!
//! Non-finite values are gaps. Points that would move the line by less than half a pixel are
//! dropped, so a curve of a hundred thousand points stays a small file.

use std::fmt::Write;

use maud::Markup;
use maud::html;

use super::frame::Frame;
use super::palette::Palette;
use super::sheet::round;
use crate::results::{Curve, Style};

/// Curves with up to this many points mark each of them.
const POINTS_SHOWN: usize = 24;

/// Points closer than this, in pixels, look like one.
const APART: f64 = 0.5;

/// Maximum distance between positions of a trace, in pixels.
const TRACE: f64 = 6.0;

/// The band between both ends of the intervals, or whiskers.
pub(super) fn band(curve: &Curve, palette: &Palette, frame: &Frame) -> Markup {
    let Some(band) = &curve.band else {
        return html! {};
    };
    let ends: Vec<Option<[f64; 3]>> = curve
        .points
        .iter()
        .zip(band)
        .map(|(point, [low, high])| {
            let [x, _] = frame.point(*point)?;
            // A non-finite end extends to the edge of the plot.
            let low = frame.level(frame.y.place_end(*low, true));
            let high = frame.level(frame.y.place_end(*high, false));
            Some([x, low, high])
        })
        .collect();
    let mut path = String::new();
    if curve.style == Style::Points {
        for [x, low, high] in ends.iter().flatten() {
            let (x, low, high) = (round(*x), round(*low), round(*high));
            let (left, right) = (round(x - 4.0), round(x + 4.0));
            // Writing to a String cannot fail.
            let _ = write!(path, "M{left},{low}H{right}M{x},{low}V{high}M{left},{high}H{right}");
        }
        return html! {
            g class=(palette.color(&curve.label)) { path class="whisker" d=(path) {} }
        };
    }
    for run in ends.split(Option::is_none) {
        let side = |of: fn(&[f64; 3]) -> [f64; 2]| {
            let side: Vec<_> = run.iter().flatten().map(of).collect();
            thinned(&if curve.style == Style::Steps { stepped(&side) } else { side })
        };
        let upper = side(|[x, _, high]| [*x, *high]);
        let lower = side(|[x, low, _]| [*x, *low]);
        if upper.len() > 1 || lower.len() > 1 {
            let around: Vec<_> = upper.into_iter().chain(lower.into_iter().rev()).collect();
            path.push_str(&drawn(&around));
            path.push('Z');
        }
    }
    html! {
        g class=(palette.color(&curve.label)) { path class="band" d=(path) {} }
    }
}

/// The line and, if there are few, its points.
pub(super) fn line(curve: &Curve, palette: &Palette, frame: &Frame) -> Markup {
    let places: Vec<_> = curve.points.iter().map(|point| frame.point(*point)).collect();
    let mut path = String::new();
    if curve.style != Style::Points {
        for run in places.split(Option::is_none) {
            let run: Vec<_> = run.iter().flatten().copied().collect();
            let run = if curve.style == Style::Steps { stepped(&run) } else { run };
            path.push_str(&drawn(&thinned(&run)));
        }
    }
    let few = curve.style != Style::Steps && places.len() <= POINTS_SHOWN;
    let dots: Vec<_> = if few || curve.style == Style::Points {
        thinned(&places.iter().flatten().copied().collect::<Vec<_>>())
    } else {
        Vec::new()
    };
    html! {
        g class=(palette.color(&curve.label)) {
            title { (curve.label) }
            @if !path.is_empty() {
                path class={ "curve " (palette.dashes(&curve.label)) } d=(path) {}
            }
            @for [x, y] in dots { (dot(palette.shape(&curve.label), x, y)) }
        }
    }
}

/// Positions covered by a curve, close enough together to detect overlap.
pub(super) fn trace(curve: &Curve, frame: &Frame) -> Vec<[f64; 2]> {
    let places: Vec<_> = curve.points.iter().map(|point| frame.point(*point)).collect();
    let ends = curve.points.iter().zip(curve.band.iter().flatten());
    let ends = ends.flat_map(|([x, _], band)| band.map(|end| frame.point([*x, end])));
    let mut traced: Vec<_> = ends.flatten().collect();
    for run in places.split(Option::is_none) {
        let run: Vec<_> = run.iter().flatten().copied().collect();
        let run = if curve.style == Style::Steps { stepped(&run) } else { run };
        let run = thinned(&run);
        traced.extend(run.iter().copied());
        if curve.style == Style::Points {
            continue;
        }
        for pair in run.windows(2) {
            let [from, to] = [pair[0], pair[1]];
            let far = (to[0] - from[0]).abs().max((to[1] - from[1]).abs());
            let steps = (far / TRACE).ceil().max(1.0);
            let between = |n: f64| {
                let share = n / steps;
                [0, 1].map(|axis| from[axis] + (to[axis] - from[axis]) * share)
            };
            traced.extend((1..steps as usize).map(|n| between(n as f64)));
        }
    }
    traced
}

/// A curve's sample in the legend, from `x` on at height `y`.
pub(super) fn sample(curve: &Curve, palette: &Palette, x: f64, y: f64) -> Markup {
    let (x, y) = (round(x), round(y));
    let few = curve.style != Style::Steps && curve.points.len() <= POINTS_SHOWN;
    html! {
        @if curve.style != Style::Points {
            path class={ "curve " (palette.dashes(&curve.label)) } d={ "M" (x) "," (y) "h28" } {}
        }
        @if few || curve.style == Style::Points {
            (dot(palette.shape(&curve.label), x + 14.0, y))
        }
    }
}

/// A circle, a square, a diamond or a triangle.
fn dot(shape: usize, x: f64, y: f64) -> Markup {
    let (x, y) = (round(x), round(y));
    let path = match shape % 4 {
        0 => format!("M{},{y}a4,4 0 1,0 8,0a4,4 0 1,0 -8,0Z", round(x - 4.0)),
        1 => format!("M{},{}h7v7h-7Z", round(x - 3.5), round(y - 3.5)),
        2 => format!("M{x},{}l5,5l-5,5l-5,-5Z", round(y - 5.0)),
        _ => format!("M{x},{}l5,9h-10Z", round(y - 5.0)),
    };
    html! { path class="dot" d=(path) {} }
}

/// The corners of steps: a value holds until the next point.
fn stepped(points: &[[f64; 2]]) -> Vec<[f64; 2]> {
    let mut corners = Vec::with_capacity(points.len() * 2);
    for pair in points.windows(2) {
        corners.push(pair[0]);
        corners.push([pair[1][0], pair[0][1]]);
    }
    corners.extend(points.last());
    corners
}

/// Drops points that look like the previous one; keeps the last.
fn thinned(points: &[[f64; 2]]) -> Vec<[f64; 2]> {
    let mut kept: Vec<[f64; 2]> = Vec::new();
    for (index, point) in points.iter().enumerate() {
        let near = kept.last().is_some_and(|last| {
            (last[0] - point[0]).abs() < APART && (last[1] - point[1]).abs() < APART
        });
        if !near || (index + 1 == points.len() && kept.len() > 1) {
            kept.push(*point);
        }
    }
    kept
}

fn drawn(points: &[[f64; 2]]) -> String {
    let mut path = String::new();
    for (index, [x, y]) in points.iter().enumerate() {
        let letter = if index == 0 { 'M' } else { 'L' };
        // Writing to a String cannot fail.
        let _ = write!(path, "{letter}{},{}", round(*x), round(*y));
    }
    path
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_step_holds_until_the_next_point() {
        assert_eq!(stepped(&[[0.0, 1.0], [2.0, 3.0]]), [[0.0, 1.0], [2.0, 1.0], [2.0, 3.0]]);
    }

    #[test]
    fn points_that_look_alike_are_drawn_once_and_peaks_stay() {
        let points: Vec<_> = (0..1000).map(|n| [n as f64 / 1000.0, 5.0]).collect();
        assert!(thinned(&points).len() <= 3);
        assert_eq!(thinned(&[[0.0, 0.0], [0.1, 90.0], [0.2, 0.0]]).len(), 3);
    }
}
