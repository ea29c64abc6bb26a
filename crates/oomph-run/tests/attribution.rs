//! Labels of a recorded run.

use std::path::Path;

use oomph_run::{Record, attribute};
use oomph_trace::{Action, Category};

/// Steps of less than two milliseconds (`TIED` of `tests/fit/test_plans.py`), in which a later temporary has the
/// address that a gradient was marked at: the marks are not its own.
#[test]
fn marks_stay_with_what_lived_at_their_time() {
    let place = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fixtures/run/close_steps");
    let record = {
        let path = place.join("record.json");
        Record::parse(&std::fs::read_to_string(&path).unwrap(), &path).unwrap()
    };
    let (mut trace, problems) = {
        let path = place.join("trace.oomph");
        oomph_trace::oomph_file::read(std::fs::File::open(&path).unwrap(), &path).unwrap()
    };
    assert!(problems.is_empty(), "{problems:?}");
    attribute(&mut trace, &record, 0);
    let labels = trace.labels.as_ref().unwrap();
    let gradients: Vec<u64> = (0..trace.events.len())
        .filter(|&row| trace.events.action(row) == Action::Alloc)
        .filter(|&row| labels.get(row).category == Category::Gradient)
        .map(|row| trace.events.size(row).0)
        .collect();
    // The word vectors', and those of a layer's weight and bias, in each of three steps.
    let expected = [30_000 * 512 * 4, 512 * 512 * 4, 512 * 4];
    for size in expected {
        assert_eq!(
            gradients.iter().filter(|&&found| found == size).count(),
            3,
            "{gradients:?}"
        );
    }
    assert_eq!(gradients.len(), 9, "{gradients:?}");
}
