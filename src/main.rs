//! Starts `keypadd`; everything else is in the library `keypadd-daemon`.

use std::process::ExitCode;

fn main() -> ExitCode {
    keypadd_daemon::main(None)
}
