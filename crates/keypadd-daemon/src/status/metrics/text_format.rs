//! Converts OpenMetrics 1.0 to Prometheus's older text format, 0.0.4, for clients that do not ask
//! for OpenMetrics: `curl`, `promtool check metrics`, older collectors.

/// The converted text. In it a counter's help and type lines name the sample, with `_total`, and no
/// line marks the end.
pub(super) fn rewritten(openmetrics: &str) -> String {
    let mut text = String::with_capacity(openmetrics.len() + 512);
    let mut lines = openmetrics.lines().filter(|line| *line != "# EOF").peekable();
    while let Some(line) = lines.next() {
        let counter =
            |line: &str| Some(line.strip_prefix("# TYPE ")?.strip_suffix(" counter")?.to_owned());
        let described = counter(line).or_else(|| counter(lines.peek()?));
        let named = described.and_then(|name| {
            let (before, after) = line.split_once(&name)?;
            line.starts_with("# ").then(|| format!("{before}{name}_total{after}"))
        });
        text.push_str(named.as_deref().unwrap_or(line));
        text.push('\n');
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counters_are_described_by_the_name_of_their_samples() {
        let openmetrics = "# HELP a_bytes Bytes of a_bytes\n# TYPE a_bytes \
            counter\na_bytes_total{x=\"# EOF\"} 1\n\
             # HELP b Level\n# TYPE b gauge\nb 2\n# HELP c Calls\n# TYPE c counter\nc_total 3\n# \
             EOF\n";
        let plain = "# HELP a_bytes_total Bytes of a_bytes\n# TYPE a_bytes_total \
            counter\na_bytes_total{x=\"# EOF\"} 1\n\
             # HELP b Level\n# TYPE b gauge\nb 2\n# HELP c_total Calls\n# TYPE c_total \
             counter\nc_total 3\n";
        assert_eq!(rewritten(openmetrics), plain);
    }
}
