#!/usr/bin/env python3
"""Prints a CycloneDX 1.5 bill of materials of the program: every crate that goes into the
binary of one platform, with version, license and checksum, and the dependency graph.

Uses only `cargo tree` and Cargo.lock, no times or paths, so the same sources give the same text.

    scripts/sbom.py [TARGET]        for this machine's target by default
"""

import json
import pathlib
import subprocess
import sys
import tomllib

ROOT = pathlib.Path(__file__).resolve().parent.parent
PROGRAM = "keypadd"


def output(*command):
    return subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True).stdout


def host():
    lines = output("rustc", "-vV").splitlines()
    return next(line.split()[1] for line in lines if line.startswith("host:"))


def tree(target):
    """The program's crates by name and version, with licenses and dependencies."""
    asked = ("--locked", "--package", PROGRAM, "--edges", "normal,build", "--target", target)
    # cargo metadata would add features that only tests enable.
    lines = output("cargo", "tree", *asked, "--prefix", "depth", "--format", "|{p}|{l}")
    licenses, needs, path = {}, {}, []
    for line in lines.splitlines():
        depth, crate, license = line.split("|")
        name, version = crate.split()[:2]
        crate = (name, version.removeprefix("v"))
        # A repeated crate is marked after the license.
        licenses[crate] = license.removesuffix(" (*)")
        needs.setdefault(crate, set())
        path[int(depth) :] = [crate]
        if len(path) > 1:
            needs[path[-2]].add(crate)
    return licenses, needs


def reference(crate):
    return f"pkg:cargo/{crate[0]}@{crate[1]}"


def component(crate, license, checksum):
    name, version = crate
    entry = {"type": "application" if name == PROGRAM else "library", "bom-ref": reference(crate)}
    entry |= {"name": name, "version": version, "purl": reference(crate)}
    entry["licenses"] = [{"expression": license.replace("/", " OR ")}]
    if checksum:
        entry["hashes"] = [{"alg": "SHA-256", "content": checksum}]
    return entry


def main():
    target = sys.argv[1] if len(sys.argv) > 1 else host()
    licenses, needs = tree(target)
    lock = tomllib.loads((ROOT / "Cargo.lock").read_text())["package"]
    checksums = {(it["name"], it["version"]): it.get("checksum") for it in lock}
    components = [component(it, licenses[it], checksums[it]) for it in sorted(licenses)]
    program = next(it for it in components if it["type"] == "application")
    components.remove(program)
    document = {
        "bomFormat": "CycloneDX",
        "specVersion": "1.5",
        "version": 1,
        "metadata": {
            "component": program,
            "properties": [{"name": "target", "value": target}],
        },
        "components": components,
        "dependencies": [
            {"ref": reference(it), "dependsOn": sorted(map(reference, needs[it]))}
            for it in sorted(needs)
        ],
    }
    print(json.dumps(document, indent=1))


if __name__ == "__main__":
    main()
