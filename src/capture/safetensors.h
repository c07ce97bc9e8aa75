// SPDX-License-Identifier: Apache-2.0
// The container of a capture: the safetensors format, read as hostile input and written in one canonical way.
//
//   8 bytes N, little-endian | N bytes of JSON: {"name": {"dtype", "shape", "data_offsets": [begin, end)}, "__metadata__": {..}}
//   | data
//
// Knows names, element codes and byte ranges; does not know what a batch is (capture.cpp does).
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "quire/status.hpp"
#include "quire/tensor.hpp"

namespace quire::capture {

using Metadata = std::map<std::string, std::string>;

/// One tensor of a file. Bytes [begin, end) count from the end of the header.
struct Entry {
  std::string name;
  std::string code;  ///< code in the file, e.g. "F8_E4M3"
  std::array<std::int64_t, Tensor::kMaxRank> shape{};
  int rank = 0;
  std::uint64_t begin = 0;
  std::uint64_t end = 0;
};

struct Header {
  std::vector<Entry> entries;  ///< entries in the order of the file's header
  Metadata metadata;
  std::uint64_t data_start = 0;  ///< offset of the first data byte in the file
};

inline constexpr std::uint64_t kLengthBytes = 8;
inline constexpr std::uint64_t kMaxHeaderBytes = 100'000'000;  ///< the format's own limit
inline constexpr std::size_t kMaxTensors = 1024;               ///< limits work for a hostile header; a capture has about 20
// A capture needs some twenty keys, and at most a problem line of a million requests.
inline constexpr std::size_t kMaxMetadataKeys = 1024;
inline constexpr std::size_t kMaxMetadataBytes = std::size_t{16} << 20;  ///< limit for all keys and values together

/// Code used for a type when writing. The fnuz types are written as U8, which every reader opens.
std::string_view code_of(DType dtype) noexcept;
/// Type of a code; DType::none for U8, whose type the metadata must give; nullopt for codes that Quire does not know.
std::optional<DType> dtype_of_code(std::string_view code) noexcept;
/// "F32, F16, ...".
std::string known_codes();

/// Bytes of a contiguous tensor; nullopt if a dimension is negative or the product (zeros taken as ones) exceeds int64.
std::optional<std::int64_t> checked_bytes(const std::array<std::int64_t, Tensor::kMaxRank>& shape, int rank,
                                          std::int64_t itemsize);

/// The header length from the first 8 bytes of a file of `file_size` bytes.
Result<std::uint64_t> parse_header_length(std::span<const std::byte> prefix, std::uint64_t file_size);
/// Parses and checks the JSON of a file whose data part has `data_size` bytes: types, sizes, and that the tensors cover the
/// data part exactly, without overlap or hole.
Result<Header> parse_header(std::string_view json, std::uint64_t data_size);
/// Smallest data size that holds every tensor the header declares. Checks nothing else.
Result<std::uint64_t> announced_bytes(std::string_view json);
/// Length prefix and JSON, padded with blanks to a multiple of 8 bytes. Fails if a text is not UTF-8, or if
/// parse_header() would refuse the metadata.
Result<std::string> format_header(const std::vector<Entry>& entries, const Metadata& metadata);

}  // namespace quire::capture
