//! Adds a peer to the text of a configuration file. Only adds lines: all existing ones stay,
//! comments included. Then parses the result to verify that it has the new peer and is otherwise
//! unchanged.

use std::fmt::Write;
use std::path::Path;

use keypadd_provider::PublicKey;
use keypadd_tunnel::{DEFAULT_PORT, ListenPermit, Permit, ServerAddress};

use crate::config::{Config, InvalidConfig, KeyPlace, Texts};

/// A peer to add.
#[derive(Clone, Debug)]
pub struct NewPeer {
    /// Its name; a valid one.
    pub name: String,
    /// Its key.
    pub key: PublicKey,
    /// Who connects to whom.
    pub role: Role,
}

/// What a new peer is for.
#[derive(Clone, Debug)]
pub enum Role {
    /// The peer connects to this host. Without its own permits it has the global ones.
    Incoming {
        /// What it may connect to.
        permit_open: Vec<Permit>,
        /// Where it may listen.
        permit_listen: Vec<ListenPermit>,
    },
    /// This host connects to it.
    Outgoing {
        /// Its address.
        endpoint: ServerAddress,
    },
}

/// A file's text with the peer added.
#[derive(Debug)]
pub struct Addition {
    /// The text.
    pub text: String,
    /// The settings in that text.
    pub config: Config,
}

/// Why a peer cannot be added.
#[derive(Clone, Debug)]
pub enum AddPeerError {
    /// Another peer has its name.
    NameTaken,
    /// The peer with this name has its key.
    KeyTaken(String),
    /// The file is not valid.
    Invalid(InvalidConfig),
    /// The added lines would not have the intended meaning, as when all peers are in one inline
    /// table.
    Form,
}

impl NewPeer {
    /// Adds the peer to the main file's text, which may be empty. If the text names no private key,
    /// it then names `key`, if given. Adds `listen` if the peer needs it.
    ///
    /// # Errors
    /// Nothing can be added, or the file is not valid.
    pub fn add_to<'t>(
        &self,
        texts: impl Into<Texts<'t>>,
        key: Option<&Path>,
        memory_bytes: u64,
    ) -> Result<Addition, AddPeerError> {
        let texts = texts.into();
        let before = Config::read_to_extend(texts, memory_bytes).map_err(AddPeerError::Invalid)?;
        if before.peers.iter().any(|peer| peer.name == self.name) {
            return Err(AddPeerError::NameTaken);
        }
        if let Some(other) = before.peers.iter().find(|peer| peer.keys.contains(&self.key)) {
            return Err(AddPeerError::KeyTaken(other.name.clone()));
        }
        let mut globals = String::new();
        if let (Some(key), KeyPlace::Default) = (key, &before.key) {
            globals += &format!("key = {}\n", quoted(&key.to_string_lossy()));
        }
        if matches!(self.role, Role::Incoming { .. }) && before.settings.listen.is_none() {
            globals += &format!("listen = \"[::]:{DEFAULT_PORT}\"\n");
        }
        let text = self.appended(texts.main, &globals);
        match Config::read(Texts { main: &text, ..texts }, memory_bytes) {
            Ok(config) if self.is_all_that_changed(&before, &config) => {
                Ok(Addition { text, config })
            }
            _ => Err(AddPeerError::Form),
        }
    }

    /// The text with the global lines below its opening comment, and the peer's table at its end.
    fn appended(&self, text: &str, globals: &str) -> String {
        let (head, rest) = text.split_at(match globals {
            "" => 0,
            _ => end_of_first_comment(text),
        });
        let mut all = format!("{head}{globals}");
        if !globals.is_empty() && !rest.is_empty() {
            all.push('\n');
        }
        all += rest;
        if !all.is_empty() {
            all += if all.ends_with('\n') { "\n" } else { "\n\n" };
        }
        let is_bare = |c: char| c.is_ascii_alphanumeric() || "-_".contains(c);
        let name = match self.name.chars().all(is_bare) {
            true => self.name.clone(),
            false => quoted(&self.name),
        };
        all += &format!("[peer.{name}]\npublic-key = \"{}\"\n", self.key);
        match &self.role {
            Role::Incoming { permit_open, permit_listen } => {
                all += &list("permit-open", permit_open);
                all += &list("permit-listen", permit_listen);
            }
            Role::Outgoing { endpoint } => {
                all += &format!("endpoint = {}\n", quoted(&endpoint.to_string()));
            }
        }
        all
    }

    fn is_all_that_changed(&self, before: &Config, after: &Config) -> bool {
        let mut old = after.peers.clone();
        let Some(at) = old.iter().position(|peer| peer.name == self.name) else { return false };
        let new = old.remove(at);
        let may_differ = |name| ["key", "listen"].contains(&name);
        (&new.name, &*new.keys) == (&self.name, &[self.key][..])
            && match &self.role {
                Role::Incoming { .. } => new.incoming.is_some() && new.outgoing.is_none(),
                Role::Outgoing { endpoint } => new
                    .outgoing
                    .as_ref()
                    .is_some_and(|outgoing| outgoing.endpoint == endpoint.clone().into()),
            }
            && old == before.peers
            && before.settings.differing(&after.settings).all(|key| may_differ(key.name))
    }
}

/// Where the file's opening comment ends, including the empty line below it. A comment without an
/// empty line may belong to the line that follows it.
fn end_of_first_comment(text: &str) -> usize {
    let mut lines = text.split_inclusive('\n');
    let comment = lines.by_ref().take_while(|line| line.starts_with('#'));
    let bytes = comment.map(str::len).sum();
    match text[bytes..].split_inclusive('\n').next() {
        Some(empty) if empty.trim().is_empty() => bytes + empty.len(),
        _ => 0,
    }
}

