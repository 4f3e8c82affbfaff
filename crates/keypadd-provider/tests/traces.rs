//! Checks that a closed connection leaves none of our keys and no keystream in memory. What
//! libraries leave is listed here and in docs/argument.md ("What stays in memory"). Runs in a process
//! of its own, because it reads all of its memory (proc(5), `/proc/self/mem`).
//!
//! Memory is written to a file first; only then are the traces to search for computed, from
//! rustls's key log: keys, tokens and MAC states without our code, by RFC 8446, RFC 9001 and
//! docs/protocol.md; pads by the keystream that the battery checks against independent packets. A
//! core dump (core(5)) would contain less than is read here: neither read-only memory nor the pool.
//!
//! AES-GCM's key and its round keys are in ring's memory as well as in ours, and ring leaves them.
//! Only the pads, and GHASH's key in `polyval`'s layout, are ours alone.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::fs::{self, File};
use std::io::{Read, Seek, Write};
use std::net::{Ipv4Addr, SocketAddr};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use aes::cipher::{BlockCipherEncrypt, KeyInit};
use aes::{Aes128Enc, Aes256Enc};
use hkdf::Hkdf;
use interposer::{expand_label, export};
use keypadd_keystream::{Cipher, Mac, PacketNumber, Suite, SuiteKey};
use keypadd_pool::{Pool, PoolSettings};
use keypadd_provider::{
    CryptoSettings, PrivateKey, TestHooks, client_config_with, server_config_with,
};
use quinn::{Connection, Endpoint, TransportConfig};
use rustls::KeyLog;
use sha2::Sha256;

/// Reads memory in pieces of this size.
const PIECE_BYTES: usize = 1 << 20;
/// Bytes of a trace to search for: too many to match by coincidence.
const TRACE_BYTES: usize = 12;
/// Key updates to request, with traffic before and after each.
const UPDATES: usize = 3;
/// Phases whose keys to search for: one more is derived than used.
const PHASES: usize = UPDATES + 3;
/// The pool of both ends.
const POOL_BYTES: usize = 1 << 20;
/// Bytes of each round of traffic, each way.
const ROUND_BYTES: usize = 200 << 10;
/// Segments of 64 packets whose subkeys and pads to search for.
const SEGMENTS: u64 = 24;
/// Powers of GHASH's key that are stored, and those that ring stores alike.
const GHASH_POWERS: usize = 16;
const RING_POWERS: usize = 8;
/// Positions in a pad: one in its head, two in its body.
const PLACES: [usize; 3] = [32, 400, 1200];
/// Bytes of a pad in the pool.
const PAD_BYTES: usize = 1472;
/// Packets that may be padded with zeros, and so contain plain keystream: those in the handshake's
/// datagrams (RFC 9000 section 14.1).
const PADDED_PACKETS: usize = 16;

/// The secrets that rustls logs, inverted byte by byte, so that the search does not find the log.
#[derive(Debug, Default)]
struct Inverted(Mutex<BTreeMap<String, Vec<u8>>>);

impl KeyLog for Inverted {
    fn log(&self, label: &str, _: &[u8], secret: &[u8]) {
        let inverted = secret.iter().map(|byte| !byte).collect();
        self.0.lock().expect("no panic").insert(label.into(), inverted);
    }
}

fn expand(key: &[u8], info: &[u8], bytes: usize) -> Vec<u8> {
    let mut out = vec![0; bytes];
    Hkdf::<Sha256>::from_prk(key).expect("32 bytes").expand(info, &mut out).expect("short");
    out
}

