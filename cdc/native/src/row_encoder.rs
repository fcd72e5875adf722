//! One space's rows and keys as JSON objects, compiled from its form; as cdc.events.row_encoder, for common values.

use crate::avro_values::{Column, KeyColumn};
use crate::columns::{ColumnPlan, Treatment};
use crate::fitting::Fitting;
use crate::json_values::{
    is_utf8, push_any, push_simple, push_text, push_unsigned, Refused, Written,
};
use crate::key_text::KeyText;
use crate::keys::KeyCodec;
use crate::layout::{descend, Reader, Step, Value};
use crate::update::Format;

/// Everything needed to maintain one space's images.
#[derive(Debug)]
pub struct ImagePlan {
    pub keys: KeyCodec,
    pub format: Format,
    /// Whether the space is in vinyl. There a request that writes its key differently than the row does may have missed the row,
    /// and is refused.
    pub is_vinyl: bool,
    /// Check of the results of UPSERTs, which the server ignores if they don't fit; None if it doesn't check them.
    pub fitting: Option<Fitting>,
}

/// A field of the format: its name as JSON, and whether its type has only simple values.
pub struct Field {
    pub name: Vec<u8>,
    pub is_simple: bool,
}

/// A part of the primary key: its name as JSON, its field, the path inside the field, and how its values are written.
pub struct Part {
    pub name: Vec<u8>,
    pub field: usize,
    pub path: Vec<Step>,
    pub text: KeyText,
}

/// The parts of events around their rows; see cdc.events.envelope.Openings.
pub struct Openings {
    pub create: Vec<u8>,
    pub update: Vec<u8>,
    pub snapshot: Vec<u8>,
    pub update_image: Vec<u8>,
    pub delete_image: Vec<u8>,
    pub after: Vec<u8>,
    pub no_after: Vec<u8>,
    pub patch: Vec<u8>,
    pub after_patch: Vec<u8>,
    pub upsert: Vec<u8>,
    pub after_upsert: Vec<u8>,
    pub delete: Vec<u8>,
}

impl Openings {
    /// Return the openings, in the order of the fields; None if their number is another one.
    pub fn new(pieces: Vec<Vec<u8>>) -> Option<Self> {
        let [create, update, snapshot, update_image, delete_image, after, no_after, patch, after_patch, upsert, after_upsert, delete]: [Vec<u8>; 12] =
            pieces.try_into().ok()?;
        Some(Openings {
            create,
            update,
            snapshot,
            update_image,
            delete_image,
            after,
            no_after,
            patch,
            after_patch,
            upsert,
            after_upsert,
            delete,
        })
    }
}

/// A space's keys in Avro: what precedes each key, and its parts.
pub struct AvroKey {
    pub header: Vec<u8>,
    pub parts: Vec<KeyColumn>,
}

/// A space's rows in Avro.
pub struct AvroRows {
    pub columns: Vec<Column>,
    /// Whether a row of which only the key is known can be written.
    pub has_rows_of_keys: bool,
}

pub struct Plan {
    fields: Vec<(Vec<u8>, bool)>,
    pub openings: Openings,
    /// None if rows are JSON.
    pub avro_rows: Option<AvroRows>,
    /// None if keys are JSON.
    pub avro_key: Option<AvroKey>,
    parts: Vec<Part>,
    /// Maximum number of a tuple's fields; a longer tuple would have two fields of one name.
    fields_max: usize,
    /// The event's piece between the lsn in `sequence` and the replica id.
    pub table: Vec<u8>,
    /// The event's piece before the vclock.
    pub schema: Vec<u8>,
    /// The space's name as JSON.
    pub name: Vec<u8>,
    /// Index of the space's topic.
    pub topic: usize,
    /// Whether UPSERTs are counted, because the server merges them.
    pub counts_upserts: bool,
    /// How to maintain the space's images; None if it has none.
    pub images: Option<ImagePlan>,
    /// What is published of the fields; None if all are as they are.
    pub columns: Option<ColumnPlan>,
}

impl Plan {
    #[allow(clippy::too_many_arguments)] // a space's form
    pub fn new(
        fields: Vec<Field>,
        mut parts: Vec<Part>,
        fields_max: usize,
        table: Vec<u8>,
        schema: Vec<u8>,
        name: Vec<u8>,
        topic: usize,
        openings: Openings,
    ) -> Self {
        for (place, part) in parts.iter_mut().enumerate() {
            part.name = opening(place, &part.name);
        }
        let fields = fields
            .iter()
            .enumerate()
            .map(|(place, field)| (opening(place, &field.name), field.is_simple))
            .collect();
        Plan {
            fields,
            openings,
            avro_rows: None,
            avro_key: None,
            parts,
            fields_max,
            table,
            schema,
            name,
            topic,
            counts_upserts: false,
            images: None,
            columns: None,
        }
    }

