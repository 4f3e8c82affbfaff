//! Checks that `keypadd check` accepts every file in examples/.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::daemons::{PRIVATE_KEY, write_file};

/// Start of the public keys in the examples: readable text, so nobody has the private keys.
const NOBODYS: &str = "Put/The/";

fn configurations() -> Vec<PathBuf> {
    let examples = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/examples"));
    let files_of = |folder: PathBuf| fs::read_dir(folder).unwrap().map(|file| file.unwrap().path());
    let folders = files_of(examples.to_owned()).filter(|path| path.is_dir());
    folders
        .flat_map(files_of)
        .filter(|path| path.extension().is_some_and(|extension| extension == "toml"))
        .collect()
}

/// What `check` says of a file alone: without the networks that the host of the test is in, each of
/// which takes a line and one with the way out.
fn of_the_file(said: &str) -> String {
    let mut lines = said.lines();
    let mut rest = String::new();
    while let Some(line) = lines.next() {
        match line.contains(" of this host: addresses in both ") {
            true => drop(lines.next()),
            false => rest += line,
        }
    }
    rest
}

#[test]
fn every_example_passes_check_without_a_warning() {
    let desk = tempfile::tempdir().unwrap();
    // The examples set no key, so put one where a service has it.
    write_file(&desk.path().join("key"), PRIVATE_KEY, 0o600);
    let configurations = configurations();
    assert!(configurations.len() >= 15, "{configurations:?}");
    for path in configurations {
        let output = Command::new(env!("CARGO_BIN_EXE_keypadd"))
            .arg("check")
            .arg("--config")
            .arg(&path)
            .env_clear()
            .env("CREDENTIALS_DIRECTORY", desk.path())
            .output()
            .unwrap();
        let said = of_the_file(&String::from_utf8_lossy(&output.stderr));
        assert!(output.status.success() && said.is_empty(), "{}: {said}", path.display());
    }
}

#[test]
fn the_configuration_in_the_manifest_for_kubernetes_passes_check_without_a_warning() {
    let manifest = concat!(env!("CARGO_MANIFEST_DIR"), "/packaging/kubernetes/keypadd.yaml");
    let manifest = fs::read_to_string(manifest).unwrap();
    let (_, file) = manifest.split_once("  keypadd.toml: |\n").unwrap();
    let (file, _) = file.split_once("---\n").unwrap();
    let desk = tempfile::tempdir().unwrap();
    // As a Secret and a ConfigMap are mounted: root's key may be a group's.
    write_file(&desk.path().join("key"), PRIVATE_KEY, 0o440);
    let file: String = file.lines().map(|line| format!("{}\n", line.trim_start())).collect();
    write_file(&desk.path().join("keypadd.toml"), &file, 0o644);
    let mut command = Command::new(env!("CARGO_BIN_EXE_keypadd"));
    command.arg("check").env_clear();
    for directory in ["CREDENTIALS_DIRECTORY", "CONFIGURATION_DIRECTORY"] {
        command.env(directory, desk.path());
    }
    let output = command.output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success() && said.is_empty(), "{said}");
    assert!(file.contains(NOBODYS), "{file}");
}

#[test]
fn no_example_admits_a_published_key() {
    for path in configurations() {
        let text = fs::read_to_string(&path).unwrap();
        for value in text.split("public-key = ").skip(1) {
            let end = value.find(if value.starts_with('[') { ']' } else { '\n' }).unwrap();
            let mut keys = value[..end].split('"').skip(1).step_by(2).peekable();
            assert!(keys.peek().is_some(), "{}", path.display());
            keys.for_each(|key| assert!(key.starts_with(NOBODYS), "{}: {key}", path.display()));
        }
    }
}
