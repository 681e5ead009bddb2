//! Names of sequential znodes: the prefix and the parent's number of creates, as Java's `%010d` writes it.

/// The number 0, as long as every number at least.
const ZEROS: &str = "0000000000";

/// The full path, of which all but the number is given in pieces, of a sequential znode whose parent has counted `creates` creates.
///
/// Past 2^31-1 the count goes on at -2^31, as ZooKeeper's does: such names sort before the older ones, which is
/// why a queue must be ordered by czxid and not by name.
pub(crate) fn numbered(path: &[&str], creates: i32) -> String {
    let Ok(mut rest) = u32::try_from(creates) else { return format!("{}{creates:010}", path.concat()) };
    let (mut digits, mut zeros) = ([0; ZEROS.len()], ZEROS.len());
    while rest != 0 {
        zeros -= 1;
        digits[zeros] = b'0' + (rest % 10) as u8;
        rest /= 10;
    }
    let mut full = String::with_capacity(path.iter().map(|piece| piece.len()).sum::<usize>() + ZEROS.len());
    path.iter().for_each(|piece| full.push_str(piece));
    full.push_str(&ZEROS[..zeros]);
    full.extend(digits[zeros..].iter().map(|digit| char::from(*digit)));
    full
}

/// Whether this is how [`numbered`] ends a name: of `a10000000000` the prefix is `a1`, not `a`.
pub(crate) fn is_number(text: &str) -> bool {
    text.parse::<i32>().is_ok_and(|creates| numbered(&[], creates) == text)
}

/// The count after one more create.
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
