//! Standard output, which belongs to results.

use std::io::{self, ErrorKind, Write};

use crate::error::{Error, Exit, system};

/// Writes a result. A reader that has gone away, such as `head`, is not a failure: false then.
///
/// # Errors
/// Exit 1: standard output fails.
pub fn print(text: &[u8]) -> Result<bool, Error> {
    let mut out = io::stdout().lock();
    match out.write_all(text).and_then(|()| out.flush()) {
        Ok(()) => Ok(true),
        Err(error) if error.kind() == ErrorKind::BrokenPipe => Ok(false),
        Err(error) => Err(Error::new(
            Exit::Runtime,
            format!("cannot write to standard output: {}", system(&error)),
        )),
    }
}
