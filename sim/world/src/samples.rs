//! Check that the samples of a format have every variant: a variant without a sample could change without a
//! change of any golden file.

use std::fmt::Debug;

use serde::de::value::Error;
use serde::de::{Error as _, Visitor};
use serde::{Deserialize, Deserializer, forward_to_deserialize_any};

/// Returns the variants of `T` without a sample. A variant is identified by the name at the start of its
/// `Debug` output.
pub fn missing<'de, T: Deserialize<'de> + Debug>(samples: &[T]) -> Vec<&'static str> {
    let mut variants: &[&str] = &[];
    assert!(T::deserialize(Variants(&mut variants)).is_err(), "nothing is read");
    assert!(!variants.is_empty(), "the type is no enum");
    let name = |sample: &T| {
        let text = format!("{sample:?}");
        text.split(|c: char| !c.is_alphanumeric()).next().unwrap_or_default().to_owned()
    };
    let there: Vec<String> = samples.iter().map(name).collect();
    // Serde may have another case for its names.
    let plain = |name: &str| name.replace(['-', '_'], "").to_lowercase();
    variants
        .iter()
        .copied()
        .filter(|variant| !there.iter().any(|name| plain(name) == plain(variant)))
        .collect()
}

/// Deserializer that records the variants of the requested enum.
struct Variants<'a>(&'a mut &'static [&'static str]);

impl<'de> Deserializer<'de> for Variants<'_> {
    type Error = Error;

    fn deserialize_any<V: Visitor<'de>>(self, _: V) -> Result<V::Value, Error> {
        Err(Error::custom("no enum"))
    }

    fn deserialize_enum<V: Visitor<'de>>(
        self,
        _: &'static str,
        variants: &'static [&'static str],
        _: V,
    ) -> Result<V::Value, Error> {
        *self.0 = variants;
        Err(Error::custom("its variants are noted"))
    }

    forward_to_deserialize_any! {
        bool i8 i16 i32 i64 i128 u8 u16 u32 u64 u128 f32 f64 char str string bytes byte_buf option unit
        unit_struct newtype_struct seq tuple tuple_struct map struct identifier ignored_any
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug, PartialEq, Deserialize)]
    enum Kind {
        One,
        Two(u8),
        Three { a: u8 },
    }

    #[test]
    fn a_variant_without_a_sample_is_named() {
        assert_eq!(missing(&[Kind::One, Kind::Three { a: 1 }]), ["Two"]);
        assert_eq!(missing(&[Kind::One, Kind::Two(1), Kind::Three { a: 1 }]), [] as [&str; 0]);
    }
}
