//! Names for the variants of an enum.

/// Defines an enum without fields whose variants have names for tables, options and JSON: with `ALL`, `name` and a `FromStr`
/// whose error lists the names.
///
/// ```
/// prepage_core::named! {
///     /// A season.
///     #[derive(Clone, Copy, Debug, PartialEq)]
///     pub enum Season {
///         /// Cold.
///         Winter = "winter",
///         /// Warm.
///         Summer = "summer",
///     }
/// }
/// assert_eq!(Season::ALL.map(Season::name), ["winter", "summer"]);
/// assert_eq!("summer".parse(), Ok(Season::Summer));
/// assert_eq!("spring".parse::<Season>(), Err("expected one of winter, summer".to_owned()));
/// ```
#[macro_export]
macro_rules! named {
    ($(#[$about:meta])* $visible:vis enum $type:ident { $($(#[$of_one:meta])* $one:ident = $name:literal),+ $(,)? }) => {
        $(#[$about])*
        $visible enum $type {
            $($(#[$of_one])* $one),+
        }

        impl $type {
            /// Every one, in the order in which tables and help texts list them.
            pub const ALL: [Self; [$($name),+].len()] = [$(Self::$one),+];

            /// The name in tables, options and JSON.
            pub const fn name(self) -> &'static str {
                match self {
                    $(Self::$one => $name),+
                }
            }
        }

        impl ::std::str::FromStr for $type {
            type Err = String;

            fn from_str(text: &str) -> Result<Self, String> {
                let found = Self::ALL.into_iter().find(|one| one.name() == text);
                found.ok_or_else(|| format!("expected one of {}", Self::ALL.map(Self::name).join(", ")))
            }
        }
    };
}
