//! The binary form in which data travels inside a report.
//!
//! ```text
//! payload := base64(zlib(container))
//! container
//!   magic    "OOMPHRPT"                      8 bytes
//!   version  u16 little endian               1
//!   length   u32 little endian               bytes of the head
//!   head     JSON: {"columns": [[name, count, width, differences], …], …}
//!   columns  in the order of the head, each `width` planes of `count` bytes
//! ```
//!
//! A column holds unsigned numbers of at most 48 bits, which a browser's numbers hold exactly. It is
//! written as byte planes: first the lowest byte of every number, then the second, and so on; with
//! `differences` the numbers are zigzag differences to the row before. Planes pack well, because
//! the high ones hardly change, and decode with one loop.
//!
//! Base64 has no character that HTML knows, so nothing in the data can become markup.

use std::io::Write as _;

use flate2::Compression;
use flate2::write::ZlibEncoder;
use serde_json::{Value, json};

/// The first bytes.
pub const MAGIC: &[u8; 8] = b"OOMPHRPT";
/// The layout's version; the page refuses others.
pub const VERSION: u16 = 1;
/// The widest number: 48 bits.
const MAX_WIDTH: usize = 6;
const LARGEST: u64 = (1 << (8 * MAX_WIDTH)) - 1;

/// Named columns of numbers, under construction.
#[derive(Debug, Default)]
pub struct Columns {
    directory: Vec<Value>,
    planes: Vec<u8>,
}

impl Columns {
    /// Adds a column as it is.
    pub fn plain(&mut self, name: &str, values: &[u64]) {
        self.add(name, values, false);
    }

    /// Adds a column whose neighbours resemble each other.
    pub fn differences(&mut self, name: &str, values: &[u64]) {
        let mut before = 0_u64;
        let zigzag: Vec<u64> = values
            .iter()
            .map(|&value| {
                // One bit for the sign: 47 bits are 128 TiB, or four years of microseconds.
                let value = value.min(LARGEST >> 1);
                let change = value as i64 - before as i64;
                before = value;
                (change << 1 ^ change >> 63) as u64
            })
            .collect();
        self.add(name, &zigzag, true);
    }

    fn add(&mut self, name: &str, values: &[u64], differences: bool) {
        let all = values
            .iter()
            .fold(0, |bits, &value| bits | value.min(LARGEST));
        let width = (64 - all.leading_zeros() as usize)
            .div_ceil(8)
            .min(MAX_WIDTH);
        self.directory
            .push(json!([name, values.len(), width, u8::from(differences)]));
        self.planes.reserve(width * values.len());
        for plane in 0..width {
            self.planes.extend(
                values
                    .iter()
                    .map(|&value| (value.min(LARGEST) >> (8 * plane)) as u8),
            );
        }
    }

    /// The payload with `head`, which must be a JSON object, in front of the columns.
    pub fn finish(self, mut head: Value) -> String {
        if let Some(head) = head.as_object_mut() {
            head.insert("columns".to_owned(), Value::Array(self.directory));
        }
        let head = head.to_string();
        let mut packed = ZlibEncoder::new(Vec::new(), Compression::new(5));
        // Writing into memory does not fail.
        let _ = packed.write_all(MAGIC);
        let _ = packed.write_all(&VERSION.to_le_bytes());
        let _ = packed.write_all(&(head.len() as u32).to_le_bytes());
        let _ = packed.write_all(head.as_bytes());
        let _ = packed.write_all(&self.planes);
        base64(&packed.finish().unwrap_or_default())
    }
}

/// Standard base64 with padding.
pub fn base64(bytes: &[u8]) -> String {
    const ALPHABET: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let mut out = String::with_capacity(bytes.len().div_ceil(3) * 4);
    for chunk in bytes.chunks(3) {
        let [a, b, c] = [0, 1, 2].map(|at| u32::from(chunk.get(at).copied().unwrap_or(0)));
        let bits = a << 16 | b << 8 | c;
        for place in 0..4 {
            let sextet = bits >> (18 - 6 * place) & 63;
            let letter = if place > chunk.len() {
                '='
            } else {
                char::from(ALPHABET[sextet as usize])
            };
            out.push(letter);
        }
    }
    out
}

#[cfg(test)]
pub(crate) mod tests {
    use std::collections::HashMap;
    use std::io::Read as _;

    use super::*;

    /// The inverse of [`base64`].
    fn unbase64(text: &str) -> Vec<u8> {
        let value = |byte: u8| match byte {
            b'A'..=b'Z' => byte - b'A',
            b'a'..=b'z' => byte - b'a' + 26,
            b'0'..=b'9' => byte - b'0' + 52,
            b'+' => 62,
            b'/' => 63,
            _ => 64,
        };
        let mut out = Vec::new();
        for chunk in text.as_bytes().chunks(4) {
            let sextets: Vec<u32> = chunk
                .iter()
                .map(|&byte| u32::from(value(byte)))
                .take_while(|&sextet| sextet < 64)
                .collect();
            let bits = sextets
                .iter()
                .enumerate()
                .fold(0, |bits, (place, sextet)| bits | sextet << (18 - 6 * place));
            out.extend_from_slice(&bits.to_be_bytes()[1..sextets.len()]);
        }
        out
    }

    /// Reads a payload as the page does: the head and the columns.
    pub(crate) fn read(payload: &str) -> (Value, HashMap<String, Vec<u64>>) {
        let mut bytes = Vec::new();
        flate2::read::ZlibDecoder::new(unbase64(payload).as_slice())
            .read_to_end(&mut bytes)
            .unwrap();
        assert_eq!(&bytes[..8], MAGIC);
        let length = u32::from_le_bytes(bytes[10..14].try_into().unwrap()) as usize;
        let head: Value = serde_json::from_slice(&bytes[14..14 + length]).unwrap();
        let mut at = 14 + length;
        let mut columns = HashMap::new();
        for column in head["columns"].as_array().unwrap() {
            let count = column[1].as_u64().unwrap() as usize;
            let width = column[2].as_u64().unwrap() as usize;
            let mut before = 0_i64;
            let values = (0..count)
                .map(|row| {
                    let raw = (0..width).fold(0_u64, |value, plane| {
                        value | u64::from(bytes[at + plane * count + row]) << (8 * plane)
                    });
                    if column[3] == 0 {
                        return raw;
                    }
                    before += (raw >> 1) as i64 ^ -((raw & 1) as i64);
                    before as u64
                })
                .collect();
            at += width * count;
            columns.insert(column[0].as_str().unwrap().to_owned(), values);
        }
        assert_eq!(at, bytes.len());
        (head, columns)
    }

    #[test]
    fn numbers_come_back() {
        let values = [7, 0, 1 << 40, 1 << 40 | 1, 3, LARGEST >> 1];
        let mut columns = Columns::default();
        columns.plain("plain", &values);
        columns.differences("differences", &values);
        columns.plain("zeros", &[0; 5]);
        columns.plain("none", &[]);
        let (head, read) = read(&columns.finish(json!({"name": "</script>"})));
        assert_eq!(head["name"], "</script>");
        assert_eq!(read["plain"], values);
        assert_eq!(read["differences"], values);
        assert_eq!(read["zeros"], [0; 5]);
        assert!(read["none"].is_empty());
    }

    #[test]
    fn base64_is_standard() {
        assert_eq!(base64(b""), "");
        assert_eq!(base64(b"f"), "Zg==");
        assert_eq!(base64(b"fo"), "Zm8=");
        assert_eq!(base64(b"foobar"), "Zm9vYmFy");
    }
}
