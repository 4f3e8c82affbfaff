//! `keypadd keygen` and `keypadd pubkey`. Standard output is the public key and nothing else, so that
//! `--allow "$(keypadd pubkey)"` works; what to do with it goes to standard error.

use std::io::{self, Write};

use keypadd_provider::{PrivateKey, PublicKey};

use crate::cli::KeyFileArgs;
use crate::error::{Error, Exit, system};
use crate::keyfile;

/// Makes a key file and says what to run next, and where.
///
/// # Errors
/// Exit 1: the file exists or cannot be written, and nothing is left half done; or the file is made and
/// standard output fails, which `keypadd pubkey` makes good.
pub(crate) fn keygen(args: KeyFileArgs) -> Result<(), Error> {
    let path = args.file.map_or_else(keyfile::writable_path, Ok)?;
    let key = PrivateKey::generate()
        .map_err(|error| Error::new(Exit::Runtime, format!("cannot make a key: {error}")))?;
    keyfile::create(&path, &key)?;
    let public = key.public();
    print(&public).map_err(|error| {
        let path = keyfile::quoted_for_shell(&path);
        error.hint(format!("the key file is made; `keypadd pubkey {path}` prints its public key"))
    })?;
    let _ = write!(
        io::stderr().lock(),
        "The private key is in {path}; it stays on this host.\n\
         The line above is this host's public key. `keypadd keygen` makes one on the other host too.\n\
         Then start the end that is to be reached; it prints the line to run at the other end:\n  \
         on the other host: keypadd serve --allow {public} --permit-open localhost:22\n  \
         or on this host:   keypadd serve --allow OTHER-HOSTS-PUBLIC-KEY --permit-open localhost:22\n",
        path = path.display(),
    );
    Ok(())
}

/// Prints the public half of a key file.
///
/// # Errors
/// Exit 3: the file holds no usable private key.
pub(crate) fn pubkey(args: KeyFileArgs) -> Result<(), Error> {
    let path = args.file.map_or_else(keyfile::default_path, Ok)?;
    print(&keyfile::read(&path)?.public())
}

fn print(key: &PublicKey) -> Result<(), Error> {
    writeln!(io::stdout().lock(), "{key}").map_err(|error| {
        Error::new(Exit::Runtime, format!("cannot write to standard output: {}", system(&error)))
    })
}
