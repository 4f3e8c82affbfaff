//! Holds one setting: its value, its text and where it was set. Knows no key.

/// A value that is set, and where.
#[derive(Clone, Debug)]
pub struct Setting<T> {
    /// The value.
    pub value: T,
    /// The value as text.
    pub text: String,
    /// The byte offset in the file, or 0 for a flag; `None` for a default.
    pub at: Option<usize>,
}

/// Settings are equal if their values are, wherever they were set.
impl<T: PartialEq> PartialEq for Setting<T> {
    fn eq(&self, other: &Self) -> bool {
        self.value == other.value
    }
}

/// What `keypadd check` prints for a setting.
pub trait Shown {
    /// The values as text; `None` if the key is not set and has no default.
    fn shown(&self) -> Option<String>;

    /// Whether the value is a default.
    fn is_default(&self) -> bool;
}

impl<T> Shown for Setting<T> {
    fn shown(&self) -> Option<String> {
        Some(self.text.clone())
    }

    fn is_default(&self) -> bool {
        self.at.is_none()
    }
}

impl<T> Shown for Option<Setting<T>> {
    fn shown(&self) -> Option<String> {
        self.as_ref().and_then(Shown::shown)
    }

    fn is_default(&self) -> bool {
        self.as_ref().is_none_or(Shown::is_default)
    }
}

impl<T> Shown for Option<Vec<Setting<T>>> {
    fn shown(&self) -> Option<String> {
        let texts = self.as_ref()?.iter().map(|setting| setting.text.as_str());
        Some(texts.collect::<Vec<_>>().join(", "))
    }

    fn is_default(&self) -> bool {
        self.is_none()
    }
}

/// The values of a list.
pub fn values_of<T: Clone>(settings: &[Setting<T>]) -> Vec<T> {
    settings.iter().map(|setting| setting.value.clone()).collect()
}
