//! A macro for enums whose variants have names in metrics, logs or files.
//!
//! Guarantees:
//! - `ALL` lists every variant once, in declaration order.
//!
//! Not covered:
//! - Unique names.

/// Defines an enum with the list `ALL` of its variants and `as_str`, the name of a variant.
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
/// ```
#[macro_export]
macro_rules! named_enum {
    (
        $(#[$meta:meta])*
        $vis:vis enum $name:ident { $($(#[$doc:meta])* $variant:ident = $text:literal,)+ }
    ) => {
        $(#[$meta])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        $vis enum $name { $($(#[$doc])* $variant,)+ }

        impl $name {
            /// Every variant, in declaration order.
            $vis const ALL: [Self; [$($text),+].len()] = [$(Self::$variant),+];

            /// Returns the name of this variant.
            #[must_use]
            $vis const fn as_str(self) -> &'static str {
                match self { $(Self::$variant => $text,)+ }
            }
        }
    };
}
