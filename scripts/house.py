#!/usr/bin/env python3
"""Measures how the shipped crates are built: their size, their circles, their largest parts.

    scripts/house.py                print the table
    scripts/house.py --circles      print each circle and its imports; exit 1 if there is one
    scripts/house.py --sizes        print what is larger than it may be; exit 1 if something is
    scripts/house.py --in FOLDER    measure the workspace in this folder, not this repository

A shipped crate is a member of the workspace that the package `keypadd` needs for more than its
tests and its build script. Its files are those that `mod` reaches from the root of its library
or program. What is under `#[cfg(test)]`, `#[cfg(loom)]` or a test's attribute does not count,
nor do the files that are declared there. A line of code holds more than blanks and comments;
the length of a file counts them.

An import is a path of a `use` declaration. It leads to the file that defines what it names:
re-exports inside the crate are followed, and what comes from another crate is no import.
Imports between a module and the modules around it do not count. A circle is a strongly
connected component of more than one file, or of more than one room.

A path that is written out where it is used is no import. Needs cargo, for its metadata.
"""

import argparse
import collections
import json
import pathlib
import re
import subprocess
import sys

sys.dont_write_bytecode = True  # Nothing is left beside the scripts.
import rust_source  # noqa: E402

ROOT = pathlib.Path(__file__).resolve().parent.parent
PROGRAM = "keypadd"
# The crates between the packets and the program.
MIDDLE = ("keypadd-transport", "keypadd-tunnel", "keypadd-share", "keypadd-congestion")
FILE_LINES = 400
LINE_COLUMNS = 100
# The name of a test or an address of this length cannot be broken.
LONG_WORD = 70
# Fields of a struct that has a method with `&mut self`.
FIELDS = 15
# Files that are longer, and why.
LONG = {
    "keypadd-keystream/bitslice/circuits_two.rs": "one printed circuit for each S-box of DES",
}
# The crates that have rooms. A room is a module below the root with all that is in it, unless
# modules that lie side by side are one room: then they stand here. A room may import those that
# stand below it.
ROOMS = {
    "keypadd-daemon": {},
    "keypadd-tunnel": {},
    "keypadd-transport": {
        "endpoint": "endpoint stepped",
        "loops": "event_loop admission intake counters",
        "connection": "driver channel gate flight pacer owed receipts stream_credit",
        "api": "connection stream mailbox queue_state held handed settings handshake dial",
        "flows": "flows",
        "splice": "splice to_stream to_socket replay reassembly socket windows time_share "
        "announcement transfer_stats unanswered",
        "net": "udp not_sent datagrams receive_buffers route steering cid token_key randomness spin",
    },
}


class Module:
    """A module of a crate: what it declares and imports, without its tests."""

    def __init__(self, name, parent, source):
        self.name, self.parent, self.source = name, parent, source
        self.children, self.items = {}, set()
        # What names of its own `use` declarations lead to, and what stands before their `*`.
        self.bindings, self.globs = {}, []

    def has(self, name):
        return name in self.children or name in self.bindings or name in self.items

    def is_around(self, module):
        while module and module is not self:
            module = module.parent
        return module is self


class Source:
    """A file of a crate."""

    def __init__(self, path, module):
        self.path, self.module = path, module
        text = path.read_text()
        tokens, left_out = rust_source.without_tests(rust_source.read(text))
        self.texts = [token.text for token in tokens]
        self.code = len({line for token in tokens for line in range(token.first, token.last + 1)})
        lines = text.splitlines()
        self.lines = len(lines) - sum(rust_source.lines_of(lines, *part) for part in left_out)
        self.paths = []  # Of all `use` declarations, also in functions, each with its module.


