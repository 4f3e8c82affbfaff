//! Tests the format of log lines.

use std::fs::{self, File};
use std::os::unix::fs::MetadataExt;

use crate::daemons::{PUBLIC_KEY, desk};

#[test]
fn log_lines_have_a_time_except_in_the_systemd_journal() {
    let desk = desk();
    let path = desk.path("log");
    for is_journal in [true, false] {
        let log = File::create(&path).unwrap();
        let file = log.metadata().unwrap();
        let named = format!("{}:{}", file.dev(), file.ino() + u64::from(!is_journal));
        let nobody = ["-v", "connect", "127.0.0.1:9", "--peer", PUBLIC_KEY, "-W", "a:1"];
        let mut connect = desk.keypadd(&nobody);
        connect.args(["--connect-timeout", "50ms"]).env("JOURNAL_STREAM", named).stderr(log);
        connect.status().unwrap();
        let text = fs::read_to_string(&path).unwrap();
        let line = text.lines().find(|line| line.contains("UDP buffers")).unwrap();
        assert_eq!(!line.starts_with("20"), is_journal, "{text}");
    }
}
