//! Pages for the browser: one file each, which needs no network and reads without JavaScript as tables.

use std::io::{self, Write};

use serde_json::Value;

use crate::table::{Cell, Heading, Table};

/// uPlot, which draws axes and lines on canvas.
const LIBRARY: &str = include_str!("../assets/uPlot.iife.min.js");
const LIBRARY_STYLE: &str = include_str!("../assets/uPlot.min.css");
const STYLE: &str = include_str!("../assets/page.css");
/// What all scripts build on: the data, the theme, numbers as text.
const BASE: &str = include_str!("../assets/base.js");

/// A page that is being written.
pub struct Document<'a> {
    out: &'a mut dyn Write,
}

impl<'a> Document<'a> {
    /// Begins a page with the common style and, after it, `style`.
    ///
    /// # Errors
    /// Here and below: when `out` cannot be written.
    pub fn begin(out: &'a mut dyn Write, title: &str, style: &str) -> io::Result<Self> {
        let title = escaped(title);
        write!(
            out,
            "<!doctype html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n\
             <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n\
             <meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src 'unsafe-inline'; \
             script-src 'unsafe-inline'\">\n<meta name=\"color-scheme\" content=\"light dark\">\n\
             <title>prepage: {title}</title>\n<style>{LIBRARY_STYLE}{STYLE}{style}</style>\n</head>\n<body>\n"
        )?;
        Ok(Self { out })
    }

    /// Names the tool and what the page is about, and says `lines` of it.
    pub fn header(&mut self, tool: &str, heading: &str, lines: &[String]) -> io::Result<()> {
        let (tool, heading) = (escaped(tool), escaped(heading));
        writeln!(self.out, "<header><p class=\"tool\">{tool}</p><h1>{heading}</h1>")?;
        lines.iter().try_for_each(|line| self.paragraph("", line))?;
        writeln!(self.out, "</header>")
    }

    /// A paragraph of class `class`, one of the style's (`note`) or none.
    pub fn paragraph(&mut self, class: &str, text: &str) -> io::Result<()> {
        let class = if class.is_empty() { String::new() } else { format!(" class=\"{class}\"") };
        writeln!(self.out, "<p{class}>{}</p>", escaped(text))
    }

    /// Inserts HTML without escaping it.
    pub fn raw(&mut self, html: &str) -> io::Result<()> {
        self.out.write_all(html.as_bytes())
    }

    /// A table, with its total as the last row and a note of the rows that were left out.
    pub fn table(&mut self, caption: &str, table: &Table) -> io::Result<()> {
        let Table { headings, rows, total, left_out, .. } = table;
        let caption = escaped(caption);
        write!(self.out, "<div class=\"table\"><table><caption>{caption}</caption><thead><tr>")?;
        for heading in headings {
            let class = if heading.is_number { " class=\"number\"" } else { "" };
            write!(self.out, "<th scope=\"col\"{class}>{}</th>", escaped(&heading.text))?;
        }
        writeln!(self.out, "</tr></thead><tbody>")?;
        rows.iter().try_for_each(|row| self.row(headings, row))?;
        write!(self.out, "</tbody>")?;
        if let Some(total) = total {
            write!(self.out, "<tfoot>")?;
            self.row(headings, total)?;
            write!(self.out, "</tfoot>")?;
        }
        write!(self.out, "</table>")?;
        if *left_out > 0 {
            write!(self.out, "<p class=\"note\">and {left_out} more</p>")?;
        }
        writeln!(self.out, "</div>")
    }

    fn row(&mut self, headings: &[Heading], cells: &[Cell]) -> io::Result<()> {
        write!(self.out, "<tr>")?;
        for (heading, cell) in headings.iter().zip(cells) {
            let class = match (heading.is_number, cell.class) {
                (false, _) => String::new(),
                (true, "") => " class=\"number\"".to_owned(),
                (true, class) => format!(" class=\"number{class}\" style=\"--share:{:.0}\"", cell.share),
            };
            write!(self.out, "<td{class}>{}</td>", escaped(&cell.text))?;
        }
        writeln!(self.out, "</tr>")
    }

    /// Where the results come from.
    pub fn footer(&mut self, parts: &[String]) -> io::Result<()> {
        writeln!(self.out, "<footer>{}</footer>", escaped(&parts.join(" · ")))
    }

    /// Ends the page. `scripts`, each building on those before, draw `data`; without scripts the page has none.
    pub fn end(self, data: &Value, scripts: &[&str]) -> io::Result<()> {
        let out = self.out;
        if !scripts.is_empty() {
            write!(out, "<script type=\"application/json\" id=\"data\">")?;
            // In a script element only `<` could end it.
            out.write_all(data.to_string().replace('<', "\\u003c").as_bytes())?;
            write!(out, "</script>\n<script>{LIBRARY}</script>\n<script>\"use strict\";(() => {{\n{BASE}")?;
            scripts.iter().try_for_each(|script| out.write_all(script.as_bytes()))?;
            writeln!(out, "}})();</script>")?;
        }
        writeln!(out, "</body>\n</html>")
    }
}

/// `text` as HTML and SVG show it, in elements and in attributes.
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::table::table;

    #[test]
    fn text_and_data_cannot_become_markup() {
        let mut page = Vec::new();
        let mut document = Document::begin(&mut page, "</title>", "").unwrap();
        document.header("tool", "<h>", &["a & b".to_owned()]).unwrap();
        let rows = vec![vec!["<td>".into(), Cell::compared(1, 100)]];
        document.table("'c'", &Table { rows, left_out: 2, ..table(&["\"", "n"], &[1]) }).unwrap();
        document.end(&"</script>".into(), &["script;"]).unwrap();
        let page = String::from_utf8(page).unwrap();
        for expected in [
            "prepage: &lt;/title&gt;<",
            "<h1>&lt;h&gt;</h1>",
            "<p>a &amp; b</p>",
            "<td>&lt;td&gt;</td><td class=\"number less\" style=\"--share:60\">1</td>",
            "and 2 more",
            "\"\\u003c/script>\"",
        ] {
            assert!(page.contains(expected), "{expected}");
        }
    }
}
