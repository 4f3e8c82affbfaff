#!/usr/bin/env python3
"""Tests scripts/house.py on crates of a few lines. Run by .ci/run: tests/house/cases.py"""

import pathlib
import sys
import tempfile
import unittest

SCRIPTS = pathlib.Path(__file__).resolve().parent.parent.parent / "scripts"
sys.path.insert(0, str(SCRIPTS))
sys.dont_write_bytecode = True

import house  # noqa: E402
import rust_source  # noqa: E402


def shipped(text):
    """What of a source ships, as words, and how many lines do not."""
    kept, left_out = rust_source.without_tests(rust_source.read(text))
    lines = text.splitlines()
    return [token.text for token in kept], sum(rust_source.lines_of(lines, *at) for at in left_out)


class Files(unittest.TestCase):
    """Crates made of texts."""

    def crate(self, files, name="keypadd-tunnel"):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        for path, text in files.items():
            file = pathlib.Path(folder.name, path)
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(text)
        return house.Crate(name, pathlib.Path(folder.name, "lib.rs"))

    def circles(self, files):
        found = house.circles(self.crate(files, "x").file_imports())
        return [[name.removeprefix("x/") for name in circle] for circle in found]


class Tokens(unittest.TestCase):
    def test_comments_and_blanks_are_no_code_and_a_text_is(self):
        text = '// no\n/* no /* nested */\nno */\nlet a = "// yes\n yes"; // no\n\nb\n'
        tokens = rust_source.read(text)
        lines = {line for token in tokens for line in range(token.first, token.last + 1)}
        self.assertEqual(lines, {4, 5, 7})

    def test_quotes_in_characters_and_raw_texts_end_nothing(self):
        text = """'"' b'\\'' '{' 'a r#"}"{"# br"\\" r#type "\\"" 'x"""
        words = [token.text for token in rust_source.read(text)]
        self.assertEqual(words, text.split(" "))


class Tests(unittest.TestCase):
    def test_items_of_tests_are_left_out_with_their_comments(self):
        for item in (
            "mod tests {\n    fn a() { \"}\" }\n}",
            "mod tests;",
            "#[allow(dead_code)]\npub(crate) const fn a<const N: usize>() -> [u8; N] { [0; N] }",
            "use a::{b, c};",
            "const A: B = B { c: 1 };",
            "pub(super) unsafe impl<T> A for B<T> where T: C {\n}",
            "struct A(u8);",
            'extern "C" { fn a(); }',
            "thread_local! { static A: u8 = 0; }",
        ):
            text = f"fn kept() {{}}\n\n/// Says.\n#[cfg(test)]\n{item}\nfn also() {{}}\n"
            kept, lines = shipped(text)
            self.assertEqual(kept, "fn kept ( ) { } fn also ( ) { }".split(), item)
            self.assertEqual(lines, 3 + len(item.splitlines()), item)

    def test_fields_arms_and_statements_of_tests_are_left_out(self):
        for text, rest in (
            ("struct A { a: B, #[cfg(test)] b: Map<B, C>, c: B }", "struct A { a : B , c : B }"),
            ("struct A { #[cfg(test)] b: u8 }", "struct A { }"),
            ("match a { #[cfg(test)] B => { 1 } C => 2 }", "match a { C => 2 }"),
            ("match a { #[cfg(test)] B { d } => f(1, 2), C => 2 }", "match a { C => 2 }"),
            ("{ #[cfg(test)] let a = b { c }; d }", "{ d }"),
            ("{ #[cfg(test)] a.b(c, d); e }", "{ e }"),
            ("{ #[cfg(test)] if a { b } else { c } d }", "{ d }"),
        ):
            self.assertEqual(shipped(text)[0], rest.split(), text)

    def test_only_what_is_compiled_for_tests_alone_is_of_tests(self):
        for attribute, is_of_tests in (
            ("cfg(test)", True),
            ("cfg(loom)", True),
            ("cfg(all(test, unix))", True),
            ("cfg(all(unix, any(test, loom)))", True),
            ("tokio::test(start_paused = true)", True),
            ("test", True),
            ("cfg(not(test))", False),
            ("cfg(any(test, unix))", False),
            ('cfg(feature = "test")', False),
            ("cfg_attr(test, allow(dead_code))", False),
            ("derive(test)", False),
        ):
            kept, _ = shipped(f"#[{attribute}] fn a() {{}}")
            self.assertEqual(not kept, is_of_tests, attribute)

    def test_a_file_may_be_of_tests_as_a_whole(self):
        self.assertEqual(shipped("#![cfg(test)]\nfn a() {}\n")[0], [])


