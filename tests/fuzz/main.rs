//! Runs the properties of the fuzz targets (`fuzz/src`) without a fuzzer, on every seed (initial
//! inputs and past finds) and on mutations of the seeds. Has no coverage feedback: `fuzz/run` does.
//!
//! Tries a few inputs per target by default, from the same random numbers in every run.
//! `KEYPADD_FUZZ_SECONDS=10` tries fresh ones for that long per target. A failure prints its input
//! in hex: keep it as a seed.

#![allow(clippy::unwrap_used)]

mod mutation;
#[path = "../../fuzz/src/lib.rs"]
#[allow(unreachable_pub, reason = "public for the fuzz targets")]
mod targets;

use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::path::PathBuf;
use std::time::{Duration, Instant};
use std::{env, fs};

use fastrand::Rng;

/// Mutated inputs per target in a plain `cargo test`.
const INPUTS: u64 = 200;

fn try_input(holds: impl Fn(&[u8]), input: &[u8]) {
    if let Err(panic) = catch_unwind(AssertUnwindSafe(|| holds(input))) {
        eprintln!("the input, in hex: {}", hex::encode(input));
        resume_unwind(panic);
    }
}

/// Tries every seed of a target, then mutations of them.
fn fuzz(target: &str, holds: impl Fn(&[u8])) {
    let folder: PathBuf = [env!("CARGO_MANIFEST_DIR"), "fuzz/seeds", target].iter().collect();
    let files = fs::read_dir(folder).unwrap().map(|file| file.unwrap().path());
    let mut seeds: Vec<Vec<u8>> = files.map(|file| fs::read(file).unwrap()).collect();
    assert!(!seeds.is_empty(), "no seeds for {target}");
    // The same order in every run.
    seeds.sort();
    for seed in &seeds {
        try_input(&holds, seed);
    }
    let seconds = env::var("KEYPADD_FUZZ_SECONDS").ok();
    let time = seconds.map(|seconds| Duration::from_secs(seconds.parse().unwrap()));
    let mut rng = if time.is_some() { Rng::new() } else { Rng::with_seed(0) };
    let (began, mut tried) = (Instant::now(), 0);
    while time.map_or(tried < INPUTS, |time| began.elapsed() < time) {
        try_input(&holds, &mutation::mutate(&mut rng, &seeds));
        tried += 1;
    }
    println!("{target}: {} seeds and {tried} mutations in {:?}", seeds.len(), began.elapsed());
}

/// Like [`fuzz`], for text targets: skips input that is not UTF-8, as the fuzzer does.
fn fuzz_text(target: &str, holds: impl Fn(&str)) {
    fuzz(target, |input| {
        if let Ok(text) = str::from_utf8(input) {
            holds(text);
        }
    });
}

#[test]
fn any_configuration_gives_settings_or_faults_with_a_position() {
    fuzz_text("config", targets::config::holds);
}

#[test]
fn any_forward_parses_to_what_it_displays_or_is_refused() {
    fuzz_text("forwards", targets::forwards::holds);
}

#[test]
fn any_permit_parses_to_what_it_displays_or_is_refused() {
    fuzz_text("permits", targets::permits::holds);
}

#[test]
fn all_implementations_of_ghash_tag_any_packet_alike() {
    fuzz("tags", targets::tags::holds);
}

#[test]
fn any_packets_of_a_network_pass_as_permitted_or_as_answers_and_are_answered_with_packets() {
    fuzz("network_packets", targets::network_packets::holds);
}

#[test]
fn any_bytes_of_a_control_stream_are_frames_or_an_error() {
    fuzz("frames", targets::frames::holds);
}

#[test]
fn any_bytes_of_a_stream_are_a_header_or_an_error() {
    fuzz("headers", targets::headers::holds);
}

#[test]
fn any_frames_of_flows_make_datagrams_within_bounds_or_are_refused() {
    fuzz("flow_frames", targets::flow_frames::holds);
}

#[test]
fn any_answer_of_a_dns_server_has_targets_that_can_be_dialed_or_is_refused() {
    fuzz("srv_answers", targets::srv_answers::holds);
}

#[test]
fn any_receipts_free_what_was_written_and_nothing_else() {
    fuzz("receipts", targets::receipts::holds);
}

#[test]
fn any_bytes_of_a_socks_client_end_its_handshake_within_bounds() {
    fuzz("socks", targets::socks::holds);
}

#[test]
fn any_bytes_before_a_connection_are_a_proxy_header_within_bounds_or_none() {
    fuzz("proxy_headers", targets::proxy_headers::holds);
}

#[test]
fn any_line_is_an_invitation_that_reads_again_or_is_refused_unquoted() {
    fuzz("invitations", targets::invitations::holds);
}

#[test]
fn any_bytes_are_a_key_with_one_encoding_or_a_discreet_error() {
    fuzz("keys", targets::keys::holds);
}

#[test]
fn any_handshake_messages_complete_it_unchanged_or_not_at_all() {
    fuzz("handshakes", targets::handshakes::holds);
}

#[test]
fn any_use_of_packet_keys_seals_a_number_once_and_opens_what_was_sealed() {
    fuzz("packet_keys", targets::packet_keys::holds);
}

#[test]
fn any_use_of_a_pool_serves_right_pads_once_and_returns_its_memory() {
    fuzz("pool_operations", targets::pool_operations::holds);
}
