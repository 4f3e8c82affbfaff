//! Writes manual pages (man(7)), generated from the definition of a command line.

use std::path::PathBuf;
use std::{fs, io};

use clap::Command;
use clap_mangen::{Man, generate_to};

use crate::error::{Error, Exit, shown, system};
use crate::results::print;

/// Prints the page of the program, or writes that and one for each command to a directory:
/// `NAME.1`, `NAME-COMMAND.1` and so on.
///
/// # Errors
/// Exit 1: a page cannot be written.
pub fn write(definition: Command, directory: Option<PathBuf>) -> Result<(), Error> {
    match directory {
        None => {
            let mut page = Vec::new();
            let rendered = Man::new(definition).render(&mut page);
            rendered.map_err(|error| failed(&error, "the page"))?;
            print(&page).map(drop)
        }
        Some(directory) => fs::create_dir_all(&directory)
            .and_then(|()| generate_to(definition, &directory))
            .map_err(|error| failed(&error, &format!("to {}", shown(directory.to_string_lossy())))),
    }
}

fn failed(error: &io::Error, what: &str) -> Error {
    Error::new(Exit::Runtime, format!("cannot write {what}: {}", system(error)))
}
