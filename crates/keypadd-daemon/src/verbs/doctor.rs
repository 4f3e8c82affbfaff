//! `keypadd doctor`: checks this host, its configuration and the path to each peer, and says how to
//! fix what is wrong. Changes nothing, and needs no root.

mod configuration;
mod finding;
mod host;
mod networks;
mod path;
mod pool;

use keypadd_cli::block_on;
use keypadd_cli::error::{Error, Exit};

use crate::command_line::DoctorArgs;

use configuration::Configuration;
use finding::Findings;

/// Checks everything, or only one peer. Prints each finding immediately, or all as JSON at the end.
///
/// # Errors
/// Exit 1: a check failed. Exit 2: no such peer. Exit 3: HOME is not set, so no file can be found.
pub(crate) fn run(args: DoctorArgs) -> Result<(), Error> {
    let mut findings = Findings::new(args.json);
    let found = Configuration::check(args.config, &mut findings)?;
    if args.peer.is_none() {
        let none = Configuration::none();
        let config = found.as_ref().map_or(&none, |found| &found.config);
        host::check(config, &mut findings)?;
        networks::check(config, &mut findings)?;
        pool::check(config, &mut findings)?;
    }
    if let Some(found) = &found {
        let peers = found.dialed(args.peer.as_deref())?;
        block_on(path::check(found, &peers, &mut findings))?;
    }
    match findings.finish()? {
        0 => Ok(()),
        1 => Err(Error::new(Exit::Runtime, "1 check failed")),
        failed => Err(Error::new(Exit::Runtime, format!("{failed} checks failed"))),
    }
}
