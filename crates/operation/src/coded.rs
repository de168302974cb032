// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! One declaration for an enum whose values have a code and a name.

/// Declares an enum with one row per value: documentation, variant, code, name.
///
/// Codes are fixed for ever: they are on the wire, in key files and in saved reports. Rows stand in the order of
/// their codes. A match on such an enum inside the workspace names every variant, so that a new row is a compile
/// error wherever it lacks an answer.
///
/// ```
/// millrace_operation::coded_enum! {
///     /// A coin.
///     pub enum Coin {
///         /// The smallest.
///         Cent = 0x01 "cent",
///         /// A hundred of those.
///         Crown = 0x10 "crown",
///     }
/// }
///
/// assert_eq!(Coin::from_code(0x10), Some(Coin::Crown));
/// assert_eq!(Coin::from_name("cent"), Some(Coin::Cent));
/// assert_eq!((Coin::Crown.index(), Coin::ALL.len()), (1, 2));
/// ```
#[macro_export]
macro_rules! coded_enum {
    (
        $(#[$attribute:meta])*
        $visibility:vis enum $name:ident {
            $($(#[$variant_attribute:meta])* $variant:ident = $code:literal $text:literal,)+
        }
    ) => {
        $(#[$attribute])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        #[repr(u8)]
        $visibility enum $name {
            $($(#[$variant_attribute])* $variant = $code,)+
        }

        impl $name {
            /// Every value, in the order of the codes.
            pub const ALL: &'static [Self] = &[$(Self::$variant),+];

            /// The code on the wire and in files.
            #[must_use]
            pub const fn code(self) -> u8 {
                self as u8
            }

            /// The value with this code.
            #[must_use]
            pub const fn from_code(code: u8) -> Option<Self> {
                match code {
                    $($code => Some(Self::$variant),)+
                    _ => None,
                }
            }

            /// The name in configuration, metrics, messages and on the command line.
            #[must_use]
            pub const fn name(self) -> &'static str {
                match self {
                    $(Self::$variant => $text,)+
                }
            }

            /// The value with this name.
            #[must_use]
            pub fn from_name(name: &str) -> Option<Self> {
                match name {
                    $($text => Some(Self::$variant),)+
                    _ => None,
                }
            }

            /// Position in [`Self::ALL`]: an index for tables of counters.
            #[must_use]
            pub const fn index(self) -> usize {
                enum Position { $($variant),+ }
                match self {
                    $(Self::$variant => Position::$variant as usize,)+
                }
            }
        }
    };
}
