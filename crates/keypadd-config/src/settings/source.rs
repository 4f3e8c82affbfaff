//! Reads a key's texts, from the file or the command line, into settings, and reports invalid ones.
//! Knows neither the keys nor the formats of file and flags.

use super::setting::Setting;
use crate::key::Key;
use crate::values::{BadValue, Ranged};

/// Where settings are read from: a table of the file, or the command line.
pub trait Source {
    /// The texts of a key, each with its position ([`Setting::at`]); `None` if the key is not set.
    /// For a key that is not a list, only the first counts.
    fn texts(&mut self, key: &'static Key) -> Option<Vec<(String, Option<usize>)>>;

    /// Reports a text that is not a valid value of its key.
    fn refuse(&mut self, key: &'static Key, at: Option<usize>, bad: BadValue);

    /// This host's memory in bytes, which bounds some values.
    fn memory_bytes(&self) -> u64;
}

/// The valid values of a list; `None` if it is not set. `read` takes a text and this host's memory
/// in bytes.
pub(super) fn many<T>(
    source: &mut dyn Source,
    key: &'static Key,
    read: impl Fn(&str, u64) -> Result<T, BadValue>,
) -> Option<Vec<Setting<T>>> {
    let memory = source.memory_bytes();
    let mut settings = Vec::new();
    for (text, at) in source.texts(key)? {
        match read(&text, memory) {
            Ok(value) => settings.push(Setting { value, text, at }),
            Err(bad) => source.refuse(key, at, bad),
        }
    }
    Some(settings)
}

/// The valid values of a list whose texts may name several each; `None` if it is not set.
pub(super) fn ranged<T>(
    source: &mut dyn Source,
    key: &'static Key,
    read: impl Fn(&str, u64) -> Result<Ranged<T>, BadValue>,
) -> Option<Vec<Setting<T>>> {
    let texts = many(source, key, read)?.into_iter();
    let each = |Setting { value: Ranged(all), text, at }: Setting<Ranged<T>>| {
        all.into_iter().map(move |value| Setting { value, text: text.clone(), at })
    };
    Some(texts.flat_map(each).collect())
}

/// The value of a key; `None` if it is not set or not valid.
pub(super) fn maybe<T>(
    source: &mut dyn Source,
    key: &'static Key,
    read: impl Fn(&str, u64) -> Result<T, BadValue>,
) -> Option<Setting<T>> {
    many(source, key, read)?.into_iter().next()
}

/// The value of a key, or its default.
pub(super) fn one<T>(
    source: &mut dyn Source,
    key: &'static Key,
    read: impl Fn(&str, u64) -> Result<T, BadValue>,
) -> Setting<T> {
    maybe(source, key, &read).unwrap_or_else(|| Setting {
        value: read(key.default, u64::MAX).expect("a default is a valid value"),
        text: key.default.to_owned(),
        at: None,
    })
}
