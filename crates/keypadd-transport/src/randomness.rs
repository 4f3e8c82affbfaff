//! Draws random bytes from the operating system.

use std::{fmt::Display, process};

use tracing::error;

/// Fills this with random bytes.
pub(crate) fn fill_random(bytes: &mut [u8]) {
    require(getrandom::fill(bytes));
}

/// Ends the process if there were no random bytes: what is drawn here must not be guessed. Does not
/// panic, which would end one loop or connection, while the others go on.
fn require(drawn: Result<(), impl Display>) {
    if let Err(error) = drawn {
        error!(%error, "no random bytes from the system");
        process::abort();
    }
}

#[cfg(test)]
mod tests {
    use std::{
        env,
        os::unix::process::ExitStatusExt,
        process::{Command, Stdio},
    };

    use super::*;

    /// Set in the process that is to end.
    const CHILD: &str = "KEYPADD_TEST_NO_RANDOM_BYTES";

    #[test]
    fn a_process_without_random_bytes_ends_rather_than_go_on_with_what_can_be_guessed() {
        const ABORTED: i32 = 6;
        if env::var_os(CHILD).is_some() {
            return require(Err("refused"));
        }
        let name = "randomness::tests::\
            a_process_without_random_bytes_ends_rather_than_go_on_with_what_can_be_guessed";
        let mut child = Command::new(env::current_exe().unwrap());
        child.args(["--exact", name, "--nocapture"]).env(CHILD, "1");
        let status = child.stdout(Stdio::null()).stderr(Stdio::null()).status().unwrap();
        assert_eq!(status.signal(), Some(ABORTED), "{status}");
    }

    #[test]
    fn what_is_drawn_is_never_the_same() {
        let draw = || {
            let mut bytes = [0; 16];
            fill_random(&mut bytes);
            bytes
        };
        assert_ne!(draw(), draw());
    }
}
