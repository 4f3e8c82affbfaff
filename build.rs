//! Asks the linker for a smaller daemon, where it can: relative relocations in their compact form (`DT_RELR`), if the
//! C library of this host can load it (glibc since 2.36), and one copy of functions whose code is equal.

use std::{
    env,
    io::Write,
    path::Path,
    process::{Command, Stdio},
};

/// The oldest glibc that loads compact relocations.
const OLDEST: (u32, u32) = (2, 36);

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    // What another host would run is not known here.
    let for_this_host = env::var("HOST") == env::var("TARGET");
    if for_this_host && glibc().is_some_and(|version| version >= OLDEST) {
        pass_if_accepted("-Wl,-z,pack-relative-relocs");
    }
    pass_if_accepted("-Wl,--icf=all");
}

/// Passes an argument to the linker if it links an empty program with it.
fn pass_if_accepted(argument: &str) {
    if links(argument).unwrap_or(false) {
        println!("cargo:rustc-link-arg-bins={argument}");
    }
}

fn links(argument: &str) -> Option<bool> {
    let program = Path::new(&env::var_os("OUT_DIR")?).join("empty");
    let mut compiler = Command::new(env::var_os("RUSTC")?);
    compiler.args(["-", "--crate-name", "empty", "--target", &env::var("TARGET").ok()?, "-o"]);
    compiler.arg(program).args(["-C", &format!("link-arg={argument}")]);
    if let Ok(linker) = env::var("RUSTC_LINKER") {
        compiler.args(["-C", &format!("linker={linker}")]);
    }
    let flags = env::var("CARGO_ENCODED_RUSTFLAGS").unwrap_or_default();
    compiler.args(flags.split('\x1f').filter(|flag| !flag.is_empty()));
    let compiler = compiler.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::null());
    let mut running = compiler.spawn().ok()?;
    running.stdin.take()?.write_all(b"fn main() {}").ok()?;
    Some(running.wait().ok()?.success())
}

/// This host's glibc, or `None` for another C library.
fn glibc() -> Option<(u32, u32)> {
    let printed = Command::new("getconf").arg("GNU_LIBC_VERSION").output().ok()?.stdout;
    let printed = String::from_utf8(printed).ok()?;
    let (major, minor) = printed.trim().strip_prefix("glibc ")?.split_once('.')?;
    Some((major.parse().ok()?, minor.split('.').next()?.parse().ok()?))
}
