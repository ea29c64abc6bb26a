//! Profiles of JAX's memory (`jax.profiler.save_device_memory_profile`): pprof, a protobuf message.
//!
//! They say what is held at one moment, by the stack that made it. Field numbers are those of `profile.proto`.

use std::io::Read;
use std::path::Path;

use crate::error::Error;
use crate::stack_table::{Frame, FrameId, StackId};
use crate::string_table::StringId;
use crate::trace::Trace;

/// Bytes of a profile: each stack is there once, so those of large jobs take a few megabytes.
const MAX_BYTES: usize = 64 << 20;

/// What JAX holds at one moment.
#[derive(Debug, Clone, Default)]
pub struct Profile {
    /// What is held, by stack, kind and device.
    pub held: Vec<Held>,
    /// Names and stacks; there are no events.
    pub names: Trace,
}

/// Buffers or executables that one stack made.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Held {
    /// `buffer` or `executable`.
    pub kind: StringId,
    /// The device, such as `cuda:0`; empty for what is no single device's.
    pub device: StringId,
    /// The stack that made them.
    pub stack: StackId,
    /// How many.
    pub count: u64,
    /// Their bytes together.
    pub bytes: u64,
}

/// Whether the beginning of a file looks like a profile: a type of its values, which is two small numbers, comes first.
pub(crate) fn looks_like(head: &[u8]) -> bool {
    matches!(head, [0x0a, 2..=8, 0x08 | 0x10, ..])
}

/// Reads a profile from a stream; `path` is for messages only.
pub fn read_from(mut reader: impl Read, path: &Path) -> Result<Profile, Error> {
    read(&mut reader, path)
}

fn read(reader: &mut dyn Read, path: &Path) -> Result<Profile, Error> {
    let mut file = Vec::new();
    let read = reader.take(MAX_BYTES as u64 + 1).read_to_end(&mut file);
    read.map_err(|source| Error::Io {
        path: path.to_owned(),
        source,
    })?;
    let found = if file.len() > MAX_BYTES {
        "a pprof profile of more than 64 MiB"
    } else {
        match parse(&file) {
            None => "a pprof profile that is cut or damaged",
            Some(Err(Foreign)) => "a pprof profile of something else than JAX's memory",
            Some(Ok(profile)) => return Ok(profile),
        }
    };
    Err(Error::Format {
        path: path.to_owned(),
        found: found.to_owned(),
        expected: "what jax.profiler.save_device_memory_profile wrote; other profiles are read by `go tool pprof`".to_owned(),
    })
}

/// A profile of something else than JAX's memory.
struct Foreign;

/// `None` where the bytes are no message.
fn parse(file: &[u8]) -> Option<Result<Profile, Foreign>> {
    const TYPES: usize = 1;
    const SAMPLES: usize = 2;
    const LOCATIONS: usize = 4;
    const FUNCTIONS: usize = 5;
    const STRINGS: usize = 6;
    let mut parts: [Vec<&[u8]>; 7] = Default::default();
    fields(file, &mut |number, _, bytes| {
        if let Some(part) = parts.get_mut(number as usize) {
            part.push(bytes);
        }
        Some(())
    })?;
    let mut names = Trace::default();
    let strings: Vec<StringId> = (parts[STRINGS].iter())
        .map(|text| names.strings.intern(&String::from_utf8_lossy(text)))
        .collect();
    let string = |index: u64| strings.get(index as usize).copied();
    // JAX numbers functions and locations from 1 on, in their order.
    let mut functions: Vec<Frame> = Vec::new();
    for function in &parts[FUNCTIONS] {
        let [id, name, _, file] = numbers(function)?;
        (id == functions.len() as u64 + 1).then_some(())?;
        functions.push(Frame {
            file: string(file)?,
            name: string(name)?,
            line: 0,
        });
    }
    let mut locations: Vec<FrameId> = Vec::new();
    for location in &parts[LOCATIONS] {
        let [id, ..] = numbers(location)?;
        (id == locations.len() as u64 + 1).then_some(())?;
        let mut frame = Frame::default();
        fields(location, &mut |number, _, bytes| {
            if number == 4 {
                let [function, line, ..] = numbers(bytes)?;
                frame = *functions.get((function as usize).checked_sub(1)?)?;
                frame.line = line as u32;
            }
            Some(())
        })?;
        locations.push(names.stacks.intern_frame(frame));
    }
    let mut types = Vec::new();
    for kind in &parts[TYPES] {
        let [name, ..] = numbers(kind)?;
        types.push(names.strings.get(string(name)?));
    }
    if types != ["allocations", "space"] {
        return Some(Err(Foreign));
    }
    let mut held = Vec::new();
    for sample in &parts[SAMPLES] {
        let (mut stack, mut values) = (Vec::new(), Vec::new());
        let (mut kind, mut device) = (StringId::EMPTY, StringId::EMPTY);
        fields(sample, &mut |number, value, bytes| {
            match number {
                1 => repeated(value, bytes, &mut |id| {
                    stack.push(*locations.get((id as usize).checked_sub(1)?)?);
                    Some(())
                })?,
                2 => repeated(value, bytes, &mut |value| {
                    values.push(value);
                    Some(())
                })?,
                3 => {
                    let [key, text, ..] = numbers(bytes)?;
                    match names.strings.get(string(key)?) {
                        "kind" => kind = string(text)?,
                        "device" => device = string(text)?,
                        _ => {}
                    }
                }
                _ => {}
            }
            Some(())
        })?;
        // Both are signed.
        let [count, bytes] = *values.as_slice() else {
            return None;
        };
        let [count, bytes] = [count, bytes].map(|value| (value as i64).max(0) as u64);
        if kind == StringId::EMPTY {
            return Some(Err(Foreign));
        }
        held.push(Held {
            kind,
            device,
            stack: names.stacks.intern(&stack),
            count,
            bytes,
        });
    }
    Some(Ok(Profile { held, names }))
}

