//! Hashes what a world sends, so that a change to the code can show that it alters nothing there.
//!
//! With `KEYPADD_TRACES=FILE`, each world appends a line to FILE when it is dropped: its test, its
//! number in that test, how many datagrams were sent, and a hash of the time, length and
//! destination of each. `scripts/traces` compares these lines with `traces.txt`, or records them
//! there. Knows no contents: keys and numbers drawn at random differ between runs, lengths do not.

use std::{
    cell::Cell,
    env,
    fs::OpenOptions,
    io::Write,
    net::{IpAddr, SocketAddr},
    thread,
    time::Duration,
};

/// The variable that names the file.
const FILE: &str = "KEYPADD_TRACES";

/// Constants of FNV-1a with 64 bits.
const OFFSET_BASIS: u64 = 0xcbf2_9ce4_8422_2325;
const PRIME: u64 = 0x100_0000_01b3;

thread_local! {
    /// Worlds of the test that runs in this thread.
    static WORLDS: Cell<u32> = const { Cell::new(0) };
}

/// The datagrams of one world.
pub struct Trace {
    world: u32,
    datagrams: u64,
    hash: u64,
}

impl Trace {
    /// Begins the trace of this thread's next world.
    pub fn new() -> Self {
        let world = WORLDS.get() + 1;
        WORLDS.set(world);
        Self { world, datagrams: 0, hash: OFFSET_BASIS }
    }

    /// Records a datagram that was sent this long after the world began.
    pub fn sent(&mut self, since: Duration, bytes: usize, destination: SocketAddr) {
        self.datagrams += 1;
        self.hash_bytes(&(since.as_nanos() as u64).to_le_bytes());
        self.hash_bytes(&(bytes as u64).to_le_bytes());
        match destination.ip() {
            IpAddr::V4(ip) => self.hash_bytes(&ip.octets()),
            IpAddr::V6(ip) => self.hash_bytes(&ip.octets()),
        }
        self.hash_bytes(&destination.port().to_le_bytes());
    }

    fn hash_bytes(&mut self, bytes: &[u8]) {
        for byte in bytes {
            self.hash = (self.hash ^ u64::from(*byte)).wrapping_mul(PRIME);
        }
    }
}

impl Drop for Trace {
    fn drop(&mut self) {
        let Some(path) = env::var_os(FILE) else { return };
        let thread = thread::current();
        let test = thread.name().expect("libtest names its threads");
        let Self { world, datagrams, hash } = self;
        // One write, so that the lines of tests that run at the same time do not mix.
        let line = format!("{test} {world} {datagrams} {hash:016x}\n");
        let mut file = OpenOptions::new().create(true).append(true).open(path).unwrap();
        file.write_all(line.as_bytes()).unwrap();
    }
}
