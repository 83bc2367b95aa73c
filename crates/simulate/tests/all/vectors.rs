//! The worked examples in `vectors/clustering.json`: every policy on every trace, exactly.

use prepage_core::PageIndex;
use prepage_core::PageRange;
use prepage_core::policy::Policy;
use prepage_core::policy::choice::MOST_AHEAD;
use prepage_simulate::model::code_section;
use prepage_simulate::{Outcome, Replay, Touch};
use serde_json::Value;

const VECTORS: &str = include_str!("../vectors/clustering.json");

fn replay(policy: &str, vector: &Value, touches: &[u64]) -> Outcome {
    let options = &vector["options"];
    let number = |name: &str| options[name].as_u64();
    let most_ahead = number("maxra").map_or(MOST_AHEAD, |most| most as u32);
    let policy = Policy::parse(policy, most_ahead).unwrap();
    let mut replay = Replay::new();
    let object = replay.add_object(vector["object_pages"].as_u64().unwrap());
    for page in options["resident"].as_array().into_iter().flatten().filter_map(Value::as_u64) {
        replay.give(object, PageRange::new(PageIndex(page), PageIndex(page + 1)));
    }
    let entry = replay.add_entry(
        object,
        number("e_off").unwrap_or(0),
        number("e_pages").unwrap_or(prepage_simulate::pages::MOST_PAGES),
        policy,
    );
    touches.iter().for_each(|&page| replay.touch(Touch::new(entry, page)));
    replay.outcome()
}

#[test]
fn every_vector_is_exact() {
    let vectors: Value = serde_json::from_str(VECTORS).unwrap();
    let mut compared = 0;
    for (name, vector) in vectors.as_object().unwrap() {
        let touches: Vec<u64> = match name.as_str() {
            "CLANG1" => code_section(1),
            _ => vector["touches"].as_array().unwrap().iter().filter_map(Value::as_u64).collect(),
        };
        for (policy, expected) in vector["expect"].as_object().unwrap() {
            let outcome = replay(policy, vector, &touches);
            let found = serde_json::json!({
                "hard": outcome.hard, "soft": outcome.soft, "io": outcome.io, "read": outcome.read,
                "never": outcome.never, "pct": format!("{:.2}", outcome.never_percent()).parse::<f64>().unwrap(),
                "full512": outcome.full512,
            });
            assert_eq!(&found, expected, "{name} under {policy}");
            compared += 1;
        }
    }
    assert_eq!(compared, 88);
}

#[test]
fn the_published_change_of_clang_comes_out() {
    let sum = |policy: &str| {
        let seeds = [1, 2, 3].map(|seed| {
            let vector =
                serde_json::json!({"object_pages": prepage_simulate::model::CODE_PAGES, "options": {}});
            replay(policy, &vector, &code_section(seed))
        });
        let total = |count: fn(&Outcome) -> u64| seeds.iter().map(count).sum::<u64>();
        let never = 100.0 * total(|o| o.never) as f64 / total(|o| o.read) as f64;
        (seeds.each_ref().map(|o| o.hard), never, total(|o| o.full512))
    };
    let (fixed, fixed_never, fixed_full) = sum("around:8:7");
    let (aligned, aligned_never, aligned_full) = sum("aligned:16");
    assert_eq!((fixed, aligned), ([919, 903, 924], [679, 674, 675]));
    assert_eq!(format!("{fixed_never:.2} {aligned_never:.2}"), "30.59 33.85");
    assert_eq!((fixed_full, aligned_full), (0, 20));
}
