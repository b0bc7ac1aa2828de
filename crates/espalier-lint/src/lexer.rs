//! Comments and string literals of Rust source, which the parser does not keep.

/// What a piece of text is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    Comment,
    Literal,
}

/// One line of a comment, or of a string literal.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Piece<'a> {
    pub(crate) kind: Kind,
    /// From 1.
    pub(crate) line: usize,
    pub(crate) text: &'a str,
}

/// The comments and string literals of `source`, line by line.
pub(crate) fn pieces(source: &str) -> Vec<Piece<'_>> {
    let mut lexer = Lexer { source, at: 0, line: 1, pieces: Vec::new() };
    while lexer.at < source.len() {
        lexer.step();
    }
    lexer.pieces
}

struct Lexer<'a> {
    source: &'a str,
    at: usize,
    line: usize,
    pieces: Vec<Piece<'a>>,
}

impl Lexer<'_> {
    fn step(&mut self) {
        let rest = &self.source[self.at..];
        if rest.starts_with("//") {
            self.take(rest.find('\n').unwrap_or(rest.len()), Some(Kind::Comment));
        } else if rest.starts_with("/*") {
            self.take(block_comment(rest), Some(Kind::Comment));
        } else if let Some((quote, hashes)) = raw_string(rest) {
            let end = format!("\"{}", "#".repeat(hashes));
            let begin = quote + 1;
            let len = rest[begin..].find(&end).map_or(rest.len(), |found| begin + found + end.len());
            self.take(len, Some(Kind::Literal));
        } else if rest.starts_with('"') {
            self.take(quoted(rest, '"'), Some(Kind::Literal));
        } else if rest.starts_with('\'') {
            self.take(character_or_lifetime(rest), None);
        } else {
            // An identifier is taken whole, so that its last letter begins no raw string.
            let is_part = |c: char| c.is_alphanumeric() || c == '_';
            let word = rest.find(|c| !is_part(c)).unwrap_or(rest.len());
            let first = rest.chars().next().map_or(1, char::len_utf8);
            self.take(prefix_of_literal(rest).unwrap_or(word.max(first)), None);
        }
    }

    /// Moves on by `len` bytes, keeping them as pieces of this kind.
    fn take(&mut self, len: usize, kind: Option<Kind>) {
        let text = &self.source[self.at..self.at + len];
        if let Some(kind) = kind {
            let lines = text.split('\n').enumerate();
            self.pieces.extend(lines.map(|(n, text)| Piece { kind, line: self.line + n, text }));
        }
        self.line += text.matches('\n').count();
        self.at += len;
    }
}

/// The length of the prefix of a byte or C string that begins here.
fn prefix_of_literal(rest: &str) -> Option<usize> {
    ["b\"", "c\"", "b'"].iter().any(|prefix| rest.starts_with(prefix)).then_some(1)
}

/// Where the quote of a raw string that begins here is, and its number of hashes.
fn raw_string(rest: &str) -> Option<(usize, usize)> {
    let prefix = ["br", "cr", "r"].into_iter().find(|prefix| rest.starts_with(prefix))?;
    let tail = &rest[prefix.len()..];
    let hashes = tail.len() - tail.trim_start_matches('#').len();
    tail[hashes..].starts_with('"').then_some((prefix.len() + hashes, hashes))
}

/// The length of the block comment that begins here; they nest.
fn block_comment(rest: &str) -> usize {
    let (mut depth, mut at) = (0, 0);
    while at < rest.len() {
        if rest[at..].starts_with("/*") {
            (depth, at) = (depth + 1, at + 2);
        } else if rest[at..].starts_with("*/") {
            (depth, at) = (depth - 1, at + 2);
            if depth == 0 {
                break;
            }
        } else {
            at += rest[at..].chars().next().map_or(1, char::len_utf8);
        }
    }
    at
}

/// The length of the literal that begins here with `quote` and ends with it.
fn quoted(rest: &str, quote: char) -> usize {
    let mut escaped = false;
    for (at, c) in rest.char_indices().skip(1) {
        match c {
            _ if escaped => escaped = false,
            '\\' => escaped = true,
            _ if c == quote => return at + c.len_utf8(),
            _ => {}
        }
    }
    rest.len()
}

/// The length of the character literal, or of the quote of the lifetime, that begins here.
fn character_or_lifetime(rest: &str) -> usize {
    let mut chars = rest.chars().skip(1);
    match (chars.next(), chars.next()) {
        (Some('\\'), _) | (Some(_), Some('\'')) => quoted(rest, '\''),
        _ => 1,
    }
}

#[cfg(test)]
mod tests;
