//! Records of the wire, each declared once: `record!` makes the type, its decoder, its encoder, its minimum
//! size and, for tests, a strategy of its values. A field's type determines the field's form.
//!
//! Between the primitives of `codec` and the frames of `decode` and `encode`. The order of fields in a
//! declaration is the order on the wire.

use std::sync::Arc;

use bytes::{BufMut, Bytes, BytesMut};
use bytestring::ByteString;
use smallvec::{Array, SmallVec};

use crate::acl::Acl;
use crate::codec::{DecodeError, Decoded, Reader, Writer};
use crate::error::ErrorCode;
use crate::ids::{FencingToken, SessionId, Version, Xid, Zxid};
use crate::lock::{Mode, Owner, Party};
use crate::response::EventType;

#[cfg(test)]
use proptest::prelude::*;

/// A form of `T` on the wire: `T` itself if there is one form, otherwise a marker named in the record.
pub(crate) trait WireForm<T = Self> {
    /// Size of the shortest value, in bytes. Limits the memory that a forged count can reserve.
    ///
    /// Invariant: no value is shorter, or decoding would refuse vectors of short elements.
    const MIN_BYTES: usize;

    fn read(r: &mut Reader<'_>) -> Decoded<T>;

    fn write(value: &T, out: &mut BytesMut);

    /// Returns a strategy of all values that decode to themselves.
    #[cfg(test)]
    fn strategy() -> BoxedStrategy<T>;
}

/// Implements [`WireForm`] by hand: type (and marker), minimum size, reader, writer, strategy.
macro_rules! wire {
    ($($ty:ty $(as $form:ty)?, $min:expr, |$r:ident| $read:expr, |$value:ident, $out:ident| $write:expr,
        $strategy:expr;)+) => {$(
        impl $crate::wire::WireForm<$ty> for form!($ty $(as $form)?) {
            const MIN_BYTES: usize = $min;

            #[inline]
            fn read($r: &mut $crate::codec::Reader<'_>) -> $crate::codec::Decoded<$ty> { $read }

            #[inline]
            fn write($value: &$ty, $out: &mut bytes::BytesMut) { $write }

            #[cfg(test)]
            fn strategy() -> proptest::strategy::BoxedStrategy<$ty> {
                use proptest::prelude::*;
                $strategy.boxed()
            }
        }
    )+};
}

/// Names the form of a field: the marker if there is one, otherwise the field's type.
macro_rules! form {
    ($ty:ty) => {
        $ty
    };
    ($ty:ty as $form:ty) => {
        $form
    };
}

/// Declares a record. Variants of an enum either have the number in front of their fields
/// (`Variant(name: Type) = 1`), or belong to opcodes known from elsewhere (`enum Name by OpCode`,
/// `Variant(name: Type) = Create | Sync`). `Type as Marker` selects another form than that of the type.
macro_rules! record {
    ($(#[$meta:meta])* pub struct $name:ident {
        $($(#[$doc:meta])* pub $field:ident: $ty:ty $(as $form:ty)?,)+
    }) => {
        $(#[$meta])* pub struct $name { $($(#[$doc])* pub $field: $ty,)+ }

        impl $crate::wire::WireForm for $name {
            const MIN_BYTES: usize =
                0 $(+ <form!($ty $(as $form)?) as $crate::wire::WireForm<$ty>>::MIN_BYTES)+;

            #[inline]
            fn read(r: &mut $crate::codec::Reader<'_>) -> $crate::codec::Decoded<Self> {
                Ok($name {
                    $($field: <form!($ty $(as $form)?) as $crate::wire::WireForm<$ty>>::read(r)?,)+
                })
            }

            #[inline]
            fn write(value: &Self, out: &mut bytes::BytesMut) {
                $(<form!($ty $(as $form)?) as $crate::wire::WireForm<$ty>>::write(&value.$field, out);)+
            }

            #[cfg(test)]
            fn strategy() -> proptest::strategy::BoxedStrategy<Self> {
                use proptest::prelude::*;
                ($(<form!($ty $(as $form)?) as $crate::wire::WireForm<$ty>>::strategy(),)+)
                    .prop_map(|($($field,)+)| $name { $($field,)+ })
                    .boxed()
            }
        }
    };

    ($(#[$meta:meta])* pub enum $name:ident by OpCode { $(
        $(#[$doc:meta])* $variant:ident
            $(($($item:ident: $item_ty:ty $(as $item_form:ty)?),+))?
            $({ $($(#[$field_doc:meta])* $field:ident: $field_ty:ty,)+ })?
            = $($opcode:ident)|+,
    )+ }) => {
        record! { @enum [$(#[$meta])*] $name $(
            [$(#[$doc])*] $variant $(($($item: $item_ty $(as $item_form)?),+))?
                $({ $($(#[$field_doc])* $field: $field_ty,)+ })?,
        )+ }

        impl $name {
            /// Reads the fields of the variant that belongs to `opcode`.
            pub(crate) fn read_by(
                r: &mut $crate::codec::Reader<'_>,
                opcode: $crate::opcode::OpCode,
            ) -> $crate::codec::Decoded<Self> {
                Ok(match opcode { $(
                    $($crate::opcode::OpCode::$opcode)|+ => Self::$variant
                        $(($(<form!($item_ty $(as $item_form)?) as $crate::wire::WireForm<$item_ty>>::read(r)?),+))?
                        $({ $($field: <$field_ty as $crate::wire::WireForm>::read(r)?,)+ })?,
                )+ })
            }

            /// Returns a strategy of the variant that belongs to `opcode`.
            #[cfg(test)]
            pub(crate) fn strategy_by(
                opcode: $crate::opcode::OpCode,
            ) -> proptest::strategy::BoxedStrategy<Self> {
                use proptest::prelude::*;
                match opcode { $(
                    $($crate::opcode::OpCode::$opcode)|+ => record! { @strategy Self::$variant
                        $(($($item: $item_ty $(as $item_form)?),+))? $({ $($field: $field_ty),+ })? },
                )+ }
            }
        }
    };

    ($(#[$meta:meta])* pub enum $name:ident { $(
        $(#[$doc:meta])* $variant:ident
            $(($($item:ident: $item_ty:ty $(as $item_form:ty)?),+))?
            $({ $($(#[$field_doc:meta])* $field:ident: $field_ty:ty,)+ })?
            = $number:literal,
    )+ }) => {
        record! { @enum [$(#[$meta])*] $name $(
            [$(#[$doc])*] $variant $(($($item: $item_ty $(as $item_form)?),+))?
                $({ $($(#[$field_doc])* $field: $field_ty,)+ })?,
        )+ }

        impl $name {
            /// Size of the fields of the shortest variant, in bytes.
            const MIN_FIELD_BYTES: usize = $crate::wire::least(&[$(
                0 $($(+ <form!($item_ty $(as $item_form)?) as $crate::wire::WireForm<$item_ty>>::MIN_BYTES)+)?
                    $($(+ <$field_ty as $crate::wire::WireForm>::MIN_BYTES)+)?,
            )+]);

            /// Returns the number of the variant.
            pub(crate) fn number(&self) -> i32 {
                match self { $(Self::$variant { .. } => $number,)+ }
            }

            /// Reads the fields of a variant; `None`: no variant has the number.
            #[inline]
            pub(crate) fn read_fields(
                r: &mut $crate::codec::Reader<'_>,
                number: i32,
            ) -> $crate::codec::Decoded<Option<Self>> {
                Ok(Some(match number {
                    $($number => Self::$variant
                        $(($(<form!($item_ty $(as $item_form)?) as $crate::wire::WireForm<$item_ty>>::read(r)?),+))?
                        $({ $($field: <$field_ty as $crate::wire::WireForm>::read(r)?,)+ })?,)+
                    _ => return Ok(None),
                }))
            }
        }

        impl $crate::wire::WireForm for $name {
            const MIN_BYTES: usize = 4 + Self::MIN_FIELD_BYTES;

            #[inline]
            fn read(r: &mut $crate::codec::Reader<'_>) -> $crate::codec::Decoded<Self> {
                let number = r.int()?;
                Self::read_fields(r, number)?.ok_or($crate::codec::DecodeError::UnknownVariant { number })
            }

            #[inline]
            fn write(value: &Self, out: &mut bytes::BytesMut) {
                <i32 as $crate::wire::WireForm>::write(&value.number(), out);
                value.write_fields(out);
            }

            #[cfg(test)]
            fn strategy() -> proptest::strategy::BoxedStrategy<Self> {
                use proptest::prelude::*;
                proptest::strategy::Union::new([$(
                    record! { @strategy Self::$variant
                        $(($($item: $item_ty $(as $item_form)?),+))? $({ $($field: $field_ty),+ })? },
                )+]).boxed()
            }
        }
    };

    (@enum [$($meta:tt)*] $name:ident $(
        [$($doc:tt)*] $variant:ident
            $(($($item:ident: $item_ty:ty $(as $item_form:ty)?),+))?
            $({ $($(#[$field_doc:meta])* $field:ident: $field_ty:ty,)+ })?,
    )+) => {
        $($meta)* pub enum $name { $(
            $($doc)* $variant $(($($item_ty),+))? $({ $($(#[$field_doc])* $field: $field_ty,)+ })?,
        )+ }

        impl $name {
            #[inline]
            pub(crate) fn write_fields(&self, out: &mut bytes::BytesMut) {
                match self { $(Self::$variant $(($($item),+))? $({ $($field),+ })? => {
                    $($(<form!($item_ty $(as $item_form)?) as $crate::wire::WireForm<$item_ty>>::write($item, out);)+)?
                    $($(<$field_ty as $crate::wire::WireForm>::write($field, out);)+)?
                })+ }
            }
        }
    };

    (@strategy $name:ident::$variant:ident) => { Just($name::$variant).boxed() };
    (@strategy $name:ident::$variant:ident ($($item:ident: $ty:ty $(as $form:ty)?),+)) => {
        ($(<form!($ty $(as $form)?) as $crate::wire::WireForm<$ty>>::strategy(),)+)
            .prop_map(|($($item,)+)| $name::$variant($($item),+)).boxed()
    };
    (@strategy $name:ident::$variant:ident { $($field:ident: $ty:ty),+ }) => {
        ($(<$ty as $crate::wire::WireForm>::strategy(),)+)
            .prop_map(|($($field,)+)| $name::$variant { $($field),+ }).boxed()
    };
}

/// Returns the least of several sizes.
pub(crate) const fn least(sizes: &[usize]) -> usize {
    let (mut least, mut at) = (sizes[0], 1);
    while at < sizes.len() {
        least = if sizes[at] < least { sizes[at] } else { least };
        at += 1;
    }
    least
}

/// A string in which null counts as empty: kazoo writes the empty id of `auth` as null.
pub(crate) struct NullIsEmpty;

/// Bytes of the open ACL.
const OPEN: &[u8] = b"\0\0\0\x01\0\0\0\x1f\0\0\0\x05world\0\0\0\x06anyone";

wire! {
    i32, 4, |r| r.int(), |value, out| out.put_i32(*value), any::<i32>();
    i64, 8, |r| r.long(), |value, out| out.put_i64(*value), any::<i64>();
    u32, 4, |r| Ok(r.int()? as u32), |value, out| out.put_u32(*value), any::<u32>();
    u64, 8, |r| Ok(r.long()? as u64), |value, out| out.put_u64(*value), any::<u64>();
    bool, 1, |r| r.boolean(), |value, out| out.put_u8(u8::from(*value)), any::<bool>();
    Xid, 4, |r| Ok(Xid(r.int()?)), |xid, out| out.put_i32(xid.0), any::<i32>().prop_map(Xid);
    Zxid, 8, |r| Ok(Zxid(r.long()?)), |zxid, out| out.put_i64(zxid.0), any::<i64>().prop_map(Zxid);
    Version, 4, |r| Ok(Version(r.int()?)), |version, out| out.put_i32(version.0),
        any::<i32>().prop_map(Version);
    SessionId, 8, |r| Ok(SessionId(r.long()?)), |id, out| out.put_i64(id.0), any::<i64>().prop_map(SessionId);
    FencingToken, 8, |r| Ok(FencingToken(r.long()?)), |token, out| out.put_i64(token.0),
        any::<i64>().prop_map(FencingToken);
    Option<ErrorCode>, 4, |r| Ok(ErrorCode::from_code(r.int()?)),
        |err, out| out.put_i32(err.map_or(0, ErrorCode::code)),
        prop_oneof![-130..1_i32, any::<i32>()].prop_map(ErrorCode::from_code);
    EventType, 4,
        |r| {
            let event_type = r.int()?;
            EventType::from_i32(event_type).ok_or(DecodeError::UnknownEvent { event_type })
        },
        |event, out| out.put_i32(event.as_i32()),
        (-1..=4_i32).prop_filter_map("a number of no event", EventType::from_i32);

    // Any text, possibly a path.
    String, 4, |r| Ok(r.text()?.to_owned()), |text, out| out.string(text),
        prop_oneof!["(/[a-z]{1,5}){0,4}", "\\PC{0,12}"];
    String as NullIsEmpty, 4, |r| Ok(r.nullable_text()?.unwrap_or_default().to_owned()),
        |text, out| out.string(text), String::strategy();
    Option<String>, 4, |r| Ok(r.nullable_text()?.map(str::to_owned)),
        |text, out| out.buffer(text.as_deref().map(str::as_bytes)), proptest::option::of(String::strategy());
    Arc<str>, 4, |r| Ok(Arc::from(r.text()?)), |text, out| out.string(text),
        String::strategy().prop_map(Arc::from);
    // A slice of the frame.
    ByteString, 4, |r| r.slice(), |text, out| out.string(text), String::strategy().prop_map(ByteString::from);
    // Null counts as empty.
    Bytes, 4, |r| Ok(r.buffer()?.unwrap_or_default()), |bytes, out| out.buffer(Some(bytes)),
        proptest::collection::vec(any::<u8>(), 0..64).prop_map(Bytes::from);
    Option<Bytes>, 4, |r| r.buffer(), |bytes, out| out.buffer(bytes.as_deref()),
        proptest::option::of(Bytes::strategy());

    // The last byte of a record, which protocols before 3.4 lack.
    Option<bool>, 0, |r| if r.left() == 0 { Ok(None) } else { r.boolean().map(Some) },
        |value, out| value.iter().for_each(|value| bool::write(value, out)), any::<Option<bool>>();
    Option<u32>, 1, |r| flagged(r), |value, out| write_flagged(value, out),
        proptest::option::of(u32::strategy());
    Option<Party>, 1, |r| flagged(r), |value, out| write_flagged(value, out),
        proptest::option::of(Party::strategy());

    // The open ACL decodes to one shared list.
    Option<Arc<[Acl]>>, 4,
        |r| {
            if r.skip(OPEN) {
                return Ok(Some(Acl::shared_open()));
            }
            let acl = r.nullable_vector(Acl::MIN_BYTES, Acl::read)?;
            debug_assert!(!acl.as_deref().is_some_and(Acl::is_open), "an open ACL has other bytes than OPEN");
            Ok(acl.map(Arc::from))
        },
        |acl, out| match acl {
            None => out.put_i32(-1),
            Some(acl) => write_all(acl, out),
        },
        prop_oneof![
            1 => Just(None),
            1 => Just(Some(Acl::shared_open())),
            2 => Vec::<Acl>::strategy().prop_map(|acl| Some(Arc::from(acl))),
        ];
    // The number behind the kind is 0 where a kind has none.
    Mode, 8,
        |r| match (r.int()?, u32::read(r)?) {
            (0, _) => Ok(Mode::Exclusive),
            (1, _) => Ok(Mode::Shared),
            (2, permits) => Ok(Mode::Permits(permits)),
            (number, _) => Err(DecodeError::UnknownVariant { number }),
        },
        |mode, out| {
            let (kind, permits) = match *mode {
                Mode::Exclusive => (0, 0),
                Mode::Shared => (1, 0),
                Mode::Permits(permits) => (2, permits),
            };
            out.put_i32(kind);
            out.put_u32(permits);
        },
        prop_oneof![Just(Mode::Exclusive), Just(Mode::Shared), any::<u32>().prop_map(Mode::Permits)];
    Owner, 12,
        |r| match (r.int()?, u64::read(r)?) {
            (0, _) => Ok(Owner::Unnamed),
            (1, _) => Ok(Owner::Session),
            (2, number) => Ok(Owner::Named(number)),
            (3, number) => Ok(Owner::Under(number)),
            (number, _) => Err(DecodeError::UnknownVariant { number }),
        },
        |owner, out| {
            let (kind, number) = match *owner {
                Owner::Unnamed => (0, 0),
                Owner::Session => (1, 0),
                Owner::Named(number) => (2, number),
                Owner::Under(number) => (3, number),
            };
            out.put_i32(kind);
            out.put_u64(number);
        },
        prop_oneof![
            Just(Owner::Unnamed),
            Just(Owner::Session),
            any::<u64>().prop_map(Owner::Named),
            any::<u64>().prop_map(Owner::Under),
        ];
}

/// Reads a value behind a byte that is 0 if there is none.
fn flagged<T: WireForm>(r: &mut Reader<'_>) -> Decoded<Option<T>> {
    if r.boolean()? { T::read(r).map(Some) } else { Ok(None) }
}

fn write_flagged<T: WireForm>(value: &Option<T>, out: &mut BytesMut) {
    bool::write(&value.is_some(), out);
    value.iter().for_each(|value| T::write(value, out));
}

/// Null counts as empty.
impl<T: WireForm> WireForm for Vec<T>
where
    T: std::fmt::Debug + 'static,
{
    const MIN_BYTES: usize = 4;

    #[inline]
    fn read(r: &mut Reader<'_>) -> Decoded<Self> {
        Ok(r.nullable_vector(T::MIN_BYTES, T::read)?.unwrap_or_default())
    }

    #[inline]
    fn write(all: &Self, out: &mut BytesMut) {
        write_all(all, out);
    }

    #[cfg(test)]
    fn strategy() -> BoxedStrategy<Self> {
        proptest::collection::vec(T::strategy(), 0..5).boxed()
    }
}

/// Null counts as empty.
impl<A: Array> WireForm for SmallVec<A>
where
    A::Item: WireForm + std::fmt::Debug + 'static,
    A: 'static,
{
    const MIN_BYTES: usize = 4;

    #[inline]
    fn read(r: &mut Reader<'_>) -> Decoded<Self> {
        r.few(A::Item::MIN_BYTES, A::Item::read)
    }

    #[inline]
    fn write(all: &Self, out: &mut BytesMut) {
        write_all(all, out);
    }

    #[cfg(test)]
    fn strategy() -> BoxedStrategy<Self> {
        Vec::<A::Item>::strategy().prop_map(SmallVec::from_vec).boxed()
    }
}

fn write_all<T: WireForm>(all: &[T], out: &mut BytesMut) {
    out.count(all.len());
    all.iter().for_each(|one| T::write(one, out));
}
