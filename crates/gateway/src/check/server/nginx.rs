// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! Configuration of nginx: its syntax, its `include`, and the directives that matter here.

use std::path::{Path, PathBuf};

use super::super::glob;
use super::{ServerConfig, reachable};

/// Files that include each other, and blocks in blocks.
const MAX_DEPTH: usize = 32;

/// What nginx takes if nothing is said.
const DEFAULT_CONNECTIONS: u64 = 512;

/// Where builds look if nothing is said.
pub const DEFAULT_FILES: [&str; 4] = [
    "/etc/nginx/nginx.conf",
    "/usr/local/nginx/conf/nginx.conf",
    "/usr/local/openresty/nginx/conf/nginx.conf",
    "/etc/angie/angie.conf",
];

/// Reads a configuration below `root`, the file system as the server sees it.
#[must_use]
pub fn read(root: &Path, file: &Path) -> ServerConfig {
    let mut config = ServerConfig::default();
    let base = file.parent().unwrap_or_else(|| Path::new("/")).to_owned();
    let mut reader = Reader {
        root,
        base,
        config: &mut config,
    };
    reader.file(file, 0);
    let _ = config.connections.get_or_insert(DEFAULT_CONNECTIONS);
    config
}

struct Reader<'a> {
    root: &'a Path,
    /// The folder of the main file: relative names are relative to it, also in included files.
    base: PathBuf,
    config: &'a mut ServerConfig,
}

impl Reader<'_> {
    fn file(&mut self, path: &Path, depth: usize) {
        if depth > MAX_DEPTH {
            self.config
                .problem(format!("{}: included too deep", path.display()));
            return;
        }
        let Some(text) = self.config.read(&crate::verify::below(self.root, path)) else {
            return;
        };
        let mut directives = Vec::new();
        if let Err(problem) = parse(&text, |words| directives.push(words)) {
            self.config
                .problem(format!("{}: {problem}", path.display()));
        }
        for words in directives {
            self.directive(&words, depth);
        }
    }

    fn directive(&mut self, words: &[String], depth: usize) {
        let Some((name, arguments)) = words.split_first() else {
            return;
        };
        let Some(first) = arguments.first() else {
            return;
        };
        match name.as_str() {
            "include" => {
                for file in glob::files(self.root, &self.base.join(first)) {
                    self.file(&file, depth + 1);
                }
            }
            "env" => {
                let variable = first.split('=').next().unwrap_or_default();
                self.config.environment.push(variable.to_owned());
            }
            "worker_connections" => self.config.connections = first.parse().ok(),
            "ssl_certificate_key" => self.key(first),
            "listen" if arguments.iter().any(|word| word == "ssl") => {
                self.config.add_listen(reachable(first));
            }
            "server_name" => {
                let plain = |name: &&String| {
                    !name.contains(['*', '~', '$']) && *name != "_" && !name.is_empty()
                };
                self.config
                    .names
                    .extend(arguments.iter().filter(plain).cloned());
            }
            _ => {}
        }
    }

    fn key(&mut self, value: &str) {
        if value.contains('$') || value.starts_with("data:") {
            self.config.problem(format!(
                "ssl_certificate_key {value} depends on each connection; it was not looked at"
            ));
        } else if value.starts_with("engine:") || value.starts_with("store:") {
            self.config.problem(format!(
                "ssl_certificate_key {value} is not a file; it was not looked at"
            ));
        } else {
            let path = self.base.join(value);
            self.config.add_key(path);
        }
    }
}

/// Calls back for each directive with its words; blocks are entered as if they were not there.
///
/// # Errors
/// Where it stops making sense; what came before was reported.
pub fn parse(text: &str, mut directive: impl FnMut(Vec<String>)) -> Result<(), String> {
    let mut rest = text.chars().peekable();
    let (mut words, mut depth, mut line) = (Vec::<String>::new(), 0_usize, 1_usize);
    while let Some(character) = rest.next() {
        match character {
            '\n' => line += 1,
            ' ' | '\t' | '\r' => {}
            '#' => while rest.next_if(|next| *next != '\n').is_some() {},
            ';' => directive(std::mem::take(&mut words)),
            '{' => {
                let opened = std::mem::take(&mut words);
                if opened
                    .last()
                    .is_some_and(|word| word.ends_with("_by_lua_block"))
                {
                    line += skip_block(&mut rest);
                } else {
                    depth += 1;
                    directive(opened);
                }
                if depth > MAX_DEPTH {
                    return Err(format!("line {line}: too many blocks in blocks"));
                }
            }
            '}' => {
                depth = depth
                    .checked_sub(1)
                    .ok_or_else(|| format!("line {line}: a }} too many"))?;
                words.clear();
            }
            quote @ ('"' | '\'') => {
                let (word, lines) = quoted(&mut rest, quote);
                line += lines;
                words.push(word);
            }
            first => words.push(plain(&mut rest, first)),
        }
    }
    if depth > 0 {
        return Err(format!("line {line}: a block is not closed"));
    }
    Ok(())
}

