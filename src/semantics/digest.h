// SPDX-License-Identifier: Apache-2.0
// A digest of 64 bits over bytes. Digests live as long as a process: no file holds one.
//
// Each word of 8 bytes goes through the finaliser of SplitMix64 (Steele, Lea, Flood 2014: "Fast splittable pseudorandom number
// generators"), which is a bijection: rows that differ in one word always have two digests. Other changes go unseen with a
// probability of 2^-64 each; among a million rows against a million rows, some two of unlike bytes are taken for alike with
// 2^-24.
#pragma once

#include <cstdint>
#include <cstring>

namespace quire::semantics {

class Digest {
 public:
  void add(const void* data, std::size_t size) noexcept {
    const auto* bytes = static_cast<const unsigned char*>(data);
    const std::size_t whole = size / sizeof(std::uint64_t) * sizeof(std::uint64_t);
    for (std::size_t i = 0; i < whole; i += sizeof(std::uint64_t)) mix(word(bytes + i, sizeof(std::uint64_t)));
    if (whole < size) mix(word(bytes + whole, size - whole));
    mix(size);  // a row that ends in zeros is not its shorter neighbour
  }
  /// Never 0, which may stand for "no digest".
  std::uint64_t value() const noexcept { return state_ == 0 ? 1 : state_; }

 private:
  static std::uint64_t word(const unsigned char* bytes, std::size_t size) noexcept {
    std::uint64_t value = 0;
    std::memcpy(&value, bytes, size);
    return value;
  }
  void mix(std::uint64_t value) noexcept {
    std::uint64_t z = (state_ ^ value) + 0x9E3779B97F4A7C15u;
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9u;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EBu;
    state_ = z ^ (z >> 31);
  }

  std::uint64_t state_ = 0;
};

}  // namespace quire::semantics
