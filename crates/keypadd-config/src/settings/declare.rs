//! Declares keys with a macro: one table generates the struct of settings, the list of keys, and
//! the code that reads, prints and compares them. Knows no key.

/// Declares a struct of settings and the table of its keys. An entry is `KEY => field: SHAPE TYPE =
/// READER { properties of the Key }`. SHAPE is `one` for a value that has a default, `maybe` for
/// one that may be missing, `many` for a list, `ranged` for a list of texts that may name several
/// each. READER is a function of `values`; `READER within memory` also takes this host's memory in
/// bytes.
macro_rules! settings {
    (
        $(#[$meta:meta])* $name:ident in $scope:ident;
        $(
            $key:literal => $field:ident: $shape:ident $type:ty = $read:ident
            $(within $memory:ident)? { $($property:ident: $value:expr),* $(,)? }
        )*
    ) => {
        $(#[$meta])*
        #[derive(Clone, Debug, PartialEq)]
        pub struct $name {
            $(#[doc = concat!("`", $key, "`")] pub $field: settings!(@type $shape $type),)*
        }

        impl $name {
            /// The keys, in the order of the documentation.
            pub const KEYS: &'static [$crate::key::Key] = &[
                $($crate::key::Key {
                    name: $key,
                    scope: $crate::key::Scope::$scope,
                    check: |text, memory| {
                        let _ = memory;
                        $crate::values::$read(text $(, settings!(@$memory memory))?).map(drop)
                    },
                    $($property: $value,)*
                    ..$crate::key::Key::BLANK
                },)*
            ];

            /// Reads every key.
            pub fn take(from: &mut dyn $crate::settings::source::Source) -> Self {
                let mut keys = Self::KEYS.iter();
                Self {
                    $($field: {
                        let read = |text: &str, memory: u64| {
                            let _ = memory;
                            $crate::values::$read(text $(, settings!(@$memory memory))?)
                        };
                        let key = keys.next().expect("a key for each field");
                        $crate::settings::source::$shape(from, key, read)
                    },)*
                }
            }

            /// Every key with its value.
            pub fn entries(
                &self,
            ) -> impl Iterator<
                Item = (&'static $crate::key::Key, &dyn $crate::settings::setting::Shown),
            > {
                Self::KEYS.iter().zip([$(&self.$field as &dyn $crate::settings::setting::Shown),*])
            }

            /// The keys whose values differ.
            pub fn differing(
                &self,
                other: &Self,
            ) -> impl Iterator<Item = &'static $crate::key::Key> {
                let differ = [$(self.$field != other.$field),*];
                Self::KEYS.iter().zip(differ).filter_map(|(key, differs)| differs.then_some(key))
            }
        }
    };
    (@type one $type:ty) => { $crate::settings::setting::Setting<$type> };
    (@type maybe $type:ty) => { Option<$crate::settings::setting::Setting<$type>> };
    (@type ranged $type:ty) => { Option<Vec<$crate::settings::setting::Setting<$type>>> };
    (@type many $type:ty) => { Option<Vec<$crate::settings::setting::Setting<$type>>> };
    (@memory $memory:ident) => { $memory };
}

pub(super) use settings;
