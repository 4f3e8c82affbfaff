"""Reads the text of a Rust source for scripts/house.py: its tokens, what of them is for tests, and
what declarations say. Knows no files and no crates, and does not expand macros.

Past tokens, everything works on lists of their texts; an index into such a list says where.
"""

import dataclasses
import re

TOKEN = re.compile(
    r"""
    (?P<blank>\s+|//[^\n]*)
  | (?P<comment>/\*)
  | (?P<raw>[bc]?r(?P<hashes>\#*)")
  | (?P<string>[bc]?"(?:[^"\\]|\\.)*")
  | (?P<char>b?'(?:[^'\\\n]|\\(?:x..|u\{[^}]*\}|.))')
  | (?P<lifetime>'\w+)
  | (?P<word>(?:r\#)?\w+)
  | (?P<sign>::|->|=>|.)
    """,
    re.VERBOSE | re.DOTALL,
)
COMMENT_MARK = re.compile(r"/\*|\*/")
CLOSED_BY = {"(": ")", "[": "]", "{": "}"}
# What a name stands behind.
NAMING = ("fn", "struct", "enum", "union", "trait", "type", "const", "static")
# What comes before the word that says what an item is.
QUALIFYING = ("pub", "async", "unsafe", "extern", "default")
# What ends with a brace, and what ends with a semicolon although braces may stand in it.
ENDING_WITH_BRACE = ("fn", "mod", "struct", "enum", "union", "impl", "trait", "{")
ENDING_WITH_BRACE += ("if", "for", "while", "loop", "match")
ENDING_WITH_SEMICOLON = ("use", "const", "static", "type", "let")


@dataclasses.dataclass(frozen=True)
class Token:
    """What stands between blanks and comments, and its first and last line."""

    text: str
    first: int
    last: int


def read(text):
    """The tokens of a source."""
    tokens, at, line = [], 0, 1
    while at < len(text):
        match = TOKEN.match(text, at)
        end, depth = match.end(), 1 if match["comment"] else 0
        while depth:
            mark = COMMENT_MARK.search(text, end)
            end, depth = mark.end(), depth + (1 if mark[0] == "/*" else -1)
        if match["raw"]:
            ending = '"' + match["hashes"]
            end = text.index(ending, end) + len(ending)
        last = line + text.count("\n", at, end)
        if not (match["blank"] or match["comment"]):
            tokens.append(Token(text[at:end], line, last))
        at, line = end, last
    return tokens


def past(texts, at):
    """The index past the bracket that opens here."""
    opening, closing, depth = texts[at], CLOSED_BY[texts[at]], 0
    for index in range(at, len(texts)):
        depth += (texts[index] == opening) - (texts[index] == closing)
        if depth == 0:
            return index + 1
    raise ValueError(f"no {closing} ends what {opening} opens")


def past_angles(texts, at):
    """The index past the generics that may begin here."""
    depth, index = 0, at
    while index < len(texts):
        depth += (texts[index] == "<") - (texts[index] == ">")
        if depth == 0:
            return index + 1 if index > at else at
        index = past(texts, index) if texts[index] in CLOSED_BY else index + 1
    return at


def split(texts):
    """The parts of a list between its outermost commas."""
    parts, begin, at = [], 0, 0
    while at < len(texts):
        if texts[at] == ",":
            parts.append(texts[begin:at])
            begin = at + 1
        at = past(texts, at) if texts[at] in CLOSED_BY else max(past_angles(texts, at), at + 1)
    return [part for part in [*parts, texts[begin:]] if part]


def means_test(predicate):
    """Whether this predicate of a `cfg` holds for tests alone."""
    if predicate in (["test"], ["loom"]):
        return True
    if predicate[:2] not in (["all", "("], ["any", "("]):
        return False
    parts = [means_test(part) for part in split(predicate[2:-1])]
    return any(parts) if predicate[0] == "all" else all(parts)


def is_of_tests(attribute):
    """Whether the attribute with these words between its brackets leaves an item to tests."""
    if attribute[:2] == ["cfg", "("]:
        return means_test(attribute[2:-1])
    path = attribute[: attribute.index("(")] if "(" in attribute else attribute
    return path[-1:] == ["test"] or path == ["bench"]


