// SPDX-License-Identifier: Apache-2.0
// Reading and writing safetensors headers. Every check says where in the header it failed, what it found and what it expected.
#include "capture/safetensors.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <set>
#include <tuple>

#include "text/formatted.h"
#include "text/parse.h"

namespace quire::capture {
namespace {

using text::quote;

Status broken(std::string text) { return {Code::parse_error, "safetensors: " + std::move(text)}; }

struct CodeRow {
  std::string_view code;
  DType dtype;
  std::int64_t itemsize;
};
/// The first row of a type is the one that is written.
constexpr CodeRow kCodes[] = {
    {"F32", DType::f32, 4},
    {"F16", DType::f16, 2},
    {"BF16", DType::bf16, 2},
    {"F8_E4M3", DType::fp8_e4m3fn, 1},
    {"F8_E5M2", DType::fp8_e5m2, 1},
    {"I32", DType::i32, 4},
    {"I64", DType::i64, 8},
    {"BOOL", DType::u8, 1},
    {"I8", DType::i8, 1},
    {"U8", DType::none, 1},
    {"F8_E8M0", DType::fp8_e8m0, 1},
    {"F8_E4M3FNUZ", DType::fp8_e4m3fnuz, 1},
    {"F8_E5M2FNUZ", DType::fp8_e5m2fnuz, 1},
};

const CodeRow* find_code(std::string_view code) noexcept {
  for (const CodeRow& row : kCodes)
    if (row.code == code) return &row;
  return nullptr;
}

std::string too_many_keys() { return formatted("more than {} metadata keys", kMaxMetadataKeys); }
std::string too_much_metadata() { return formatted("more than {} bytes of metadata", kMaxMetadataBytes); }

/// A name is one line.
bool has_control(std::string_view key) {
  return std::any_of(key.begin(), key.end(), [](char c) { return static_cast<unsigned char>(c) < 0x20 || c == 0x7F; });
}

/// Builds a Header from parser events and stops at the first event that the format does not allow. Working on events rather
/// than on a tree is what makes duplicate keys visible and deep nesting harmless.
class HeaderEvents {
 public:
  Header header;
  Status status;

  bool null() { return unexpected("null"); }
  bool boolean(bool) { return unexpected("a boolean"); }
  bool number_integer(std::int64_t value) { return unexpected(formatted("{}", value)); }
  bool number_float(double, const std::string& text) { return unexpected(quote(text)); }
  bool binary(std::vector<std::uint8_t>&) { return unexpected("binary data"); }

  bool number_unsigned(std::uint64_t value) {
    if (level_ != Level::array || value > kLargest) return unexpected(formatted("{}", value));
    Entry& entry = header.entries.back();
    if (field_ == Field::data_offsets) {
      if (items_ < 2) (items_ == 0 ? entry.begin : entry.end) = value;
    } else {
      if (items_ >= Tensor::kMaxRank) return fail(formatted("more than {} dimensions", Tensor::kMaxRank));
      entry.shape[static_cast<std::size_t>(items_)] = static_cast<std::int64_t>(value);
      entry.rank = items_ + 1;
    }
    ++items_;
    return true;
  }

  bool string(std::string& text) {
    if (level_ == Level::metadata) {
      metadata_bytes_ += key_.size() + text.size();
      if (metadata_bytes_ > kMaxMetadataBytes) return fail(too_much_metadata());
      header.metadata[key_] = std::move(text);
      return true;
    }
    if (level_ != Level::tensor || field_ != Field::dtype) return unexpected(quote(text));
    header.entries.back().code = std::move(text);
    return true;
  }

  bool start_object(std::size_t) {
    if (level_ == Level::top) return level_ = Level::root, true;
    if (level_ != Level::root) return unexpected("an object");
    seen_.clear();
    if (name_ == kMetadataKey) return level_ = Level::metadata, true;
    if (header.entries.size() >= kMaxTensors) return fail(formatted("more than {} tensors", kMaxTensors));
    header.entries.emplace_back().name = name_;
    return level_ = Level::tensor, true;
  }

  bool key(std::string& text) {
    key_ = text;
    if (level_ == Level::root) name_ = text;
    if (!(level_ == Level::root ? names_ : seen_).insert(text).second) return fail("the key is given twice");
    if (level_ == Level::metadata && seen_.size() > kMaxMetadataKeys) return fail(too_many_keys());
    if (level_ == Level::metadata && has_control(text)) return fail("a key with a control character");
    if (level_ != Level::tensor) return true;
    if (text == "dtype") return field_ = Field::dtype, true;
    if (text == "shape") return field_ = Field::shape, true;
    if (text == "data_offsets") return field_ = Field::data_offsets, true;
    return fail("unknown field; expected dtype, shape and data_offsets");
  }

  bool start_array(std::size_t) {
    if (level_ != Level::tensor || field_ == Field::dtype) return unexpected("an array");
    items_ = 0;
    return level_ = Level::array, true;
  }

