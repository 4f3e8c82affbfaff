//! Tests `keypadd bench` from outside: what a run prints, writes and leaves behind, complete or
//! interrupted, on this host or against a server. Checks that results are present, not their
//! values.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;
use std::process::{Child, Command, Output, Stdio};
use std::thread;

use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

use crate::daemons::{Daemon, Desk, PUBLIC_KEY, desk, text};
use crate::ends::until;

const TURNS: [&str; 2] = ["--time", "100ms"];
const TUNNELS: [&str; 6] =
    ["--suite", "3des-ctr-hmac-sha1,null-hmac-sha1", "--pool", "on,off", "--pool-budget", "2MiB"];
const ARMS: [&str; 4] =
    ["plain TCP", "3des-ctr-hmac-sha1, pool on", "3des-ctr-hmac-sha1, pool off", "null-hmac-sha1"];

/// Far more rounds than a test waits for.
const ENDLESS: [&str; 2] = ["--rounds", "1000"];

fn bench(desk: &Desk, args: &[&[&str]]) -> Command {
    let mut command = desk.keypadd(&["bench"]);
    command.env("KEYPADD_KEY", desk.path("connect.key"));
    command.args(args.concat()).stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}

/// The results of a run that completes.
fn measured(desk: &Desk, args: &[&[&str]]) -> Value {
    let ran = bench(desk, args).args(["--json", "--rounds", "1"]).output().unwrap();
    assert_eq!(ran.status.code(), Some(0), "{args:?}: {}", text(&ran.stderr));
    serde_json::from_slice(&ran.stdout).unwrap()
}

fn list(value: &Value) -> &Vec<Value> {
    value.as_array().unwrap()
}

fn labels(rows: &Value) -> Vec<&str> {
    list(rows).iter().map(|row| row["label"].as_str().unwrap()).collect()
}

/// The only section of these results, with nothing missing that was asked for.
fn whole<'a>(results: &'a Value, rows: &[&str]) -> &'a Value {
    assert_eq!(results["run"]["complete"], true);
    let [section] = &list(&results["sections"])[..] else { panic!("not one section") };
    for words in ["title", "question"] {
        assert_ne!(section[words], "", "{words}");
    }
    assert!(!list(&section["method"]).is_empty() && !list(&section["verdicts"]).is_empty());
    assert!(!list(&section["tables"]).is_empty() && !list(&section["plots"]).is_empty());
    for table in list(&section["tables"]) {
        let id = &table["id"];
        assert_eq!(labels(&table["rows"]), rows, "{id}");
        for row in list(&table["rows"]) {
            assert_eq!(list(&row["cells"]).len(), list(&table["columns"]).len(), "{id}");
        }
        let cells = list(&table["rows"]).iter().flat_map(|row| list(&row["cells"]));
        let figures = cells.filter(|cell| cell["figure"]["value"].is_number());
        assert!(figures.count() > 0, "{id} has no results");
    }
    for plot in list(&section["plots"]) {
        let curves = list(&plot["curves"]);
        assert!(!curves.is_empty(), "{}", plot["id"]);
        assert!(curves.iter().all(|curve| !list(&curve["points"]).is_empty()), "{}", plot["id"]);
    }
    section
}

/// One column of a section's table, by row.
fn column(section: &Value, table: &str, name: &str) -> Vec<f64> {
    let table = list(&section["tables"]).iter().find(|it| it["id"] == table).unwrap();
    let nth = list(&table["columns"]).iter().position(|column| column["name"] == name).unwrap();
    let figure = |row: &Value| row["cells"][nth]["figure"]["value"].as_f64().unwrap();
    list(&table["rows"]).iter().map(figure).collect()
}

#[test]
fn bench_without_keypadd_bench_says_how_to_get_it() {
    let desk = desk();
    let keypadd = desk.path("keypadd");
    fs::copy(env!("CARGO_BIN_EXE_keypadd"), &keypadd).unwrap();
    let ran = Command::new(keypadd).args(["bench", "terminal"]).env_clear().output().unwrap();
    let said = "keypadd: bench: cannot find keypadd-bench next to keypadd or on PATH\n  \
                hint: `cargo build --release -p keypadd-bench` builds it; put it next to keypadd\n";
    assert_eq!((ran.status.code(), text(&ran.stderr).as_str()), (Some(1), said));
}

#[test]
fn every_traffic_workload_gives_complete_results() {
    let desk = desk();
    let workloads: [(&str, &[&str]); 5] = [
        ("terminal", &["--rate", "50", "--size", "100"]),
        ("bulk", &["--burst", "100KiB", "--direction", "down"]),
        ("mixed", &["--rate", "50", "--streams", "2"]),
        ("voice", &["--streams", "2"]),
        ("files", &["--clients", "2,3", "--rate", "100"]),
    ];
    // Beside each other: each waits most of its time.
    thread::scope(|scope| {
        for (workload, flags) in workloads {
            let desk = &desk;
            scope.spawn(move || {
                let results = measured(desk, &[&[workload], flags, &TURNS, &TUNNELS]);
                assert_eq!(whole(&results, &ARMS)["id"], workload);
            });
        }
    });
}

