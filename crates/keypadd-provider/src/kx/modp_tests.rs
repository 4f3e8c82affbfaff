//! Tests the MODP groups against vectors computed in Python.

#![allow(clippy::unwrap_used)]

use std::collections::HashMap;

use crypto_bigint::Uint;
use rustls::crypto::ActiveKeyExchange;
use rustls::{Error, ffdhe_groups};
use zeroize::Zeroizing;

use super::modp::{self, Modp};
use super::share::INVALID_SHARE;
use super::*;

const VECTORS: &str = include_str!("../../tests/vectors/modp.txt");

/// Exchanges in one group, computed by Python's `pow`.
fn vectors(group: MeasureKeyExchange) -> Vec<HashMap<&'static str, Vec<u8>>> {
    let fields = |block: &'static str| {
        let lines = block.lines().filter_map(|line| line.split_once(" = "));
        let of_group = |(name, value)| (name, hex::decode(value).unwrap_or_default());
        lines.map(of_group).collect()
    };
    let wanted = format!("group = {group}\n");
    VECTORS.split("\n\n").filter(|block| block.starts_with(&wanted)).map(fields).collect()
}

fn refused<T>(result: Result<T, Error>) -> bool {
    result.is_err_and(|error| error == INVALID_SHARE)
}

/// One more or one less, big-endian.
fn stepped(number: &[u8], up: bool) -> Vec<u8> {
    let mut number = number.to_vec();
    for byte in number.iter_mut().rev() {
        let (stepped, on) = if up { byte.overflowing_add(1) } else { byte.overflowing_sub(1) };
        *byte = stepped;
        if !on {
            break;
        }
    }
    number
}

fn agree_as_outside_rust<const N: usize, const E: usize>(
    group: &Modp<N, E>,
    kex: MeasureKeyExchange,
) {
    let vectors = vectors(kex);
    assert_eq!(vectors.len(), 4, "{kex}");
    for vector in &vectors {
        let exchange = |secret: &str| {
            let secret = Zeroizing::new(Uint::<E>::from_be_slice(&vector[secret]));
            Box::new(group.exchange(secret))
        };
        let [ours, theirs] = ["exponent", "peer_exponent"].map(exchange);
        assert_eq!(ours.pub_key(), vector["share"], "{kex}");
        assert_eq!(theirs.pub_key(), vector["peer"], "{kex}");
        let (share, peer) = (ours.pub_key().to_vec(), theirs.pub_key().to_vec());
        assert_eq!(ours.complete(&peer).unwrap().secret_bytes(), vector["secret"], "{kex}");
        assert_eq!(theirs.complete(&share).unwrap().secret_bytes(), vector["secret"], "{kex}");
    }
    // Encodings are as long as the prime even if the number is shorter.
    for short in ["share", "secret"] {
        assert!(vectors.iter().any(|vector| vector[short][0] == 0), "{kex} {short}");
    }
}

#[test]
fn exchanges_match_those_of_python() {
    agree_as_outside_rust(&modp::MODP_768, MeasureKeyExchange::MODP_768);
    agree_as_outside_rust(&modp::MODP_1024, MeasureKeyExchange::MODP_1024);
    agree_as_outside_rust(&modp::MODP_3072, MeasureKeyExchange::MODP_3072);
    agree_as_outside_rust(&modp::FFDHE3072, MeasureKeyExchange::FFDHE3072);
}

#[test]
fn ffdhe3072_is_the_prime_of_rustls() {
    assert_eq!(vectors(MeasureKeyExchange::FFDHE3072)[0]["prime"], ffdhe_groups::FFDHE3072.p);
    assert_eq!(ffdhe_groups::FFDHE3072.g, [2]);
}

#[test]
fn both_sides_agree_with_fresh_secrets() {
    for kex in MeasureKeyExchange::ALL {
        let group = kex.group();
        let (ours, others) = (group.start().unwrap(), group.start().unwrap());
        assert_ne!(ours.pub_key(), others.pub_key(), "{kex}");
        assert_eq!(ours.group(), group.name());
        let theirs = group.start_and_complete(ours.pub_key()).unwrap();
        let secret = ours.complete(&theirs.pub_key).unwrap();
        assert_eq!(secret.secret_bytes(), theirs.secret.secret_bytes(), "{kex}");
        let other = others.complete(&theirs.pub_key).unwrap();
        assert_ne!(other.secret_bytes(), theirs.secret.secret_bytes(), "{kex}");
    }
}

#[test]
fn shares_out_of_range_or_of_another_length_are_refused_in_both_roles() {
    for kex in MeasureKeyExchange::ALL {
        let prime = vectors(kex)[0]["prime"].clone();
        let mut small = vec![0; prime.len()];
        let last = stepped(&prime, false);
        let (zero, one) = (small.clone(), stepped(&small, true));
        let above = [prime.clone(), stepped(&prime, true), vec![0xff; prime.len()]];
        let (short, long) = (prime[1..].to_vec(), [&[0], &prime[..]].concat());
        let senseless = [zero, one, last.clone(), short, long, Vec::new()];
        for share in senseless.into_iter().chain(above) {
            assert!(refused(kex.group().start().unwrap().complete(&share)), "{kex}");
            assert!(refused(kex.group().start_and_complete(&share)), "{kex}");
        }
        // The least and the greatest valid share are accepted.
        *small.last_mut().unwrap() = 2;
        for share in [small, stepped(&last, false)] {
            assert!(kex.group().start().unwrap().complete(&share).is_ok(), "{kex}");
        }
    }
}

#[test]
fn names_are_distinct_and_neither_parser_accepts_the_other_kinds() {
    for kex in MeasureKeyExchange::ALL {
        assert_eq!(kex.to_string().parse(), Ok(kex));
        assert!(kex.name().parse::<KeyExchange>().is_err());
        assert_eq!(Group::from(kex).class(), Class::Measure);
    }
    for kex in KeyExchange::ALL {
        let error = kex.name().parse::<MeasureKeyExchange>().unwrap_err().to_string();
        assert!(error.contains("modp-768, modp-1024, modp-3072, ffdhe3072"), "{error}");
    }
    let all: Vec<_> = Group::all().collect();
    for group in &all {
        let known = |others| Group::from_named_group(group.group().name(), others);
        assert_eq!(known(&all), Some(*group));
        assert_eq!(known(&[]).is_some(), group.class() == Class::Standard);
    }
}
