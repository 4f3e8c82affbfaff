//! Which claim of an invitation makes room.

use crate::Source;

/// The first one of the source that is there most often.
pub(crate) fn of_busiest<T>(claims: &[(Source, T)]) -> Option<usize> {
    let count = |source: &Source| claims.iter().filter(|(other, _)| other == source).count();
    let most = claims.iter().map(|(source, _)| count(source)).max()?;
    claims.iter().position(|(source, _)| count(source) == most)
}