#[test]
fn the_handshake_workload_gives_complete_results() {
    let few = ["--handshakes", "2", "--rate", "30", "--kex", "x25519,secp384r1"];
    let results = measured(&desk(), &[&["kex"], &few, &TURNS]);
    assert_eq!(whole(&results, &["x25519", "secp384r1"])["id"], "kex");
}

#[test]
fn a_run_prints_and_saves_the_same_tables() {
    let desk = desk();
    let out = ["--rounds", "1", "--out", "deep/report"];
    for _ in 0..2 {
        // The second run replaces the report of the first.
        let run = bench(&desk, &[&TYPING, &TURNS, &TUNNELS, &out]).output().unwrap();
        let (said, printed) = (text(&run.stderr), text(&run.stdout));
        assert_eq!(run.status.code(), Some(0), "{said}");
        assert_eq!(said, "report: deep/report/report.html\n");
        for words in ARMS.iter().chain(&["p99.9", "µs", "INCONCLUSIVE", "seed 1"]) {
            assert!(printed.contains(words), "{words}: {printed}");
        }
        let results = saved(&desk.path("deep/report"));
        let section = whole(&results, &ARMS);
        let names = |folder: &str| {
            let entries = fs::read_dir(desk.path("deep/report").join(folder)).unwrap();
            entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect()
        };
        let named = |what: &str, ending: &str| -> BTreeSet<String> {
            let ids = list(&section[what]).iter().map(|it| it["id"].as_str().unwrap().to_owned());
            ids.map(|id| format!("terminal-{id}{ending}")).collect()
        };
        let (pictures, data): (BTreeSet<String>, BTreeSet<String>) = (names("plots"), names("csv"));
        assert!(pictures.is_superset(&named("plots", ".svg")), "{pictures:?}");
        assert!(data.is_superset(&named("tables", ".csv")), "{data:?}");
        let page = fs::read_to_string(desk.path("deep/report/report.html")).unwrap();
        assert!(page.contains("--out deep/report") && page.contains("<svg"));
        assert!(!page.contains("INCOMPLETE"));
    }
}

#[test]
fn the_same_seed_offers_the_same_traffic() {
    let desk = desk();
    let typed = |seed: &str| {
        let flags = ["--typists", "100", "--seed", seed, "--suite", "aes-256-gcm,null"];
        let results = measured(&desk, &[&["terminal"], &TURNS, &flags]);
        let section = whole(&results, &["plain TCP", "aes-256-gcm, pool on", "null"]);
        let counts = column(section, "latency", "count");
        assert!(counts.iter().all(|&count| count == counts[0] && count > 0.0), "{counts:?}");
        counts
    };
    assert_eq!(typed("7"), typed("7"));
    assert_ne!(typed("7"), typed("8"));
}

fn saved(report: &Path) -> Value {
    serde_json::from_slice(&fs::read(report.join("results.json")).unwrap()).unwrap()
}

/// Starts a run that would take an hour and waits for its first round.
fn under_way(desk: &Desk, args: &[&[&str]]) -> Child {
    let lasting = ["--out", "report"];
    let child = bench(desk, &[args, &[&lasting, &ENDLESS]].concat()).spawn().unwrap();
    until("the first round is saved", || desk.path("report/results.json").exists().then_some(()));
    child
}

/// Checks what an interrupted run printed and saved: the reason, and results for each arm.
fn partial(desk: &Desk, ran: &Output, why: &str, arms: &[&str]) {
    let printed = text(&ran.stdout);
    let words: Vec<_> = printed.split_whitespace().collect();
    assert!(words.join(" ").contains(&format!("INCOMPLETE: {why}")), "{printed}");
    let results = saved(&desk.path("report"));
    assert_eq!(results["run"]["complete"], false);
    assert!(results["run"]["ended_by"].as_str().unwrap().starts_with(why), "{}", results["run"]);
    let section = &results["sections"][0];
    let counts = column(section, "latency", "count");
    assert!(counts.len() == arms.len() && counts.iter().all(|&count| count > 0.0), "{counts:?}");
    assert!(printed.contains(arms[0]), "{printed}");
}

const TYPING: [&str; 3] = ["terminal", "--rate", "50"];

#[test]
fn ctrl_c_keeps_the_complete_rounds_and_says_so() {
    let desk = desk();
    let child = under_way(&desk, &[&TYPING, &TURNS, &TUNNELS]);
    kill_process(Pid::from_child(&child), Signal::INT).unwrap();
    let ran = child.wait_with_output().unwrap();
    assert_eq!(ran.status.code(), Some(0), "{}", text(&ran.stderr));
    partial(&desk, &ran, "it was interrupted", &ARMS);
}

