//! Sets a ratio beside the paper's: whether its direction is the paper's, and whether its size is. A
//! verdict says less: one that demands half of an effect also holds where there is three times as
//! much. Pure.

use crate::results::PaperComparison;

/// An effect of half to twice the paper's, as logarithms of ratios, is as large as that.
const ALIKE: [f64; 2] = [0.5, 2.0];

/// Where there is nothing to set side by side.
const NONE: &str = "–";

/// What the whole interval says; `open` if its ends say different things, or there is none.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Agreement {
    /// `same`, `opposite`, `open`; `–` where the paper has no figure, or no effect.
    pub(crate) direction: &'static str,
    /// `alike`, `smaller`, `larger`, `open`; `–` likewise.
    pub(crate) size: &'static str,
}

impl Agreement {
    pub(crate) fn of(beside: &PaperComparison) -> Self {
        let effect = beside.paper.map_or(0.0, f64::ln);
        let Some(today) = beside.today.as_ref().filter(|_| effect != 0.0 && effect.is_finite())
        else {
            return Self { direction: NONE, size: NONE };
        };
        let Some(interval) = today.interval else {
            return Self { direction: "open", size: "open" };
        };
        let parts = interval.map(|end| end.ln() / effect);
        let (least, most) = (parts[0].min(parts[1]), parts[0].max(parts[1]));
        let [half, twice] = ALIKE;
        Self {
            direction: match (least > 0.0, most < 0.0) {
                (true, _) => "same",
                (_, true) => "opposite",
                _ => "open",
            },
            size: match (least, most) {
                (least, most) if least >= half && most <= twice => "alike",
                (_, most) if most < half => "smaller",
                (least, _) if least > twice => "larger",
                _ => "open",
            },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::results::Estimate;

    fn agreement(paper: Option<f64>, interval: Option<[f64; 2]>) -> [&'static str; 2] {
        let today = Some(Estimate { value: 1.0, interval, samples: Vec::new() });
        let beside = PaperComparison { paper, today, ..PaperComparison::default() };
        let Agreement { direction, size } = Agreement::of(&beside);
        [direction, size]
    }

    #[test]
    fn three_times_the_papers_effect_has_its_direction_and_not_its_size() {
        assert_eq!(agreement(Some(0.6), Some([0.17, 0.2])), ["same", "larger"]);
        assert_eq!(agreement(Some(0.6), Some([0.5, 0.7])), ["same", "alike"]);
        assert_eq!(agreement(Some(1.25), Some([1.01, 1.05])), ["same", "smaller"]);
        assert_eq!(agreement(Some(1.25), Some([0.8, 0.9])), ["opposite", "smaller"]);
    }

    #[test]
    fn what_the_interval_does_not_say_is_open_and_without_a_figure_there_is_nothing() {
        assert_eq!(agreement(Some(0.6), Some([0.5, 1.1])), ["open", "open"]);
        assert_eq!(agreement(Some(0.6), None), ["open", "open"]);
        assert_eq!(agreement(None, Some([0.5, 0.7])), ["–", "–"]);
        assert_eq!(agreement(Some(1.0), Some([0.5, 0.7])), ["–", "–"]);
    }
}
