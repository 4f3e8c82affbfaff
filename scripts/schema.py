#!/usr/bin/env python3
"""Validates every configuration file of this repository by docs/keypadd.schema.json: those of examples/ and
packaging/, and the blocks of the pages; and every recorded results.json by docs/results.schema.json. Also checks that
the schemas refuse what is wrong.

    scripts/schema.py

Needs Python 3.11 and jsonschema (Debian: python3-jsonschema). Prints what is wrong; exit code 1 if anything is.
"""

import copy
import json
import lzma
import pathlib
import re
import sys
import tomllib

import jsonschema

ROOT = pathlib.Path(__file__).resolve().parent.parent
KEY = "D0XbYHn9sJqlis8CDNgJkkZJ9mE6rbU+xBMj9RFj4R0="

# What the schema must refuse, each beside a part of the reason.
WRONG = [
    ('colour = "red"', "'colour' was unexpected"),
    ("pool-budget = 64", "is not of type 'string'"),
    ('loops = "4"', "is not of type 'integer'"),
    ('pool = "sometimes"', "is not one of"),
    ("suite = []", "not valid under any"),
    ('[peer.a]\nendpoint = "a"', "'public-key' is a required property"),
    (f'[peer.a]\npublic-key = "{KEY}"\nlisten = "[::]:1"', "'listen' was unexpected"),
    (f'[peer."two words"]\npublic-key = "{KEY}"', "does not match"),
]


def texts():
    """Each file or block, with its name."""
    files = [*ROOT.glob("examples/*/*.toml"), *ROOT.glob("packaging/**/*.toml")]
    for file in sorted(files):
        yield file.relative_to(ROOT), file.read_text()
    for page in [*ROOT.glob("docs/*.md"), *ROOT.glob("*.md"), *ROOT.glob("examples/**/*.md")]:
        for block in re.findall(r"^```toml\n(.*?)^```", page.read_text(), re.M | re.S):
            # Others are a few lines of a table.
            if "[peer." in block:
                yield page.relative_to(ROOT), block


def validator_of(name):
    """Validates by a schema of docs/."""
    schema = json.loads((ROOT / "docs" / name).read_text())
    jsonschema.Draft7Validator.check_schema(schema)
    return jsonschema.Draft7Validator(schema)


def results():
    """What is wrong with the recorded results, and how many are valid."""
    validator, wrong, valid = validator_of("results.schema.json"), [], 0
    for file in sorted(ROOT.glob("docs/benchmarks/*/results.json.xz")):
        recorded = json.loads(lzma.open(file).read())
        found = [error.message for error in validator.iter_errors(recorded)]
        wrong += [f"{file.relative_to(ROOT)}: {message[:200]}" for message in found]
        valid += not found
        for spoil in (lambda it: it.pop("machine"), lambda it: it["sections"][0].update(colour="red")):
            spoiled = copy.deepcopy(recorded)
            spoil(spoiled)
            if validator.is_valid(spoiled):
                wrong.append(f"the schema accepts a spoiled {file.relative_to(ROOT)}")
    return wrong, valid


def main():
    validator = validator_of("keypadd.schema.json")
    wrong, valid = [], 0
    for name, text in texts():
        found = [error.message for error in validator.iter_errors(tomllib.loads(text))]
        wrong += [f"{name}: {message}" for message in found]
        valid += not found
    for text, reason in WRONG:
        found = [error.message for error in validator.iter_errors(tomllib.loads(text))]
        if not any(reason in message for message in found):
            wrong.append(f"the schema accepts {text!r}, or refuses it for another reason: {found}")
    wrong_results, valid_results = results()
    wrong += wrong_results
    for line in wrong:
        print(line)
    print(f"{valid} files and blocks are valid, {len(WRONG)} wrong ones are refused, {valid_results} results are valid")
    sys.exit(bool(wrong))


if __name__ == "__main__":
    main()
