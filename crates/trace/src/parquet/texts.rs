//! The different texts of a column, numbered.

use arrow_array::{Array, StringArray};
use indexmap::IndexSet;
use rustc_hash::FxBuildHasher;

/// Texts of a column, numbered in the order they are met. A batch of rows brings a dictionary, mostly that of the batch
/// before; only its entries in use are looked up, and once.
#[derive(Default)]
pub(super) struct Texts {
    texts: IndexSet<Box<str>, FxBuildHasher>,
    bytes: usize,
    /// The dictionary of the last batch, kept so that no other can have its address.
    dictionary: Option<StringArray>,
    /// By entry of the dictionary; `u32::MAX` where it has not been looked up.
    of_dictionary: Vec<u32>,
}

impl Texts {
    /// Makes `dictionary` the one that keys point into.
    pub fn enter(&mut self, dictionary: &StringArray) {
        let place = |array: &StringArray| (array.value_offsets().as_ptr(), array.len());
        if self.dictionary.as_ref().map(place) != Some(place(dictionary)) {
            self.of_dictionary.clear();
            self.of_dictionary.resize(dictionary.len(), u32::MAX);
            self.dictionary = Some(dictionary.clone());
        }
    }

    /// The number of the text with `key` in the dictionary.
    pub fn number(&mut self, key: u32) -> u32 {
        let known = self.of_dictionary[key as usize];
        if known != u32::MAX {
            return known;
        }
        let dictionary = self.dictionary.as_ref().expect("keys come after their dictionary");
        let text = dictionary.value(key as usize);
        let number = self.texts.get_index_of(text).unwrap_or_else(|| {
            self.bytes += text.len();
            self.texts.insert_full(text.into()).0
        }) as u32;
        self.of_dictionary[key as usize] = number;
        number
    }

    /// The text with this number.
    pub fn text(&self, number: u32) -> &str {
        &self.texts[number as usize]
    }

    /// How long all of them are together.
    pub fn bytes(&self) -> usize {
        self.bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_same_text_has_the_same_number_in_every_dictionary() {
        let mut texts = Texts::default();
        let first = StringArray::from(vec!["a", "b", "c"]);
        texts.enter(&first);
        let [c, a] = [2, 0].map(|key| texts.number(key));
        // A part of the same array is another dictionary.
        texts.enter(&first.slice(1, 2));
        assert_eq!((texts.number(1), texts.bytes()), (c, 2));
        texts.enter(&StringArray::from(vec!["", "a", "c"]));
        let numbers = [0, 1, 2].map(|key| texts.number(key));
        assert_eq!((numbers[1], numbers[2], texts.text(numbers[0])), (a, c, ""));
        assert_eq!([a, c].map(|number| texts.text(number).to_owned()), ["a", "c"]);
    }
}
