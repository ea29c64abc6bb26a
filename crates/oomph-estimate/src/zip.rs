//! The directory of a zip archive, ZIP64 included: names, sizes and where each member's bytes are.

use std::io::{Read, Seek};

use crate::error::EstimateError;
use crate::input::Input;

const FORMAT: &str = "zip";
/// A checkpoint has one member per tensor.
const MAX_MEMBERS: u64 = 1 << 20;
/// The directory of that many members with long names.
const MAX_DIRECTORY: u64 = 256 << 20;
/// The end record and the longest comment.
const END_WINDOW: u64 = 22 + 65_535;

/// One member.
#[derive(Debug, Clone)]
pub(crate) struct Member {
    pub(crate) name: String,
    /// 0 stored, 8 deflated.
    pub(crate) method: u16,
    pub(crate) compressed: u64,
    pub(crate) uncompressed: u64,
    local_header: u64,
}

/// Reads the central directory.
pub(crate) fn members<R: Read + Seek>(input: &mut Input<R>) -> Result<Vec<Member>, EstimateError> {
    let (directory, size, count) = find_directory(input)?;
    if count > MAX_MEMBERS {
        return Err(EstimateError::Limit {
            format: FORMAT,
            what: "the number of members",
            value: count,
            limit: MAX_MEMBERS,
        });
    }
    input.seek(directory, "the zip directory")?;
    let bytes = input.bytes(size, MAX_DIRECTORY, FORMAT, "the zip directory")?;
    let mut rest = Slice {
        bytes: &bytes,
        offset: directory,
    };
    let mut members = Vec::new();
    for _ in 0..count {
        rest.expect(b"PK\x01\x02")?;
        rest.take(6)?;
        let method = rest.u16()?;
        rest.take(8)?;
        let mut compressed = u64::from(rest.u32()?);
        let mut uncompressed = u64::from(rest.u32()?);
        let name_length = usize::from(rest.u16()?);
        let extra_length = usize::from(rest.u16()?);
        let comment_length = usize::from(rest.u16()?);
        rest.take(8)?;
        let mut local_header = u64::from(rest.u32()?);
        let name = String::from_utf8_lossy(rest.take(name_length)?).into_owned();
        let mut extra = Slice {
            offset: rest.offset,
            bytes: rest.take(extra_length)?,
        };
        rest.take(comment_length)?;
        // ZIP64 puts those values that do not fit 32 bits into an extra field, in this order.
        while extra.bytes.len() >= 4 {
            let id = extra.u16()?;
            let length = usize::from(extra.u16()?);
            let mut field = Slice {
                offset: extra.offset,
                bytes: extra.take(length)?,
            };
            if id == 1 {
                for value in [&mut uncompressed, &mut compressed, &mut local_header] {
                    if *value == u64::from(u32::MAX) {
                        *value = field.u64()?;
                    }
                }
            }
        }
        members.push(Member {
            name,
            method,
            compressed,
            uncompressed,
            local_header,
        });
    }
    Ok(members)
}

/// Moves to the first byte of a member's data.
pub(crate) fn seek_to_data<R: Read + Seek>(
    input: &mut Input<R>,
    member: &Member,
) -> Result<(), EstimateError> {
    input.seek(member.local_header, "a zip member")?;
    let mut header = [0; 30];
    input.exact(&mut header, "a zip member's header")?;
    if &header[..4] != b"PK\x03\x04" {
        return Err(malformed(
            member.local_header,
            "a member's header",
            &header[..4],
        ));
    }
    let name = u64::from(u16::from_le_bytes([header[26], header[27]]));
    let extra = u64::from(u16::from_le_bytes([header[28], header[29]]));
    input.skip(name + extra, "a zip member's header")
}

/// Offset, size and number of entries of the central directory.
fn find_directory<R: Read + Seek>(input: &mut Input<R>) -> Result<(u64, u64, u64), EstimateError> {
    let window = END_WINDOW.min(input.length());
    let start = input.length() - window;
    input.seek(start, "the end of the archive")?;
    let tail = input.bytes(window, END_WINDOW, FORMAT, "the end of the archive")?;
    let Some(end) = tail.windows(4).rposition(|bytes| bytes == b"PK\x05\x06") else {
        return Err(EstimateError::Truncated {
            what: "a zip archive, whose directory stands at its end",
            length: input.length(),
        });
    };
    let end_offset = start + end as u64;
    let mut record = Slice {
        bytes: &tail[end..],
        offset: end_offset,
    };
    record.take(10)?;
    let count = u64::from(record.u16()?);
    let size = u64::from(record.u32()?);
    let directory = u64::from(record.u32()?);
    if count != u64::from(u16::MAX)
        && size != u64::from(u32::MAX)
        && directory != u64::from(u32::MAX)
    {
        return Ok((directory, size, count));
    }
    let Some(locator_offset) = end_offset.checked_sub(20) else {
        return Ok((directory, size, count));
    };
    input.seek(locator_offset, "the ZIP64 locator")?;
    let mut magic = [0; 4];
    input.exact(&mut magic, "the ZIP64 locator")?;
    if &magic != b"PK\x06\x07" {
        return Ok((directory, size, count));
    }
    input.skip(4, "the ZIP64 locator")?;
    let record_offset = input.u64("the ZIP64 locator")?;
    input.seek(record_offset, "the ZIP64 end record")?;
    let mut record = [0; 56];
    input.exact(&mut record, "the ZIP64 end record")?;
    let mut record = Slice {
        bytes: &record,
        offset: record_offset,
    };
    record.expect(b"PK\x06\x06")?;
    record.take(28)?;
    let count = record.u64()?;
    let size = record.u64()?;
    let directory = record.u64()?;
    Ok((directory, size, count))
}

fn malformed(offset: u64, expected: &str, found: &[u8]) -> EstimateError {
    EstimateError::Malformed {
        format: FORMAT,
        offset,
        expected: expected.to_owned(),
        found: crate::error::show(found),
    }
}

/// Bytes that shrink as they are read.
struct Slice<'a> {
    bytes: &'a [u8],
    offset: u64,
}

impl<'a> Slice<'a> {
    fn take(&mut self, count: usize) -> Result<&'a [u8], EstimateError> {
        match self.bytes.split_at_checked(count) {
            Some((taken, rest)) => {
                self.bytes = rest;
                self.offset += count as u64;
                Ok(taken)
            }
            None => Err(malformed(
                self.offset,
                "more of the zip directory",
                self.bytes,
            )),
        }
    }

    fn array<const N: usize>(&mut self) -> Result<[u8; N], EstimateError> {
        let mut array = [0; N];
        array.copy_from_slice(self.take(N)?);
        Ok(array)
    }

    fn u16(&mut self) -> Result<u16, EstimateError> {
        Ok(u16::from_le_bytes(self.array()?))
    }

    fn u32(&mut self) -> Result<u32, EstimateError> {
        Ok(u32::from_le_bytes(self.array()?))
    }

    fn u64(&mut self) -> Result<u64, EstimateError> {
        Ok(u64::from_le_bytes(self.array()?))
    }

    fn expect(&mut self, magic: &[u8]) -> Result<(), EstimateError> {
        let offset = self.offset;
        let found = self.take(magic.len())?;
        if found == magic {
            Ok(())
        } else {
            Err(malformed(offset, "an entry of the zip directory", found))
        }
    }
}