#[test]
fn ctrl_c_before_the_first_round_says_that_nothing_was_measured() {
    for workload in ["bulk", "exhaustion"] {
        let desk = desk();
        let command = [workload, "--suite", "3des-ctr-hmac-sha1", "--out", "report"];
        let child = bench(&desk, &[&command]).spawn().unwrap();
        // By then it handles signals.
        until("the report directory exists", || desk.path("report").exists().then_some(()));
        kill_process(Pid::from_child(&child), Signal::INT).unwrap();
        let ran = child.wait_with_output().unwrap();
        assert_eq!(ran.status.code(), Some(0), "{}", text(&ran.stderr));
        assert!(text(&ran.stdout).contains("INCOMPLETE: it was interrupted"));
        assert_eq!(saved(&desk.path("report"))["run"]["complete"], false);
    }
}

const REMOTE: [&str; 6] =
    ["--suite", "aes-256-gcm,null-hmac-sha1", "--pool", "on", "--peer", PUBLIC_KEY];
const REMOTE_ARMS: [&str; 2] = ["aes-256-gcm, pool on", "null-hmac-sha1"];

#[test]
fn a_server_that_permits_it_is_measured_with_any_suite() {
    let desk = desk();
    let server = Daemon::serve(&desk, &["--permit-bench"]);
    let at = [server.address()];
    let results = measured(&desk, &[&TYPING, &[&at[0]], &TURNS, &REMOTE]);
    whole(&results, &REMOTE_ARMS);
}

#[test]
fn a_run_that_loses_its_server_keeps_what_it_has_and_names_the_arm() {
    let desk = desk();
    let server = Daemon::serve(&desk, &["--permit-bench"]);
    let address = server.address();
    let child = under_way(&desk, &[&TYPING, &[&address], &TURNS, &REMOTE]);
    server.signal(Signal::KILL);
    let ran = child.wait_with_output().unwrap();
    let said = text(&ran.stderr);
    assert_eq!(ran.status.code(), Some(1), "{said}");
    let lost = REMOTE_ARMS.iter().find(|arm| said.contains(&format!("keypadd: bench: {arm}: ")));
    assert!(lost.is_some() && said.contains("results so far are printed"), "{said}");
    partial(&desk, &ran, lost.unwrap(), &REMOTE_ARMS);
}

#[test]
fn a_server_that_does_not_permit_it_is_not_measured() {
    let desk = desk();
    let server = Daemon::serve(&desk, &["--permit-open", "*:*"]);
    let address = server.address();
    let ends = [
        ("null-hmac-sha1", 4, "no common suite", "--suite"),
        ("aes-256-gcm", 1, "does not permit benchmarks", "--permit-bench"),
    ];
    for (suite, code, cause, hint) in ends {
        let command = ["terminal", &address, "--peer", PUBLIC_KEY, "--suite", suite];
        let ran = bench(&desk, &[&command]).output().unwrap();
        let said = text(&ran.stderr);
        assert_eq!(ran.status.code(), Some(code), "{said}");
        let mut last = said.lines().rev();
        assert!(last.next().unwrap().starts_with("  hint: ") && said.contains(hint), "{said}");
        assert!(last.next().unwrap().contains(cause), "{said}");
        assert!(ran.stdout.is_empty());
    }
}

/// Number of parts of a reproduction recorded so far.
fn parts(desk: &Desk) -> Option<usize> {
    let notebook = fs::read(desk.path("report/measured.json")).ok()?;
    let notebook: Value = serde_json::from_slice(&notebook).unwrap();
    Some(notebook["parts"].as_object().unwrap().len())
}

#[test]
fn a_stopped_reproduction_resumes_and_refuses_another_runs_figures() {
    let desk = desk();
    // A busy machine takes long for a part.
    let time = ["--time-budget", "1h"];
    let reproduce =
        [&["reproduce", "praptodiyono", "--quick", "--out", "report"][..], &time].concat();
    let child = bench(&desk, &[&reproduce[..]]).spawn().unwrap();
    until("a part is recorded", || parts(&desk));
    kill_process(Pid::from_child(&child), Signal::INT).unwrap();
    let ran = child.wait_with_output().unwrap();
    assert_eq!(ran.status.code(), Some(0), "{}", text(&ran.stderr));
    let printed = text(&ran.stdout);
    assert!(printed.contains("INCOMPLETE: it was interrupted"), "{printed}");
    assert!(printed.contains("What the papers claim"), "{printed}");
    assert!(desk.path("report/pages/praptodiyono.html").exists());
    let before = parts(&desk).unwrap();

    let other = bench(&desk, &[&reproduce[..], &["--seed", "2"]]).output().unwrap();
    assert_eq!(other.status.code(), Some(2));
    assert!(text(&other.stderr).contains("holds a run with seed 1"), "{}", text(&other.stderr));
    let other = bench(&desk, &[&["kex", "--out", "report"]]).output().unwrap();
    assert_eq!(other.status.code(), Some(2));
    assert!(text(&other.stderr).contains("measured.json"), "{}", text(&other.stderr));

    let child = bench(&desk, &[&reproduce[..]]).spawn().unwrap();
    until("the run resumes", || parts(&desk).filter(|&parts| parts > before));
    kill_process(Pid::from_child(&child), Signal::INT).unwrap();
    let ran = child.wait_with_output().unwrap();
    assert!(text(&ran.stderr).contains("resuming: "), "{}", text(&ran.stderr));
}