class Imports(Files):
    def test_trees_groups_and_new_names_lead_to_files(self):
        crate = self.crate(
            {
                "lib.rs": "mod a; mod b; mod c; mod d;",
                "a.rs": "use crate::{b::{self, B}, c::C as D};\nuse std::fmt;\n"
                "fn f() { use super::d::*; }",
                "b.rs": "pub struct B;",
                "c.rs": "pub struct C;",
                "d.rs": "pub fn e() {}",
            },
            "x",
        )
        imports = crate.file_imports()["x/a.rs"]
        self.assertEqual(imports.pop("x/b.rs"), {"crate::b", "crate::b::B"})
        self.assertEqual(imports, {"x/c.rs": {"crate::c::C"}, "x/d.rs": {"super::d::*"}})

    def test_two_files_that_import_each_other_are_a_circle(self):
        files = {"lib.rs": "mod a; mod b;", "a.rs": "use crate::b::B;", "b.rs": "use super::a::A;"}
        self.assertEqual(self.circles(files), [["a.rs", "b.rs"]])

    def test_circles_go_through_a_third_file_and_through_what_is_exported_again(self):
        files = {
            "lib.rs": "mod a; mod b; mod c; pub use c::C;",
            "a.rs": "use crate::b::X;",
            "b/mod.rs": "mod x; pub use x::X;",
            "b/x.rs": "use crate::C; pub struct X;",
            "c.rs": "use crate::a::A; pub struct C;",
        }
        self.assertEqual(self.circles(files), [["a.rs", "b/x.rs", "c.rs"]])

    def test_parents_tests_and_other_crates_make_no_circle(self):
        files = {
            "lib.rs": "mod a; mod b; mod error; use a::A; use other::log;",
            "a.rs": "mod deep; use deep::D; use crate::log; use crate::Top; use ::b::B;",
            "a/deep.rs": "use super::A; use crate::Top;",
            "b.rs": "use crate::a::A; fn f() -> impl Sized + use<> {}\n"
            "#[cfg(test)] mod tests { use crate::error::E; }",
            "error.rs": "use crate::b::B;",
        }
        self.assertEqual(self.circles(files), [])

    def test_modules_inside_a_file_are_that_file(self):
        files = {
            "lib.rs": "mod a { pub mod in_it; pub struct A; use crate::b::B; }\nmod b;",
            "a/in_it.rs": "use super::super::b::B;",
            "b.rs": "use crate::a::in_it::C;",
        }
        self.assertEqual(self.circles(files), [["a/in_it.rs", "b.rs"]])

    def test_rooms_are_the_modules_below_the_root(self):
        crate = self.crate(
            {
                "lib.rs": "mod a; mod b; use a::x::X;",
                "a.rs": "mod x; mod y;",
                "a/x.rs": "use crate::b::B;",
                "a/y.rs": "pub struct Y;",
                "b.rs": "use crate::a::y::Y; pub struct B;",
            }
        )
        self.assertEqual(house.circles(crate.file_imports()), [])
        self.assertEqual(house.circles(crate.room_imports()), [["a", "b"]])


class Structs(Files):
    def test_the_largest_struct_that_a_method_changes_counts(self):
        crate = self.crate(
            {
                "lib.rs": "mod a; mod b;",
                "a.rs": "pub struct Big<T: Copy> where T: X { a: Map<u8, (T, u8)>,\n"
                "    #[cfg(test)] c: u8, #[serde(skip, default)] d: [u8; 3],\n"
                "    pub b: fn(u8, u8) -> u8 }\n"
                "pub struct Bigger { a: u8, b: u8, c: u8, d: u8 }\n"
                "impl Bigger { fn a(&self, b: &mut u8, mut c: u8) {} fn d(mut self) {} }\n"
                "pub struct Pair(Map<u8, u8>, pub u8,);\n"
                "impl Pair { fn a(&'a mut self) {} }",
                "b.rs": "use crate::a::Big;\n"
                "impl<'a, T: for<'b> X<'b>> Y<u8> for Big<T> where T: X {\n"
                "    fn a(self: Pin<&mut Self>) {} }",
            },
            "x",
        )
        self.assertEqual(crate.changing_structs(), [(3, "x::Big"), (2, "x::Pair")])
        self.assertEqual(sorted(crate.structs.values()), [2, 3, 4])

    def test_long_files_and_large_structs_are_found_unless_there_is_a_reason(self):
        lines, fields = house.FILE_LINES, "a: u8, b: u8"
        crate = self.crate(
            {
                "lib.rs": "mod a; mod b; mod c;",
                "a.rs": "// a\n" * lines,
                "b.rs": "// b\n" * lines + "const B: u8 = 1;\n",
                "c.rs": f"struct C {{ {fields} }} impl C {{ fn c(&mut self) {{}} }}\n"
                "#[cfg(test)] mod tests {\n" + "// c\n" * lines + "}\n",
            },
            "x",
        )
        long = f"x/b.rs: {lines + 1} lines, more than {lines}"
        self.assertEqual(house.too_large([crate], {}, 2), [long])
        self.assertEqual(house.too_large([crate], {"x/b.rs": "one table"}, 2), [])
        self.assertEqual(
            house.too_large([crate], {"x/b.rs": "a", "x/a.rs": "b", "x/d.rs": "c"}, 1),
            [
                f"x/a.rs: {lines} lines, and needs no exception",
                "x::C: 2 fields, more than 1",
                "x/d.rs: no such file, and needs no exception",
            ],
        )

    def test_lines_are_measured_in_characters_and_long_words_may_stand(self):
        lines = ["ä " * 50, "a " * 50 + "b", "a " * 20 + "b" * house.LONG_WORD]
        crate = self.crate({"lib.rs": "\n".join(lines)}, "x")
        wide = "x/lib.rs:2: 101 columns, more than 100"
        self.assertEqual(house.wide_lines([crate]), [wide])


if __name__ == "__main__":
    unittest.main()
