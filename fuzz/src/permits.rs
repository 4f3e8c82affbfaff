//! Checks permits: any text parses or is refused, and a displayed permit parses to the same.

use keypadd_network::{Permit as NetworkPermit, Prefix};
use keypadd_tunnel::{ListenPermit, Permit};

/// Panics if the property does not hold.
pub fn holds(text: &str) {
    match text.parse::<Permit>() {
        Ok(permit) => assert_eq!(permit.to_string().parse(), Ok(permit)),
        Err(error) => assert!(!error.to_string().is_empty()),
    }
    match text.parse::<ListenPermit>() {
        Ok(permit) => assert_eq!(permit.to_string().parse(), Ok(permit)),
        Err(error) => assert!(!error.to_string().is_empty()),
    }
    match text.parse::<NetworkPermit>() {
        Ok(permit) => assert_eq!(permit.to_string().parse(), Ok(permit)),
        Err(error) => assert!(!error.to_string().is_empty()),
    }
    match text.parse::<Prefix>() {
        Ok(prefix) => assert_eq!(prefix.to_string().parse(), Ok(prefix)),
        Err(error) => assert!(!error.to_string().is_empty()),
    }
}
