//! Turns configuration keys into flags: a flag has the key's name, default, help and check, and an
//! environment variable `KEYPADD_NAME`. List flags repeat or take commas.

use std::ffi::OsStr;
use std::fmt;
use std::marker::PhantomData;

use clap::builder::{PossibleValue, TypedValueParser, ValueHint};
use clap::{Arg, ArgAction, ArgMatches, Args, Command, FromArgMatches, parser::ValueSource};
use keypadd_config::values::BadValue;
use keypadd_config::{Flag, Key, Kind, PeerSettings, Scope, Settings, Source};

use crate::memory::host_bytes;

/// The settings given by a command's flags.
pub struct Flags<C> {
    /// Global settings.
    pub settings: Settings,
    /// Settings of a peer.
    pub peer: PeerSettings,
    command: PhantomData<C>,
}

/// Which keys a command takes as flags.
pub trait HasFlags {
    /// The groups of keys.
    const FLAGS: &'static [Flag];
    /// Global keys outside those groups, by name.
    const NAMES: &'static [&'static str] = &[];
}

/// `keypadd serve`.
pub struct Serve;
/// `keypadd connect`.
pub struct Connect;
/// `keypadd invite`.
pub struct Invite;
/// `keypadd join`.
pub struct Join;
/// Every command.
pub struct All;

impl HasFlags for Serve {
    const FLAGS: &'static [Flag] = &[Flag::Serve, Flag::Daemons];
}

impl HasFlags for Connect {
    const FLAGS: &'static [Flag] = &[Flag::Connect, Flag::Daemons];
}

impl HasFlags for Invite {
    const FLAGS: &'static [Flag] = &[];
    const NAMES: &'static [&'static str] = &["key", "permit-open", "permit-listen", "sandbox"];
}

impl HasFlags for Join {
    const FLAGS: &'static [Flag] = &[];
    const NAMES: &'static [&'static str] = &["key", "connect-timeout", "sandbox"];
}

impl HasFlags for All {
    const FLAGS: &'static [Flag] = &[Flag::All];
}

impl<C> fmt::Debug for Flags<C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Flags").field(&self.settings).field(&self.peer).finish()
    }
}

impl<C: HasFlags> Args for Flags<C> {
    fn augment_args(command: Command) -> Command {
        add(command, C::FLAGS, C::NAMES)
    }

    fn augment_args_for_update(command: Command) -> Command {
        Self::augment_args(command)
    }
}

impl<C: HasFlags> FromArgMatches for Flags<C> {
    fn from_arg_matches(matches: &ArgMatches) -> Result<Self, clap::Error> {
        let (settings, peer) = given(matches);
        Ok(Self { settings, peer, command: PhantomData })
    }

    fn update_from_arg_matches(&mut self, matches: &ArgMatches) -> Result<(), clap::Error> {
        *self = Self::from_arg_matches(matches)?;
        Ok(())
    }
}

/// Adds the flags of these keys; compiled once for all commands.
fn add(command: Command, flags: &[Flag], names: &[&str]) -> Command {
    let has = |key: &&Key| {
        flags.contains(&key.flag) || (key.scope == Scope::Global && names.contains(&key.name))
    };
    command.args(PeerSettings::KEYS.iter().chain(Settings::KEYS).filter(has).map(arg))
}

/// The settings on the command line; compiled once for all commands.
fn given(matches: &ArgMatches) -> (Settings, PeerSettings) {
    (Settings::take(&mut GivenFlags(matches)), PeerSettings::take(&mut GivenFlags(matches)))
}

/// The flags on the command line, which clap has checked.
struct GivenFlags<'m>(&'m ArgMatches);

impl Source for GivenFlags<'_> {
    fn texts(&mut self, key: &'static Key) -> Option<Vec<(String, Option<usize>)>> {
        let texts = self.0.try_get_many::<String>(key.name).ok().flatten()?;
        let is_given = self.0.value_source(key.name) != Some(ValueSource::DefaultValue);
        Some(texts.map(|text| (text.clone(), is_given.then_some(0))).collect())
    }

    fn refuse(&mut self, _: &'static Key, _: Option<usize>, _: BadValue) {}

    fn memory_bytes(&self) -> u64 {
        host_bytes()
    }
}

/// Checks a value as its key requires and keeps it as text.
#[derive(Clone)]
struct KeyParser(&'static Key);

impl TypedValueParser for KeyParser {
    type Value = String;

    fn parse_ref(
        &self,
        command: &Command,
        arg: Option<&Arg>,
        value: &OsStr,
    ) -> Result<String, clap::Error> {
        let key = self.0;
        let check = move |text: &str| (key.check)(text, host_bytes()).map(|()| text.to_owned());
        check.parse_ref(command, arg, value)
    }

    fn possible_values(&self) -> Option<Box<dyn Iterator<Item = PossibleValue> + '_>> {
        let choices = self.0.choices.iter().copied().map(PossibleValue::new);
        (!self.0.choices.is_empty()).then(|| Box::new(choices) as _)
    }
}

fn arg(key: &'static Key) -> Arg {
    let default = if key.flag_default.is_empty() { key.default } else { key.flag_default };
    let help = match (default, key.unset) {
        ("", unset) if unset != "none" => format!("{} [default: {unset}]", key.help),
        _ => key.help.to_owned(),
    };
    let variable = format!("KEYPADD_{}", key.name.to_uppercase().replace('-', "_"));
    let mut arg = Arg::new(key.name).long(key.name).short(key.short).env(variable);
    arg = arg.value_parser(KeyParser(key)).help(help.clone());
    arg = match key.kind {
        Kind::Switch => arg.action(ArgAction::SetTrue),
        Kind::List => arg.action(ArgAction::Append).value_delimiter(',').value_name(key.form),
        Kind::Text | Kind::Number => arg.value_name(key.form),
    };
    if !default.is_empty() && key.kind != Kind::Switch {
        arg = arg.default_value(default);
    }
    if !key.detail.is_empty() {
        arg = arg.long_help(format!("{help}\n\n{}", key.detail));
    }
    if key.form == "FILE" {
        arg = arg.value_hint(ValueHint::FilePath);
    }
    match key.flag {
        Flag::Daemons => arg.help_heading("Common"),
        Flag::All => arg.help_heading("Logs").global(true),
        Flag::None | Flag::Serve | Flag::Connect => arg,
    }
}
