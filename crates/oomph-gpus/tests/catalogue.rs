//! What must hold for every entry of the catalogue, and the exact figures of the measured one.

use std::collections::HashSet;

use oomph_gpus::{Class, Figure, SourceKind, catalogue, find};

/// cuDNN's own device properties of an H200, read from the device.
const H200_CUDNN: &str = include_str!("fixtures/h200_cudnn.json");

#[test]
fn there_are_many_and_their_ids_are_unique() {
    assert!(catalogue().len() >= 70, "{}", catalogue().len());
    let mut seen = HashSet::new();
    for gpu in catalogue() {
        assert!(seen.insert(&gpu.id), "{} stands twice", gpu.id);
        assert!(
            gpu.id
                .bytes()
                .all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-'),
            "{}",
            gpu.id
        );
        // The key=value and JSON exports write names as they are.
        assert!(
            gpu.name
                .bytes()
                .all(|b| (b' '..=b'~').contains(&b) && b != b'"' && b != b'\\'),
            "{}",
            gpu.name
        );
    }
}

#[test]
fn figures_are_plausible() {
    for gpu in catalogue() {
        let id = &gpu.id;
        let gib = gpu.memory.total_bytes as f64 / f64::from(1 << 30);
        let nominal = f64::from(gpu.memory.nominal_gib);
        assert!(
            gib <= nominal * 1.01 && gib >= nominal * 0.89,
            "{id}: {gib:.2} GiB of {nominal}"
        );
        if let Some(smi) = gpu.memory.smi_bytes {
            assert!(smi > gpu.memory.total_bytes, "{id}");
            assert!(smi as f64 <= nominal * 1.025 * f64::from(1 << 30), "{id}");
        }
        assert_eq!(gpu.memory.total_bytes % 4096, 0, "{id}: whole pages");
        let limits = gpu.limits;
        assert!(
            limits.shared_per_block <= limits.shared_per_block_optin,
            "{id}"
        );
        assert!(
            limits.shared_per_block_optin + limits.shared_reserved_per_block
                <= limits.shared_per_sm,
            "{id}"
        );
        assert!(limits.threads_per_block <= limits.threads_per_sm, "{id}");
        assert_eq!(limits.threads_per_sm % limits.warp_size, 0, "{id}");
        assert!((8..=200).contains(&gpu.sms), "{id}");
        assert!(gpu.l2_bytes >= 1 << 20 && gpu.l2_bytes <= 256 << 20, "{id}");
        let clocks = gpu.clocks;
        assert!(clocks.base_mhz <= clocks.boost_mhz, "{id}");
        assert!(clocks.boost_mhz <= clocks.driver_mhz, "{id}");
        assert!(clocks.driver_mhz < 3500, "{id}");
        // Datasheets round; the product of clock and width does not.
        let by_clock = 2e6 * f64::from(clocks.memory_mhz) * f64::from(clocks.bus_bits) / 8.0;
        assert!(
            (gpu.bandwidth_bytes_per_s / by_clock - 1.0).abs() < 0.03,
            "{id}: {} and {by_clock}",
            gpu.bandwidth_bytes_per_s
        );
        let rates = gpu.rates;
        let lanes =
            f64::from(gpu.sms * limits.cores_per_sm * 2) * f64::from(clocks.driver_mhz) * 1e6;
        assert!(
            rates.fp32 <= lanes * 1.02 && rates.fp32 >= lanes * 0.8,
            "{id}: fp32 {} of {lanes}",
            rates.fp32
        );
        for (slower, faster) in [
            (rates.tf32, rates.fp16),
            (rates.bf16, rates.fp16),
            (rates.fp16, rates.fp8),
        ] {
            if let (Some(slower), Some(faster)) = (slower, faster) {
                assert!(slower <= faster, "{id}");
            }
        }
        let (major, minor) = gpu.compute_capability;
        assert_eq!(
            rates.tf32.is_some(),
            major >= 8,
            "{id}: TF32 came with Ampere"
        );
        assert_eq!(
            rates.bf16.is_some(),
            major >= 8,
            "{id}: bf16 came with Ampere"
        );
        assert_eq!(
            rates.fp8.is_some(),
            (major, minor) >= (8, 9),
            "{id}: fp8 came with Ada"
        );
        assert!(gpu.link.host_bytes_per_s > 5e9, "{id}");
        let context = gpu.context.total_bytes();
        assert!(context > 30 << 20 && context < 1 << 30, "{id}: {context}");
        assert_eq!(gpu.usable_bytes(), gpu.memory.total_bytes - context, "{id}");
    }
}

#[test]
fn every_figure_says_where_it_comes_from() {
    for gpu in catalogue() {
        for figure in Figure::ALL {
            let source = gpu
                .source(figure)
                .unwrap_or_else(|| panic!("{} {figure}", gpu.id));
            assert!(
                source.note.len() >= 8,
                "{} {figure}: {}",
                gpu.id,
                source.note
            );
            if source.kind == SourceKind::Measured {
                assert!(
                    gpu.id == "h200" || figure == Figure::Limits,
                    "{} {figure}: only the H200 was measured",
                    gpu.id
                );
            }
        }
        assert_eq!(
            gpu.cost.usd_per_hour.is_some(),
            gpu.cost.as_of.is_some(),
            "{}: a price has a date",
            gpu.id
        );
        assert!(
            !(gpu.laptop && gpu.cost.rank_usd_per_hour().is_some()),
            "{}: laptop parts have no price of their own",
            gpu.id
        );
    }
}