class Crate:
    """A crate's files, modules and structs, and which file imports which."""

    def __init__(self, name, root):
        self.name, self.sources = name, []
        self.structs, self.changed = {}, []  # Their fields; types with a method that changes them.
        self.root = Module("crate", None, None)
        self.add(self.root, root, root.parent)
        # From file to file the paths that say so.
        self.imports = collections.defaultdict(lambda: collections.defaultdict(set))
        for source in self.sources:
            for module, path in source.paths:
                found = self.resolve(module, path[:-1] if path[-1] == "*" else path)
                target = found[0].source if found else source
                here, there = source.module, target.module
                if not here.is_around(there) and not there.is_around(here):
                    self.imports[source][target].add("::".join(path))

    def add(self, module, path, folder):
        """Adds the file of a module, whose children are in this folder."""
        source = module.source = Source(path, module)
        self.sources.append(source)
        texts, at, depth, inside = source.texts, 0, 0, [(module, 0, folder)]
        while at < len(texts):
            text, (module, own_depth, folder) = texts[at], inside[-1]
            if text == "mod" and texts[at + 2] in ("{", ";"):
                name = texts[at + 1]
                child = module.children[name] = Module(name, module, source)
                if texts[at + 2] == "{":
                    depth += 1
                    inside.append((child, depth, folder / name))
                else:
                    files = (folder / f"{name}.rs", folder / name / "mod.rs")
                    found = next((file for file in files if file.is_file()), None)
                    if found is None:
                        raise SystemExit(f"{path}: `mod {name}` has no file")
                    self.add(child, found, folder / name)
                at += 3
                continue
            if text == "use" and texts[at + 1] != "<":
                end = texts.index(";", at)
                self.add_use(source, module, texts[at + 1 : end], depth == own_depth)
                at = end
            if text in rust_source.NAMING and depth == own_depth:
                module.items.add(texts[at + 1])
            if text == "struct":
                self.structs[module, texts[at + 1]] = rust_source.fields(texts, at + 2)
            if text == "impl" and rust_source.begins_item(texts, at):
                type_path, body = rust_source.implemented(texts, at)
                if type_path and rust_source.changes_itself(texts, body):
                    self.changed.append((module, type_path))
            depth += (text == "{") - (text == "}")
            if depth < own_depth:
                inside.pop()
            at += 1

    @staticmethod
    def add_use(source, module, texts, is_of_module):
        for path, alias in rust_source.leaves(texts):
            path = path[:-1] if path[-1] == "self" and len(path) > 1 else path
            source.paths.append((module, path))
            if is_of_module and path[-1] == "*":
                module.globs.append(path[:-1])
            elif is_of_module:
                module.bindings[alias or path[-1]] = path

    def resolve(self, module, path, seen=frozenset()):
        """The module that a path leads to and a name in it, or none for another crate's."""
        first, *rest = path
        if first == "crate":
            return self.walk(self.root, rest, seen)
        if first in ("self", "super") or module.has(first):
            return self.walk(module, path, seen)
        return self.through_globs(module, path, seen)

    def walk(self, module, path, seen):
        if not path:
            return module, None
        name, *rest = path
        if name in ("self", "super"):
            return self.walk(module if name == "self" else module.parent, rest, seen)
        if name in module.children:
            return self.walk(module.children[name], rest, seen)
        if name in module.bindings and (module, name) not in seen:
            return self.resolve(module, module.bindings[name] + rest, seen | {(module, name)})
        if name in module.items:
            return module, name
        return self.through_globs(module, path, seen) or (module, name)

    def through_globs(self, module, path, seen):
        for glob in module.globs if (module, "*") not in seen else ():
            found = self.resolve(module, glob, seen | {(module, "*")})
            if found and found[1] is None and found[0].has(path[0]):
                return self.walk(found[0], path, seen | {(module, "*")})
        return None

    def changing_structs(self):
        """The fields and the names of the structs that have a method with `&mut self`."""
        found = {self.resolve(module, path) for module, path in self.changed}
        return sorted(
            ((self.structs[one], f"{self.name}::{one[1]}") for one in found if one in self.structs),
            reverse=True,
        )

    def shown(self, source):
        return f"{self.name}/{source.path.relative_to(self.root.source.path.parent)}"

    def room(self, source):
        """The room of a file; none for the root, which is above all."""
        module = source.module
        while module.parent and module.parent.parent:
            module = module.parent
        rooms = ROOMS[self.name].items()
        name = next((room for room, names in rooms if module.name in names.split()), module.name)
        return name if module.parent else None

    def file_imports(self):
        """From file to file, by their names, the paths that say so."""
        return {
            self.shown(here): {self.shown(there): paths for there, paths in targets.items()}
            for here, targets in self.imports.items()
        }

    def room_imports(self):
        """From room to room the files and paths that say so."""
        imports = collections.defaultdict(lambda: collections.defaultdict(set))
        for source, targets in self.imports.items() if self.name in ROOMS else ():
            for target, paths in targets.items():
                here, there = self.room(source), self.room(target)
                if here and there and here != there:
                    imports[here][there] |= {f"{self.shown(source)} {path}" for path in paths}
        return imports


def circles(imports):
    """The strongly connected components of more than one node, by Tarjan's algorithm."""
    order, low, stack, found = {}, {}, [], []

    def visit(node):
        order[node] = low[node] = len(order)
        stack.append(node)
        for target in imports.get(node, ()):
            if target not in order:
                visit(target)
            if target in stack:
                low[node] = min(low[node], low[target])
        if low[node] == order[node]:
            at = stack.index(node)
            if len(stack) - at > 1:
                found.append(sorted(stack[at:]))
            del stack[at:]

    for node in list(imports):
        if node not in order:
            visit(node)
    return found