/// The numbers in the first fields of a message; 0 where there is none.
pub(crate) fn numbers(message: &[u8]) -> Option<[u64; 4]> {
    let mut found = [0; 4];
    fields(message, &mut |number, value, _| {
        if let Some(slot) = (number as usize)
            .checked_sub(1)
            .and_then(|at| found.get_mut(at))
        {
            *slot = value;
        }
        Some(())
    })?;
    Some(found)
}

/// The numbers of a repeated field: one, or several packed.
fn repeated(value: u64, bytes: &[u8], each: &mut dyn FnMut(u64) -> Option<()>) -> Option<()> {
    if bytes.is_empty() {
        return each(value);
    }
    let mut rest = bytes;
    while !rest.is_empty() {
        each(varint(&mut rest)?)?;
    }
    Some(())
}

/// Calls `each` with every field of a message: its number, its value (of a varint) and its bytes (of what has a length).
pub(crate) fn fields<'a>(
    message: &'a [u8],
    each: &mut dyn FnMut(u64, u64, &'a [u8]) -> Option<()>,
) -> Option<()> {
    let mut rest = message;
    while !rest.is_empty() {
        let tag = varint(&mut rest)?;
        let (mut value, mut bytes): (u64, &[u8]) = (0, &[]);
        match tag & 7 {
            0 => value = varint(&mut rest)?,
            1 => rest = rest.get(8..)?,
            2 => {
                let length = usize::try_from(varint(&mut rest)?).ok()?;
                (bytes, rest) = rest.split_at_checked(length)?;
            }
            5 => rest = rest.get(4..)?,
            _ => return None,
        }
        each(tag >> 3, value, bytes)?;
    }
    Some(())
}

