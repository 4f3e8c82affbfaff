//! Tests which directories a report may be written to, and saves that fail midway.

use super::*;
use crate::results::Section;
use crate::synthetic;

/// Every file below a directory, with its content.
fn everything(directory: &Path) -> Vec<(String, String)> {
    let mut found = Vec::new();
    for folder in ["", report::PLOTS, report::DATA, report::PAGES] {
        if !directory.join(folder).exists() {
            continue; // a report without such pages
        }
        for name in names_in(&directory.join(folder)).unwrap() {
            let path = directory.join(folder).join(&name);
            if path.is_file() {
                found.push((format!("{folder}/{name}"), fs::read_to_string(path).unwrap()));
            }
        }
    }
    found
}

#[test]
fn a_saved_report_is_its_files_and_no_other() {
    let root = tempfile::tempdir().unwrap();
    let directory = root.path().join("deep/report");
    let output = Output::create(&directory).unwrap();
    let results = synthetic::results();
    output.save(&results).unwrap();
    for file in report::files(&results) {
        let saved = fs::read_to_string(directory.join(&file.path)).unwrap();
        assert!(saved == file.contents, "{}", file.path);
    }
    assert_eq!(everything(&directory).len(), report::files(&results).len());
    let read = fs::read_to_string(directory.join(report::RESULTS)).unwrap();
    assert!(Results::from_json(&read).unwrap() == results);
}

#[test]
fn a_former_report_is_replaced_and_its_pictures_go() {
    let root = tempfile::tempdir().unwrap();
    let mut results = synthetic::results();
    let former = Output::create(root.path()).unwrap();
    former.save(&results).unwrap();
    drop(former);

    let output = Output::create(root.path()).unwrap();
    let before = everything(root.path());
    assert_eq!(before.len(), report::files(&results).len(), "nothing goes before a save");
    results.sections = vec![Section::new("other", "Other", "?")];
    output.save(&results).unwrap();
    assert_eq!(everything(root.path()).len(), report::files(&results).len());
}

#[test]
fn a_directory_with_other_files_is_refused_and_left_alone() {
    for other in ["notes.txt", "plots/notes.txt", "csv/picture.svg", "plots/x.svg/deep", "report"] {
        let root = tempfile::tempdir().unwrap();
        let path = root.path().join(other);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(&path, "mine").unwrap();
        let refused = Output::create(root.path()).unwrap_err();
        assert!(refused.hint().contains("name a directory that is empty"), "{refused}");
        assert!(!refused.to_string().contains('\n'));
        assert_eq!(fs::read_to_string(&path).unwrap(), "mine");
        assert_eq!(names_in(root.path()).unwrap().len(), 1, "nothing was added");
    }
}

#[test]
fn files_with_names_of_ours_that_no_run_has_written_are_refused() {
    for (name, contents) in [
        ("results.json", "{\"schema\": 1, \"answers\": []}"),
        ("report.html", "<p>of somebody"),
        ("csv/accounts.csv", "a,b"),
        ("plots/logo.svg", "<svg"),
    ] {
        let root = tempfile::tempdir().unwrap();
        let path = root.path().join(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(&path, contents).unwrap();
        let refused = Output::create(root.path()).unwrap_err();
        assert!(matches!(refused, OutputError::Foreign { .. }), "{refused}");
        assert_eq!(fs::read_to_string(&path).unwrap(), contents);
    }
}

#[test]
fn what_is_no_directory_is_refused() {
    let root = tempfile::tempdir().unwrap();
    let file = root.path().join("file");
    fs::write(&file, "mine").unwrap();
    let refused = Output::create(&file).unwrap_err();
    assert!(matches!(refused, OutputError::NotADirectory(_)), "{refused}");
    let refused = Output::create(&file.join("below")).unwrap_err();
    assert!(matches!(refused, OutputError::Unwritable { .. }), "{refused}");
    assert_eq!(fs::read_to_string(&file).unwrap(), "mine");
}

#[test]
fn a_directory_that_cannot_be_written_is_refused_with_a_way_out() {
    // Nobody, root included, can create directories there.
    let refused = Output::create(Path::new("/proc/keypadd-report")).unwrap_err();
    assert!(refused.to_string().contains("cannot write to /proc/keypadd-report"), "{refused}");
    assert!(refused.hint().contains("name a directory that you may write to"), "{refused}");
}

#[test]
fn a_link_in_place_of_a_file_or_folder_is_refused() {
    let root = tempfile::tempdir().unwrap();
    let elsewhere = tempfile::tempdir().unwrap();
    for name in [report::PLOTS, report::PAGE] {
        let link = root.path().join(name);
        std::os::unix::fs::symlink(elsewhere.path(), &link).unwrap();
        let refused = Output::create(root.path()).unwrap_err();
        assert!(matches!(refused, OutputError::Foreign { .. }), "{refused}");
        fs::remove_file(link).unwrap();
    }
}

#[test]
fn a_second_run_is_kept_out_until_the_first_ends() {
    let root = tempfile::tempdir().unwrap();
    let first = Output::create(root.path()).unwrap();
    let refused = Output::create(root.path()).unwrap_err();
    assert!(matches!(refused, OutputError::InUse(_)), "{refused}");
    drop(first);
    assert!(Output::create(root.path()).is_ok());
}

#[test]
fn a_save_that_fails_midway_leaves_the_old_files() {
    let root = tempfile::tempdir().unwrap();
    let output = Output::create(root.path()).unwrap();
    let mut results = synthetic::results();
    output.save(&results).unwrap();
    let before = everything(root.path());

    // A directory blocks the name of the last file, which is written after all others.
    results.run.title = "the next save".to_owned();
    let last = report::files(&results).pop().unwrap().path;
    let obstacle = beside(&root.path().join(last));
    fs::create_dir(&obstacle).unwrap();
    let failed = output.save(&results).unwrap_err().to_string();
    assert!(failed.contains("what was saved before is unchanged"), "{failed}");
    assert!(everything(root.path()) == before);

    fs::remove_dir(&obstacle).unwrap();
    output.save(&results).unwrap();
    assert!(everything(root.path()) != before);
}

#[test]
fn leftovers_of_a_killed_run_are_taken_over() {
    let root = tempfile::tempdir().unwrap();
    let output = Output::create(root.path()).unwrap();
    fs::write(root.path().join("results.json.unfinished"), "{").unwrap();
    fs::write(root.path().join("plots/gone.svg.unfinished"), "<svg").unwrap();
    drop(output);
    let results = synthetic::results();
    Output::create(root.path()).unwrap().save(&results).unwrap();
    assert_eq!(everything(root.path()).len(), report::files(&results).len());
}
