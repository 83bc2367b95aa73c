//! Command lines that are refused.

use clap::error::{ContextKind, ContextValue, ErrorKind};
use prepage_display::terminal::printable;

/// A process id, as an argument.
pub fn pid(text: &str) -> Result<u32, &'static str> {
    text.parse().map_err(|_| "not a process id")
}

/// Ends the process as [`refuse`] does, for options that do not go together.
pub fn conflict(what: &str) -> ! {
    refuse(clap::Error::raw(ErrorKind::ArgumentConflict, format!("{what}\n")))
}

/// Says what is `wrong` with the command line and ends the process, as clap does. No argument, say a file's name that a shell put there,
/// commands the terminal or makes a line of its own.
pub fn refuse(mut wrong: clap::Error) -> ! {
    let is_plain = |text: &str| printable(text) == text;
    if std::env::args_os().all(|argument| is_plain(&argument.to_string_lossy())) {
        wrong.exit();
    }
    let shown = |text: &String| printable(text).into_owned();
    let escaped = |(kind, value): (ContextKind, &ContextValue)| match value {
        ContextValue::String(text) => Some((kind, ContextValue::String(shown(text)))),
        ContextValue::Strings(texts) => {
            Some((kind, ContextValue::Strings(texts.iter().map(shown).collect())))
        }
        _ => None,
    };
    let context: Vec<_> = wrong.context().filter_map(escaped).collect();
    context.into_iter().for_each(|(kind, value)| drop(wrong.insert(kind, value)));
    // It repeats the argument within text that is styled already.
    wrong.remove(ContextKind::Suggested);
    match std::error::Error::source(&wrong).map(ToString::to_string) {
        // What a parser of ours said repeats its text too, and is not to be changed in place.
        Some(why) if !is_plain(&why) => {
            let of = |kind| wrong.get(kind).map(ToString::to_string).unwrap_or_default();
            let (value, option) = (of(ContextKind::InvalidValue), of(ContextKind::InvalidArg));
            say!("error: invalid value '{value}' for '{option}': {why}");
            std::process::exit(wrong.exit_code())
        }
        _ => wrong.exit(),
    }
}