fn varint(rest: &mut &[u8]) -> Option<u64> {
    let mut value = 0;
    for shift in (0..64).step_by(7) {
        let (&byte, after) = rest.split_first()?;
        *rest = after;
        value |= u64::from(byte & 0x7f) << shift;
        if byte < 0x80 {
            return Some(value);
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use std::io::Write as _;

    use proptest::prelude::*;

    use super::*;

    fn number(out: &mut Vec<u8>, mut value: u64) {
        while value >= 0x80 {
            out.push(value as u8 | 0x80);
            value >>= 7;
        }
        out.push(value as u8);
    }

    /// A message of fields with a length.
    fn message(fields: &[(u64, Vec<u8>)]) -> Vec<u8> {
        let mut out = Vec::new();
        for (field, bytes) in fields {
            number(&mut out, field << 3 | 2);
            number(&mut out, bytes.len() as u64);
            out.extend(bytes);
        }
        out
    }

    /// A message of numbers, in the fields from 1 on; zeros are left out, as writers do.
    fn of_numbers(values: &[u64]) -> Vec<u8> {
        let mut out = Vec::new();
        for (field, &value) in (1..).zip(values) {
            if value > 0 {
                number(&mut out, field << 3);
                number(&mut out, value);
            }
        }
        out
    }

    fn packed(values: &[u64]) -> Vec<u8> {
        let mut out = Vec::new();
        for &value in values {
            number(&mut out, value);
        }
        out
    }

    const STRINGS: [&str; 12] = [
        "",
        "allocations",
        "count",
        "space",
        "bytes",
        "kind",
        "buffer",
        "executable",
        "device",
        "cuda:0",
        "/u/job.py",
        "main",
    ];

    /// A profile as JAX writes it, of buffers of `job.py`: line, count, bytes.
    fn profile(types: &[[u64; 2]], held: &[(u64, u64, u64)]) -> Vec<u8> {
        let mut fields: Vec<_> = types.iter().map(|kind| (1, of_numbers(kind))).collect();
        for (at, &(_, count, bytes)) in (1..).zip(held) {
            let sample = [
                (1, packed(&[at])),
                (2, packed(&[count, bytes])),
                (3, of_numbers(&[5, 6])),
                (3, of_numbers(&[8, 9])),
            ];
            fields.push((2, message(&sample)));
        }
        for (at, &(line, ..)) in (1..).zip(held) {
            let mut location = of_numbers(&[at]);
            location.extend(message(&[(4, of_numbers(&[1, line]))]));
            fields.push((4, location));
        }
        fields.push((5, of_numbers(&[1, 11, 11, 10])));
        fields.extend(STRINGS.map(|text| (6, text.into())));
        message(&fields)
    }

    const MEMORY: [[u64; 2]; 2] = [[1, 2], [3, 4]];

    fn read_bytes(bytes: &[u8]) -> Result<Profile, Error> {
        assert!(bytes.is_empty() || looks_like(bytes) || bytes[0] != 0x0a);
        read_from(bytes, Path::new("memory.prof"))
    }

    #[test]
    fn buffers_have_the_line_that_made_them() {
        let bytes = profile(&MEMORY, &[(7, 3, 3 << 40), (9, 1, 512)]);
        let mut gz = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::new(6));
        gz.write_all(&bytes).unwrap();
        let packed = std::io::Cursor::new(gz.finish().unwrap());
        let (content, problems) = crate::read(packed, Path::new("memory.prof")).unwrap();
        let crate::Content::Profile(found) = content else {
            panic!("another kind");
        };
        assert_eq!(problems, []);
        let text = |id| found.names.strings.get(id);
        let held: Vec<_> = (found.held.iter())
            .map(|held| {
                let line = found.names.users_line(held.stack).unwrap();
                (
                    text(held.kind),
                    text(held.device),
                    line,
                    held.count,
                    held.bytes,
                )
            })
            .collect();
        let expected =
            |line: &str, count, bytes| ("buffer", "cuda:0", format!("job.py:{line}"), count, bytes);
        assert_eq!(held, [expected("7", 3, 3 << 40), expected("9", 1, 512)]);
    }

    #[test]
    fn nothing_held_is_a_profile_and_another_program_has_none() {
        assert_eq!(read_bytes(&profile(&MEMORY, &[])).unwrap().held, []);
        // Go's of its heap has four types, of its processor others; without a kind it is nobody's buffer.
        let four = [[1, 2], [3, 4], [1, 2], [3, 4]];
        let other = profile(&MEMORY, &[(7, 1, 1)]);
        let unnamed = String::from_utf8_lossy(&other).replace("kind", "type");
        for bytes in [
            profile(&four, &[]),
            profile(&[[3, 4]], &[]),
            unnamed.into_bytes(),
        ] {
            let said = read_bytes(&bytes).unwrap_err().to_string();
            assert!(said.contains("something else than JAX's memory"), "{said}");
        }
    }

    #[test]
    fn damage_is_said_in_one_line() {
        let whole = profile(&MEMORY, &[(7, 3, 3 << 40), (9, 1, 512)]);
        for cut in 5..whole.len() {
            // What is cut between two fields lacks the strings at its end.
            let said = read_bytes(&whole[..cut]).unwrap_err().to_string();
            assert!(
                said.contains("cut or damaged") && !said.contains('\n'),
                "{cut}: {said}"
            );
        }
    }

    proptest! {
        #[test]
        fn what_was_written_is_read(
            held in proptest::collection::vec((1..1_u64 << 31, 0..1_u64 << 62, 0..1_u64 << 62), 0..20),
        ) {
            let found = read_bytes(&profile(&MEMORY, &held)).unwrap();
            let read: Vec<_> = (found.held.iter())
                .map(|held| {
                    let frame = found.names.stacks.frames(held.stack).next().unwrap();
                    (u64::from(frame.line), held.count, held.bytes)
                })
                .collect();
            prop_assert_eq!(read, held);
        }

        #[test]
        fn changed_bytes_never_break_the_reader(
            changes in proptest::collection::vec((any::<usize>(), any::<u8>()), 1..9),
        ) {
            let mut bytes = profile(&MEMORY, &[(7, 3, 3 << 40), (9, 1, 512)]);
            for (at, value) in changes {
                let at = at % bytes.len();
                bytes[at] = value;
            }
            let _ = read_from(bytes.as_slice(), Path::new("x"));
        }

        #[test]
        fn random_bytes_never_break_the_reader(bytes in proptest::collection::vec(any::<u8>(), 0..400)) {
            let _ = read_from(bytes.as_slice(), Path::new("x"));
        }
    }
}
