//! Reads the words of a section from a page of Markdown, so that prose is edited as prose.
//!
//! The heading is the title, the first paragraph the question; what follows is the method. Lists
//! below `## Emulated` and `## Notes` are those of the section. `{name}` stands for a value.

use std::fmt::Display;

use super::Section;

impl Section {
    /// The words of a page, with these values of its placeholders.
    pub fn of_page(id: &str, page: &str, values: &[(&str, &dyn Display)]) -> Self {
        let mut section = Self { id: id.to_owned(), ..Self::default() };
        let mut heading = String::new();
        for paragraph in page.split("\n\n") {
            let words = paragraph.split_whitespace().collect::<Vec<_>>().join(" ");
            let words = fill(&words, values);
            if let Some(title) = words.strip_prefix("# ") {
                section.title = title.to_owned();
            } else if let Some(next) = words.strip_prefix("## ") {
                heading = next.to_owned();
            } else {
                let item = || words.strip_prefix("- ").unwrap_or(&words).to_owned();
                match heading.as_str() {
                    "" if section.question.is_empty() => section.question = words,
                    "" => section.method.push(words),
                    "Emulated" => section.emulated.push(item()),
                    _ => section.notes.push(item()),
                }
            }
        }
        section
    }
}

/// Puts values in place of their names. Tests, which build every page, fail for a name without one.
fn fill(words: &str, values: &[(&str, &dyn Display)]) -> String {
    let (mut filled, mut rest) = (String::new(), words);
    while let Some((before, after)) = rest.split_once('{') {
        let (name, after) = after.split_once('}').unwrap_or((after, ""));
        let value = values.iter().find(|(it, _)| *it == name).map(|(_, value)| value.to_string());
        debug_assert!(value.is_some(), "{name} has no value");
        filled = filled + before + &value.unwrap_or_default();
        rest = after;
    }
    filled + rest
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_page_is_title_question_method_and_lists_and_only_its_own_names_are_filled() {
        let page = "# A title\n\nIs it\nso?\n\nOnce {what}.\n\nTwice.\n\n## Emulated\n\n- all\n\n\
                    ## Notes\n\n- one\n  note\n\n- {what}\n";
        let section = Section::of_page("id", page, &[("what", &"{that}")]);
        assert_eq!((&*section.id, &*section.title), ("id", "A title"));
        assert_eq!(section.question, "Is it so?");
        assert_eq!(section.method, ["Once {that}.", "Twice."]);
        assert_eq!(
            (section.emulated, section.notes),
            (vec!["all".into()], vec!["one note".into(), "{that}".into()])
        );
    }
}
