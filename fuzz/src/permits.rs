//! The grammars of permits: any text is read or refused, and what is shown is read back as the same.

use keypadd_tunnel::{ListenPermit, Permit};

/// The claim.
pub fn holds(text: &str) {
    match text.parse::<Permit>() {
        Ok(permit) => assert_eq!(permit.to_string().parse(), Ok(permit)),
        Err(error) => assert!(!error.to_string().is_empty()),
    }
    match text.parse::<ListenPermit>() {
        Ok(permit) => assert_eq!(permit.to_string().parse(), Ok(permit)),
        Err(error) => assert!(!error.to_string().is_empty()),
    }
}
