//! What one large request is, by numbers that the text tells: the sides of an array, tokens and a vocabulary.

use oomph_trace::text::{MessageKind, OomMessage};

use super::told;

/// Bytes of an element, the usual ones first.
const ELEMENTS: [u64; 4] = [4, 2, 8, 1];

/// The numbers of one line whose product is a request, to the byte: `4096 × 2048 × 2048 × 4 bytes`.
pub(super) fn of_a_line(message: &OomMessage) -> Option<String> {
    /// Fewer elements are a product of many numbers.
    const LEAST: u64 = 1 << 20;
    let asked = message
        .requested
        .filter(|_| message.kind != MessageKind::Killed)?
        .0;
    message.tables.told.numbers.iter().find_map(|(line, numbers)| {
        ELEMENTS.iter().find_map(|bytes| {
            let elements = (asked % bytes == 0).then_some(asked / bytes)?;
            let sides = factors(elements, numbers).filter(|_| elements >= LEAST)?;
            let sides: Vec<String> = sides.iter().map(u64::to_string).collect();
            Some(format!(
                "exactly an array of {} elements of {bytes} bytes, whose sides line {line} tells: a smaller one of them, or the work in parts \
                 along it, makes the request smaller by as much",
                sides.join(" × ")
            ))
        })
    })
}

/// Two or more of the numbers whose product is exactly that.
fn factors(product: u64, numbers: &[u64]) -> Option<Vec<u64>> {
    (1..1_u32 << numbers.len().min(8)).find_map(|set| {
        let chosen = numbers
            .iter()
            .enumerate()
            .filter(|(at, _)| set >> at & 1 == 1);
        let chosen: Vec<u64> = chosen.map(|(_, number)| *number).collect();
        let all = chosen
            .iter()
            .try_fold(1_u64, |all, side| all.checked_mul(*side));
        (chosen.len() > 1 && all == Some(product)).then_some(chosen)
    })
}

/// The tokens of a batch and the vocabulary that make a request of logits, where the text sets both sizes.
pub(super) fn of_logits(message: &OomMessage) -> Option<String> {
    /// The vocabularies of language models.
    const VOCABULARY: std::ops::RangeInclusive<u64> = 30_000..=270_000;
    let asked = message.requested?.0;
    let (batch, length) = told::sizes(message)?;
    let tokens = batch.checked_mul(length).filter(|tokens| *tokens > 0)?;
    ELEMENTS[..2].iter().find_map(|bytes| {
        let words = asked / tokens / bytes;
        VOCABULARY.contains(&words).then(|| {
            format!("as the text sets them, {batch} × {length} tokens by a vocabulary of about {words} entries, {bytes} bytes each")
        })
    })
}

#[cfg(test)]
mod tests {
    use super::factors;

    #[test]
    fn sides_make_a_product() {
        assert_eq!(
            factors(4096 * 2048 * 2048, &[4096, 2048, 2048]),
            Some(vec![4096, 2048, 2048])
        );
        assert_eq!(factors(640 * 300, &[7, 300, 99, 640]), Some(vec![300, 640]));
        assert_eq!(factors(4096, &[4096, 17]), None);
        assert_eq!(factors(12, &[5, 7]), None);
    }
}
