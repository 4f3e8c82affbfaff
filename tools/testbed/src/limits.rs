//! Describes limits, and writes their tables in docs/limits.md or compares them: who gets how much of
//! what, and what happens then.

use std::env;
use std::fs;
use std::time::Duration;

use keypadd_share::Rate;

const PAGE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/limits.md");

const HEAD: &str = "\
    | Resource | Holder | Total | One may have | When reached | Setting |\n\
    | --- | --- | --- | --- | --- | --- |\n";

const TESTS_HEAD: &str = "\n| Limit | Test |\n| --- | --- |\n";

/// The mark after a part's tables in the page. The one before them has its name.
const END: &str = "<!-- end -->";

/// Compares the tables of one part of the program with its limits. `LIMITS=overwrite` rewrites them.
/// `default_of` knows what settings are by default.
///
/// # Panics
/// If they differ, or the page has no place for them.
pub fn compare(part: &str, limits: &[Limit], default_of: &dyn Fn(&str) -> u64) {
    let rows: String = limits.iter().map(|limit| limit.row(default_of)).collect();
    let tests: String = limits.iter().map(Limit::test_row).collect();
    let table = format!("{HEAD}{rows}{TESTS_HEAD}{tests}");
    let page = fs::read_to_string(PAGE).expect("the page of limits");
    let begin = format!("<!-- limits of {part} -->\n");
    let start = page.find(&begin).expect("a mark before the table") + begin.len();
    let end = start + page[start..].find(END).expect("a mark after the table");
    if env::var_os("LIMITS").is_some_and(|value| value == "overwrite") {
        let page = [&page[..start], &table, &page[end..]].concat();
        fs::write(PAGE, page).expect("the page of limits");
    } else {
        assert_eq!(page[start..end], table, "LIMITS=overwrite rewrites it");
    }
}

/// A row of the table of limits.
#[derive(Clone, Copy, Debug)]
pub struct Limit {
    /// What is limited.
    pub resource: &'static str,
    /// Who has a part of it.
    pub holder: &'static str,
    /// How much there is.
    pub total: Amount,
    /// How much of it a holder may have.
    pub rule: Words,
    /// What happens when it is reached.
    pub when_reached: &'static str,
    /// The setting that changes it, if there is one.
    pub setting: Option<&'static str>,
    /// The name of a test that reaches it.
    pub test: &'static str,
}

impl Limit {
    fn row(&self, default_of: &dyn Fn(&str) -> u64) -> String {
        let Self { resource, holder, total, rule, when_reached, setting, test: _ } = self;
        let (total, rule) = (total.text(default_of), rule.text(default_of));
        let setting = setting.map(|setting| format!("`{setting}`")).unwrap_or_default();
        format!("| {resource} | {holder} | {total} | {rule} | {when_reached} | {setting} |\n")
    }

    fn test_row(&self) -> String {
        let Self { resource, test, .. } = self;
        // tests/docs.rs takes names with so many words for those of tests, and checks that they
        // exist.
        assert!(test.matches('_').count() >= 4, "{test}");
        format!("| {resource} | `{test}` |\n")
    }
}

/// How much there is of something.
#[derive(Clone, Copy, Debug)]
pub enum Amount {
    /// So many.
    Count(u64),
    /// So many of each holder, and of all together.
    CountOf {
        /// Of each holder.
        each: u64,
        /// Of all.
        all: u64,
    },
    /// So many bytes.
    Bytes(u64),
    /// A rate of events.
    Rate(Rate),
    /// A time in advance, and one part in this many of the time that passes.
    Time {
        /// Time in advance.
        advance: Duration,
        /// One part in this many.
        one_in: u32,
    },
    /// A time.
    Duration(Duration),
    /// What this setting is unless somebody sets it.
    Default(&'static str),
    /// What takes more words.
    Words(Words),
}

/// A text with these amounts in the places of its `{}`.
#[derive(Clone, Copy, Debug)]
pub struct Words(pub &'static str, pub &'static [Amount]);

impl Amount {
    /// The amount as a person reads it.
    fn text(&self, default_of: &dyn Fn(&str) -> u64) -> String {
        match *self {
            Self::Count(count) => thousands(count),
            Self::CountOf { each, all } => format!("{each}, all together {all}"),
            Self::Bytes(bytes) if bytes % (1 << 30) == 0 => format!("{} GiB", bytes >> 30),
            Self::Bytes(bytes) if bytes % (1 << 20) == 0 => format!("{} MiB", bytes >> 20),
            Self::Bytes(bytes) => format!("{} KiB", bytes >> 10),
            Self::Rate(Rate { burst: 1, interval }) => format!("one in {interval:?}"),
            Self::Rate(Rate { burst, interval }) => {
                format!("{burst} at once, then one in {interval:?}")
            }
            Self::Time { advance, one_in } => {
                format!("{advance:?} in advance, then one part in {one_in}")
            }
            Self::Duration(time) => format!("{time:?}"),
            Self::Default(setting) => thousands(default_of(setting)),
            Self::Words(words) => words.text(default_of),
        }
    }
}

impl Words {
    /// The text with its amounts.
    fn text(&self, default_of: &dyn Fn(&str) -> u64) -> String {
        let Self(words, amounts) = *self;
        let mut parts = words.split("{}");
        let mut text = parts.next().unwrap_or_default().to_owned();
        let places = parts.collect::<Vec<_>>();
        assert_eq!(places.len(), amounts.len(), "{words}");
        for (amount, part) in amounts.iter().zip(places) {
            text += &amount.text(default_of);
            text += part;
        }
        text
    }
}

/// A number with commas between groups of three digits.
fn thousands(number: u64) -> String {
    match number / 1_000 {
        0 => number.to_string(),
        more => format!("{},{:03}", thousands(more), number % 1_000),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn amounts_are_written_as_people_read_them() {
        let second = Duration::from_secs(1);
        for (amount, text) in [
            (Amount::Count(64), "64"),
            (Amount::Count(1_002_048), "1,002,048"),
            (Amount::CountOf { each: 8, all: 64 }, "8, all together 64"),
            (Amount::Bytes(4 << 20), "4 MiB"),
            (Amount::Bytes(128 << 10), "128 KiB"),
            (Amount::Bytes(4 << 30), "4 GiB"),
            (Amount::Rate(Rate::ONE_A_MINUTE), "one in 60s"),
            (Amount::Rate(Rate { burst: 3, interval: second / 20 }), "3 at once, then one in 50ms"),
            (
                Amount::Time { advance: second / 50, one_in: 10 },
                "20ms in advance, then one part in 10",
            ),
            (Amount::Duration(8 * second), "8s"),
            (Amount::Default("setting"), "1,007"),
            (
                Amount::Words(Words("{} or {} more", &[Amount::Count(2), Amount::Default("name")])),
                "2 or 1,004 more",
            ),
        ] {
            assert_eq!(amount.text(&|name| 1_000 + name.len() as u64), text);
        }
    }
}
