//! `keypadd man`: prints manual pages (man(7)), generated from the definition of the command line.

use std::{fs, io};

use clap_mangen::{Man, generate_to};
use keypadd_cli::error::{Error, Exit, shown, system};
use keypadd_cli::results::print;

use crate::command_line::{self, ManArgs};

/// Prints the main page, or writes all pages to a directory: `keypadd.1`, `keypadd-serve.1` and so
/// on.
///
/// # Errors
/// Exit 1: a page cannot be written.
pub(crate) fn run(args: ManArgs) -> Result<(), Error> {
    match args.directory {
        None => {
            let mut page = Vec::new();
            let rendered = Man::new(command_line::definition()).render(&mut page);
            rendered.map_err(|error| failed(&error, "the page"))?;
            print(&page).map(drop)
        }
        Some(directory) => fs::create_dir_all(&directory)
            .and_then(|()| generate_to(command_line::definition(), &directory))
            .map_err(|error| failed(&error, &format!("to {}", shown(directory.to_string_lossy())))),
    }
}

fn failed(error: &io::Error, what: &str) -> Error {
    Error::new(Exit::Runtime, format!("cannot write {what}: {}", system(error)))
}