/// All keys of a connection, with their kinds: two directions, several phases.
fn keys(suite: Suite, log: &Inverted) -> Vec<(&'static str, Vec<u8>)> {
    let protection = suite.protection();
    let log = log.0.lock().expect("no panic");
    let secret = |label: &str| log[label].iter().map(|byte| !byte).collect::<Vec<u8>>();
    let token = export(&secret("EXPORTER_SECRET"), b"EXPERIMENTAL keypadd token", 32);
    let mut keys = vec![("token", token), ("exporter secret", secret("EXPORTER_SECRET"))];
    for sender in ["CLIENT", "SERVER"] {
        keys.push(("handshake secret", secret(&format!("{sender}_HANDSHAKE_TRAFFIC_SECRET"))));
        let mut secret = secret(&format!("{sender}_TRAFFIC_SECRET_0"));
        keys.push(("header key", expand_label(&secret, b"quic hp", protection.key_bytes())));
        for phase in 0..PHASES {
            let key = expand_label(&secret, b"quic key", protection.key_bytes());
            keys.push(("IV", expand_label(&secret, b"quic iv", 12)));
            let is_of_tls = protection.is_of_tls();
            if !is_of_tls {
                let bytes = if protection.mac() == Mac::HmacSha1 { 20 } else { 32 };
                keys.push(("MAC key", expand(&key, b"keypadd mac", bytes)));
                match protection.cipher() {
                    Cipher::Aes128 => keys.push(("cipher key", expand(&key, b"keypadd enc", 16))),
                    Cipher::Aes256 => keys.push(("cipher key", expand(&key, b"keypadd enc", 32))),
                    _ => keys.extend((0..SEGMENTS).flat_map(|segment| subkey(&key, segment))),
                }
            }
            match protection.mac() {
                Mac::Ghash => keys.extend(ghash_keys(&key)),
                Mac::Poly1305 => {} // its keys are in the pads
                Mac::HmacSha1 => keys.extend(sha1_states(&expand(&key, b"keypadd mac", 20))),
                _ => keys.extend(sha256_states(&expand(&key, b"keypadd mac", 32))),
            }
            let skipped = if phase == 0 { PADDED_PACKETS } else { 0 };
            let iv = expand_label(&secret, b"quic iv", 12);
            keys.extend(pads(suite, &key, &iv).into_iter().skip(skipped * PLACES.len()));
            keys.push((if is_of_tls { "packet key of ring's" } else { "packet key" }, key));
            let next = expand_label(&secret, b"quic ku", secret.len());
            keys.push(("traffic secret", std::mem::replace(&mut secret, next)));
        }
    }
    keys
}

