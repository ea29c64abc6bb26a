//! What must be true of every reading of a text, whatever the text: of fixtures, of parts of them, of a fuzzer's.

use oomph_explain::Explanation;

/// Every size that a text may have: its numbers in every unit, pages of 4 KiB among them, and those that a line may have wrapped.
fn sizes_of(text: &str) -> Vec<f64> {
    let mut sizes = Vec::new();
    let whole = text.replace('\n', "");
    let numbers = |text| {
        str::split(text, |c: char| {
            !c.is_ascii_digit() && !matches!(c, '.' | ',')
        })
    };
    for number in numbers(text).chain(numbers(&whole)) {
        for number in [number.replace(',', ""), number.replace(',', ".")] {
            if let Ok(number) = number.trim_end_matches('.').parse::<f64>() {
                sizes.extend(
                    [0, 10, 12, 20, 30, 40, 60].map(|unit| number * f64::from(unit).exp2()),
                );
            }
        }
    }
    sizes
}

/// Whether a figure stands in a text: itself, as the difference or the sum of two or three where the text is one of
/// those that are read so, or as the size of an array.
fn stands_in(text: &str, bytes: u64) -> bool {
    let sizes = sizes_of(text);
    let bytes = bytes as f64;
    let near = |size: f64| (size - bytes).abs() <= (bytes * 0.001).max(1.0);
    let has = |words: &[&str]| words.iter().any(|word| text.contains(word));
    let parts: Vec<f64> = sizes
        .iter()
        .copied()
        .filter(|size| *size >= 1.0 && *size <= bytes * 1.01)
        .collect();
    let sum = |one: f64| parts.iter().any(|other| near(one + other));
    let less = |size: &f64| sizes.iter().any(|less| near(size - less));
    sizes.iter().any(|size| near(*size))
        || has(&["shape", "dim {", "0x", "mem-per-cpu"])
        || (has(&["(total ", "private pools"]) && sizes.iter().any(less))
        || (has(&["-rss:"])
            && parts
                .iter()
                .any(|one| sum(*one) || parts.iter().any(|other| sum(one + other))))
}

/// What must be true of every reading of every text.
pub fn is_borne_by(text: &str, found: &Explanation) {
    let Some(message) = &found.message else {
        return;
    };
    let figures = [
        message.asked_bytes,
        message.total_bytes,
        message.free_bytes,
        message.in_use_bytes,
    ];
    let near = found.causes.iter().flat_map(|cause| &cause.evidence);
    let near = near
        .filter(|evidence| evidence.what.ends_with(" says") || evidence.what.ends_with("lists it"));
    for bytes in figures
        .into_iter()
        .chain(near.map(|evidence| evidence.bytes))
        .flatten()
    {
        assert!(
            stands_in(text, bytes),
            "{bytes} bytes stand nowhere in {text}"
        );
    }
    if let Some(device) = message.device {
        assert!(text.contains(&device.to_string()), "GPU {device}: {text}");
        assert_ne!(message.memory, "host", "{text}");
    }
    let steps: Vec<&str> = found
        .next
        .iter()
        .filter_map(|step| step.command.as_deref())
        .collect();
    let steps = steps.join(" ");
    for (command, marks) in [
        (
            "rocm-smi",
            &[
                "hip",
                "rocm",
                "amd",
                "radeon",
                "fault by gpu node",
                "vram total",
            ][..],
        ),
        ("npu-smi", &["npu", "ascend", "acl"]),
        ("xpu-smi", &["xpu", "sycl", "level"]),
    ] {
        let text = text.to_lowercase();
        assert!(
            !steps.contains(command) || marks.iter().any(|mark| text.contains(mark)),
            "{command}: {text}"
        );
    }
    assert!(!found.next.is_empty(), "{text}");
}
