//! Finds the known name most similar to an unknown one.

/// Least similarity (Jaro-Winkler) for a suggestion; a typo in one letter is above it.
const SIMILARITY_MIN: f64 = 0.8;

/// The most similar of these names, if any is similar enough. Ignores case, and takes `_` for `-`.
pub fn nearest<'n>(meant: &str, names: impl IntoIterator<Item = &'n str>) -> Option<&'n str> {
    let meant = meant.to_lowercase().replace('_', "-");
    let similar = |name: &'n str| {
        // In a short name, swapping two letters leaves little in common.
        let is_slip = name.len() > 2 && strsim::osa_distance(name, &meant) == 1;
        let least = if is_slip { SIMILARITY_MIN } else { 0.0 };
        (strsim::jaro_winkler(name, &meant).max(least), name)
    };
    let best = names.into_iter().map(similar).max_by(|(one, _), (two, _)| one.total_cmp(two));
    best.filter(|(similarity, _)| *similarity >= SIMILARITY_MIN).map(|(_, name)| name)
}

/// A hint that names the most similar choice, if there is one, and all of them.
pub(crate) fn choices(meant: &str, names: &[&str]) -> String {
    let all = format!("expected one of {}", names.join(", "));
    match nearest(meant, names.iter().copied()) {
        Some(name) => format!("did you mean {name}? {all}"),
        None => all,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_similar_names_are_suggested() {
        let names = ["aes-256-gcm", "aes-128-gcm", "3des-ctr-hmac-sha1"];
        for (typed, meant) in [
            ("aes256gcm", Some("aes-256-gcm")),
            ("AES_128_GCM", Some("aes-128-gcm")),
            ("3des-ctr-hmac-sha", Some("3des-ctr-hmac-sha1")),
            ("twofish", None),
            ("", None),
        ] {
            assert_eq!(nearest(typed, names), meant, "{typed}");
        }
        for (typed, meant) in
            [("lba", Some("lab")), ("xlab", Some("lab")), ("ba", None), ("xyz", None)]
        {
            assert_eq!(nearest(typed, ["lab", "office"]), meant, "{typed}");
        }
        assert_eq!(choices("loud", &["text", "json"]), "expected one of text, json");
        assert_eq!(
            choices("txt", &["text", "json"]),
            "did you mean text? expected one of text, json"
        );
    }
}
