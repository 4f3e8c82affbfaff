//! Checks forwards: any text parses or is refused, and a displayed forward parses to the same.

use std::{fmt::Display, str::FromStr};

use keypadd_tunnel::{DynamicForward, LocalForward, RemoteForward, ServerAddress, Target};

fn round_trip<T: Display + FromStr + PartialEq>(text: &str)
where
    T::Err: Display,
{
    match text.parse::<T>() {
        Ok(value) => {
            let shown = value.to_string();
            assert!(shown.parse::<T>().is_ok_and(|again| again == value), "{text:?} is {shown:?}");
        }
        Err(error) => assert!(!error.to_string().is_empty()),
    }
}

/// Panics if the property does not hold.
pub fn holds(text: &str) {
    round_trip::<LocalForward>(text);
    round_trip::<RemoteForward>(text);
    round_trip::<DynamicForward>(text);
    round_trip::<Target>(text);
    round_trip::<ServerAddress>(text);
}
