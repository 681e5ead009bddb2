//! Names of sequential znodes: the prefix and the parent's number of creates, formatted like Java's `%010d`.

/// Digits of the shortest number.
const ZEROS: usize = 10;

/// Returns the full path of a sequential znode: these pieces and the number for a parent with `creates`
/// creates.
///
/// Past 2^31-1 the count continues at -2^31, as in ZooKeeper. Such names sort before the older ones, which is
/// why the order of a queue is the order of czxids and not of names.
pub(crate) fn numbered(path: &[&str], creates: i32) -> String {
    let mut full = String::with_capacity(path.iter().map(|piece| piece.len()).sum::<usize>() + ZEROS);
    path.iter().for_each(|piece| full.push_str(piece));
    push_number(&mut full, creates);
    full
}

/// Appends the number to a path.
pub(crate) fn push_number(full: &mut String, creates: i32) {
    let Ok(mut rest) = u32::try_from(creates) else {
        full.push_str(&format!("{creates:010}"));
        return;
    };
    // Two words cost less to check than ten digits.
    let (mut digits, mut at) = ([b'0'; 16], 16);
    while rest != 0 {
        at -= 1;
        digits[at] += (rest % 10) as u8;
        rest /= 10;
    }
    full.push_str(&std::str::from_utf8(&digits).expect("Invariant: digits are text")[16 - ZEROS..]);
    debug_assert!(full.ends_with(&format!("{creates:010}")), "a number is as Java writes it");
}

/// Returns whether [`numbered`] ends a name like this: the prefix of `a10000000000` is `a1`, not `a`.
pub(crate) fn is_number(text: &str) -> bool {
    text.parse::<i32>().is_ok_and(|creates| numbered(&[], creates) == text)
}

/// Returns the number of a znode's create in its parent, from the end of its path. The result rises from one
/// create to the next, also past 2^31-1, and wraps around at 2^32. Returns any number for a path without a
/// number.
///
/// From 2^31 on for a billion creates the number has eleven characters, the first of them a dash:
/// `x-1500000000` is ambiguous. Such a number counts as negative only behind another dash, the usual end of
/// prefixes.
pub(crate) fn ordinal(path: &str) -> u32 {
    let Some((head, tail)) = path.as_bytes().split_last_chunk::<ZEROS>() else { return 0 };
    let (is_negative, digits) = match tail {
        [b'-', digits @ ..] => (true, digits.as_slice()),
        digits => (head.ends_with(b"--") && digits[0] != b'0', digits.as_slice()),
    };
    let number = digits.iter().fold(0_i64, |number, digit| number * 10 + i64::from(digit.wrapping_sub(b'0')));
    // The number 2^31 itself has a dash.
    (if is_negative { -number } else { number }) as u32
}

/// Returns the count after one more create.
pub(crate) fn next(creates: i32) -> i32 {
    creates.wrapping_add(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_look_as_in_java() {
        assert_eq!(numbered(&["/q/lock-"], 0), "/q/lock-0000000000");
        assert_eq!(numbered(&["/q/"], i32::MAX), "/q/2147483647");
        assert_eq!(numbered(&["/q/"], next(i32::MAX)), "/q/-2147483648");
        assert_eq!(numbered(&["/q/"], -5), "/q/-000000005");
    }

    #[test]
    fn ordinals_rise_past_the_largest_number() {
        for prefix in ["/q/lock-", "/q/x-lease-", "/q/-"] {
            for begin in [0, 9, 999_999_998, i32::MAX - 2, i32::MIN, -1_000_000_002, -1_000_000, -5] {
                let ordinals: Vec<u32> =
                    (0..5).map(|at| ordinal(&numbered(&[prefix], begin.wrapping_add(at)))).collect();
                assert!(ordinals.windows(2).all(|two| two[0] < two[1]), "{prefix} {begin} {ordinals:?}");
            }
        }
        for prefix in ["/q/", "/q/a1", "/q/\u{e9}"] {
            for begin in [0, 9, 999_999_998, i32::MAX - 4, -999_999_999, -5] {
                let ordinals: Vec<u32> =
                    (0..5).map(|at| ordinal(&numbered(&[prefix], begin.wrapping_add(at)))).collect();
                assert!(ordinals.windows(2).all(|two| two[0] < two[1]), "{prefix} {begin} {ordinals:?}");
            }
        }
        for path in [
            "",
            "/",
            "/short",
            "/q/nothing-at-all",
            "/q/0123456789-",
            "/q/\u{e9}\u{e9}\u{e9}\u{e9}\u{e9}\u{e9}",
        ] {
            let _ = ordinal(path);
        }
    }

    #[test]
    fn a_number_is_told_from_one_behind_another_digit() {
        for creates in [0, 7, i32::MAX, i32::MIN, -5] {
            let text = numbered(&[], creates);
            assert!(is_number(&text));
            assert!(!is_number(&format!("0{text}")) && !is_number(&format!("1{text}")), "{text}");
        }
        for text in ["", "5", "-", "--00000005", "+000000005", "000000000a", "99999999999"] {
            assert!(!is_number(text), "{text}");
        }
    }
}
