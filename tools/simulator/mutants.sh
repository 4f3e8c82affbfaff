#!/usr/bin/env bash
# Tests the auditor: puts each bug of mutants/ into a copy of the sources, builds the simulator from it,
# and audits some seeds of four suites, run through the shipped event loops.
# Run it in a clone:
#
#     tools/simulator/mutants.sh [NAME]...
#
# A bug is caught if the auditor names the keystream: a run that hangs or a damaged stream is not enough.
# No run shows what quinn never asks for, such as a number sealed twice: those patches begin with
# "Caught by:" and the tests that must fail. Exit code 1: one survived, one no longer applies, or the
# unchanged sources fail. One build each, some minutes in all. Respects CARGO_TARGET_DIR.

set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
cd "$here/../.."

suites=(aes-256-gcm chacha20-poly1305 aes-128-ctr-hmac-sha256 des-ctr-hmac-sha1)
seeds=10
keystream='WrongKeystream|PadTwice|BlockTwice|Plaintext'

# A separate directory: no mutant may be left where the program is built.
export CARGO_TARGET_DIR=${CARGO_TARGET_DIR:-$PWD/target}/mutants CARGO_INCREMENTAL=0
copy=$(mktemp -d "${TMPDIR:-/tmp}/keypadd-mutants.XXXXXX")
trap 'rm -rf "$copy"' EXIT
trap 'exit 130' INT
trap 'exit 143' TERM
# With the current time: cargo considers files older than an earlier copy's build as built.
git ls-files -z | xargs -0 cp --parents -t "$copy"
cd "$copy"

# audit SUITE: prints the auditor's findings without its counts.
audit() {
    timeout 300 "$CARGO_TARGET_DIR/debug/simulator" --suite "$1" --seeds "$seeds" |
        grep ', seed ' || true
}

build() { timeout 1800 cargo build --quiet --locked --package simulator; }

# passes TESTS...: whether these tests pass; aborts if they do not compile.
passes() {
    timeout 1800 cargo test --quiet --locked "$@" --no-run || { echo "no tests: $*"; exit 1; }
    timeout 600 cargo test --quiet --locked "$@" >tests.log 2>&1
}

build
for suite in "${suites[@]}"; do
    timeout 300 "$CARGO_TARGET_DIR/debug/simulator" --suite "$suite" --seeds "$seeds" >sound.log ||
        { cat sound.log; echo "$suite fails without a bug"; exit 1; }
done
echo 'without a bug: nothing found'

[ $# -gt 0 ] || set -- $(cd "$here/mutants" && ls | sed 's/\.patch$//')
survived=0
for name; do
    read -ra tests < <(sed -n 's/^Caught by: //p' "$here/mutants/$name.patch") || true
    if [ ${#tests[@]} -gt 0 ]; then
        passes "${tests[@]}" || { cat tests.log; echo "${tests[*]} fail without a bug"; exit 1; }
    fi
    patch --silent --strip 1 --fuzz 0 <"$here/mutants/$name.patch"
    if [ ${#tests[@]} -gt 0 ]; then
        if passes "${tests[@]}"; then
            survived=$((survived + 1))
            printf '%s, %s: SURVIVED\n' "$name" "${tests[*]}"
        else
            printf '%s, %s: %s\n' "$name" "${tests[*]}" "$(grep -m 1 '^test result: FAILED' tests.log)"
        fi
        patch --silent --strip 1 --reverse <"$here/mutants/$name.patch"
        continue
    fi
    build
    for suite in "${suites[@]}"; do
        found=$(audit "$suite" | grep -E "$keystream" | head -n 1 || true)
        [ -n "$found" ] || survived=$((survived + 1))
        printf '%s, %s\n' "$name" "${found:-$suite: SURVIVED}"
    done
    patch --silent --strip 1 --reverse <"$here/mutants/$name.patch"
done
[ "$survived" = 0 ] || { echo "$survived survived"; exit 1; }
echo 'all caught'