/// The key of a segment, as derived and, with parity set, as used.
fn subkey(key: &[u8], segment: u64) -> [(&'static str, Vec<u8>); 2] {
    let info = [b"keypadd sub".as_slice(), &segment.to_be_bytes(), &[0]].concat();
    let derived = expand(key, &info, 24);
    let odd = |byte: &u8| (byte & 0xfe) | u8::from((byte >> 1).count_ones().is_multiple_of(2));
    [("subkey", derived.iter().map(odd).collect()), ("subkey", derived)]
}

/// Pieces of pads of one key, packet by packet.
fn pads(suite: Suite, key: &[u8], iv: &[u8]) -> Vec<(&'static str, Vec<u8>)> {
    let iv = iv.try_into().expect("12 bytes");
    let keystream = SuiteKey::derive(suite, key, iv).keystream.expect("a cipher");
    let mut pads = Vec::new();
    for segment in 0..SEGMENTS {
        let mut rows = vec![[0; PAD_BYTES]; 64];
        let all = rows.iter_mut().map(|row| &mut row[..]);
        keystream.write_rows(PacketNumber::new(segment * 64).segment(), 0, all);
        let piece = |row: &[u8; PAD_BYTES], at: usize| row[at..at + TRACE_BYTES].to_vec();
        pads.extend(rows.iter().flat_map(|row| PLACES.map(|at| ("pad", piece(row, at)))));
    }
    pads
}

/// The powers of GHASH's key, each with what an implementation of ours stores beside it: both halves
/// added up, twice (`keypadd-keystream/src/ghash/kernel.rs`), or half of a product (polyval's
/// `compute_d`). Powers above ring's are ours alone. (SP 800-38D section 7.1, step 1; RFC 8452,
/// appendix A.)
fn ghash_keys(key: &[u8]) -> Vec<(&'static str, Vec<u8>)> {
    let mut block = [0; 16].into();
    match key.len() {
        16 => Aes128Enc::new_from_slice(key).expect("16 bytes").encrypt_block(&mut block),
        _ => Aes256Enc::new_from_slice(key).expect("32 bytes").encrypt_block(&mut block),
    }
    let reversed = u128::from_be_bytes(block.into());
    let carry = reversed >> 127;
    let h = (reversed << 1) ^ carry ^ (carry << 127) ^ (carry << 126) ^ (carry << 121);
    let powers = std::iter::successors(Some(h), |power| Some(times(*power, h)));
    let traces = (1..).zip(powers).take(GHASH_POWERS).flat_map(|(exponent, power)| {
        let product = (0..64).filter(|bit| power >> bit & 1 == 1);
        let product = product.fold(0, |sum, bit| sum ^ (0xc200_0000_0000_0000_u128 << bit));
        let halves = power ^ power.rotate_left(64);
        let of_ring = exponent <= RING_POWERS;
        let what = if of_ring { "power of GHASH's key, ring's too" } else { "GHASH key" };
        // ring adds halves up in registers, from where other code may store them.
        let product = ("GHASH key", power.rotate_left(64) ^ product);
        [(what, power), (what, halves), product]
    });
    traces.map(|(what, trace)| (what, trace.to_le_bytes().to_vec())).collect()
}

/// The product of two elements divided by x^128, modulo x^128 + x^127 + x^126 + x^121 + 1 (RFC 8452
/// section 3).
fn times(one: u128, other: u128) -> u128 {
    let halved = |element: u128| {
        let odd = element & 1;
        element >> 1 ^ odd << 127 ^ odd << 126 ^ odd << 125 ^ odd << 120
    };
    (0..128).fold(0, |sum, bit| halved(sum ^ if other >> bit & 1 == 1 { one } else { 0 }))
}

/// The first blocks of the inner and the outer hash of an HMAC (RFC 2104 section 2).
fn hmac_blocks(key: &[u8]) -> [[u8; 64]; 2] {
    [0x36, 0x5c].map(|pad| {
        let mut block = [pad; 64];
        block.iter_mut().zip(key).for_each(|(byte, key)| *byte ^= key);
        block
    })
}

/// The two states of an HMAC-SHA-256 key as stored in memory.
fn sha256_states(key: &[u8]) -> [(&'static str, Vec<u8>); 2] {
    // FIPS 180-4 section 5.3.3.
    let begin = [
        0x6a09_e667,
        0xbb67_ae85,
        0x3c6e_f372,
        0xa54f_f53a,
        0x510e_527f,
        0x9b05_688c,
        0x1f83_d9ab,
        0x5be0_cd19,
    ];
    hmac_blocks(key).map(|block| {
        let mut state = begin;
        sha2::block_api::compress256(&mut state, &[block]);
        ("MAC state", state.iter().flat_map(|word: &u32| word.to_ne_bytes()).collect())
    })
}

/// As [`sha256_states`], for HMAC-SHA-1.
fn sha1_states(key: &[u8]) -> [(&'static str, Vec<u8>); 2] {
    // FIPS 180-4 section 5.3.1.
    let begin = [0x6745_2301, 0xefcd_ab89, 0x98ba_dcfe, 0x1032_5476, 0xc3d2_e1f0];
    hmac_blocks(key).map(|block| {
        let mut state = begin;
        sha1::block_api::compress(&mut state, &[block]);
        ("MAC state", state.iter().flat_map(|word: &u32| word.to_ne_bytes()).collect())
    })
}

/// Copies all writable memory of the process to a file, including the stacks of finished threads.
/// The file is unlinked, so that nothing is left of it if this process dies.
fn snapshot() -> File {
    let maps = fs::read_to_string("/proc/self/maps").expect("proc is mounted");
    let memory = File::open("/proc/self/mem").expect("own memory is readable");
    let path =
        Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("memory-{}", std::process::id()));
    let mut file = File::create_new(&path).expect("a file");
    fs::remove_file(path).expect("the file exists");
    let mut piece = vec![0; PIECE_BYTES];
    // This buffer holds copies of what was read before.
    let own = piece.as_ptr() as u64..piece.as_ptr() as u64 + PIECE_BYTES as u64;
    for line in maps.lines() {
        let mut words = line.split_whitespace();
        let (range, rights) = (words.next().expect("a range"), words.next().expect("rights"));
        if !rights.starts_with("rw") {
            continue;
        }
        let (from, to) = range.split_once('-').expect("two ends");
        let [mut at, to] = [from, to].map(|end| u64::from_str_radix(end, 16).expect("an address"));
        while at < to {
            let border = [own.start, own.end].into_iter().find(|border| *border > at);
            let end = to.min(at + PIECE_BYTES as u64).min(border.unwrap_or(to));
            let bytes = (end - at) as usize;
            if !own.contains(&at) && memory.read_exact_at(&mut piece[..bytes], at).is_ok() {
                file.write_all(&piece[..bytes]).expect("room for it");
            }
            at = end;
        }
    }
    piece.fill(0);
    std::hint::black_box(&mut piece);
    file
}

/// The kinds of keys that a snapshot contains.
fn found(keys: &[(&'static str, Vec<u8>)], mut snapshot: File) -> BTreeSet<&'static str> {
    let mut memory = Vec::new();
    snapshot.rewind().expect("a file");
    snapshot.read_to_end(&mut memory).expect("a snapshot");
    let mut wanted: HashMap<[u8; TRACE_BYTES], &'static str> = HashMap::new();
    let begin =
        |trace: &[u8]| trace[..3].iter().fold(0, |number, &byte| number << 8 | usize::from(byte));
    let mut begins = vec![false; 1 << 24];
    for (what, key) in keys {
        let trace = *key.first_chunk::<TRACE_BYTES>().expect("long enough");
        begins[begin(&trace)] = true;
        wanted.insert(trace, what);
    }
    let windows = memory.windows(TRACE_BYTES);
    let of = |window: &[u8]| wanted.get(window.first_chunk::<TRACE_BYTES>()?).copied();
    windows.filter(|window| begins[begin(window)]).filter_map(of).collect()
}

/// Sends a round of traffic each way on a new stream.
async fn carry([client, server]: [&Connection; 2]) {
    let text = vec![0x5a; ROUND_BYTES];
    let ask = async {
        let (mut send, mut receive) = client.open_bi().await.expect("a stream");
        send.write_all(&text).await.expect("written");
        send.finish().expect("open");
        receive.read_to_end(ROUND_BYTES).await.expect("answered")
    };
    let answer = async {
        let (mut send, mut receive) = server.accept_bi().await.expect("a stream");
        let heard = receive.read_to_end(ROUND_BYTES).await.expect("asked");
        send.write_all(&heard).await.expect("written");
        send.finish().expect("open");
        let _ = send.stopped().await;
    };
    let (heard, ()) = tokio::join!(ask, answer);
    assert!(heard == text);
}

/// Runs one connection with a pool at both ends; returns a snapshot of memory just before it
/// closes.
async fn live(suite: Suite, log: &Arc<Inverted>) -> File {
    let key = || Arc::new(PrivateKey::generate().expect("randomness"));
    let keys = [key(), key()];
    let pool = Pool::new(PoolSettings { budget_bytes: POOL_BYTES }).expect("a pool");
    let settings = |end: usize| CryptoSettings {
        pool: Some(pool.clone()).into(),
        ..CryptoSettings::plain(Arc::clone(&keys[end]), suite)
    };
    let hooks = TestHooks { key_log: Arc::clone(log) as _, ..TestHooks::default() };
    let client = client_config_with(&settings(0), keys[1].public(), &hooks).expect("settings");
    let allowed = Arc::new(keys[0].public());
    let server = server_config_with(&settings(1), allowed, &hooks).expect("settings");
    let loopback = SocketAddr::from((Ipv4Addr::LOCALHOST, 0));
    // Path probes would be padded with zeros, and so contain plain keystream.
    let mut transport = TransportConfig::default();
    transport.mtu_discovery_config(None);
    let transport = Arc::new(transport);
    let mut server = quinn::ServerConfig::with_crypto(server);
    server.transport_config(Arc::clone(&transport));
    let listening = Endpoint::server(server, loopback).expect("a socket");
    let connecting = Endpoint::client(loopback).expect("a socket");
    let address = listening.local_addr().expect("bound");
    let accept = async { listening.accept().await.expect("incoming").await.expect("accepted") };
    let connect = async {
        let mut config = quinn::ClientConfig::new(client);
        config.transport_config(transport);
        let connecting = connecting.connect_with(config, address, "keypadd").expect("valid");
        connecting.await.expect("connected")
    };
    let (server, client) = tokio::join!(accept, connect);
    for round in 0..=UPDATES {
        carry([&client, &server]).await;
        if round < UPDATES {
            client.force_key_update();
        }
    }
    // A filler that gets little CPU time starts late.
    let deadline = Instant::now() + Duration::from_secs(120);
    while pool.snapshot().filled_bytes < POOL_BYTES as u64 / 2 {
        assert!(Instant::now() < deadline, "the pool stays empty");
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    let alive = snapshot();
    client.close(0u32.into(), b"");
    server.closed().await;
    drop((client, server));
    tokio::join!(connecting.wait_idle(), listening.wait_idle());
    alive
}

/// Waits until the pool's filler has ended, and has dropped its keys.
fn wait_for_the_filler() {
    let is_filler = |thread: fs::DirEntry| {
        fs::read_to_string(thread.path().join("comm")).is_ok_and(|name| name == "keypadd-fill\n")
    };
    let deadline = Instant::now() + Duration::from_secs(120);
    while fs::read_dir("/proc/self/task").expect("proc is mounted").flatten().any(is_filler) {
        assert!(Instant::now() < deadline, "a filler without a pool keeps running");
        thread::sleep(Duration::from_millis(1));
    }
}

/// What libraries leave (docs/argument.md): rustls moves secrets, and wipes only the last copy; ring
/// wipes nothing.
const LIBRARIES_LEAVE: [&str; 7] = [
    "handshake secret",
    "exporter secret",
    "traffic secret",
    "header key",
    "packet key of ring's",
    "power of GHASH's key, ring's too",
    "IV",
];

/// The kind of a suite's MAC key in our memory. GHASH's layouts are those of CPUs with carry-less
/// multiplication.
fn state_of(suite: Suite) -> &'static str {
    match suite.protection().mac() {
        Mac::Ghash if multiplies_carry_less() => "GHASH key",
        Mac::Ghash | Mac::Poly1305 => "pad",
        _ => "MAC state",
    }
}

#[cfg(target_arch = "x86_64")]
fn multiplies_carry_less() -> bool {
    std::arch::is_x86_feature_detected!("pclmulqdq")
}

/// Not known of other architectures.
#[cfg(not(target_arch = "x86_64"))]
fn multiplies_carry_less() -> bool {
    false
}

#[test]
fn a_closed_connection_leaves_no_key_of_ours_in_memory() {
    let mut left = Vec::new();
    for suite in [
        Suite::AES_256_GCM,
        Suite::CHACHA20_POLY1305,
        Suite::AES_256_CTR_HMAC_SHA1,
        Suite::TRIPLE_DES_CTR_HMAC_SHA1,
    ] {
        let log = Arc::new(Inverted::default());
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(2)
            .enable_all()
            .build()
            .expect("a runtime");
        let alive = runtime.block_on(live(suite, &log));
        runtime.shutdown_timeout(Duration::from_secs(60));
        wait_for_the_filler();
        let over = snapshot();
        let keys = keys(suite, &log);
        let [alive, over] = [alive, over].map(|snapshot| found(&keys, snapshot));
        println!("{suite}: alive {alive:?}, over {over:?}");
        // The search works: a live connection has its keys, and pads to come.
        for ours in ["header key", "pad", "token", state_of(suite)] {
            assert!(alive.contains(ours), "{suite}: {ours} of {alive:?}");
        }
        let ours: Vec<_> = over.iter().filter(|what| !LIBRARIES_LEAVE.contains(what)).collect();
        left.extend(ours.into_iter().map(|what| format!("{suite}: {what}")));
    }
    assert!(left.is_empty(), "{left:?}");
}
