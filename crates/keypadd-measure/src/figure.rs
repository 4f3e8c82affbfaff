//! Formats figures: as many digits as the interval allows, aligned at the decimal point.
//!
//! Pages, pictures and the terminal share this format. Files for other programs get all digits.

use std::ops::RangeInclusive;

use crate::results::Estimate;

/// Digits of half an interval's width: the rest of a figure is noise.
const UNCERTAIN_DIGITS: i32 = 2;

/// Digits of a figure without an interval.
const PLAIN_DIGITS: i32 = 4;

/// More decimals are meaningless to a reader.
const DECIMALS_MAX: i32 = 6;

/// Figures outside this range use powers of ten.
const WRITTEN_OUT: RangeInclusive<f64> = 1e-4..=1e15;

/// Placeholder for a missing figure.
pub(crate) const NONE: &str = "–";

/// A figure in a column, in two parts so that both align.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct AlignedFigure {
    /// The figure.
    pub(crate) value: String,
    /// Padding that aligns its point and decimals with the longest of the column.
    pub(crate) padding: Padding,
    /// `± 0.12` or `1.01–1.31`; empty without one.
    pub(crate) interval: String,
}

/// Padding to the right of a figure.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Padding {
    pub(crate) point: bool,
    pub(crate) digits: usize,
}

/// Formats a column of figures; missing ones stay missing.
pub(crate) fn write_column(column: &[Option<&Estimate>]) -> Vec<Option<AlignedFigure>> {
    let figures = || column.iter().flatten();
    let even = figures().all(|estimate| is_even(estimate));
    let decimals_of = |text: &str| text.split_once('.').map_or(0, |(_, decimals)| decimals.len());
    let mut written: Vec<Option<AlignedFigure>> = column
        .iter()
        .map(|cell| {
            cell.map(|estimate| AlignedFigure {
                value: write_value(estimate),
                padding: Padding::default(),
                interval: write_interval(estimate, even),
            })
        })
        .collect();
    let longest =
        written.iter().flatten().map(|figure| decimals_of(&figure.value)).max().unwrap_or(0);
    for figure in written.iter_mut().flatten() {
        let decimals = decimals_of(&figure.value);
        figure.padding =
            Padding { point: decimals == 0 && longest > 0, digits: longest - decimals };
    }
    written
}

/// A single figure with its interval: `1.25 ± 0.12`.
pub(crate) fn write(estimate: &Estimate) -> String {
    let interval = write_interval(estimate, is_even(estimate));
    match interval.as_str() {
        "" => write_value(estimate),
        _ if interval.starts_with('±') => format!("{} {interval}", write_value(estimate)),
        _ => format!("{} ({interval})", write_value(estimate)),
    }
}

fn write_value(estimate: &Estimate) -> String {
    write_with(estimate.value, decimals(estimate))
}

/// Whether the interval looks symmetric.
fn is_even(estimate: &Estimate) -> bool {
    estimate.interval.is_none_or(|[low, high]| {
        let (below, above) = (estimate.value - low, high - estimate.value);
        below >= 0.0 && above >= 0.0 && (above - below).abs() <= 0.05 * (above + below)
    })
}

fn write_interval(estimate: &Estimate, even: bool) -> String {
    let Some([low, high]) = estimate.interval else { return String::new() };
    let decimals = decimals(estimate);
    if even {
        format!("± {}", write_with((high - low) / 2.0, decimals))
    } else {
        format!("{}–{}", write_with(low, decimals), write_with(high, decimals))
    }
}

/// Decimals that a figure deserves; `None` if it needs powers of ten.
fn decimals(estimate: &Estimate) -> Option<usize> {
    let width = estimate.interval.map_or(0.0, |[low, high]| (high - low) / 2.0);
    let value = estimate.value.abs();
    if value != 0.0 && !WRITTEN_OUT.contains(&value) {
        return None;
    }
    let wanted = if width.is_finite() && width > 0.0 {
        UNCERTAIN_DIGITS - 1 - power(width)
    } else if value.fract() == 0.0 {
        0
    } else {
        PLAIN_DIGITS - 1 - power(value)
    };
    Some(wanted.clamp(0, DECIMALS_MAX) as usize)
}

/// The power of ten of a figure's first digit.
fn power(figure: f64) -> i32 {
    figure.log10().floor() as i32
}

