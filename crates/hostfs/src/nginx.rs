// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! The syntax of nginx's configuration: directives of words that end in `;`, and blocks in braces.

/// Bound on the nesting of blocks. Real files nest five deep (http, server, location, location, if); each level is
/// remembered while the text is read.
const MAX_DEPTH: usize = 32;

/// A part of a configuration.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Statement {
    /// A directive and its arguments: `listen 443 ssl;`
    Directive(Vec<String>),
    /// The words in front of a block: `server {`
    Open(Vec<String>),
    /// The end of a block: `}`
    Close,
    /// Words at the end of the text without `;`
    Unfinished(Vec<String>),
}

/// Position and cause of a syntax error.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("line {line}: {problem}")]
pub struct SyntaxError {
    /// Line number, counted from 1.
    pub line: usize,
    /// The error on that line.
    pub problem: SyntaxProblem,
}

/// The cause of a syntax error.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SyntaxProblem {
    /// More than 32 nested blocks.
    #[error("blocks are nested too deep")]
    TooDeep,
    /// A `}` without its `{`.
    #[error("unexpected `}}`")]
    UnexpectedClose,
    /// The text ends inside a block.
    #[error("a block is not closed")]
    UnclosedBlock,
    /// The text ends inside a directive.
    #[error("a directive does not end in `;`")]
    UnfinishedDirective,
}

/// Calls `directive` with the words of each directive and of each block's head, as if blocks were flat.
///
/// # Errors
/// The configuration is not valid. `directive` was called for everything before the error.
pub fn parse(text: &str, mut directive: impl FnMut(Vec<String>)) -> Result<(), SyntaxError> {
    let mut lexer = Lexer::new(text);
    let mut depth = 0_usize;
    let problem = loop {
        match lexer.next() {
            Some(Statement::Directive(words)) => directive(words),
            Some(Statement::Open(words)) => {
                depth += 1;
                if depth > MAX_DEPTH {
                    break SyntaxProblem::TooDeep;
                }
                directive(words);
            }
            Some(Statement::Close) => match depth.checked_sub(1) {
                Some(outer) => depth = outer,
                None => break SyntaxProblem::UnexpectedClose,
            },
            Some(Statement::Unfinished(_)) => break SyntaxProblem::UnfinishedDirective,
            None if depth > 0 => break SyntaxProblem::UnclosedBlock,
            None => return Ok(()),
        }
    };
    let line = lexer.line;
    Err(SyntaxError { line, problem })
}

/// Splits a text, or a part of one, into statements. It accepts every text.
#[derive(Debug)]
pub struct Lexer<'a> {
    rest: std::iter::Peekable<std::str::Chars<'a>>,
    line: usize,
}

impl<'a> Lexer<'a> {
    /// Starts at line 1.
    #[must_use]
    pub fn new(text: &'a str) -> Self {
        Self { rest: text.chars().peekable(), line: 1 }
    }

    fn take(&mut self) -> Option<char> {
        let next = self.rest.next();
        self.line += usize::from(next == Some('\n'));
        next
    }

    fn plain_word(&mut self, first: char) -> String {
        let mut word = String::from(first);
        let mut last = first;
        while let Some(next) = self.rest.next_if(|next| {
            // `${name}` is a variable, not a block.
            !next.is_ascii_whitespace() && *next != ';' && (*next != '{' || last == '$')
        }) {
            word.push(next);
            if last == '$' && next == '{' {
                while let Some(inner) = self.rest.next_if(|inner| !"};\n".contains(*inner)) {
                    word.push(inner);
                }
            }
            last = next;
        }
        word
    }

    fn quoted_word(&mut self, quote: char) -> String {
        let mut word = String::new();
        while let Some(next) = self.take() {
            match next {
                '\\' => word.extend(self.take()),
                end if end == quote => break,
                other => word.push(other),
            }
        }
        word
    }

    /// Skips a block in another language. Its braces are balanced, except in unusual strings.
    fn skip_block(&mut self) {
        let mut depth = 1_usize;
        while depth > 0 {
            match self.take() {
                Some('{') => depth += 1,
                Some('}') => depth -= 1,
                Some(_) => {}
                None => return,
            }
        }
    }
}

impl Iterator for Lexer<'_> {
    type Item = Statement;

    fn next(&mut self) -> Option<Statement> {
        let mut words = Vec::<String>::new();
        while let Some(character) = self.take() {
            match character {
                ' ' | '\t' | '\r' | '\n' => {}
                '#' => while self.rest.next_if(|next| *next != '\n').is_some() {},
                ';' => return Some(Statement::Directive(words)),
                '{' if words.last().is_some_and(|word| word.ends_with("_by_lua_block")) => {
                    self.skip_block();
                    words.clear();
                }
                '{' => return Some(Statement::Open(words)),
                '}' => return Some(Statement::Close),
                quote @ ('"' | '\'') => words.push(self.quoted_word(quote)),
                first => words.push(self.plain_word(first)),
            }
        }
        (!words.is_empty()).then_some(Statement::Unfinished(words))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(text: &str) -> Vec<Vec<String>> {
        let mut all = Vec::new();
        parse(text, |words| all.push(words)).expect("valid");
        all
    }

    #[test]
    fn directives_keep_quoted_text_and_variables() {
        assert_eq!(
            words("a b; # c;\nd { e \"f;g\" 'h\\'i'; } j ${k}l;"),
            [vec!["a", "b"], vec!["d"], vec!["e", "f;g", "h'i"], vec!["j", "${k}l"]]
        );
        let lua = words("content_by_lua_block { local t = {1; 2} } listen 443 ssl;");
        assert_eq!(lua, [["listen", "443", "ssl"]]);
    }

    #[test]
    fn invalid_text_is_refused_with_its_line() {
        use SyntaxProblem::{TooDeep, UnclosedBlock, UnexpectedClose, UnfinishedDirective};
        for (text, line, problem) in [
            ("a;\n}", 2, UnexpectedClose),
            ("a {\n\"x\ny\";", 3, UnclosedBlock),
            ("\na", 2, UnfinishedDirective),
            (&"a {".repeat(100), 1, TooDeep),
        ] {
            assert_eq!(parse(text, |_| ()), Err(SyntaxError { line, problem }), "{text}");
        }
        for odd in ["\"", "\\", "${", "$", "#"] {
            let _ = parse(odd, |_| ());
        }
    }
}
