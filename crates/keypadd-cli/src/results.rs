//! Writes results to standard output.

use std::io::{self, ErrorKind, Write};

use crate::error::{Error, Exit, system};

/// Writes a result; returns false if the reader, such as `head`, has closed its end.
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