def shipped(folder):
    """The crates that the program links, and how many the workspace has."""
    command = ["cargo", "metadata", "--no-deps", "--offline", "--format-version", "1"]
    answer = subprocess.run(command, cwd=folder, check=True, stdout=subprocess.PIPE).stdout
    packages = {package["name"]: package for package in json.loads(answer)["packages"]}
    names = [PROGRAM]
    for name in names:
        needed = [need["name"] for need in packages[name]["dependencies"] if need["kind"] is None]
        names += [need for need in needed if need in packages and need not in names]
    targets = [(name, target) for name in sorted(names) for target in packages[name]["targets"]]
    crates = [
        Crate(name, pathlib.Path(target["src_path"]))
        for name, target in targets
        if target["kind"][0] in ("lib", "bin")
    ]
    return crates, len(packages)


def print_circles(crates):
    """Prints each circle with the imports that make it; returns how many there are."""
    count = 0
    for crate in crates:
        for imports in (crate.file_imports(), crate.room_imports()):
            for circle in circles(imports):
                count += 1
                print(f"circle in {crate.name}: {', '.join(circle)}")
                for here in circle:
                    for there in circle:
                        for path in sorted(imports[here].get(there, ())):
                            print(f"    {here} -> {there}: {path}")
    return count


def too_large(crates, long=LONG, fields_max=FIELDS):
    """Says of each file, line and struct that is larger than it may be, and of each needless exception."""
    found, exceptions = [], dict(long)
    for crate in crates:
        for source in crate.sources:
            name = crate.shown(source)
            is_long = source.lines > FILE_LINES
            if is_long != (exceptions.pop(name, None) is not None):
                what = f"more than {FILE_LINES}" if is_long else "and needs no exception"
                found.append(f"{name}: {source.lines} lines, {what}")
        for fields, name in crate.changing_structs():
            if fields > fields_max:
                found.append(f"{name}: {fields} fields, more than {fields_max}")
    return found + [f"{name}: no such file, and needs no exception" for name in exceptions]


def wide_lines(crates):
    """Says which lines are wider than they may be, unless one long word makes them so."""
    return [
        f"{crate.shown(source)}:{nth}: {len(line)} columns, more than {LINE_COLUMNS}"
        for crate in crates
        for source in crate.sources
        for nth, line in enumerate(source.path.read_text().splitlines(), 1)
        if len(line) > LINE_COLUMNS and len(max(line.split(), key=len)) < LONG_WORD
    ]


def print_table(crates, members, folder):
    sources = [(crate, source) for crate in crates for source in crate.sources]
    middle = sum(source.code for crate, source in sources if crate.name in MIDDLE)
    long = [(file.lines, crate.shown(file)) for crate, file in sources if file.lines > FILE_LINES]
    fields, largest = max(struct for crate in crates for struct in crate.changing_structs())
    manifest = (folder / "Cargo.toml").read_text()
    rows = [
        ("lines of code", sum(source.code for _, source in sources), ""),
        ("lines of code in the middle", middle, "transport, tunnel, share, congestion"),
        ("crates", len(crates), f"of {members} in the workspace"),
        ("circles of files", sum(len(circles(crate.file_imports())) for crate in crates), ""),
        ("circles of rooms", sum(len(circles(crate.room_imports())) for crate in crates), ""),
        ("fields of the largest struct", fields, largest),
        (f"files over {FILE_LINES} lines", len(long), ""),
        ("profile sections", len(re.findall(r"^\[profile\b", manifest, re.MULTILINE)), ""),
    ]
    for what, figure, more in rows:
        print(f"{what:30} {figure:6}  {more}".rstrip())
    for lines, name in sorted(long, reverse=True):
        print(f"    {lines:4} {name}")


def main():
    formatter = argparse.RawDescriptionHelpFormatter
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=formatter)
    arguments.add_argument("--circles", action="store_true", help="print the circles")
    arguments.add_argument("--sizes", action="store_true", help="print what is too large")
    arguments.add_argument("--in", dest="folder", type=pathlib.Path, default=ROOT, metavar="FOLDER")
    options = arguments.parse_args()
    crates, members = shipped(options.folder)
    if options.circles:
        sys.exit(1 if print_circles(crates) else 0)
    if options.sizes:
        found = too_large(crates) + wide_lines(crates)
        print(*found, sep="\n", end="\n" if found else "")
        sys.exit(1 if found else 0)
    print_table(crates, members, options.folder)


if __name__ == "__main__":
    main()
