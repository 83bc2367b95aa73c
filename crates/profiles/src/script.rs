//! What runs a script: the program of its first line, and where that is env(1), the one that it is to look for.

use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use prepage_core::profile::role::called;

use crate::key::readable;
use crate::program::find;

/// As much of a script as the kernel looks at (`BINPRM_BUF_SIZE`).
pub const HEAD_BYTES: usize = 256;

/// What the kernel does with a file that is executed, by its first bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Kind {
    /// It is a program, or not known.
    Program,
    /// These words stand before the file's name then, what runs it first (fs/binfmt_script.c).
    Script(Vec<OsString>),
}

impl Kind {
    /// That of a file with these first [`HEAD_BYTES`], or of all of a shorter one. What the kernel executes in no way is the shell's, as
    /// execvp(3) has it.
    pub fn of(head: &[u8]) -> Self {
        // What else holds a zero is no text of a shell's: a program that some other program runs.
        if head.starts_with(b"\x7fELF") || !head.starts_with(b"#!") && head.contains(&0) {
            return Self::Program;
        }
        Self::Script(first_line(head).unwrap_or_else(|| vec!["/bin/sh".into()]))
    }
}

/// What stands behind `#!`: a program, and all that follows it as one argument. `None` where the kernel takes it for no such line.
fn first_line(head: &[u8]) -> Option<Vec<OsString>> {
    let is_blank = |byte: &u8| matches!(byte, b' ' | b'\t');
    let text = head.strip_prefix(b"#!")?;
    let end = text.iter().position(|&byte| byte == b'\n');
    let line = text[..end.unwrap_or(text.len())].trim_ascii_start();
    let name_end = line.iter().position(|byte| is_blank(byte) || *byte == 0);
    // A name that may go on behind what the kernel looks at.
    if name_end.is_none() && end.is_none() && head.len() >= HEAD_BYTES {
        return None;
    }
    let (name, rest) = line.split_at(name_end.unwrap_or(line.len()));
    let argument = if rest.first() == Some(&0) { &b""[..] } else { rest.trim_ascii() };
    let words = [name, argument].into_iter().filter(|word| !word.is_empty());
    let words: Vec<_> = words.map(|word| OsString::from_vec(word.to_vec())).collect();
    (!name.is_empty()).then_some(words)
}

/// `command`, where env(1) is given one text to split, as in `#!/usr/bin/env -S python3 -s`, with the words of that in its place; `None`
/// too where env would unquote or replace something in it, and where the text is an argument of its own.
pub fn split_for_env(command: &[OsString]) -> Option<Vec<OsString>> {
    let is_env = Path::new(command.first()?).file_name() == Some("env".as_ref());
    let text = command.get(1)?.as_bytes();
    let text = text.strip_prefix(b"-S").or_else(|| text.strip_prefix(b"--split-string="))?;
    if text.is_empty() || text.iter().any(|byte| matches!(byte, b'"' | b'\'' | b'\\' | b'$')) {
        return None;
    }
    let words = text.split(u8::is_ascii_whitespace).filter(|word| !word.is_empty());
    let words = words.map(|word| OsStr::from_bytes(word).to_owned());
    is_env.then(|| command[..1].iter().cloned().chain(words).chain(command[2..].iter().cloned()).collect())
}

/// The programs that run `script`, in the order in which they start: `#!/usr/bin/python3 -s` names one, `#!/usr/bin/env -S python3 -s`
/// env and what PATH has as python3. None of a file that is no script or cannot be read.
pub fn interpreters(script: &File) -> Vec<PathBuf> {
    let mut head = [0; HEAD_BYTES];
    let read = script.read_at(&mut head, 0).unwrap_or(0);
    let Some(words) = first_line(&head[..read]) else { return Vec::new() };
    let mut programs = vec![PathBuf::from(&words[0])];
    // For the script.
    let mut command = words;
    command.push("-".into());
    let command = split_for_env(&command).unwrap_or(command);
    let at = called(&readable(&command));
    if at > 0 && at + 1 < command.len() {
        programs.extend(find(&command[at]));
    }
    programs
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use super::*;

    fn of(text: &[u8]) -> Vec<PathBuf> {
        let mut script = tempfile::tempfile().unwrap();
        script.write_all(text).unwrap();
        interpreters(&script)
    }

    #[test]
    fn the_first_line_says_what_runs_a_script() {
        let sh = find("sh".as_ref()).unwrap();
        let [bin_sh, env] = ["/bin/sh", "/usr/bin/env"].map(PathBuf::from);
        for text in [&b"#!/bin/sh"[..], b"#! \t/bin/sh -e\necho", b"#!/bin/sh\t-e x"] {
            assert_eq!(of(text), std::slice::from_ref(&bin_sh), "{}", text.escape_ascii());
        }
        for text in [&b"#!/usr/bin/env sh\n"[..], b"#!/usr/bin/env -S sh -e\n", b"#!/usr/bin/env -S A=b sh\n"]
        {
            assert_eq!(of(text), [env.clone(), sh.clone()], "{}", text.escape_ascii());
        }
        assert_eq!(of(b"#!/usr/bin/env no-such-program-anywhere\n"), [env]);
        let not_utf8 = PathBuf::from(OsStr::from_bytes(b"/opt/\xff/sh"));
        assert_eq!(of(b"#!/opt/\xff/sh\n"), [not_utf8]);
        for text in [&b""[..], b"#", b"#!", b"#!\n/bin/sh", b"#! \t\n", b"\x7fELF"] {
            assert!(of(text).is_empty(), "{}", text.escape_ascii());
        }
        assert!(of(&[b"#!/".to_vec(), vec![b'x'; 5000]].concat()).is_empty(), "cut names are not followed");
        assert_eq!(of(b"#!/bin/sh").len(), 1, "of a file that ends there the name does as well");
    }
    #[test]
    fn all_behind_the_program_is_one_argument() {
        let words = |text: &[u8]| match Kind::of(text) {
            Kind::Script(words) => words.join(OsStr::new("|")).into_string().unwrap(),
            Kind::Program => "program".into(),
        };
        assert_eq!(words(b"#!/bin/sh\n"), "/bin/sh");
        assert_eq!(words(b"#! /bin/sh  -e  -u \t\nx"), "/bin/sh|-e  -u");
        assert_eq!(words(b"#!/usr/bin/env -S sh -e"), "/usr/bin/env|-S sh -e");
        assert_eq!([words(b"\x7fELF"), words(b"MZ\0")], ["program", "program"]);
        for text in [&b"echo\n"[..], b"", b"#!\n/bin/cat", b"#!  \n"] {
            assert_eq!(words(text), "/bin/sh", "{}", text.escape_ascii());
        }
    }

    #[test]
    fn env_is_given_its_words_one_by_one() {
        let split = |words: &[&str]| {
            let words: Vec<OsString> = words.iter().map(Into::into).collect();
            split_for_env(&words).map(|words| words.join(OsStr::new("|")))
        };
        assert_eq!(split(&["/usr/bin/env", "-S A=b sh -e", "x"]), Some("/usr/bin/env|A=b|sh|-e|x".into()));
        assert_eq!(split(&["env", "--split-string=sh", "x"]), Some("env|sh|x".into()));
        assert!(split(&["env", "sh"]).is_none() && split(&["sh", "-S x"]).is_none());
        assert!(split(&["env", "-S'sh' -e"]).is_none() && split(&["env", "-S${X} -e"]).is_none());
    }
}