fn write_with(figure: f64, decimals: Option<usize>) -> String {
    if !figure.is_finite() {
        return NONE.to_owned();
    }
    let Some(decimals) = decimals else {
        return format!("{figure:.2e}").replace('-', "−");
    };
    let text = format!("{:.decimals$}", figure.abs());
    let is_zero = text.bytes().all(|byte| matches!(byte, b'0' | b'.'));
    let sign = if figure < 0.0 && !is_zero { "−" } else { "" };
    format!("{sign}{}", group(&text))
}

/// A single figure with three digits, where space is short or its source gives no more.
pub(crate) fn brief(figure: f64) -> String {
    if !figure.is_finite() || figure == 0.0 || !WRITTEN_OUT.contains(&figure.abs()) {
        return write(&Estimate::single(figure));
    }
    let decimals = (2 - power(figure.abs())).clamp(0, DECIMALS_MAX) as usize;
    write_with(figure, Some(decimals))
}

/// Commas from five digits on: `1234`, `12,345`.
pub fn group(text: &str) -> String {
    let (whole, rest) = text.split_at(text.find('.').unwrap_or(text.len()));
    if whole.len() < 5 {
        return text.to_owned();
    }
    let mut grouped = String::with_capacity(text.len() + whole.len() / 3);
    for (index, digit) in whole.char_indices() {
        if index > 0 && (whole.len() - index).is_multiple_of(3) {
            grouped.push(',');
        }
        grouped.push(digit);
    }
    grouped + rest
}

#[cfg(test)]
mod tests {
    use super::*;

    fn write_plain(figure: f64) -> String {
        write(&Estimate::single(figure))
    }

    fn estimate(value: f64, low: f64, high: f64) -> Estimate {
        Estimate { value, interval: Some([low, high]), samples: Vec::new() }
    }

    #[test]
    fn a_figure_has_the_digits_that_its_interval_allows() {
        assert_eq!(write(&estimate(13.247_13, 13.226, 13.268_3)), "13.247 ± 0.021");
        assert_eq!(write(&estimate(48_213.4, 45_113.4, 51_313.4)), "48,213 ± 3100");
        assert_eq!(write(&estimate(1.0123, 1.0011, 1.0301)), "1.012 (1.001–1.030)");
        assert_eq!(write(&estimate(5.0, 5.0, 5.0)), "5 ± 0");
        assert_eq!(write(&estimate(5.0, 5.0 - 1e-12, 5.0 + 1e-12)), "5.000000 ± 0.000000");
    }

    #[test]
    fn a_figure_without_interval_has_four_digits_or_is_whole() {
        assert_eq!(write_plain(3.0), "3");
        assert_eq!(write_plain(1_234_567.0), "1,234,567");
        assert_eq!(write_plain(0.123_456), "0.1235");
        assert_eq!(write_plain(-12.345_6), "−12.35");
        assert_eq!(write_plain(1.25e-8), "1.25e−8");
        assert_eq!(write_plain(2.5e20), "2.50e20");
        assert_eq!(write_plain(0.0), "0");
        assert_eq!(write_plain(-0.0), "0");
    }

    #[test]
    fn a_missing_figure_is_a_dash() {
        assert_eq!(write_plain(f64::NAN), "–");
        assert_eq!(write_plain(f64::INFINITY), "–");
        assert_eq!(write(&estimate(1.5, f64::NEG_INFINITY, f64::INFINITY)), "1.500 (–––)");
    }

    #[test]
    fn figures_of_a_column_align_at_the_decimal_point() {
        let (a, b, c) =
            (estimate(9.25, 9.13, 9.37), estimate(120.0, 100.0, 140.0), Estimate::single(7.0));
        let written = write_column(&[Some(&a), None, Some(&b), Some(&c)]);
        assert_eq!(written[1], None);
        let widths: Vec<_> = written
            .iter()
            .flatten()
            .map(|figure| {
                let decimals = figure.value.split_once('.').map_or(0, |(_, d)| d.len() + 1);
                decimals + figure.padding.digits + usize::from(figure.padding.point)
            })
            .collect();
        assert_eq!(widths, [3, 3, 3]);
    }

    #[test]
    fn one_asymmetric_interval_makes_the_whole_column_print_bounds() {
        let (even, uneven) = (estimate(2.0, 1.0, 3.0), estimate(2.0, 1.0, 4.0));
        let written = write_column(&[Some(&even), Some(&uneven)]);
        assert_eq!(written[0].as_ref().unwrap().interval, "1.0–3.0");
        assert_eq!(written[1].as_ref().unwrap().interval, "1.0–4.0");
    }
}
