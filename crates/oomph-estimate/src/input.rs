//! A bounded view of the file: every length that a file gives is checked before it is used.

use std::io::{self, BufRead, BufReader, Read, Seek, SeekFrom};

use crate::error::EstimateError;

/// Enough for a typical header in one read; skips beyond it seek.
const BUFFER: usize = 64 << 10;

/// A file, its length, and the read position.
pub(crate) struct Input<R> {
    reader: BufReader<R>,
    position: u64,
    length: u64,
}

impl<R: Read + Seek> Input<R> {
    pub(crate) fn new(mut reader: R) -> Result<Self, EstimateError> {
        let length = reader
            .seek(SeekFrom::End(0))
            .and_then(|length| reader.seek(SeekFrom::Start(0)).map(|_| length))
            .map_err(|source| EstimateError::Io { offset: 0, source })?;
        Ok(Self {
            reader: BufReader::with_capacity(BUFFER, reader),
            position: 0,
            length,
        })
    }

    pub(crate) fn position(&self) -> u64 {
        self.position
    }

    pub(crate) fn length(&self) -> u64 {
        self.length
    }

    pub(crate) fn remaining(&self) -> u64 {
        self.length.saturating_sub(self.position)
    }

    /// Up to 64 bytes from the start, without moving.
    pub(crate) fn peek_start(&mut self) -> Result<Vec<u8>, EstimateError> {
        let offset = self.position;
        let bytes = self
            .reader
            .fill_buf()
            .map_err(|source| EstimateError::Io { offset, source })?;
        Ok(bytes.iter().take(64).copied().collect())
    }

    pub(crate) fn exact(
        &mut self,
        buffer: &mut [u8],
        what: &'static str,
    ) -> Result<(), EstimateError> {
        self.reader.read_exact(buffer).map_err(|source| {
            if source.kind() == io::ErrorKind::UnexpectedEof {
                EstimateError::Truncated {
                    what,
                    length: self.length,
                }
            } else {
                EstimateError::Io {
                    offset: self.position,
                    source,
                }
            }
        })?;
        self.position += buffer.len() as u64;
        Ok(())
    }

    pub(crate) fn byte(&mut self, what: &'static str) -> Result<u8, EstimateError> {
        let mut buffer = [0];
        self.exact(&mut buffer, what)?;
        Ok(buffer[0])
    }

    pub(crate) fn u16(&mut self, what: &'static str) -> Result<u16, EstimateError> {
        let mut buffer = [0; 2];
        self.exact(&mut buffer, what)?;
        Ok(u16::from_le_bytes(buffer))
    }

    pub(crate) fn u32(&mut self, what: &'static str) -> Result<u32, EstimateError> {
        let mut buffer = [0; 4];
        self.exact(&mut buffer, what)?;
        Ok(u32::from_le_bytes(buffer))
    }

    pub(crate) fn u64(&mut self, what: &'static str) -> Result<u64, EstimateError> {
        let mut buffer = [0; 8];
        self.exact(&mut buffer, what)?;
        Ok(u64::from_le_bytes(buffer))
    }

    /// `count` bytes, at most `limit`. Nothing is allocated for bytes that the file lacks.
    pub(crate) fn bytes(
        &mut self,
        count: u64,
        limit: u64,
        format: &'static str,
        what: &'static str,
    ) -> Result<Vec<u8>, EstimateError> {
        if count > limit {
            return Err(EstimateError::Limit {
                format,
                what,
                value: count,
                limit,
            });
        }
        if count > self.remaining() {
            return Err(EstimateError::Truncated {
                what,
                length: self.length,
            });
        }
        let mut buffer = vec![0; count as usize];
        self.exact(&mut buffer, what)?;
        Ok(buffer)
    }

    /// Moves forward without reading what lies between.
    pub(crate) fn skip(&mut self, count: u64, what: &'static str) -> Result<(), EstimateError> {
        if count > self.remaining() {
            return Err(EstimateError::Truncated {
                what,
                length: self.length,
            });
        }
        let offset = self.position;
        // File positions fit an i64 on every system.
        self.reader
            .seek_relative(count as i64)
            .map_err(|source| EstimateError::Io { offset, source })?;
        self.position += count;
        Ok(())
    }

    pub(crate) fn seek(&mut self, offset: u64, what: &'static str) -> Result<(), EstimateError> {
        if offset > self.length {
            return Err(EstimateError::Truncated {
                what,
                length: self.length,
            });
        }
        self.reader
            .seek(SeekFrom::Start(offset))
            .map_err(|source| EstimateError::Io { offset, source })?;
        self.position = offset;
        Ok(())
    }
}
