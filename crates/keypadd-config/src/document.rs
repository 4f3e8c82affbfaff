//! The file as TOML: tables whose keys are taken one by one, each value with its place. What is left at the
//! end is unknown. Knows TOML's types, not what the keys mean.

use std::ops::Range;

use toml::Spanned;
use toml::de::{DeTable, DeValue};

use crate::fault::Faults;
use crate::keys::{self, KEYS, Key, Scope};
use crate::quote::{is_private, shown};
use crate::values::BadValue;

/// How alike two keys have to be for one to be a slip of the other, from 0 to 1.
const ALIKE: f64 = 0.8;

/// A value and the byte where it stands.
#[derive(Clone, Debug)]
pub(crate) struct Placed<T> {
    pub(crate) value: T,
    pub(crate) at: usize,
}

/// One table of the file.
pub(crate) struct Table<'t> {
    scope: Scope,
    entries: Vec<(Placed<String>, Spanned<DeValue<'t>>)>,
}

/// Reads the text; what is no TOML is noted, the rest is there.
pub(crate) fn parse<'t>(text: &'t str, faults: &mut Faults<'_>) -> Table<'t> {
    let (table, errors) = DeTable::parse_recoverable(text);
    for error in errors {
        let at = error.span().map_or(0, |span| span.start);
        faults.add_broken(at, error.message());
    }
    Table::new(Scope::Global, table.into_inner())
}

impl<'t> Table<'t> {
    pub(crate) fn new(scope: Scope, table: DeTable<'t>) -> Self {
        let mut entries: Vec<_> = table
            .into_iter()
            .map(|(key, value)| {
                let at = key.span().start;
                (Placed { value: key.into_inner().into_owned(), at }, value)
            })
            .collect();
        entries.sort_by_key(|(key, _)| key.at);
        Self { scope, entries }
    }

    /// The keys that nobody has taken yet.
    pub(crate) fn names(&self) -> impl Iterator<Item = &str> {
        self.entries.iter().map(|(key, _)| key.value.as_str())
    }

    /// Whether nobody has taken this key yet.
    pub(crate) fn has(&self, name: &str) -> bool {
        self.names().any(|key| key == name)
    }

    /// Where its value stands.
    pub(crate) fn value_at(&self, name: &str) -> Option<usize> {
        let (_, value) = self.entries.iter().find(|(key, _)| key.value == name)?;
        Some(value.span().start)
    }

    /// Where it stands, if it is a list of nothing.
    pub(crate) fn empty_list_at(&self, name: &str) -> Option<usize> {
        let (_, value) = self.entries.iter().find(|(key, _)| key.value == name)?;
        let empty = value.get_ref().as_array().is_some_and(|list| list.is_empty());
        empty.then(|| value.span().start)
    }

    /// Takes a key out, whatever it holds.
    pub(crate) fn take(&mut self, name: &str) -> Option<(usize, Spanned<DeValue<'t>>)> {
        let at = self.entries.iter().position(|(key, _)| key.value == name)?;
        let (key, value) = self.entries.remove(at);
        Some((key.at, value))
    }

    /// Every entry that is left, as tables are.
    pub(crate) fn into_entries(self) -> Vec<(Placed<String>, Spanned<DeValue<'t>>)> {
        self.entries
    }

    /// A text that `read` understands.
    pub(crate) fn text<T>(
        &mut self,
        name: &'static str,
        read: impl Fn(&str) -> Result<T, BadValue>,
        faults: &mut Faults<'_>,
    ) -> Option<Placed<T>> {
        let (_, value) = self.take(name)?;
        let example = example(self.scope, name);
        element(name, &value, &example, &read, faults)
    }

    /// A list of texts; a single text is a list of one.
    pub(crate) fn list<T>(
        &mut self,
        name: &'static str,
        read: impl Fn(&str) -> Result<T, BadValue>,
        faults: &mut Faults<'_>,
    ) -> Option<Vec<Placed<T>>> {
        let (_, value) = self.take(name)?;
        let example = example(self.scope, name);
        let read = |value: &Spanned<DeValue<'_>>, faults: &mut Faults<'_>| {
            element(name, value, &example, &read, faults)
        };
        Some(match value.get_ref() {
            DeValue::Array(values) => {
                values.iter().filter_map(|value| read(value, faults)).collect()
            }
            _ => read(&value, faults).into_iter().collect(),
        })
    }

