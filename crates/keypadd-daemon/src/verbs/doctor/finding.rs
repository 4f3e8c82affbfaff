//! Prints findings, as text or JSON.

use keypadd_cli::error::{Error, one_line};
use keypadd_cli::results::print;
use serde::Serialize;
use serde_json::json;

/// What a check has found.
#[derive(Debug, Serialize)]
pub(super) struct Finding {
    /// What was checked, in a word or two.
    check: String,
    verdict: Verdict,
    found: String,
    /// What to do about it.
    fix: Option<String>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
enum Verdict {
    Ok,
    /// What was looked at works, but not as well as it could.
    Warn,
    /// What was looked at does not work.
    Fail,
}

impl Finding {
    pub(super) fn ok(check: impl Into<String>, found: impl Into<String>) -> Self {
        Self { check: check.into(), verdict: Verdict::Ok, found: found.into(), fix: None }
    }

    pub(super) fn warn(
        check: impl Into<String>,
        found: impl Into<String>,
        fix: impl Into<String>,
    ) -> Self {
        Self { verdict: Verdict::Warn, fix: Some(fix.into()), ..Self::ok(check, found) }
    }

    pub(super) fn fail(
        check: impl Into<String>,
        found: impl Into<String>,
        fix: impl Into<String>,
    ) -> Self {
        Self { verdict: Verdict::Fail, ..Self::warn(check, found, fix) }
    }

    /// The findings for a command's error.
    pub(super) fn failed(check: &str, error: &Error) -> Vec<Self> {
        let finding = |(cause, hint): (&str, Option<&str>)| Self {
            check: check.into(),
            verdict: Verdict::Fail,
            found: cause.into(),
            fix: hint.map(Into::into),
        };
        error.parts().map(finding).collect()
    }

    /// A line, and a second one with the fix.
    fn lines(&self) -> String {
        let verdict = match self.verdict {
            Verdict::Ok => "ok  ",
            Verdict::Warn => "warn",
            Verdict::Fail => "FAIL",
        };
        let fix = self.fix.as_deref().map(|fix| format!("      fix: {}\n", one_line(fix)));
        let line = one_line(&format!("{}: {}", self.check, self.found));
        format!("{verdict}  {line}\n{}", fix.unwrap_or_default())
    }
}

/// What was found so far.
#[derive(Debug)]
pub(super) struct Findings {
    json: bool,
    all: Vec<Finding>,
}

impl Findings {
    pub(super) fn new(json: bool) -> Self {
        Self { json, all: Vec::new() }
    }

    /// Adds findings, and prints them unless JSON is wanted.
    ///
    /// # Errors
    /// Exit 1: standard output fails.
    pub(super) fn add(&mut self, found: impl IntoIterator<Item = Finding>) -> Result<(), Error> {
        for finding in found {
            if !self.json {
                print(finding.lines().as_bytes())?;
            }
            self.all.push(finding);
        }
        Ok(())
    }

    /// Prints all of them if JSON is wanted; returns how many failed.
    ///
    /// # Errors
    /// As for [`Self::add`].
    pub(super) fn finish(self) -> Result<usize, Error> {
        if self.json {
            let document = json!({ "findings": self.all });
            print(format!("{document:#}\n").as_bytes())?;
        }
        Ok(self.all.iter().filter(|finding| finding.verdict == Verdict::Fail).count())
    }
}
