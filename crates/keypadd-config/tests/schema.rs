//! Writes the keys as a JSON Schema, which editors and `taplo` check configuration files with:
//! docs/keypadd.schema.json. `scripts/schema.py` validates the examples by it.

#![allow(clippy::unwrap_used)]

use std::fs;

use keypadd_config::{Key, Kind, PeerSettings, Settings};
use serde_json::{Map, Value, json};

const SCHEMA: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/keypadd.schema.json");

/// The keys of one scope as properties.
fn properties(keys: &[Key]) -> Map<String, Value> {
    keys.iter().map(|key| (key.name.to_owned(), property(key))).collect()
}

fn property(key: &Key) -> Value {
    let mut all = match key.kind {
        Kind::Text if !key.choices.is_empty() => json!({ "enum": key.choices }),
        Kind::Text => json!({ "type": "string" }),
        Kind::List => {
            let least = usize::from(key.is_needed);
            let list = json!({ "type": "array", "items": { "type": "string" }, "minItems": least });
            json!({ "anyOf": [{ "type": "string" }, list] })
        }
        Kind::Number => json!({ "type": "integer", "minimum": 1 }),
        Kind::Switch => json!({ "type": "boolean" }),
    };
    let detail = if key.detail.is_empty() { String::new() } else { format!(". {}", key.detail) };
    all["description"] = format!("{}{detail}", key.help).into();
    all["examples"] = json!([typed(key.kind, key.example)]);
    if !key.default.is_empty() {
        all["default"] = typed(key.kind, key.default);
    }
    all
}

fn typed(kind: Kind, text: &str) -> Value {
    match kind {
        Kind::Text | Kind::List => text.into(),
        Kind::Number | Kind::Switch => serde_json::from_str(text).unwrap(),
    }
}

/// With `KEYPADD_WRITE_PAGE=1` the test writes the schema instead of comparing it.
#[test]
fn the_schema_of_the_file_has_the_keys_as_they_are() {
    let mut global = properties(Settings::KEYS);
    global.insert(
        "peer".into(),
        json!({
            "description": "The peers, each as a table [peer.NAME]",
            "type": "object",
            "propertyNames": { "pattern": "^[A-Za-z0-9_.@-]{1,63}$" },
            "additionalProperties": { "$ref": "#/definitions/peer" },
        }),
    );
    let schema = json!({
        "$schema": "http://json-schema.org/draft-07/schema#",
        "title": "Configuration of keypadd",
        "description": "keypadd.toml, and files of peers.d, which have peers alone",
        "type": "object",
        "additionalProperties": false,
        "properties": global,
        "definitions": { "peer": {
            "type": "object",
            "additionalProperties": false,
            "required": ["public-key"],
            "properties": properties(PeerSettings::KEYS),
        } },
    });
    let wanted = serde_json::to_string_pretty(&schema).unwrap() + "\n";
    if std::env::var_os("KEYPADD_WRITE_PAGE").is_some() {
        fs::write(SCHEMA, &wanted).unwrap();
        return;
    }
    assert!(
        fs::read_to_string(SCHEMA).is_ok_and(|text| text == wanted),
        "KEYPADD_WRITE_PAGE=1 cargo test -p keypadd-config writes it:\n{wanted}"
    );
}
