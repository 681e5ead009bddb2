//! Plain tables: columns as wide as their widest cell, two blanks between them, no escape codes.

/// Lays out `rows` under `head`.
pub fn table<const N: usize>(head: [&str; N], rows: &[[String; N]]) -> String {
    let mut widths = head.map(|cell| cell.chars().count());
    for row in rows {
        for (width, cell) in widths.iter_mut().zip(row) {
            *width = (*width).max(cell.chars().count());
        }
    }
    let head = head.map(str::to_owned);
    let mut out = String::new();
    for row in std::iter::once(&head).chain(rows) {
        let mut line = String::new();
        for (width, cell) in widths.iter().zip(row) {
            let blanks = width - cell.chars().count() + 2;
            line.push_str(cell);
            line.extend(std::iter::repeat_n(' ', blanks));
        }
        out.push_str(line.trim_end());
        out.push('\n');
    }
    out
}

#[cfg(test)]
mod tests {
    use super::table;

    #[test]
    fn columns_line_up_and_lines_have_no_blanks_at_the_end() {
        let rows = [["1".to_owned(), "leader".to_owned()], ["10".to_owned(), String::new()]];
        assert_eq!(table(["node", "role"], &rows), "node  role\n1     leader\n10\n");
    }
}