    /// Append the tuple at `at` as a JSON object with exactly its fields; return its end. Store the positions of the primary
    /// key's fields in `places`.
    pub fn push_row(
        &self,
        out: &mut Vec<u8>,
        data: &[u8],
        at: usize,
        places: &mut Vec<usize>,
    ) -> Result<usize, Refused> {
        let mut reader = Reader::new(data, at);
        let Some(Value::Array(count)) = reader.value() else {
            return Err(Refused);
        };
        if count > self.fields_max {
            return Err(Refused);
        }
        places.clear();
        places.resize(self.parts.len(), usize::MAX);
        if let Some(rows) = &self.avro_rows {
            return self.push_avro_row(out, &rows.columns, reader, count, places);
        }
        if let Some(columns) = &self.columns {
            return self.push_published(out, columns, reader, count, places);
        }
        if count == 0 {
            out.push(b'{');
        }
        for place in 0..count {
            for (part, position) in self.parts.iter().zip(places.iter_mut()) {
                if part.field == place {
                    *position = reader.at;
                }
            }
            match self.fields.get(place) {
                Some((name, is_simple)) => {
                    out.extend_from_slice(name);
                    if *is_simple {
                        push_simple(out, &mut reader)?;
                    } else {
                        push_any(out, &mut reader, 0)?;
                    }
                }
                None => {
                    out.extend_from_slice(if place == 0 {
                        b"{\"field_"
                    } else {
                        b",\"field_"
                    });
                    push_unsigned(out, place as u64 + 1);
                    out.extend_from_slice(b"\":");
                    push_any(out, &mut reader, 0)?;
                }
            }
        }
        out.push(b'}');
        Ok(reader.at)
    }

    fn push_avro_row(
        &self,
        out: &mut Vec<u8>,
        columns: &[Column],
        mut reader: Reader,
        count: usize,
        places: &mut [usize],
    ) -> Result<usize, Refused> {
        if count > columns.len() {
            return Err(Refused);
        }
        for (place, column) in columns[..count].iter().enumerate() {
            for (part, position) in self.parts.iter().zip(places.iter_mut()) {
                if part.field == place {
                    *position = reader.at;
                }
            }
            column.push(out, &mut reader)?;
        }
        for column in &columns[count..] {
            column.push_null(out)?;
        }
        Ok(reader.at)
    }

    /// Append a row that has only the fields of the key at `at`; all others are null.
    pub fn push_row_of_key(
        &self,
        out: &mut Vec<u8>,
        rows: &AvroRows,
        data: &[u8],
        at: usize,
    ) -> Written {
        let mut reader = Reader::new(data, at);
        let Some(Value::Array(_)) = reader.value() else {
            return Err(Refused);
        };
        let mut positions = Vec::with_capacity(self.parts.len());
        for _ in &self.parts {
            positions.push(reader.at);
            reader.skip().ok_or(Refused)?;
        }
        for (place, column) in rows.columns.iter().enumerate() {
            let is_it = |part: &Part| part.field == place && part.path.is_empty();
            // If a field is more than one part, the last one counts, as in Python.
            match self.parts.iter().rposition(is_it) {
                Some(part) => column.push(out, &mut Reader::new(data, positions[part]))?,
                None => column.push_null(out)?,
            }
        }
        Ok(())
    }

    /// Do as `push_row`, with the `count` fields at `reader`, as the rules for columns publish them.
    fn push_published(
        &self,
        out: &mut Vec<u8>,
        columns: &ColumnPlan,
        mut reader: Reader,
        count: usize,
        places: &mut [usize],
    ) -> Result<usize, Refused> {
        let mut text = Vec::new();
        let begin = out.len();
        out.push(b'{');
        for place in 0..count {
            for (part, position) in self.parts.iter().zip(places.iter_mut()) {
                if part.field == place {
                    *position = reader.at;
                }
            }
            let treatment = columns.treatment(place);
            if matches!(treatment, Treatment::Excluded) {
                reader.skip().ok_or(Refused)?;
                continue;
            }
            if out.len() > begin + 1 {
                out.push(b',');
            }
            self.push_field_name(out, place as u64);
            out.push(b':');
            match treatment {
                Treatment::Shown if self.fields.get(place).is_some_and(|field| field.1) => {
                    push_simple(out, &mut reader)?;
                }
                Treatment::Shown => push_any(out, &mut reader, 0)?,
                _ => columns.push_masked(out, treatment, &mut reader, &mut text)?,
            }
        }
        out.push(b'}');
        Ok(reader.at)
    }

    /// Append the name of a field as JSON.
    pub fn push_field_name(&self, out: &mut Vec<u8>, place: u64) {
        let field = usize::try_from(place)
            .ok()
            .and_then(|place| self.fields.get(place));
        match field {
            Some((opening, _)) => out.extend_from_slice(&opening[1..opening.len() - 1]),
            None => {
                out.extend_from_slice(b"\"field_");
                out.extend_from_slice((u128::from(place) + 1).to_string().as_bytes());
                out.push(b'"');
            }
        }
    }

    /// Return the place of the field with this name.
    pub fn place_of(&self, name: &[u8]) -> Option<u64> {
        if !is_utf8(name) {
            return None;
        }
        let mut text = Vec::with_capacity(name.len() + 2);
        push_text(&mut text, name);
        let place = self
            .fields
            .iter()
            .position(|(opening, _)| opening[1..opening.len() - 1] == text)?;
        Some(place as u64)
    }

