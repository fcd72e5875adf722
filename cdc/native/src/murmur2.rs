//! A key's partition, as Kafka's own producers choose it. Specification: `cdc/kafka/murmur2.py`.

const SEED: u32 = 0x9747_b28c;
const FACTOR: u32 = 0x5bd1_e995;

/// Return the hash of a key.
pub fn murmur2(data: &[u8]) -> u32 {
    let mut found = SEED ^ data.len() as u32;
    let mut words = data.chunks_exact(4);
    for word in &mut words {
        let word = u32::from_le_bytes([word[0], word[1], word[2], word[3]]).wrapping_mul(FACTOR);
        let word = (word ^ (word >> 24)).wrapping_mul(FACTOR);
        found = found.wrapping_mul(FACTOR) ^ word;
    }
    let rest = words.remainder();
    if !rest.is_empty() {
        for (number, byte) in rest.iter().enumerate() {
            found ^= u32::from(*byte) << (8 * number);
        }
        found = found.wrapping_mul(FACTOR);
    }
    found = (found ^ (found >> 13)).wrapping_mul(FACTOR);
    found ^ (found >> 15)
}

/// Return the partition of messages with this key, given the number of partitions; 0 if there are none.
pub fn partition_of(key: &[u8], partition_count: u32) -> u32 {
    (murmur2(key) & 0x7fff_ffff)
        .checked_rem(partition_count)
        .unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hashes_are_those_of_kafkas_own_tests() {
        for (data, expected) in [
            ("21", -973_932_308),
            ("foobar", -790_332_482),
            ("a-little-bit-long-string", -985_981_536),
            ("a-little-bit-longer-string", -1_486_304_829),
            (
                "lkjh234lh9fiuh90y23oiuhsafujhadof229phr9h19h89h8",
                -58_897_971,
            ),
            ("abc", 479_470_107),
        ] {
            assert_eq!(murmur2(data.as_bytes()) as i32, expected, "{data}");
        }
        assert_eq!(partition_of(b"abc", 0), 0);
    }
}