/// A line with a list of permits, if there are any.
fn list<T: ToString>(key: &str, values: &[T]) -> String {
    if values.is_empty() {
        return String::new();
    }
    let values: Vec<_> = values.iter().map(|value| quoted(&value.to_string())).collect();
    format!("{key} = [{}]\n", values.join(", "))
}

/// A basic string (TOML 1.0, "String").
fn quoted(text: &str) -> String {
    let mut quoted = String::from("\"");
    for c in text.chars() {
        match c {
            '"' | '\\' => quoted.extend(['\\', c]),
            c if c.is_control() => {
                let _ = write!(quoted, "\\u{:04X}", u32::from(c));
            }
            c => quoted.push(c),
        }
    }
    quoted + "\""
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const KEY: &str = "11qYAYKxCrfVS/7TyWQHOg7hcvPapiMlrwIaaPcHURo=";
    const OTHER_KEY: &str = "PUAXw+hDiVqStwqnTRt+vJyYLM8uxJaMwM1V8Sr0Zgw=";
    const MEMORY_BYTES: u64 = 4 << 30;

    fn laptop() -> NewPeer {
        let permits = ["localhost:22", "/run/a.sock"];
        NewPeer {
            name: "laptop".into(),
            key: KEY.parse().unwrap(),
            role: Role::Incoming {
                permit_open: permits.map(|text| text.parse().unwrap()).into(),
                permit_listen: vec!["8080".parse().unwrap()],
            },
        }
    }

    fn lab(name: &str) -> NewPeer {
        let endpoint = "[2001:db8::7]:4434".parse().unwrap();
        NewPeer { name: name.into(), role: Role::Outgoing { endpoint }, ..laptop() }
    }

    fn add(peer: &NewPeer, text: &str) -> Result<Addition, AddPeerError> {
        peer.add_to(text, None, MEMORY_BYTES)
    }

    #[test]
    fn a_first_peer_makes_a_file() {
        let Addition { text, .. } = add(&laptop(), "").unwrap();
        let expected = format!(
            "listen = \"[::]:4433\"\n\n[peer.laptop]\npublic-key = \"{KEY}\"\n\
             permit-open = [\"localhost:22\", \"/run/a.sock\"]\n\
             permit-listen = [\"localhost:8080\"]\n"
        );
        assert_eq!(text, expected);
        let expected = format!(
            "[peer.\"a.b@c\"]\npublic-key = \"{KEY}\"\nendpoint = \"[2001:db8::7]:4434\"\n"
        );
        assert_eq!(add(&lab("a.b@c"), "").unwrap().text, expected);
    }

    #[test]
    fn existing_lines_stay_and_global_ones_go_below_the_opening_comment() {
        let peer =
            format!("[peer.office] # ours\npublic-key = \"{OTHER_KEY}\"\nendpoint = \"office\"");
        let file = format!("# Opening.\n# More.\n\n# About spin.\nspin = \"5%\"\n{peer}");
        let with_key =
            laptop().add_to(&file, Some(Path::new("/a \"b\\/key")), MEMORY_BYTES).unwrap();
        let begin = "# Opening.\n# More.\n\nkey = \"/a \\\"b\\\\/key\"\nlisten = \"[::]:4433\"\n\n\
                     # About spin.\nspin = \"5%\"\n";
        let expected = format!("{begin}{peer}\n\n[peer.laptop]\n");
        assert!(with_key.text.starts_with(&expected), "{}", with_key.text);
        assert_eq!(with_key.config.peers.len(), 2);
        let without = add(&lab("lab"), &file).unwrap().text;
        assert!(without.starts_with(&format!("{file}\n\n[peer.lab]\n")), "{without}");
        assert_eq!(end_of_first_comment("# of listen\nlisten = 1"), 0);
        assert_eq!(end_of_first_comment("# all\n"), 0);
    }

    #[test]
    fn a_name_or_key_that_is_taken_and_a_file_that_is_not_valid_are_refused() {
        let file = add(&lab("lab"), "# mine\n").unwrap().text;
        assert!(matches!(add(&lab("lab"), &file), Err(AddPeerError::NameTaken)));
        assert!(
            matches!(add(&lab("b"), &file), Err(AddPeerError::KeyTaken(name)) if name == "lab")
        );
        let Err(AddPeerError::Invalid(refused)) = add(&lab("lab"), "\nspn = 1\n") else { panic!() };
        assert_eq!((refused.faults[0].place.line, refused.faults.len()), (2, 1));
        let inline =
            format!("peer = {{ a = {{ public-key = \"{OTHER_KEY}\", endpoint = \"a\" }} }}");
        assert!(matches!(add(&lab("lab"), &inline), Err(AddPeerError::Form)));
    }

    proptest! {
        #[test]
        fn adding_a_peer_to_any_file_changes_nothing_else(
            lines in prop::collection::vec(prop_oneof![
                Just("# a comment"), Just(""), Just("spin = \"5%\""), Just("[peer.office]"),
                Just("public-key = \"PUAXw+hDiVqStwqnTRt+vJyYLM8uxJaMwM1V8Sr0Zgw=\""),
                Just("endpoint = \"office\""), Just("listen = \"[::]:1\""),
                Just("peer.x.endpoint = 'x'"),
                Just("\"\"\""), Just("suite = ["), Just("]"),
            ], 0..8),
            name in "[a-z.@]{1,5}",
        ) {
            let text = lines.join("\n");
            if let Ok(Addition { text: after, config }) = add(&lab(&name), &text) {
                for line in lines {
                    assert!(after.contains(line), "{after}");
                }
                assert_eq!(config.peers.last().unwrap().name, name);
                assert!(matches!(add(&lab(&name), &after), Err(AddPeerError::NameTaken)));
            }
        }
    }
}
