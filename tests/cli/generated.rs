//! Tests generated completions and manual pages.

use std::process::{Command, Stdio};

use crate::daemons::{PUBLIC_KEY, desk, write_file};

/// A key that no host here has.
const OTHER_KEY: &str = "Gb9ECWmEzf6FQbrBZ9w7lshQhqowtrbLDFw4rXAxZuE=";

/// Whether this program is installed.
fn installed(program: &str) -> bool {
    let found = Command::new(program).arg("--version").stdin(Stdio::null()).output();
    found.is_ok_and(|output| output.status.success())
}

#[test]
fn completions_are_scripts_that_know_every_verb_and_flag() {
    let desk = desk();
    let help = desk.keypadd(&["-h"]).output().unwrap();
    let help = String::from_utf8(help.stdout).unwrap();
    let verbs = help.lines().skip_while(|line| *line != "Commands:").skip(1);
    let verbs: Vec<&str> = verbs.map_while(|line| line.split_whitespace().next()).collect();
    assert!(verbs.contains(&"completions"), "{verbs:?}");
    for shell in ["bash", "zsh", "fish"] {
        let output = desk.keypadd(&["completions", shell]).output().unwrap();
        assert!(output.status.success() && output.stderr.is_empty(), "{shell}");
        let script = String::from_utf8(output.stdout.clone()).unwrap();
        for word in verbs.iter().chain(&["permit-open", "pool-budget", "config"]) {
            assert!(script.contains(word), "{shell}: {word}");
        }
        let path = desk.path(shell);
        std::fs::write(&path, output.stdout).unwrap();
        if installed(shell) {
            // Shells look up the working directory; here it belongs to another test.
            let mut check = Command::new(shell);
            let checked = check.arg("-n").arg(&path).current_dir("/").output().unwrap();
            assert!(checked.status.success() && checked.stderr.is_empty(), "{shell}: {checked:?}");
        }
    }
}

#[test]
fn bash_completes_flags_and_verbs() {
    if !installed("bash") {
        return;
    }
    let desk = desk();
    let script = desk.keypadd(&["completions", "bash"]).output().unwrap().stdout;
    std::fs::write(desk.path("keypadd.bash"), script).unwrap();
    let complete = |words: &str| {
        let ask = format!(
            "source keypadd.bash; COMP_WORDS=({words}); COMP_CWORD=$((${{#COMP_WORDS[@]}} - 1)); \
             _keypadd keypadd \"${{COMP_WORDS[-1]}}\" \"${{COMP_WORDS[-2]}}\"; echo \"${{COMPREPLY[@]}}\""
        );
        let mut bash = Command::new("bash");
        let output = bash.args(["-c", &ask]).current_dir(desk.path("")).output().unwrap();
        String::from_utf8(output.stdout).unwrap().trim().to_owned()
    };
    assert_eq!(complete("keypadd ser"), "serve");
    assert_eq!(complete("keypadd check --con"), "--config");
    assert_eq!(complete("keypadd connect --congest"), "--congestion");
    assert_eq!(complete("keypadd connect --suite chacha"), "chacha20-poly1305");
    assert_eq!(complete("keypadd serve --kex secp"), "secp384r1");
}

#[test]
fn there_is_a_manual_page_for_every_verb() {
    let desk = desk();
    let main = desk.keypadd(&["man"]).output().unwrap();
    assert!(main.status.success());
    let all = desk.keypadd(&["man", "pages"]).output().unwrap();
    assert!(all.status.success() && all.stdout.is_empty());
    let page = |name: &str| std::fs::read_to_string(desk.path("pages").join(name)).unwrap();
    assert_eq!(page("keypadd.1").as_bytes(), main.stdout);
    assert!(page("keypadd-connect.1").contains("connect\\-timeout"));
    for entry in std::fs::read_dir(desk.path("pages")).unwrap() {
        let path = entry.unwrap().path();
        let text = std::fs::read_to_string(&path).unwrap();
        for heading in ["\n.TH keypadd", "\n.SH NAME\n", "\n.SH SYNOPSIS\n", "\n.SH DESCRIPTION\n"]
        {
            assert!(text.contains(heading), "{}: {heading}", path.display());
        }
        if installed("man") {
            let mut man = Command::new("man");
            man.args(["--warnings", "-E", "UTF-8", "-l"]).arg(&path).env("MANWIDTH", "80");
            // `man` starts shells, which look up the working directory; here it belongs to another
            // test.
            let shown = man.current_dir("/").stdin(Stdio::null()).output().unwrap();
            let said = String::from_utf8_lossy(&shown.stderr).into_owned();
            assert!(shown.status.success() && said.is_empty(), "{}: {said}", path.display());
        }
    }
}

#[test]
fn bash_completes_the_names_of_peers_in_the_file() {
    if !installed("bash") {
        return;
    }
    let desk = desk();
    let peer = |name: &str, key: &str, endpoint: &str| {
        format!("[peer.{name}]\npublic-key = \"{key}\"\n{endpoint}\n")
    };
    let file = [
        "listen = \"[::]:0\"\n".to_owned(),
        peer("lab", PUBLIC_KEY, "endpoint = \"lab.example\""),
        peer("laptop", OTHER_KEY, ""),
    ];
    write_file(&desk.path("keypadd.toml"), &file.concat(), 0o644);
    let script = desk.keypadd(&["completions", "bash"]).output().unwrap().stdout;
    std::fs::write(desk.path("keypadd.bash"), script).unwrap();
    // With and without `@` among the word breaks, as in interactive shells and in some setups.
    for (breaks, words, completed) in
        [("' @'", "keypadd connect @ la", "lab"), ("' '", "keypadd connect @la", "@lab")]
    {
        let ask = format!(
            "keypadd() {{ {} \"$@\"; }}; source keypadd.bash; COMP_WORDBREAKS={breaks}; \
             COMP_LINE='keypadd connect @la'; COMP_POINT=${{#COMP_LINE}}; COMP_WORDS=({words}); \
             COMP_CWORD=$((${{#COMP_WORDS[@]}} - 1)); _keypadd_named; echo \"${{COMPREPLY[@]}}\"",
            env!("CARGO_BIN_EXE_keypadd")
        );
        let mut bash = Command::new("bash");
        bash.args(["-c", &ask]).current_dir(desk.path(""));
        bash.env("KEYPADD_CONFIG", desk.path("keypadd.toml"));
        let output = bash.output().unwrap();
        assert_eq!(String::from_utf8(output.stdout).unwrap().trim(), completed, "{breaks}");
    }
}
