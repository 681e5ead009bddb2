//! Plain tables: columns as wide as their widest cell, two blanks between columns, no escape codes: cells may
//! be foreign text.

use std::io::IsTerminal;

use crate::print::safe;

const GAP: usize = 2;

pub fn table<const N: usize>(head: [&str; N], rows: &[[String; N]]) -> String {
    laid_out(head, rows, &[true; N])
}

/// Lays out a table within `width`, if given, by omitting columns of `spare` in order. Returns the table and
/// the omitted columns. A table that is still too wide stays too wide.
pub fn fitted<'a, const N: usize>(
    head: [&str; N],
    rows: &[[String; N]],
    spare: &[&'a str],
    width: Option<usize>,
) -> (String, Vec<&'a str>) {
    let widths = widths(head, rows);
    let (mut shown, mut left_out) = ([true; N], Vec::new());
    let total = |shown: &[bool; N]| {
        let columns = widths.iter().zip(shown).filter(|(_, shown)| **shown);
        columns.map(|(width, _)| width + GAP).sum::<usize>().saturating_sub(GAP)
    };
    for name in spare {
        if width.is_none_or(|width| total(&shown) <= width) {
            break;
        }
        if let Some(column) = head.iter().position(|cell| cell == name) {
            shown[column] = false;
            left_out.push(*name);
        }
    }
    (laid_out(head, rows, &shown), left_out)
}

/// Returns the width of the terminal at stdout, in columns; `None` without a terminal, or if the terminal
/// does not report one.
pub fn terminal_width() -> Option<usize> {
    let out = std::io::stdout();
    let size = rustix::termios::tcgetwinsize(&out).ok().filter(|_| out.is_terminal())?;
    (size.ws_col > 0).then_some(usize::from(size.ws_col))
}

fn widths<const N: usize>(head: [&str; N], rows: &[[String; N]]) -> [usize; N] {
    let mut widths = head.map(|cell| cell.chars().count());
    for row in rows {
        for (width, cell) in widths.iter_mut().zip(row) {
            *width = (*width).max(cell.chars().count());
        }
    }
    widths
}

fn laid_out<const N: usize>(head: [&str; N], rows: &[[String; N]], shown: &[bool; N]) -> String {
    let widths = widths(head, rows);
    let head = head.map(str::to_owned);
    let mut out = String::new();
    for row in std::iter::once(&head).chain(rows) {
        let mut line = String::new();
        for ((width, cell), _) in widths.iter().zip(row).zip(shown).filter(|(_, shown)| **shown) {
            let blanks = width - cell.chars().count() + GAP;
            line.push_str(&safe(cell));
            line.extend(std::iter::repeat_n(' ', blanks));
        }
        out.push_str(line.trim_end());
        out.push('\n');
    }
    out
}

#[cfg(test)]
mod tests {
    use super::{fitted, table};

    #[test]
    fn columns_line_up_and_lines_have_no_blanks_at_the_end() {
        let rows = [["1".to_owned(), "leader".to_owned()], ["10".to_owned(), String::new()]];
        assert_eq!(table(["node", "role"], &rows), "node  role\n1     leader\n10\n");
    }

    #[test]
    fn columns_are_omitted_in_order_until_the_rest_fits() {
        let rows = [["1".to_owned(), "x".repeat(20), "y".repeat(10)]];
        let fit = |width| fitted(["a", "b", "c"], &rows, &["b", "c"], width);
        assert_eq!(fit(None).1, [""; 0]);
        assert_eq!(fit(Some(35)).1, [""; 0]);
        assert_eq!(fit(Some(34)), (format!("a  c\n1  {}\n", "y".repeat(10)), vec!["b"]));
        assert_eq!(fit(Some(5)), ("a\n1\n".to_owned(), vec!["b", "c"]));
    }
}
