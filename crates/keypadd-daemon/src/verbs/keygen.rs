//! `keypadd keygen` and `keypadd pubkey`: print only the public key on standard output, so that
//! `--allow "$(keypadd pubkey)"` works; instructions go to standard error.

use std::io::{self, Write};

use keypadd_cli::error::{Error, Exit, system};
use keypadd_cli::keyfile;
use keypadd_provider::{PrivateKey, PublicKey};

use crate::command_line::KeyFileArgs;

/// Creates a key file and prints the next steps.
///
/// # Errors
/// Exit 1: the file exists or cannot be written, and no partial file is left; or the file is
/// created but standard output fails, so that `keypadd pubkey` must print the key.
pub(crate) fn keygen(args: KeyFileArgs) -> Result<(), Error> {
    let path = args.file.map_or_else(keyfile::writable_path, Ok)?;
    let key = PrivateKey::generate()
        .map_err(|error| Error::new(Exit::Runtime, format!("cannot generate a key: {error}")))?;
    keyfile::create(&path, &key)?;
    let public = key.public();
    print(&public).map_err(|error| {
        let path = keyfile::quoted_for_shell(&path);
        error.hint(format!(
            "the key file was created; run `keypadd pubkey {path}` to print its public key"
        ))
    })?;
    let _ = write!(
        io::stderr().lock(),
        "The private key is in {path}; keep it on this host.\n\
         The line above is this host's public key. Run `keypadd keygen` on the other host too.\n\
         Then start the server on one of them; it prints the command for the other:\n  \
         on the other host: keypadd serve --allow {public} --permit-open localhost:22\n  \
         or on this host:   keypadd serve --allow OTHER-HOSTS-PUBLIC-KEY --permit-open \
         localhost:22\n",
        path = path.display(),
    );
    Ok(())
}

/// Prints the public half of a key file.
///
/// # Errors
/// Exit 3: the file has no usable private key.
pub(crate) fn pubkey(args: KeyFileArgs) -> Result<(), Error> {
    let path = args.file.map_or_else(keyfile::default_path, Ok)?;
    print(&keyfile::read(&path)?.public())
}

fn print(key: &PublicKey) -> Result<(), Error> {
    writeln!(io::stdout().lock(), "{key}").map_err(|error| {
        Error::new(Exit::Runtime, format!("cannot write to standard output: {}", system(&error)))
    })
}
