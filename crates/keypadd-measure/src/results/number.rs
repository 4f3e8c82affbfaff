//! Writes non-finite figures to JSON as `null`, and reads `null` as NaN.
//!
//! JSON has no NaN; serde_json writes `null` for one but does not read it back as a number.

use serde::Deserialize;
use serde::Deserializer;
use serde::Serialize;
use serde::Serializer;

/// A number or a collection of them, and its JSON form.
pub(super) trait Number: Sized {
    /// This type with `null` for non-finite values.
    type Json: Serialize + for<'de> Deserialize<'de>;

    fn to_json(&self) -> Self::Json;

    fn from_json(json: Self::Json) -> Self;
}

impl Number for f64 {
    type Json = Option<Self>;

    fn to_json(&self) -> Option<Self> {
        self.is_finite().then_some(*self)
    }

    fn from_json(json: Option<Self>) -> Self {
        json.unwrap_or(Self::NAN)
    }
}

impl Number for [f64; 2] {
    type Json = [Option<f64>; 2];

    fn to_json(&self) -> Self::Json {
        self.map(|figure| figure.to_json())
    }

    fn from_json(json: Self::Json) -> Self {
        json.map(f64::from_json)
    }
}

impl<T: Number> Number for Vec<T> {
    type Json = Vec<T::Json>;

    fn to_json(&self) -> Self::Json {
        self.iter().map(T::to_json).collect()
    }

    fn from_json(json: Self::Json) -> Self {
        json.into_iter().map(T::from_json).collect()
    }
}

/// `null` is `None` here: a figure that may be absent and one that is not finite look the same.
impl<T: Number> Number for Option<T> {
    type Json = Option<T::Json>;

    fn to_json(&self) -> Self::Json {
        self.as_ref().map(T::to_json)
    }

    fn from_json(json: Self::Json) -> Self {
        json.map(T::from_json)
    }
}

pub(super) fn serialize<T: Number, S: Serializer>(
    figures: &T,
    serializer: S,
) -> Result<S::Ok, S::Error> {
    figures.to_json().serialize(serializer)
}

pub(super) fn deserialize<'de, T: Number, D: Deserializer<'de>>(
    deserializer: D,
) -> Result<T, D::Error> {
    T::Json::deserialize(deserializer).map(T::from_json)
}
