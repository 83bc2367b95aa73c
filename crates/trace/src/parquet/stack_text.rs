//! Call stacks as text: `PATH+0xOFFSET;PATH+0xOFFSET;…`, leaf first, so that other tools can group by them.
//!
//! A place of no known object is its address alone, `0x7f…`. In paths a backslash, a semicolon and control characters
//! are written as `\xHH`.

use std::borrow::Cow;
use std::fmt::Write;

use prepage_core::{CodePlace, ObjectId, Stack};

/// The text of `stack`, whose objects have the paths that `path` names.
pub fn stack_text<P: AsRef<str>>(stack: &Stack, path: impl Fn(ObjectId) -> P) -> String {
    let mut text = String::with_capacity(stack.places.len() * 48);
    for (nth, place) in stack.places.iter().enumerate() {
        if nth > 0 {
            text.push(';');
        }
        if let Some(id) = place.object {
            push_escaped(&mut text, path(id).as_ref());
            text.push('+');
        }
        write!(text, "{:#x}", place.offset).expect("text can always be written to");
    }
    text
}

/// Parses `text` as a stack, whose objects `object_id` numbers by path. `None` if it cannot be parsed.
pub(super) fn parse_stack(text: &str, mut object_id: impl FnMut(&str) -> Option<ObjectId>) -> Option<Stack> {
    let mut places = Vec::new();
    for place in text.split(';').filter(|_| !text.is_empty()) {
        let (object, offset) = match place.rsplit_once('+') {
            Some((path, offset)) => (Some(object_id(&unescaped(path)?)?), offset),
            None => (None, place),
        };
        let offset = u64::from_str_radix(offset.strip_prefix("0x")?, 16).ok()?;
        places.push(CodePlace { object, offset });
    }
    Some(Stack { places })
}

fn push_escaped(text: &mut String, path: &str) {
    for letter in path.chars() {
        match letter {
            '\\' | ';' => {
                write!(text, "\\x{:02x}", u32::from(letter)).expect("text can always be written to")
            }
            _ if letter.is_ascii_control() => {
                write!(text, "\\x{:02x}", u32::from(letter)).expect("text can always be written to");
            }
            _ => text.push(letter),
        }
    }
}

fn unescaped(path: &str) -> Option<Cow<'_, str>> {
    if !path.contains('\\') {
        return Some(Cow::Borrowed(path));
    }
    let mut text = String::with_capacity(path.len());
    let mut rest = path;
    while let Some((plain, escape)) = rest.split_once("\\x") {
        text.push_str(plain);
        let (digits, tail) = escape.split_at_checked(2)?;
        text.push(u8::from_str_radix(digits, 16).ok().filter(u8::is_ascii)? as char);
        rest = tail;
    }
    text.push_str(rest);
    Some(Cow::Owned(text))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stacks_are_read_as_they_are_written() {
        let paths = ["/usr/lib/libc.so.6", "/a;b\\c+0x12\n", "[vdso]", "0x12", "", "/ü\\x3b"];
        let id = |path: &str| paths.iter().position(|known| *known == path).map(|at| ObjectId(at as u32));
        let mut places: Vec<CodePlace> = (0..paths.len() as u32)
            .map(|at| CodePlace { object: Some(ObjectId(at)), offset: 0x12 })
            .collect();
        places.push(CodePlace { object: None, offset: u64::MAX });
        for len in 0..=places.len() {
            let stack = Stack { places: places[..len].to_vec() };
            let text = stack_text(&stack, |id| paths[id.0 as usize]);
            assert_eq!(text.split(';').count(), len.max(1), "{text}");
            assert_eq!(parse_stack(&text, id), Some(stack), "{text}");
        }
    }

    #[test]
    fn other_text_is_no_stack() {
        for text in ["main", "/a+12", "/a+0x", ";", "/a\\xzz+0x1", "/a\\x8+0x1", "/a+0x11111111111111111"] {
            assert_eq!(parse_stack(text, |_| Some(ObjectId(0))), None, "{text}");
        }
    }
}
