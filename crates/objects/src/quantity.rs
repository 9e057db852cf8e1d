//! Quantities of Kubernetes, such as `10Gi`, `1.5G`, `1e9` and `500m`.

/// The bytes of a quantity, rounded up; `None` if it is none, negative or too large.
pub fn bytes(text: &str) -> Option<u64> {
    let digits = text.find(|c: char| !c.is_ascii_digit() && c != '.');
    let (number, suffix) = text.split_at(digits.unwrap_or(text.len()));
    let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
    if whole.len() + fraction.len() > 24 || whole.is_empty() && fraction.is_empty() {
        return None;
    }
    let mantissa: u128 = format!("{whole}{fraction}").parse().ok()?;
    let (factor, divisor) = scale(suffix)?;
    let divisor = 10_u128
        .pow(u32::try_from(fraction.len()).ok()?)
        .checked_mul(divisor)?;
    let scaled = mantissa.checked_mul(factor)?;
    u64::try_from(scaled.div_ceil(divisor)).ok()
}

/// The factor and the divisor of a suffix.
fn scale(suffix: &str) -> Option<(u128, u128)> {
    const DECIMAL: [&str; 6] = ["k", "M", "G", "T", "P", "E"];
    const BINARY: [&str; 6] = ["Ki", "Mi", "Gi", "Ti", "Pi", "Ei"];
    let at = |all: &[&str; 6]| all.iter().position(|unit| *unit == suffix);
    let power = |base: u128, at: usize| Some(base.pow(u32::try_from(at).ok()? + 1));
    if let Some(at) = at(&DECIMAL) {
        return power(1000, at).map(|factor| (factor, 1));
    }
    if let Some(at) = at(&BINARY) {
        return power(1024, at).map(|factor| (factor, 1));
    }
    match suffix {
        "" => Some((1, 1)),
        "m" => Some((1, 1000)),
        "u" => Some((1, 1_000_000)),
        "n" => Some((1, 1_000_000_000)),
        _ => {
            let exponent = suffix.strip_prefix(['e', 'E'])?;
            let exponent: i32 = exponent.parse().ok()?;
            let power = 10_u128.checked_pow(exponent.unsigned_abs())?;
            Some(if exponent < 0 { (1, power) } else { (power, 1) })
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantities_are_bytes() {
        let cases = [
            ("0", Some(0)),
            ("123", Some(123)),
            ("10Gi", Some(10 << 30)),
            ("1.5Gi", Some(3 << 29)),
            (".5Ki", Some(512)),
            ("500M", Some(500_000_000)),
            ("1k", Some(1000)),
            ("1e9", Some(1_000_000_000)),
            ("1E3", Some(1000)),
            ("1E", Some(1_000_000_000_000_000_000)),
            ("12e-1", Some(2)),
            ("500m", Some(1)),
            ("1500m", Some(2)),
            ("1Ei", Some(1 << 60)),
            ("99Ei", None),
            ("", None),
            (".", None),
            ("-1", None),
            ("1K", None),
            ("1 Gi", None),
            ("1.2.3", None),
            ("Gi", None),
            ("99999999999999999999999999", None),
        ];
        for (text, expected) in cases {
            assert_eq!(bytes(text), expected, "{text}");
        }
    }
}