#[test]
fn known_datasheet_rates_come_out_of_the_rule() {
    // id, fp32, fp16 with fp32 accumulation, int8; dense, 10^12 per second.
    for (id, fp32, fp16, int8) in [
        ("t4", 8.1, 65.0, 130.0),
        ("v100-16gb-sxm", 15.7, 125.0, 62.8),
        ("rtx-2080-ti", 13.4, 53.8, 215.2),
        ("a100-80gb-sxm", 19.5, 312.0, 624.0),
        ("rtx-3090", 35.6, 71.0, 284.0),
        ("rtx-a6000", 38.7, 154.8, 309.7),
        ("a10", 31.2, 125.0, 250.0),
        ("rtx-4090", 82.6, 165.2, 660.6),
        ("l4", 30.3, 121.0, 242.0),
        ("l40s", 91.6, 366.0, 733.0),
        ("rtx-5090", 104.8, 209.5, 838.0),
        ("rtx-pro-6000", 126.0, 503.8, 1007.6),
    ] {
        let rates = find(id).expect(id).rates;
        for (name, found, expected) in [
            ("fp32", Some(rates.fp32), fp32),
            ("fp16", rates.fp16, fp16),
            ("int8", rates.int8, int8),
        ] {
            let found = found.expect(name) / 1e12;
            assert!(
                (found / expected - 1.0).abs() < 0.02,
                "{id} {name}: {found:.1}, datasheet {expected}"
            );
        }
    }
}

#[test]
fn the_classes_are_right() {
    assert_eq!(find("h200").expect("h200").class, Class::DataCenter);
    assert_eq!(find("rtx-4090").expect("4090").class, Class::Geforce);
    assert_eq!(find("rtx-a6000").expect("a6000").class, Class::Workstation);
    for gpu in catalogue() {
        assert_eq!(gpu.laptop, gpu.id.ends_with("-laptop"), "{}", gpu.id);
    }
}

#[test]
fn the_h200_is_as_measured() {
    let gpu = find("h200").expect("h200");
    assert_eq!(gpu.memory.total_bytes, 150_109_880_320);
    assert_eq!(gpu.context.base_bytes, 552_402_944);
    // A GPU with as many resident threads has the same estimate.
    assert_eq!(find("h100-sxm").expect("h100").context, gpu.context);
    let parse = |text: &str| serde_json::from_str::<serde_json::Value>(text).expect("JSON");
    assert_eq!(parse(&gpu.cudnn_json()), parse(H200_CUDNN));
}

/// Memory in use less allocated less reserved-but-unallocated, in MiB, from OutOfMemoryErrors that
/// users published: the range of several jobs each. The estimate need not lie in it, but near.
#[test]
fn estimated_contexts_agree_with_what_users_saw() {
    for (id, low, high) in [
        ("t4", 114, 164),
        ("rtx-4060-laptop", 115, 134),
        ("rtx-3070", 179, 179),
        ("rtx-3090", 255, 315),
        ("rtx-a6000", 309, 348),
        ("rtx-4090", 461, 579),
        ("rtx-5090", 499, 499),
        ("a100-40gb-sxm", 422, 504),
        ("h100-sxm", 749, 749),
        ("b200", 712, 712),
    ] {
        let estimate = find(id).expect(id).context.total_bytes() >> 20;
        assert!(
            estimate * 4 >= low * 3 && estimate * 3 <= high * 4 + 20,
            "{id}: {estimate} MiB where users saw {low} to {high}"
        );
    }
}

#[test]
fn every_cudnn_json_has_the_same_keys() {
    let keys = |text: &str| {
        let value: serde_json::Value = serde_json::from_str(text).expect("JSON");
        let object = value.as_object().expect("object").clone();
        object.keys().cloned().collect::<Vec<_>>()
    };
    let expected = keys(H200_CUDNN);
    for gpu in catalogue() {
        assert_eq!(keys(&gpu.cudnn_json()), expected, "{}", gpu.id);
    }
    let small = find("4090").expect("4090").cudnn_json_with_memory(8 << 30);
    assert!(small.contains("\"totalGlobalMem\":8589934592"), "{small}");
}

#[test]
fn the_flat_text_is_flat() {
    for gpu in catalogue() {
        let text = gpu.to_key_values();
        assert!(text.starts_with("# ") && text.ends_with('\n'));
        let mut keys = HashSet::new();
        for line in text.lines().skip(1) {
            let (key, value) = line.split_once('=').expect(line);
            assert!(
                keys.insert(key.to_owned()),
                "{}: {key} stands twice",
                gpu.id
            );
            assert!(
                key.bytes().all(|b| b.is_ascii_lowercase()
                    || b.is_ascii_digit()
                    || b == b'_'
                    || b == b'.'),
                "{key}"
            );
            if !matches!(key, "id" | "name" | "cudnn_json") {
                value.parse::<u64>().expect(line);
            }
        }
    }
    let text = find("h200")
        .expect("h200")
        .to_key_values_with_memory(10 << 30);
    for line in [
        "name=NVIDIA H200",
        "memory.total_bytes=10737418240",
        "compute_capability.major=9",
        "compute_capability.minor=0",
        "sm_count=132",
        "shared_memory.per_block_optin_bytes=232448",
        "clock.sm_khz=1980000",
        "persisting_l2_bytes=39321600",
        "context.base_bytes=552402944",
    ] {
        assert!(text.lines().any(|found| found == line), "{line}\n{text}");
    }
}