    /// Append the key of a tuple, given the positions of the key's fields.
    pub fn push_key_of_row(&self, out: &mut Vec<u8>, data: &[u8], places: &[usize]) -> Written {
        if let Some(key) = &self.avro_key {
            out.extend_from_slice(&key.header);
            for ((part, column), &place) in self.parts.iter().zip(&key.parts).zip(places) {
                if place == usize::MAX {
                    return Err(Refused);
                }
                let position = descend(data, place, &part.path).ok_or(Refused)?;
                column.push(out, &mut Reader::new(data, position))?;
            }
            return Ok(());
        }
        for (part, &place) in self.parts.iter().zip(places) {
            if place == usize::MAX {
                return Err(Refused);
            }
            let position = descend(data, place, &part.path).ok_or(Refused)?;
            out.extend_from_slice(&part.name);
            part.text.push(out, &mut Reader::new(data, position))?;
        }
        out.push(b'}');
        Ok(())
    }

    /// Append the key at `at`, encoded as in a DELETE or UPDATE; return its end.
    pub fn push_key(&self, out: &mut Vec<u8>, data: &[u8], at: usize) -> Result<usize, Refused> {
        let mut reader = Reader::new(data, at);
        match reader.value() {
            Some(Value::Array(count)) if count == self.parts.len() => {}
            _ => return Err(Refused),
        }
        if let Some(key) = &self.avro_key {
            out.extend_from_slice(&key.header);
            for column in &key.parts {
                column.push(out, &mut reader)?;
            }
            return Ok(reader.at);
        }
        for part in &self.parts {
            out.extend_from_slice(&part.name);
            part.text.push(out, &mut reader)?;
        }
        out.push(b'}');
        Ok(reader.at)
    }
}

fn opening(place: usize, name: &[u8]) -> Vec<u8> {
    let mut text = vec![if place == 0 { b'{' } else { b',' }];
    text.extend_from_slice(name);
    text.push(b':');
    text
}

#[cfg(test)]
pub mod tests {
    use super::*;

    pub fn json_openings() -> Openings {
        let pieces = [
            r#"{"op":"c","before":null,"after":"#,
            r#"{"op":"u","before":null,"after":"#,
            r#"{"op":"r","before":null,"after":"#,
            r#"{"op":"u","before":"#,
            r#"{"op":"d","before":"#,
            r#","after":"#,
            r#","after":null"#,
            r#"{"op":"u","before":null,"after":null,"patch":"#,
            "",
            r#","upsert":"#,
            "",
            r#"{"op":"d","before":null,"after":null"#,
        ];
        let pieces = pieces.iter().map(|piece| piece.as_bytes().to_vec());
        Openings::new(pieces.collect()).unwrap()
    }

    pub fn users() -> Plan {
        let field = |name: &str, is_simple| Field {
            name: format!("\"{name}\"").into_bytes(),
            is_simple,
        };
        Plan::new(
            vec![field("id", true), field("name", true), field("more", false)],
            vec![Part {
                name: b"\"id\"".to_vec(),
                field: 0,
                path: Vec::new(),
                text: KeyText::new("unsigned", false),
            }],
            usize::MAX,
            b"<table>".to_vec(),
            b"<schema>".to_vec(),
            b"\"users\"".to_vec(),
            0,
            json_openings(),
        )
    }

    fn row(data: &[u8]) -> Result<(String, String), Refused> {
        let (mut out, mut key, mut places) = (Vec::new(), Vec::new(), Vec::new());
        users().push_row(&mut out, data, 0, &mut places)?;
        users().push_key_of_row(&mut key, data, &places)?;
        Ok((
            String::from_utf8(key).unwrap(),
            String::from_utf8(out).unwrap(),
        ))
    }

    #[test]
    fn rows_have_the_fields_that_they_have() {
        let texts = |key: &str, row: &str| Ok((key.to_owned(), row.to_owned()));
        assert_eq!(
            row(b"\x92\x07\xa1a"),
            texts("{\"id\":7}", "{\"id\":7,\"name\":\"a\"}")
        );
        assert_eq!(
            row(b"\x94\x07\xa1a\xcb\x3f\xe0\0\0\0\0\0\0\xc3"),
            texts(
                "{\"id\":7}",
                "{\"id\":7,\"name\":\"a\",\"more\":0.5,\"field_4\":true}"
            )
        );
        assert_eq!(row(b"\x90"), Err(Refused)); // no key at all
        assert_eq!(row(b"\x92\x07\xcb\x3f\xe0\0\0\0\0\0\0"), Err(Refused)); // a number in a text's place
        assert_eq!(row(b"\x07"), Err(Refused));
    }

    #[test]
    fn keys_have_all_their_parts() {
        let mut out = Vec::new();
        assert_eq!(users().push_key(&mut out, b"\x91\x07", 0), Ok(2));
        assert_eq!(out, b"{\"id\":7}");
        assert_eq!(users().push_key(&mut out, b"\x92\x07\x08", 0), Err(Refused));
        assert_eq!(users().push_key(&mut out, b"\x90", 0), Err(Refused));
    }
}