type Characters<'a> = std::iter::Peekable<std::str::Chars<'a>>;

fn plain(rest: &mut Characters<'_>, first: char) -> String {
    let mut word = String::from(first);
    let mut last = first;
    while let Some(next) = rest.next_if(|next| {
        // `${name}` is a variable, not a block.
        !next.is_ascii_whitespace() && *next != ';' && (*next != '{' || last == '$')
    }) {
        word.push(next);
        if last == '$' && next == '{' {
            while let Some(inner) = rest.next_if(|inner| *inner != '}' && *inner != ';') {
                word.push(inner);
            }
        }
        last = next;
    }
    word
}

fn quoted(rest: &mut Characters<'_>, quote: char) -> (String, usize) {
    let (mut word, mut lines) = (String::new(), 0);
    while let Some(next) = rest.next() {
        match next {
            '\\' => word.extend(rest.next()),
            end if end == quote => break,
            other => {
                lines += usize::from(other == '\n');
                word.push(other);
            }
        }
    }
    (word, lines)
}

/// Another language in braces; they are balanced in all but odd strings.
fn skip_block(rest: &mut Characters<'_>) -> usize {
    let (mut depth, mut lines) = (1_usize, 0);
    for next in rest.by_ref() {
        match next {
            '{' => depth += 1,
            '}' => depth -= 1,
            '\n' => lines += 1,
            _ => {}
        }
        if depth == 0 {
            break;
        }
    }
    lines
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    fn words(text: &str) -> Vec<Vec<String>> {
        let mut all = Vec::new();
        parse(text, |words| all.push(words)).expect("it makes sense");
        all
    }

    #[test]
    fn the_syntax_of_nginx() {
        assert_eq!(
            words("a b; # c;\nd { e \"f;g\" 'h\\'i'; } j ${k}l;"),
            [
                vec!["a", "b"],
                vec!["d"],
                vec!["e", "f;g", "h'i"],
                vec!["j", "${k}l"]
            ]
        );
        let lua = words("content_by_lua_block { local t = {1; 2} } listen 443 ssl;");
        assert_eq!(lua, [["listen", "443", "ssl"]]);
        for bad in ["}", "a {", &"a {".repeat(100)] {
            assert!(parse(bad, |_| ()).is_err(), "{bad}");
        }
        for odd in ["\"", "a", "\\", "${", "$", "#"] {
            let _ = parse(odd, |_| ());
        }
    }

    #[test]
    fn a_configuration_with_includes() {
        let dir = tempfile::tempdir().expect("folder");
        let etc = dir.path().join("etc/nginx");
        fs::create_dir_all(etc.join("sites")).expect("folders");
        let put = |name: &str, text: &str| fs::write(etc.join(name), text).expect("file");
        put(
            "nginx.conf",
            "env OPENSSL_CONF=/x; include mill*.conf; events { worker_connections 99; }\n\
             http { include /etc/nginx/sites/*; }",
        );
        put("millrace.conf", "env LD_PRELOAD;");
        put(
            "sites/one",
            "server { listen 80; listen [::]:443 ssl http2; listen 443 ssl; server_name _ *.b www.a;\n\
             ssl_certificate_key keys/www.key; }",
        );
        put(
            "sites/two",
            "server { listen 8443 ssl; ssl_certificate_key $host.key; }",
        );
        put("sites/.hidden", "env HIDDEN;");
        let config = read(dir.path(), Path::new("/etc/nginx/nginx.conf"));
        assert_eq!(config.environment, ["OPENSSL_CONF", "LD_PRELOAD"]);
        assert_eq!(config.connections, Some(99));
        assert_eq!(
            config.listens,
            ["[::1]:443", "127.0.0.1:443", "127.0.0.1:8443"]
        );
        assert_eq!(config.names, ["www.a"]);
        assert_eq!(config.keys, [Path::new("/etc/nginx/keys/www.key")]);
        assert_eq!(
            (config.problems.len(), config.files),
            (1, 4),
            "{:?}",
            config.problems
        );
    }

    #[test]
    fn a_file_that_includes_itself_ends() {
        let dir = tempfile::tempdir().expect("folder");
        fs::write(dir.path().join("a.conf"), "include a.conf;").expect("file");
        let config = read(dir.path(), Path::new("/a.conf"));
        assert!(
            config
                .problems
                .iter()
                .any(|problem| problem.contains("too deep"))
        );
    }
}
