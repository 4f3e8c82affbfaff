//! Describes one configuration key for everything that uses it: the file reader, the command line,
//! `keypadd check`, suggestions and docs/configuration.md. The keys themselves are declared in
//! `settings`.

use crate::values::BadValue;

/// Where a key belongs in the file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scope {
    /// Before the first table.
    Global,
    /// In a `[peer.NAME]`.
    Peer,
}

/// The TOML type of a key's value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// A string.
    Text,
    /// A list of strings; a single string is a list of one.
    List,
    /// A whole number.
    Number,
    /// `true` or `false`.
    Switch,
}

/// When a change of the file takes effect.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reload {
    /// On `keypadd reload` or SIGHUP.
    Applies,
    /// At the next start.
    Restart,
}

/// Which commands take the key as a flag of the same name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Flag {
    /// None: the key belongs to the file.
    None,
    /// `keypadd serve`.
    Serve,
    /// `keypadd connect`.
    Connect,
    /// Both of them.
    Daemons,
    /// Every command.
    All,
}

/// One key.
#[derive(Clone, Copy, Debug)]
pub struct Key {
    /// The key, and the flag without its dashes.
    pub name: &'static str,
    /// Where it belongs.
    pub scope: Scope,
    /// The TOML type of its value.
    pub kind: Kind,
    /// Placeholder for the value in help texts, as in `SIZE`.
    pub form: &'static str,
    /// The valid values, if they can be listed.
    pub choices: &'static [&'static str],
    /// A valid value.
    pub example: &'static str,
    /// The default value; empty if there is none.
    pub default: &'static str,
    /// What applies by default if no single value says it.
    pub unset: &'static str,
    /// The flag's default, if it differs from the key's.
    pub flag_default: &'static str,
    /// Whether an empty list is an error.
    pub is_needed: bool,
    /// When a change takes effect.
    pub reload: Reload,
    /// Which commands have the flag.
    pub flag: Flag,
    /// The flag's short form.
    pub short: Option<char>,
    /// One line of help.
    pub help: &'static str,
    /// More help; may be empty.
    pub detail: &'static str,
    /// Whether a text is a valid value on a host with this much memory.
    pub check: fn(&str, u64) -> Result<(), BadValue>,
}

impl Key {
    /// Defaults for what a declaration omits.
    pub(crate) const BLANK: Self = Self {
        name: "",
        scope: Scope::Global,
        kind: Kind::Text,
        form: "",
        choices: &[],
        example: "",
        default: "",
        unset: "none",
        flag_default: "",
        is_needed: false,
        reload: Reload::Applies,
        flag: Flag::None,
        short: None,
        help: "",
        detail: "",
        check: |_, _| Ok(()),
    };

    /// A valid line of the file.
    pub fn line(&self) -> String {
        let Self { name, example, .. } = self;
        match self.kind {
            Kind::Text => format!("{name} = \"{example}\""),
            Kind::List => format!("{name} = [\"{example}\"]"),
            Kind::Number | Kind::Switch => format!("{name} = {example}"),
        }
    }

    /// A row of the table in docs/configuration.md.
    pub fn row(&self) -> String {
        let Self { name, form, help, detail, .. } = self;
        let holds = match self.kind {
            Kind::Text if !self.choices.is_empty() => {
                let quoted: Vec<_> =
                    self.choices.iter().map(|one| format!("`\"{one}\"`")).collect();
                quoted.join(", ")
            }
            Kind::Text => format!("`{form}`"),
            Kind::List => format!("list of `{form}`"),
            Kind::Number => "number".into(),
            Kind::Switch => "`true` or `false`".into(),
        };
        let default = match (self.default, self.kind) {
            ("", _) => self.unset.to_owned(),
            (default, Kind::Text) => format!("`\"{default}\"`"),
            (default, _) => format!("`{default}`"),
        };
        let reload = if self.reload == Reload::Applies { "yes" } else { "restart" };
        let detail = if detail.is_empty() { String::new() } else { format!(". {detail}") };
        format!("| `{name}` | {holds} | {default} | {reload} | {help}{detail} |\n")
    }
}