    /// `true` or `false`.
    pub(crate) fn switch(
        &mut self,
        name: &'static str,
        faults: &mut Faults<'_>,
    ) -> Option<Placed<bool>> {
        let (_, value) = self.take(name)?;
        let at = value.span().start;
        match value.get_ref() {
            DeValue::Boolean(value) => Some(Placed { value: *value, at }),
            other => {
                let hint = format!("as in {name} = true, without quotes");
                wrong_type(name, other, "true or false", &value.span(), hint, faults);
                None
            }
        }
    }

    /// A whole number that `read` understands.
    pub(crate) fn number<T>(
        &mut self,
        name: &'static str,
        read: impl Fn(&str) -> Result<T, BadValue>,
        faults: &mut Faults<'_>,
    ) -> Option<Placed<T>> {
        let (_, value) = self.take(name)?;
        let at = value.span().start;
        match value.get_ref() {
            DeValue::Integer(number) => match read(&number.to_string()) {
                Ok(value) => return Some(Placed { value, at }),
                Err(BadValue { cause, hint }) => {
                    faults.add(at, format!("{name}: {cause}"), Some(hint));
                }
            },
            // What there is of it is not what was meant.
            _ if faults.is_broken(at) => {}
            other => {
                let hint = format!("as in {}, without quotes", example(self.scope, name));
                wrong_type(name, other, "a whole number", &value.span(), hint, faults);
            }
        }
        None
    }

    /// Notes every key that nobody has taken.
    pub(crate) fn refuse_rest(self, faults: &mut Faults<'_>) {
        for (key, _) in self.entries {
            let cause = match is_private(&key.value) {
                true => "a private key does not belong into this file".to_owned(),
                false => format!("unknown key {}", shown(&key.value)),
            };
            faults.add(key.at, cause, Some(way_out(self.scope, &key.value)));
        }
    }
}

fn element<T>(
    name: &str,
    value: &Spanned<DeValue<'_>>,
    example: &str,
    read: &impl Fn(&str) -> Result<T, BadValue>,
    faults: &mut Faults<'_>,
) -> Option<Placed<T>> {
    let at = value.span().start;
    match value.get_ref() {
        DeValue::String(text) => match read(text) {
            Ok(value) => return Some(Placed { value, at }),
            // What there is of it is not what was meant.
            Err(_) if faults.is_broken(at) => {}
            Err(BadValue { cause, hint }) => {
                faults.add(at, format!("{name}: {cause}"), Some(hint));
            }
        },
        other => {
            let hint = format!("in quotes, as in {example}");
            wrong_type(name, other, "a text", &value.span(), hint, faults);
        }
    }
    None
}

fn wrong_type(
    name: &str,
    found: &DeValue<'_>,
    wanted: &str,
    span: &Range<usize>,
    hint: String,
    faults: &mut Faults<'_>,
) {
    let found = match found {
        DeValue::String(text) => format!("{} is a text", shown(text)),
        DeValue::Integer(number) => format!("{} is a number", shown(number.to_string())),
        DeValue::Float(number) => format!("{} is a number", shown(number.to_string())),
        DeValue::Boolean(value) => format!("`{value}` is true or false"),
        DeValue::Datetime(date) => format!("{} is a date", shown(date.to_string())),
        DeValue::Array(_) => "this is a list".to_owned(),
        DeValue::Table(_) => "this is a table".to_owned(),
    };
    faults.add(span.start, format!("{name}: {found}, {wanted} belongs here"), Some(hint));
}

/// A line that is right.
fn example(scope: Scope, name: &str) -> String {
    keys::find(scope, name).map_or_else(String::new, |key| key.example.to_owned())
}

/// What to do about an unknown key: it stands in the wrong table, or another one was meant.
fn way_out(scope: Scope, name: &str) -> String {
    let other = if scope == Scope::Global { Scope::Peer } else { Scope::Global };
    if keys::find(other, name).is_some() {
        return match other {
            Scope::Peer => format!("{name} belongs into a [peer.NAME]"),
            Scope::Global => format!("{name} belongs before the first [peer.NAME]"),
        };
    }
    if scope == Scope::Global && ["peers", "Peer"].contains(&name) {
        return "did you mean [peer.NAME]?".into();
    }
    let likeness =
        |key: &&Key| strsim::jaro_winkler(key.name, &name.to_lowercase().replace('_', "-"));
    let near = KEYS
        .iter()
        .filter(|key| key.scope == scope)
        .max_by(|one, two| likeness(one).total_cmp(&likeness(two)));
    match near.filter(|key| likeness(key) >= ALIKE) {
        Some(key) => format!("did you mean {}?", key.name),
        None => {
            let names = KEYS.iter().filter(|key| key.scope == scope).map(|key| key.name);
            format!("one of {}", names.collect::<Vec<_>>().join(", "))
        }
    }
}
