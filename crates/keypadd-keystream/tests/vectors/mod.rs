//! Reads the vector files of this directory: rows of hex, or blocks of `name = value`.
//!
//! Compiled into the crate's unit tests as well as into its integration tests.
#![allow(dead_code, unreachable_pub, clippy::unwrap_used)] // no test uses all of it

use std::collections::HashMap;
use std::str::FromStr;

/// Lines that are neither empty nor comments, as `N` columns of hex.
pub fn rows<const N: usize>(text: &str) -> Vec<[Vec<u8>; N]> {
    let lines = text.lines().filter(|line| !line.is_empty() && !line.starts_with('#'));
    let rows = lines.map(|line| {
        let columns: Vec<_> = line.split(' ').map(|column| hex::decode(column).unwrap()).collect();
        columns.try_into().unwrap()
    });
    rows.collect()
}

/// The blocks of a file, in order, separated by empty lines.
pub fn blocks(text: &str) -> Vec<Block<'_>> {
    let blocks = text.split("\n\n").map(|block| {
        let lines = block.lines().filter(|line| !line.starts_with('#'));
        let fields = lines.map(|line| line.split_once('=').unwrap());
        Block(fields.map(|(name, value)| (name.trim(), value.trim())).collect())
    });
    blocks.filter(|block| !block.0.is_empty()).collect()
}

/// One block of `name = value` lines.
pub struct Block<'a>(HashMap<&'a str, &'a str>);

impl Block<'_> {
    /// A value, parsed as it is.
    pub fn parsed<T: FromStr>(&self, name: &str) -> T {
        self.0[name].parse().ok().unwrap()
    }

    /// A value in hex.
    pub fn bytes(&self, name: &str) -> Vec<u8> {
        hex::decode(self.0[name]).unwrap()
    }

    /// A value in hex, of a known length.
    pub fn array<const N: usize>(&self, name: &str) -> [u8; N] {
        self.bytes(name).try_into().unwrap()
    }
}