  bool end_array() {
    level_ = Level::tensor;
    if (field_ == Field::data_offsets && items_ != 2) return fail(formatted("{} numbers, expected [begin, end]", items_));
    return true;
  }

  bool end_object() {
    if (level_ == Level::tensor) {
      for (const char* field : {"dtype", "shape", "data_offsets"})
        if (seen_.count(field) == 0) return key_.clear(), fail(formatted("{} is missing", field));
    }
    level_ = level_ == Level::root ? Level::top : Level::root;
    key_.clear();
    return true;
  }

  template <typename Exception>
  bool parse_error(std::size_t position, const std::string&, const Exception& exception) {
    const std::string_view text = exception.what();
    const std::size_t colon = text.find(": ");
    status = broken(formatted("header is not valid JSON at byte {}: {}", position,
                              quote_tail(colon == text.npos ? text : text.substr(colon + 2))));
    return false;
  }

 private:
  enum class Level { top, root, tensor, metadata, array };
  enum class Field { dtype, shape, data_offsets };
  static constexpr std::string_view kMetadataKey = "__metadata__";
  static constexpr std::uint64_t kLargest = 0x7FFFFFFFFFFFFFFFu;

  /// The parser's explanation may repeat bytes of the file; only printable ones go on.
  static std::string quote_tail(std::string_view text) {
    std::string out;
    for (const char c : text.substr(0, 200)) out += c >= 0x20 && c < 0x7F ? c : '?';
    return out;
  }

  std::string where() const {
    if (level_ == Level::top) return "header";
    if (level_ == Level::root) return "header: " + quote(name_);
    if (level_ == Level::array) return formatted("tensor {}: {}[{}]", quote(name_), key_, items_);
    const std::string owner = level_ == Level::metadata ? std::string(kMetadataKey) : "tensor " + quote(name_);
    return key_.empty() ? owner : formatted("{}: {}", owner, quote(key_));
  }

  const char* expected() const {
    switch (level_) {
      case Level::top:
      case Level::root: return "an object";
      case Level::metadata: return "a string";
      case Level::array: return "an integer in [0, 2^63)";
      case Level::tensor: return field_ == Field::dtype ? "a string" : "an array of integers";
    }
    return "";
  }

  bool fail(std::string_view text) { return status = broken(formatted("{}: {}", where(), text)), false; }
  bool unexpected(std::string_view got) { return fail(formatted("expected {}, got {}", expected(), got)); }

