//! Checks configuration files: any text gives settings or faults. Each fault has a position in the text
//! and a message without control characters.

use keypadd_config::{Config, Refused};

const MEMORY_BYTES: u64 = 4 << 30;

/// Panics if the property does not hold.
pub fn holds(text: &str) {
    let lines = text.split('\n').count();
    let faults = match Config::read(text, MEMORY_BYTES) {
        Ok(config) => config.warnings,
        Err(Refused { faults, .. }) => {
            assert!(!faults.is_empty(), "refused without a reason");
            faults
        }
    };
    for fault in faults {
        assert!((1..=lines).contains(&fault.line), "line {} of {lines}", fault.line);
        assert!(fault.column >= 1);
        let said = fault.to_string();
        assert!(said.lines().count() <= 2, "{said:?}");
        assert!(!said.chars().any(|c| c.is_control() && c != '\n'), "{said:?}");
    }
}
