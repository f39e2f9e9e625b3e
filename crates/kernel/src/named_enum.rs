//! A macro for enums whose variants have names in metrics, logs or files.
//!
//! Guarantees:
//! - `ALL` lists every variant once, in declaration order.
//!
//! Not covered:
//! - Unique names.

/// Defines an enum with the list `ALL` of its variants, `as_str`, the name of a variant, and `doc`,
/// its description.
///
/// ```
/// sluicegate_kernel::named_enum! {
///     /// A color of a traffic light.
///     pub enum Light {
///         /// Wait.
///         Red = "red",
///         /// Drive.
///         Green = "green",
///     }
/// }
/// assert_eq!(Light::ALL, [Light::Red, Light::Green]);
/// assert_eq!(Light::Green.as_str(), "green");
/// assert_eq!(Light::Green.doc(), " Drive.");
/// ```
#[macro_export]
macro_rules! named_enum {
    (
        $(#[$meta:meta])*
        $vis:vis enum $name:ident { $($(#[doc = $doc:literal])* $variant:ident = $text:literal,)+ }
    ) => {
        $(#[$meta])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        $vis enum $name { $($(#[doc = $doc])* $variant,)+ }

        impl $name {
            /// Every variant, in declaration order.
            $vis const ALL: [Self; [$($text),+].len()] = [$(Self::$variant),+];

            /// Returns the name of this variant.
            #[must_use]
            $vis const fn as_str(self) -> &'static str {
                match self { $(Self::$variant => $text,)+ }
            }

            /// Returns the description of this variant for the reference.
            #[must_use]
            $vis const fn doc(self) -> &'static str {
                match self { $(Self::$variant => concat!($($doc),*),)+ }
            }
        }
    };
}
