//! The few statistics a benchmark of start times needs.

use prepage_core::random::SplitMix;

/// Values of each kind from which an interval is given. Resampling two of them shows little more than which is the larger, and of one
/// nothing: it would be an interval without width.
const INTERVAL_VALUES_MIN: usize = 3;

/// A ratio with the interval that holds it with 95 % confidence.
#[derive(Clone, Copy, Debug, PartialEq, serde::Serialize)]
pub struct Estimate {
    /// Best estimate.
    #[serde(rename = "ratio")]
    pub value: f64,
    /// Lower end of the interval; `None` where there are too few values for one.
    #[serde(rename = "ratio_low")]
    pub low: Option<f64>,
    /// Upper end of the interval, known where `low` is.
    #[serde(rename = "ratio_high")]
    pub high: Option<f64>,
}

impl Estimate {
    /// The interval with so many `digits` as tables print it, `-` where there is none.
    pub fn interval(&self, digits: usize) -> String {
        match self.low.zip(self.high) {
            Some((low, high)) => format!("{low:.digits$} to {high:.digits$}"),
            None => "-".to_owned(),
        }
    }
}

/// The mean; NaN for no values.
pub fn mean(values: &[f64]) -> f64 {
    values.iter().sum::<f64>() / values.len() as f64
}

/// The standard deviation of a sample; 0 for fewer than two values.
pub fn standard_deviation(values: &[f64]) -> f64 {
    if values.len() < 2 {
        return 0.0;
    }
    let mean = mean(values);
    let squares = values.iter().map(|value| (value - mean).powi(2)).sum::<f64>();
    (squares / (values.len() - 1) as f64).sqrt()
}

/// The median; NaN for no values.
pub fn median(values: &[f64]) -> f64 {
    quantile(values, 0.5)
}

/// The median of values of which all are known; `None` where one is not, or there are none.
pub fn known_median(values: &[Option<f64>]) -> Option<f64> {
    let known: Option<Vec<f64>> = values.iter().copied().collect();
    known.filter(|known| !known.is_empty()).map(|known| median(&known))
}

/// The `q`-quantile (0 to 1), linear between neighbours; NaN for no values.
pub fn quantile(values: &[f64], q: f64) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    let Some(last) = sorted.len().checked_sub(1) else { return f64::NAN };
    let at = q * last as f64;
    let (below, above) = (sorted[at.floor() as usize], sorted[at.ceil() as usize]);
    below + (above - below) * at.fract()
}

/// The ratio of two medians, `values` ÷ `base`, with its percentile-bootstrap interval (Efron 1979) where there are three of each or more.
/// The same input gives the same interval: the resampling is seeded by a constant.
pub fn median_ratio(values: &[f64], base: &[f64]) -> Estimate {
    const RESAMPLES: usize = 2000;
    let value = median(values) / median(base);
    if values.len().min(base.len()) < INTERVAL_VALUES_MIN {
        return Estimate { value, low: None, high: None };
    }
    let mut random = SplitMix::new(0x5eed);
    let mut resample = |from: &[f64]| -> Vec<f64> {
        (0..from.len()).map(|_| from[random.below(from.len() as u64) as usize]).collect()
    };
    let ratios: Vec<f64> =
        (0..RESAMPLES).map(|_| median(&resample(values)) / median(&resample(base))).collect();
    Estimate { value, low: Some(quantile(&ratios, 0.025)), high: Some(quantile(&ratios, 0.975)) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantiles_lie_between_neighbours() {
        assert_eq!(median(&[3.0, 1.0, 2.0]), 2.0);
        assert_eq!(median(&[4.0, 1.0, 2.0, 3.0]), 2.5);
        assert_eq!(quantile(&[0.0, 10.0], 0.25), 2.5);
        assert!(median(&[]).is_nan());
        let known = [&[Some(1.0), Some(2.0)][..], &[Some(1.0), None], &[]].map(known_median);
        assert_eq!(known, [Some(1.5), None, None]);
        assert_eq!((mean(&[1.0, 3.0]), standard_deviation(&[1.0, 3.0, 5.0])), (2.0, 2.0));
        assert_eq!(standard_deviation(&[7.0]), 0.0);
    }

    #[test]
    fn the_interval_holds_the_ratio_and_narrows_with_agreement() {
        let noisy = median_ratio(&[40.0, 50.0, 60.0, 45.0, 55.0], &[100.0, 90.0, 110.0, 95.0, 105.0]);
        let (low, high) = noisy.low.zip(noisy.high).unwrap();
        assert!(low <= 0.5 && 0.5 <= high && noisy.value == 0.5 && low < high);
        let agreed = median_ratio(&[50.0; 5], &[100.0; 5]);
        assert_eq!((agreed.low, agreed.value, agreed.high), (Some(0.5), 0.5, Some(0.5)));
        assert_eq!(agreed.interval(2), "0.50 to 0.50");
    }

    #[test]
    fn of_fewer_than_three_values_there_is_no_interval() {
        for (values, base) in [(&[50.0; 2][..], &[100.0; 5][..]), (&[50.0; 5], &[100.0])] {
            let few = median_ratio(values, base);
            assert_eq!((few.value, few.low, few.high, &*few.interval(3)), (0.5, None, None, "-"));
        }
        assert!(median_ratio(&[1.0; 3], &[1.0; 3]).low.is_some());
    }
}
