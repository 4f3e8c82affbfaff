//! Starts `keypadd`; everything else is in the library next to this file.

use std::process::ExitCode;

fn main() -> ExitCode {
    keypadd_daemon::main()
}
