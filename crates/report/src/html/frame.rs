//! What all our pages begin and end with.

use std::io::{self, Write};

use prepage_core::{PAGE_SIZE, TraceFacts};
use serde_json::Value;

use crate::text;

/// uPlot, which draws axes and lines on canvas.
const LIBRARY: &str = include_str!("../../assets/uPlot.iife.min.js");
const LIBRARY_STYLE: &str = include_str!("../../assets/uPlot.min.css");
const STYLE: &str = include_str!("../../assets/report.css");

/// Begins a page with a style of its own besides the common one. `title` is HTML.
pub fn begin(title: &str, style: &str, out: &mut dyn Write) -> io::Result<()> {
    write!(
        out,
        "<!doctype html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n\
         <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n\
         <meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src 'unsafe-inline'; \
         script-src 'unsafe-inline'\">\n<meta name=\"color-scheme\" content=\"light dark\">\n\
         <title>prepage: {title}</title>\n<style>{LIBRARY_STYLE}{STYLE}{style}</style>\n</head>\n<body>\n"
    )
}

/// The command, the kernel, the page size, the losses.
pub fn footer(facts: &TraceFacts, out: &mut dyn Write) -> io::Result<()> {
    let mut parts = vec![format!("<code>{}</code>", escaped(&text::shell_words(&facts.command)))];
    let kernel = if facts.kernel.is_empty() { "unknown" } else { &facts.kernel };
    parts.push(format!("Linux {}", escaped(kernel)));
    parts.push(format!("pages of {} bytes", PAGE_SIZE));
    parts.extend(text::started(facts).map(|started| format!("recorded {started}")));
    parts.extend(facts.probe_cost_ns.map(|ns| format!("cost of observing, taken off each fault: {ns} ns")));
    if !facts.filters.is_empty() {
        parts.push(format!("recorded with {}", escaped(&facts.filters.join(" "))));
    }
    parts.push(escaped(&text::losses(facts)));
    parts.push(format!("prepage {}", env!("CARGO_PKG_VERSION")));
    writeln!(out, "<footer>{}</footer>", parts.join(" · "))
}

/// Ends a page whose `scripts`, each building on those before, draw `data`.
pub fn end(data: &Value, scripts: &[&str], out: &mut dyn Write) -> io::Result<()> {
    write!(out, "<script type=\"application/json\" id=\"data\">")?;
    // In a script element only `<` could end it.
    out.write_all(data.to_string().replace('<', "\\u003c").as_bytes())?;
    write!(out, "</script>\n<script>{LIBRARY}</script>\n<script>\"use strict\";(() => {{\n")?;
    for script in scripts {
        out.write_all(script.as_bytes())?;
    }
    writeln!(out, "}})();</script>\n</body>\n</html>")
}

/// `text` as HTML shows it, in elements and in attributes.
pub fn escaped(text: &str) -> String {
    let mut escaped = String::with_capacity(text.len());
    for letter in text.chars() {
        match letter {
            '&' => escaped.push_str("&amp;"),
            '<' => escaped.push_str("&lt;"),
            '>' => escaped.push_str("&gt;"),
            '"' => escaped.push_str("&quot;"),
            '\'' => escaped.push_str("&#39;"),
            _ => escaped.push(letter),
        }
    }
    escaped
}
