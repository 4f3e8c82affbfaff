//! Compares the names and types of what other programs read with the files of `surfaces`: the keys
//! of `status --json`, and the metrics with their labels and help. Values are of no concern here.
//!
//! `KEYPADD_WRITE_SURFACES=1 cargo test --test cli recorded` writes the files anew; read the diff.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::PathBuf;

use serde_json::Value;

use crate::daemons::{Daemon, Desk, desk};
use crate::ends::{echo, exchange, free_port, scrape, until};

/// The type of what has no value at the moment.
const EMPTY: &str = "null";

/// A server and a client whose session has carried a connection, and the port of their metrics.
fn pair(desk: &Desk) -> ([Daemon; 2], [u16; 2]) {
    let (target, port, metrics) = (echo("127.0.0.1"), free_port(), [free_port(), free_port()]);
    let [of_server, of_client] = metrics.map(|port| format!("127.0.0.1:{port}"));
    let permit = ["--permit-open", "127.0.0.1:*", "--metrics", &of_server, "--pool", "auto"];
    let server = Daemon::serve(desk, &permit);
    let forward = format!("{port}:{target}");
    let flags = ["-L", &forward, "--metrics", &of_client, "--log-format", "json"];
    let client = Daemon::start(server.connect(desk, &flags));
    until("the target answers", || exchange(&format!("127.0.0.1:{port}"), b"hello").ok());
    ([server, client], metrics)
}

/// Compares these rows, by name, with a file; `agree` decides whether two that differ do no harm.
fn compare(name: &str, rows: &BTreeMap<String, String>, agree: impl Fn(&str, &str) -> bool) {
    let path = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/cli/surfaces").join(name);
    let recorded = fs::read_to_string(&path).unwrap_or_default();
    let recorded: BTreeMap<_, _> =
        recorded.lines().filter_map(|line| line.split_once(": ")).collect();
    if std::env::var_os("KEYPADD_WRITE_SURFACES").is_some() {
        let line = |(name, row): (&String, &String)| match recorded.get(name.as_str()) {
            Some(before) if agree(before, row) => format!("{name}: {before}\n"),
            _ => format!("{name}: {row}\n"),
        };
        fs::write(&path, rows.iter().map(line).collect::<String>()).unwrap();
        return;
    }
    let names: BTreeSet<&str> = rows.keys().map(String::as_str).collect();
    let names_before: BTreeSet<&str> = recorded.keys().copied().collect();
    let gone: Vec<_> = names_before.difference(&names).collect();
    let new: Vec<_> = names.difference(&names_before).collect();
    assert!(gone.is_empty() && new.is_empty(), "{name}: gone {gone:?}, new {new:?}");
    for (key, row) in rows {
        let before = recorded[key.as_str()];
        assert!(before == row || agree(before, row), "{name}: {key} was {before}, is {row}");
    }
}

/// Adds the type of a value and of all that is in it, by the way to it.
fn add_types(at: &str, value: &Value, types: &mut BTreeMap<String, String>) {
    let name = match value {
        Value::Null => EMPTY,
        Value::Bool(_) => "boolean",
        Value::Number(number) if number.is_f64() => "float",
        Value::Number(_) => "integer",
        Value::String(_) => "string",
        // How many texts or numbers are in a list depends on the host.
        Value::Array(items) => {
            let objects = items.iter().filter(|item| item.is_object());
            objects.for_each(|item| add_types(&format!("{at}[]"), item, types));
            "array"
        }
        Value::Object(fields) => {
            fields.iter().for_each(|(key, field)| add_types(&format!("{at}.{key}"), field, types));
            "object"
        }
    };
    let known = types.entry(at.to_owned()).or_insert_with(|| name.to_owned());
    if known == EMPTY {
        name.clone_into(known);
    }
    assert!(name == EMPTY || known == name, "{at} is {known} and {name}");
}

#[test]
fn status_has_the_recorded_keys_and_types() {
    let desk = desk();
    let _pair = pair(&desk);
    let output = desk.keypadd(&["status", "--json"]).output().unwrap();
    let mut types = BTreeMap::new();
    add_types("", &serde_json::from_slice(&output.stdout).unwrap(), &mut types);
    // Where this moment has no value, the type in the file stays.
    compare("status.txt", &types, |before, now| now == EMPTY && before != EMPTY);
}

#[test]
fn metrics_have_the_recorded_names_types_labels_and_help() {
    let desk = desk();
    let (_daemons, metrics) = pair(&desk);
    let (mut described, mut labels) = (BTreeMap::new(), BTreeMap::<_, BTreeSet<_>>::new());
    until("the connection is counted", || {
        scrape(metrics[1]).contains("keypadd_forward_connections_total{").then_some(())
    });
    for page in metrics.map(scrape) {
        let (mut help, mut metric) = (String::new(), String::new());
        for line in page.lines().skip_while(|line| !line.starts_with("# ")) {
            if let Some(rest) = line.strip_prefix("# HELP ") {
                help = rest.split_once(' ').unwrap().1.to_owned();
            } else if let Some(rest) = line.strip_prefix("# TYPE ") {
                let (name, kind) = rest.split_once(' ').unwrap();
                metric = name.to_owned();
                described.insert(metric.clone(), (kind.to_owned(), help.clone()));
            } else if let Some((_, rest)) = line.split_once('{') {
                let (of_sample, _) = rest.rsplit_once('}').unwrap();
                // Each label but the first follows the value of another.
                let names = of_sample.split("=\"").map(|part| part.rsplit("\",").next().unwrap());
                let count = of_sample.matches("=\"").count();
                let names = names.take(count).map(str::to_owned);
                labels.entry(metric.clone()).or_default().extend(names);
            }
        }
    }
    let rows = described.into_iter().map(|(name, (kind, help))| {
        let of_metric = labels.remove(&name).unwrap_or_default();
        let of_metric = of_metric.into_iter().collect::<Vec<_>>().join(",");
        (name, format!("{kind} {{{of_metric}}} {help}"))
    });
    compare("metrics.txt", &rows.collect(), |_, _| false);
}
