//! Checks configuration files: any text gives settings or faults. Each fault has a position in the text
//! and a message without control characters. A peer that is added changes nothing else.

use keypadd_config::{Addition, Config, InvalidConfig, NewPeer, Role};

const MEMORY_BYTES: u64 = 4 << 30;

/// Panics if the property does not hold.
pub fn holds(text: &str) {
    if let Ok(Addition { text: longer, .. }) = lab().add_to(text, None, MEMORY_BYTES) {
        assert!(longer.starts_with(text), "a line is gone");
        let peers = |text: &str| Config::read_to_extend(text, MEMORY_BYTES).map(|it| it.peers);
        let (before, after) = (peers(text).unwrap_or_default(), peers(&longer).unwrap_or_default());
        assert_eq!(after.split_last().map(|(_, old)| old), Some(&*before));
    }
    let lines = text.split('\n').count();
    let faults = match Config::read(text, MEMORY_BYTES) {
        Ok(config) => config.warnings,
        Err(InvalidConfig { faults, .. }) => {
            assert!(!faults.is_empty(), "refused without a reason");
            faults
        }
    };
    for fault in faults {
        assert!((1..=lines).contains(&fault.place.line), "{:?} of {lines}", fault.place);
        assert!(fault.place.column >= 1);
        let said = fault.to_string();
        assert!(said.lines().count() <= 2, "{said:?}");
        assert!(!said.chars().any(|c| c.is_control() && c != '\n'), "{said:?}");
    }
}

/// A peer that no file has.
fn lab() -> NewPeer {
    let key = "PUAXw+hDiVqStwqnTRt+vJyYLM8uxJaMwM1V8Sr0Zgw=".parse().expect("this is a key");
    let endpoint = "lab".parse().expect("this is a host");
    NewPeer { name: "added".into(), key, role: Role::Outgoing { endpoint } }
}
