//! Reads a field that is a mapping with keys of the user.

use super::TextMap;
use super::typed::{FieldTarget, FieldValue, FileReader, first_key_span};
use crate::diagnostic::Spanned;
use crate::yaml::{YamlId, YamlKind};

impl FieldTarget for Spanned<TextMap> {
    fn read(&mut self, reader: &mut FileReader<'_, '_>, field: FieldValue) {
        if !matches!(reader.tree.kind(field.value), YamlKind::Mapping(_)) {
            return reader.report_wrong_value(field, "a mapping");
        }
        self.span = first_key_span(reader.tree, field.value);
        self.value = TextMap::default();
        self.value.read_pairs(reader, field, field.value);
    }
}

impl TextMap {
    fn read_pairs(&mut self, reader: &mut FileReader<'_, '_>, field: FieldValue, mapping: YamlId) {
        let tree = reader.tree;
        for (key, value) in tree.pairs(mapping) {
            if tree.is_merge(key) {
                for merged in tree.merged_mappings(value) {
                    reader.visit(merged, |reader, merged| self.read_pairs(reader, field, merged));
                }
                continue;
            }
            let mut entry = (Spanned::<String>::default(), Spanned::<String>::default());
            for (node, text) in [(key, &mut entry.0), (value, &mut entry.1)] {
                reader.visit(node, |reader, value| {
                    text.read(reader, FieldValue { name: field.name, value });
                });
                self.is_incomplete |= reader.mismatched == Some(tree.target(node));
            }
            self.entries.push(entry);
        }
    }
}
