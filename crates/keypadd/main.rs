//! Starts `keypadd`. All of it is in the library beside this file.

use std::process::ExitCode;

fn main() -> ExitCode {
    keypadd_daemon::main()
}