  Level level_ = Level::top;
  Field field_ = Field::dtype;
  std::string name_, key_;
  std::set<std::string> names_, seen_;
  int items_ = 0;
  std::size_t metadata_bytes_ = 0;
};

Status check_metadata(const Metadata& metadata) {
  std::size_t bytes = 0;
  for (const auto& [key, value] : metadata) {
    bytes += key.size() + value.size();
    if (has_control(key))
      return {Code::invalid_argument, formatted("capture: note {}: a key with a control character", quote(key))};
  }
  if (metadata.size() > kMaxMetadataKeys) return {Code::invalid_argument, "capture: notes: " + too_many_keys()};
  if (bytes > kMaxMetadataBytes) return {Code::invalid_argument, "capture: notes: " + too_much_metadata()};
  return {};
}

std::string shape_text(const Entry& entry) {
  return formatted("{} [{}]", entry.code, fmt::join(entry.shape.begin(), entry.shape.begin() + entry.rank, ", "));
}

Status check_entry(const Entry& entry, std::uint64_t data_size) {
  const std::string where = "tensor " + quote(entry.name);
  const CodeRow* row = find_code(entry.code);
  if (row == nullptr) return broken(formatted("{}: dtype {}: expected one of {}", where, quote(entry.code), known_codes()));
  const auto bytes = checked_bytes(entry.shape, entry.rank, row->itemsize);
  if (!bytes) return broken(formatted("{}: {}: the size in bytes exceeds 2^63", where, shape_text(entry)));
  const std::string range = formatted("data_offsets [{}, {}]", entry.begin, entry.end);
  if (entry.begin > entry.end) return broken(formatted("{}: {}: begin is after end", where, range));
  if (entry.end > data_size) {
    return broken(formatted("{}: {}: outside the {} data bytes of the file (truncated?)", where, range, data_size));
  }
  if (entry.end - entry.begin != static_cast<std::uint64_t>(*bytes)) {
    return broken(
        formatted("{}: {}: expected {} bytes for {}, got {}", where, range, *bytes, shape_text(entry), entry.end - entry.begin));
  }
  return {};
}

/// The tensors must tile [0, data_size).
Status check_cover(const std::vector<Entry>& entries, std::uint64_t data_size) {
  std::vector<const Entry*> order;
  order.reserve(entries.size());
  for (const Entry& entry : entries) order.push_back(&entry);
  std::sort(order.begin(), order.end(), [](const Entry* a, const Entry* b) {
    return std::tie(a->begin, a->end, a->name) < std::tie(b->begin, b->end, b->name);
  });
  std::uint64_t covered = 0;
  std::string_view last = "the header";
  for (const Entry* entry : order) {
    if (entry->begin < covered) {
      return broken(formatted("tensor {} begins at data byte {}, inside tensor {}, which ends at {}", quote(entry->name),
                              entry->begin, quote(last), covered));
    }
    if (entry->begin > covered) {
      return broken(
          formatted("data bytes [{}, {}) before tensor {} belong to no tensor", covered, entry->begin, quote(entry->name)));
    }
    covered = entry->end;
    last = entry->name;
  }
  if (covered != data_size) return broken(formatted("the last {} data bytes belong to no tensor", data_size - covered));
  return {};
}

}  // namespace

std::string_view code_of(DType dtype) noexcept {
  if (dtype == DType::fp8_e4m3fnuz || dtype == DType::fp8_e5m2fnuz || dtype == DType::fp8_e8m0 || dtype == DType::fp8_ds_mla ||
      is_four_bit(dtype))
    return "U8";
  for (const CodeRow& row : kCodes)
    if (row.dtype == dtype && dtype != DType::none) return row.code;
  return {};
}

std::optional<DType> dtype_of_code(std::string_view code) noexcept {
  const CodeRow* row = find_code(code);
  return row == nullptr ? std::nullopt : std::optional(row->dtype);
}

std::string known_codes() {
  std::string text;
  for (const CodeRow& row : kCodes) text += formatted("{}{}", text.empty() ? "" : ", ", row.code);
  return text;
}

std::optional<std::int64_t> checked_bytes(const std::array<std::int64_t, Tensor::kMaxRank>& shape, int rank,
                                          std::int64_t itemsize) {
  std::int64_t product = itemsize;
  bool empty = false;
  for (int i = 0; i < rank; ++i) {
    if (shape[static_cast<std::size_t>(i)] < 0) return std::nullopt;
    empty = empty || shape[static_cast<std::size_t>(i)] == 0;
    // Zeros count as ones: strides are products too and must not overflow either.
    if (__builtin_mul_overflow(product, std::max<std::int64_t>(1, shape[static_cast<std::size_t>(i)]), &product))
      return std::nullopt;
  }
  return empty ? 0 : product;
}

Result<std::uint64_t> parse_header_length(std::span<const std::byte> prefix, std::uint64_t file_size) {
  if (prefix.size() < kLengthBytes) {
    return broken(formatted("the file has {} bytes, expected at least the 8 of the header length", prefix.size()));
  }
  std::uint64_t length = 0;
  for (std::size_t i = kLengthBytes; i-- > 0;) length = length << 8 | std::to_integer<std::uint64_t>(prefix[i]);
  if (length > kMaxHeaderBytes)
    return broken(formatted("header length {}: expected at most {}; this is not a safetensors file", length, kMaxHeaderBytes));
  if (length > file_size - kLengthBytes) {
    return broken(formatted("header length {}: the file has only {} bytes after the length (truncated?)", length,
                            file_size - kLengthBytes));
  }
  return length;
}

Result<Header> parse_header(std::string_view json, std::uint64_t data_size) {
  if (json.empty() || json.front() != '{') return broken("header: expected JSON that begins with {");
  HeaderEvents events;
  const bool ok = nlohmann::ordered_json::sax_parse(json.begin(), json.end(), &events);
  if (!events.status.ok()) return events.status;
  if (!ok) return broken("header: not valid JSON");
  for (const Entry& entry : events.header.entries)
    if (Status s = check_entry(entry, data_size); !s.ok()) return s;
  if (Status s = check_cover(events.header.entries, data_size); !s.ok()) return s;
  events.header.data_start = kLengthBytes + json.size();
  return std::move(events.header);
}

Result<std::uint64_t> announced_bytes(std::string_view json) {
  HeaderEvents events;
  static_cast<void>(nlohmann::ordered_json::sax_parse(json.begin(), json.end(), &events));
  if (!events.status.ok()) return events.status;
  std::uint64_t bytes = 0;
  for (const Entry& entry : events.header.entries) bytes = std::max(bytes, entry.end);
  return bytes;
}

Result<std::string> format_header(const std::vector<Entry>& entries, const Metadata& metadata) {
  if (Status s = check_metadata(metadata); !s.ok()) return s;
  nlohmann::ordered_json header = {{"__metadata__", metadata}};
  for (const Entry& entry : entries)
    header[entry.name] = {{"dtype", entry.code},
                          {"shape", std::vector(entry.shape.begin(), entry.shape.begin() + entry.rank)},
                          {"data_offsets", {entry.begin, entry.end}}};
  std::string json;
  try {
    json = header.dump();
  } catch (const nlohmann::ordered_json::type_error&) {
    return Status(Code::invalid_argument, "capture: a note or its key is not valid UTF-8");
  }
  json.append((8 - json.size() % 8) % 8, ' ');
  std::string bytes;
  for (std::uint64_t length = json.size(), i = 0; i < kLengthBytes; ++i, length >>= 8) bytes += static_cast<char>(length & 0xFF);
  return bytes + json;
}

}  // namespace quire::capture