def past_item(texts, at):
    """The index past the item, field, arm or statement that begins here, behind its attributes."""
    kind = at
    while texts[kind] in QUALIFYING or texts[kind].startswith('"'):
        kind = past(texts, kind + 1) if texts[kind + 1] == "(" else kind + 1
    if texts[kind] == "const" and texts[kind + 1] in ("fn", *QUALIFYING):
        kind += 1
        while texts[kind] in QUALIFYING:
            kind += 1
    ends_with_brace = texts[kind] in ENDING_WITH_BRACE or texts[kind + 1] == "!"
    ends_with_comma = not ends_with_brace and texts[kind] not in ENDING_WITH_SEMICOLON
    is_field = texts[kind + 1] == ":"
    while at < len(texts) and texts[at] not in CLOSED_BY.values():
        if texts[at] == "<" and is_field:
            at = past_angles(texts, at)
        elif texts[at] in CLOSED_BY:
            is_body = texts[at] == "{" and (ends_with_brace or texts[at - 1] == "=>")
            at = past(texts, at)
            if is_body and texts[at : at + 1] != ["else"]:
                return at + 1 if texts[at : at + 1] == [","] else at
        elif texts[at] == ";" or (texts[at] == "," and ends_with_comma):
            return at + 1
        else:
            at += 1
    return at


def without_tests(tokens):
    """The tokens that ship, and the first and last lines of each item that does not."""
    texts, kept, left_out, at = [token.text for token in tokens], [], [], 0
    while at < len(tokens):
        if texts[at : at + 3] == ["#", "!", "["]:
            end = past(texts, at + 2)
            if is_of_tests(texts[at + 3 : end - 1]):
                return [], [(1, tokens[-1].last)]
        elif texts[at : at + 2] == ["#", "["]:
            end, of_tests = at, False
            while texts[end : end + 2] == ["#", "["]:
                begin, end = end + 2, past(texts, end + 1)
                of_tests = of_tests or is_of_tests(texts[begin : end - 1])
            if of_tests:
                end = past_item(texts, end)
                left_out.append((tokens[at].first, tokens[end - 1].last))
                at = end
        else:
            end = at + 1
        kept += tokens[at:end]
        at = end
    return kept, left_out


def lines_of(lines, first, last):
    """How many lines an item takes with the comment above it and a blank line above that."""
    begin = first - 1
    while begin and lines[begin - 1].lstrip().startswith("//"):
        begin -= 1
    return last - begin + (1 if begin and not lines[begin - 1].strip() else 0)


def leaves(texts):
    """The paths of a `use` declaration, each with the name that `as` gives it, or none."""
    path, at = [], 0
    while at < len(texts) and texts[at] not in ("{", "as"):
        # Two colons at the beginning stay: that path leads out of the crate.
        if texts[at] != "::" or at == 0:
            path.append(texts[at])
        at += 1
    if at == len(texts):
        return [(path, None)]
    if texts[at] == "as":
        return [(path, texts[at + 1])]
    parts = split(texts[at + 1 : -1])
    return [(path + rest, name) for part in parts for rest, name in leaves(part)]


def fields(texts, at):
    """How many fields the struct has whose name ends here."""
    at = past_angles(texts, at)
    if texts[at] == ";":
        return 0
    at = at if texts[at] == "(" else texts.index("{", at)
    return len(split(texts[at + 1 : past(texts, at) - 1]))


def begins_item(texts, at):
    """Whether this `impl` begins an item, not a type."""
    return at == 0 or texts[at - 1] in ("}", ";", "{", "]", "unsafe")


def implemented(texts, at):
    """The path of the type that this `impl` is for, empty if it is no name; where its body is."""
    at, path, is_named = past_angles(texts, at + 1), [], True
    while texts[at] not in ("{", "where"):
        if texts[at] == "for":
            at, path, is_named = at + 1, [], True
        elif texts[at] == "<":
            at = past_angles(texts, at)
        elif texts[at] in CLOSED_BY:
            at, is_named = past(texts, at), False
        else:
            is_named = is_named and texts[at] not in ("&", "dyn")
            path += [texts[at]] if texts[at] != "::" else []
            at += 1
    return path if is_named else [], texts.index("{", at)


def changes_itself(texts, at):
    """Whether a method in the body that opens here has `&mut self`."""
    body = " ".join(texts[at : past(texts, at)])
    lifetime = r"(?:'\w+ )?"
    of_self = rf"\( & {lifetime}mut self\b|\( (?:mut )?self : [^,)]*& {lifetime}mut Self\b"
    return re.search(of_self, body) is not None
