//! Parses the file into TOML tables. The caller takes keys out one by one, each value with its
//! position; keys left over are unknown. Knows TOML's types, not what the keys mean.

use std::ops::Range;

use toml::Spanned;
use toml::de::{DeTable, DeValue};

use crate::fault::Faults;
use crate::key::{Key, Kind, Scope};
use crate::quote::{is_private, shown};
use crate::settings::{PeerSettings, Settings, Source};
use crate::similar::nearest;
use crate::values::BadValue;

/// What is wrong with a private key in place of a name.
const PRIVATE: &str = "private keys are not allowed in this file";

/// A name and its byte offset.
#[derive(Clone, Debug)]
pub(crate) struct Name {
    pub(crate) text: String,
    pub(crate) at: usize,
}

/// One table of the file.
pub(crate) struct Table<'t> {
    scope: Scope,
    entries: Vec<(Name, Spanned<DeValue<'t>>)>,
}

/// Parses the text. Lines that are not TOML become faults; the rest is kept.
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
                (Name { text: key.into_inner().into_owned(), at }, value)
            })
            .collect();
        entries.sort_unstable_by_key(|(name, _)| name.at);
        Self { scope, entries }
    }

    /// Whether the table has this key, valid or not, and it has not been taken.
    pub(crate) fn has(&self, key: &str) -> bool {
        self.value_at(key).is_some()
    }

    /// The byte offset of a value.
    pub(crate) fn value_at(&self, key: &str) -> Option<usize> {
        let (_, value) = self.entries.iter().find(|(name, _)| name.text == key)?;
        Some(value.span().start)
    }

    /// Takes a key's value, of whatever type, out of the table.
    pub(crate) fn take(&mut self, key: &str) -> Option<Spanned<DeValue<'t>>> {
        let at = self.entries.iter().position(|(name, _)| name.text == key)?;
        Some(self.entries.remove(at).1)
    }

    /// The entries that have not been taken.
    pub(crate) fn into_entries(self) -> Vec<(Name, Spanned<DeValue<'t>>)> {
        self.entries
    }

    /// Adds a fault for every key that has not been taken from a file that has only peers.
    pub(crate) fn refuse_all_but_peers(self, faults: &mut Faults<'_>) {
        for (name, _) in self.entries {
            let cause = match is_private(&name.text) {
                true => PRIVATE.to_owned(),
                false => format!("{} is not allowed in peers.d", shown(&name.text)),
            };
            let hint = "files there contain only [peer.NAME] tables; move it to the main file";
            faults.add(name.at, cause, Some(hint.into()));
        }
    }

    /// Adds a fault for every key that has not been taken.
    pub(crate) fn refuse_rest(self, faults: &mut Faults<'_>) {
        for (name, _) in self.entries {
            let cause = match is_private(&name.text) {
                true => PRIVATE.to_owned(),
                false => format!("unknown key {}", shown(&name.text)),
            };
            faults.add(name.at, cause, Some(suggestion(self.scope, &name.text)));
        }
    }
}

/// A table from which settings are read; invalid values become faults.
pub(crate) struct Reader<'r, 't, 'f> {
    pub(crate) table: &'r mut Table<'t>,
    pub(crate) faults: &'r mut Faults<'f>,
    /// This host's memory.
    pub(crate) memory_bytes: u64,
}

impl Source for Reader<'_, '_, '_> {
    fn texts(&mut self, key: &'static Key) -> Option<Vec<(String, Option<usize>)>> {
        let value = self.table.take(key.name)?;
        let list = match value.get_ref() {
            DeValue::Array(list) if matches!(key.kind, Kind::List) => list.iter().collect(),
            _ => vec![&value],
        };
        if list.is_empty() && key.is_needed {
            let hint = format!("omit {} to accept the default ones", key.name);
            self.faults.add(
                value.span().start,
                format!("{}: the list is empty", key.name),
                Some(hint),
            );
        }
        Some(list.into_iter().filter_map(|value| self.text(key, value)).collect())
    }

    fn refuse(&mut self, key: &'static Key, at: Option<usize>, bad: BadValue) {
        let at = at.unwrap_or(0);
        // A fragment of a broken line is not the intended value.
        if !self.faults.is_broken(at) {
            self.faults.add(at, format!("{}: {}", key.name, bad.cause), Some(bad.hint));
        }
    }

    fn memory_bytes(&self) -> u64 {
        self.memory_bytes
    }
}

impl Reader<'_, '_, '_> {
    /// A value as text, with its position, if it has its key's type.
    fn text(&mut self, key: &Key, value: &Spanned<DeValue<'_>>) -> Option<(String, Option<usize>)> {
        let at = value.span().start;
        let text = match (value.get_ref(), key.kind) {
            (DeValue::String(text), Kind::Text | Kind::List) => text.to_string(),
            (DeValue::Boolean(value), Kind::Switch) => value.to_string(),
            (DeValue::Integer(number), Kind::Number) => number.to_string(),
            _ if self.faults.is_broken(at) => return None,
            (other, _) => {
                wrong_type(key, other, &value.span(), self.faults);
                return None;
            }
        };
        Some((text, Some(at)))
    }
}

fn wrong_type(key: &Key, found: &DeValue<'_>, span: &Range<usize>, faults: &mut Faults<'_>) {
    let found = match found {
        DeValue::String(text) => format!("{} is a string", shown(text)),
        DeValue::Integer(number) => format!("{} is a number", shown(number.to_string())),
        DeValue::Float(number) => format!("{} is a number", shown(number.to_string())),
        DeValue::Boolean(value) => format!("`{value}` is a boolean"),
        DeValue::Datetime(date) => format!("{} is a date", shown(date.to_string())),
        DeValue::Array(_) => "found a list".to_owned(),
        DeValue::Table(_) => "found a table".to_owned(),
    };
    let (wanted, hint) = match key.kind {
        Kind::Text | Kind::List => ("a string", format!("use quotes, as in {}", key.line())),
        Kind::Number => ("a whole number", format!("as in {}, without quotes", key.line())),
        Kind::Switch => ("true or false", format!("as in {}, without quotes", key.line())),
    };
    faults.add(span.start, format!("{}: {found}, expected {wanted}", key.name), Some(hint));
}

fn keys(scope: Scope) -> &'static [Key] {
    match scope {
        Scope::Global => Settings::KEYS,
        Scope::Peer => PeerSettings::KEYS,
    }
}

/// What to do about an unknown key: move it to the right table, or use the similar name.
fn suggestion(scope: Scope, name: &str) -> String {
    let other = if scope == Scope::Global { Scope::Peer } else { Scope::Global };
    if keys(other).iter().any(|key| key.name == name) {
        return match other {
            Scope::Peer => format!("{name} belongs in a [peer.NAME]"),
            Scope::Global => format!("{name} belongs before the first [peer.NAME]"),
        };
    }
    if scope == Scope::Global && ["peers", "Peer"].contains(&name) {
        return "did you mean [peer.NAME]?".into();
    }
    match nearest(name, keys(scope).iter().map(|key| key.name)) {
        Some(key) => format!("did you mean {key}?"),
        None => {
            let names: Vec<_> = keys(scope).iter().map(|key| key.name).collect();
            format!("expected one of {}", names.join(", "))
        }
    }
}
